"""A JPEG of which a part is missing or damaged is refused, whole ones give the pixels that Pillow gives."""

import io
import random
import re
import warnings

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from coe.errors import DamagedImage, ImageError, UnsupportedImage
from coe.pictures.decoding import decode

HEIGHT, WIDTH = 150, 200
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
PICTURE = Image.fromarray(cv2.GaussianBlur(NOISE, (5, 5), 0))


def saved(mode="RGB", picture=PICTURE, **options):
    data = io.BytesIO()
    picture.convert(mode).save(data, "JPEG", quality=90, **options)
    return data.getvalue()


def turned(turn):
    exif = Image.Exif()
    exif[274] = turn
    return saved(exif=exif)


PLAIN = saved()
WHOLE = {
    "as it comes": PLAIN,
    "colour in full": saved(subsampling="4:4:4"),
    "colour in half": saved(subsampling="4:2:2"),
    "colour in a quarter": saved(subsampling="4:2:0"),
    "progressive": saved(progressive=True),
    "restarts": saved(restart_marker_rows=1),
    "tables made for it": saved(optimize=True),
    "grey": saved("L"),
    "grey, progressive": saved("L", progressive=True),
    "four inks": saved("CMYK"),
    "a profile": saved(icc_profile=bytes(3000)),
    "bytes behind its end": PLAIN + b"written by a camera",
} | {f"turned, EXIF {turn}": turned(turn) for turn in range(1, 9)}


@pytest.mark.parametrize("name", WHOLE)
def test_the_pixels_are_those_of_pillow(name):
    with Image.open(io.BytesIO(WHOLE[name])) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    pixels = decode(WHOLE[name])
    assert (pixels == expected).all()
    assert (pixels.dtype, pixels.flags.c_contiguous, pixels.flags.writeable) == (np.uint8, True, True)


def scan_of(data):
    """Where the pixels of the first scan begin."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


def a_piece_is_lost(data, at):
    return data[:at] + data[at + 700 :]


@pytest.mark.parametrize("name", ["as it comes", "colour in full", "progressive", "restarts", "grey", "four inks"])
def test_a_jpeg_that_lost_a_piece_or_the_rest_is_refused(name, capfd):
    """Pillow and OpenCV decode nearly all of these, with parts that are grey or lie elsewhere, and say nothing."""
    whole = WHOLE[name]
    start = scan_of(whole)
    places = range(start, len(whole) - 702, (len(whole) - start) // 30)
    for at in places:
        for data in (a_piece_is_lost(whole, at), whole[:at] + b"\xff\xd9"):
            with pytest.raises(ImageError, match="is damaged: its bytes do not add up to a picture"):
                decode(data)
    assert len(places) > 20
    assert capfd.readouterr() == ("", "")


def without_scans(data):
    """A progressive JPEG without each of its scans, and without all behind each."""
    starts = [found.start() for found in re.finditer(rb"\xff\xda", data)]
    # The codes of a scan stand in front of it, if it has any.
    ends = [
        data.find(b"\xff\xc4", start, behind) if b"\xff\xc4" in data[start:behind] else behind
        for start, behind in zip(starts, [*starts[1:], len(data) - 2], strict=True)
    ]
    cut = [data[:end] + b"\xff\xd9" for end in ends[:-1]]
    return cut + [data[:start] + data[end:] for start, end in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("name", ["progressive", "grey, progressive"])
def test_a_progressive_jpeg_without_a_scan_is_refused(name):
    """libjpeg warns of nothing: the picture is blurred, or lacks its colours."""
    lacking = without_scans(WHOLE[name])
    assert len(lacking) > 10
    for data in lacking:
        with pytest.raises(DamagedImage):
            decode(data)


def scan_by_scan():
    """The header of a JPEG whose three components lie in scans of their own, and the scans."""
    bands = [saved("L", band) for band in PICTURE.convert("YCbCr").split()]
    start = scan_of(bands[0])
    frame = bands[0].index(b"\xff\xc0")
    sides = bands[0][frame + 5 : frame + 9]
    head = bands[0][:frame] + segment(0xC0, b"\x08" + sides + b"\3\1\x11\0\2\x11\0\3\x11\0")
    tables = bands[0][frame + 13 : bands[0].index(b"\xff\xda")]
    scans = [
        segment(0xDA, b"\1" + name + b"\0\0\x3f\0") + band[start:-2]
        for name, band in zip((b"\1", b"\2", b"\3"), bands, strict=True)
    ]
    return head + tables, scans


def test_a_jpeg_of_a_scan_for_each_colour_needs_all_of_them():
    head, (light, blue, red) = scan_by_scan()
    whole = decode(head + light + blue + red + b"\xff\xd9")
    assert np.abs(whole.astype(int) - np.asarray(PICTURE)).mean() < 4
    assert (decode(head + red + blue + light + b"\xff\xd9") == whole).all()
    for scans in (light, light + blue, blue + red, light + light + light):
        with pytest.raises(DamagedImage):
            decode(head + scans + b"\xff\xd9")
        with pytest.raises(DamagedImage):
            decode(head + scans)


def is_refused(data):
    try:
        decode(data)
    except ImageError:
        return True
    return False


def test_damage_that_keeps_the_length_is_mostly_found():
    """A JPEG has no checksum: behind wrong bytes the codes fall into step again, and sometimes their number fits."""
    whole, rng = WHOLE["colour in full"], random.Random(0)
    start, pieces, flips = scan_of(whole), 0, 0
    for _ in range(200):
        at = rng.randrange(start, len(whole) - 702)
        pieces += is_refused(whole[:at] + rng.randbytes(700) + whole[at + 700 :])
        flipped = bytearray(whole)
        for _ in range(30):
            flipped[rng.randrange(start, len(whole) - 2)] ^= 1 << rng.randrange(8)
        flips += is_refused(bytes(flipped))
    assert min(pieces, flips) > 180


def segment(mark, body):
    return bytes([0xFF, mark]) + (len(body) + 2).to_bytes(2) + body


def with_segment(mark, body, data=PLAIN):
    return data[:2] + segment(mark, body) + data[2:]


def with_scan_of(first, last):
    data = bytearray(PLAIN)
    at = scan_of(bytes(data))
    assert (data[at - 3], data[at - 2]) == (0, 63)
    data[at - 3], data[at - 2] = first, last
    return bytes(data)


def with_zeros_before(marks, count):
    data = WHOLE["restarts"]
    start = scan_of(data)
    return data[:start] + re.sub(rb"(?=\xff[" + marks + rb"])", bytes(count), data[start:])


def with_version(version):
    data = PLAIN
    assert data[6:11] == b"JFIF\0"
    return data[:11] + version + data[13:]


ODD = {
    "zeros before the end": with_zeros_before(rb"\xd9", 3),
    "zeros before restarts": with_zeros_before(rb"\xd0-\xd7", 1),
    "zeros behind a segment": with_segment(0xE5, b"a camera").replace(b"a camera", b"a camera\0\0\0"),
    "a comment that is longer than it says": with_segment(0xFE, b"a camera").replace(b"a camera", b"a camera?>"),
    "an Adobe code cut short": with_segment(0xEE, b"Adobe\0\x64\x40\0\0\0"),
    "XMP that is longer than it says": with_segment(0xE1, b"http://ns").replace(b"//ns", b"//ns.adobe.com/xap"),
    "a version that never was": with_version(b"\0\2"),
    "a version to come": with_version(b"\2\0"),
    "a scan of no frequency": with_scan_of(0, 0),
    "a scan without the last": with_scan_of(0, 62),
    "a part of a profile": with_segment(0xE2, b"ICC_PROFILE\0\1\3" + bytes(500)),
    "a profile in no parts": with_segment(0xE2, b"ICC_PROFILE\0\0\0" + bytes(500)),
    "an empty profile": with_segment(0xE2, b"ICC_PROFILE\0\1\1"),
    "an Adobe code of nothing": with_segment(0xEE, b"Adobe\0\x64\0\0\0\0\5"),
    "EXIF that is noise": with_segment(0xE1, b"Exif\0\0" + random.Random(0).randbytes(300)),
    "EXIF in hundreds of parts": PLAIN[:2] + 500 * segment(0xE1, b"Exif\0\0x") + PLAIN[2:],
    "a resource that ends early": with_segment(0xED, b"Photoshop 3.0\x008BIM\x03\xed"),
    "a long comment": with_segment(0xFE, bytes(65_000)),
    "much behind the end": PLAIN + 100_000 * b"\1\0\xff\xd9",
    "zeros before the end, much behind it": with_zeros_before(rb"\xd9", 3) + 100_000 * b"\1\0\xff\xd9",
    "fill before a mark": PLAIN[:2] + b"\xff\xff\xff" + PLAIN[2:],
}


@pytest.mark.parametrize("name", ODD)
def test_what_no_pixel_depends_on_may_be_odd(name, capfd):
    """Telephones, webcams and scanners write such files; libjpeg warns of most of them."""
    whole = WHOLE["restarts" if "zeros before" in name else "as it comes"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (decode(ODD[name]) == decode(whole)).all()
    assert capfd.readouterr() == ("", "")


def test_the_codes_of_colours_are_kept():
    """Without the segment that says so, red, green and blue would be taken for brightness and two colours."""
    at = PLAIN.index(b"\xff\xdb")
    bare = PLAIN[:2] + PLAIN[at:]
    red_green_blue = with_segment(0xEE, b"Adobe\0\x64\0\0\0\0\0", bare)
    with Image.open(io.BytesIO(red_green_blue)) as picture:
        expected = np.asarray(picture.convert("RGB"))
    assert (decode(red_green_blue) == expected).all()
    assert (decode(bare) == decode(PLAIN)).all()


FAULTS = {
    "cut in a length": (PLAIN[:23], "is truncated"),
    "cut before a mark": (PLAIN[:20], "is truncated"),
    "cut in a table": (PLAIN[:300], "is truncated"),
    "cut": (PLAIN[:-2], "is truncated"),
    "too much fill": (PLAIN[:2] + 70_000 * b"\xff" + PLAIN[2:], "is damaged"),
    "no picture": (PLAIN[:2] + b"\xff\xd9", "is damaged"),
    "junk": (PLAIN.replace(b"\xff\xdb", 9 * b"junk" + b"\xff\xdb", 1), "is damaged"),
    "junk behind a table": (PLAIN.replace(b"\xff\xc0", b"junk\xff\xc0", 1), "is damaged"),
    "a small picture that is longer than it says": (
        with_segment(0xE2, WHOLE["grey"][:300]).replace(WHOLE["grey"][:300], WHOLE["grey"][:300] + b"x", 1),
        "is damaged",
    ),
    "no mark": (PLAIN[:2] + b"\xff\0" + PLAIN[2:], "is damaged"),
    "too many segments": (b"\xff\xd8" + 10_001 * segment(0xFE, b"") + PLAIN[2:], "is damaged"),
    "a wrong table": (segment(0xC4, b"\0\xff").join(PLAIN.split(b"\xff\xc4", 1)), "is damaged"),
    "odd steps": (saved("CMYK", subsampling="4:2:0"), "not supported; save it as PNG"),
    # Behind the end of arithmetic codes a decoder reads zeros: a picture that was cut would pass.
    "arithmetic codes": (PLAIN.replace(b"\xff\xc0", b"\xff\xc9", 1), "arithmetic"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sentence_fits_the_fault(fault):
    data, says = FAULTS[fault]
    with pytest.raises(UnsupportedImage if fault in ("odd steps", "arithmetic codes") else DamagedImage, match=says):
        decode(data)


def test_a_size_that_differs_from_that_of_the_header_is_refused():
    """Pillow reads the last header of a frame, libjpeg accepts only one."""
    data = PLAIN
    at = data.index(b"\xff\xc0")
    frame = bytearray(data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4])])
    frame[5:9] = (HEIGHT // 2).to_bytes(2) + (WIDTH // 2).to_bytes(2)
    with pytest.raises(ImageError):
        decode(data[:at] + frame + data[at:])


def test_a_last_byte_of_the_picture_may_be_zero_behind_fill():
    """0xFF, 0 is a byte of the picture; zeros that follow are not."""
    from coe.pictures.jpeg import Jpeg

    picture = Jpeg(PLAIN[:-2] + b"\xff\0\0\0\xff\xd9")
    unpadded = picture.unpadded()
    assert unpadded.endswith(b"\xff\0\xff\xd9")


def test_a_cut_picture_is_refused_at_once(monkeypatch):
    """The search for padding holds the interpreter's lock, so only the fault that padding causes leads to it."""
    from coe.pictures import jpeg

    monkeypatch.setattr(jpeg.Jpeg, "unpadded", lambda picture: pytest.fail("searched"))
    for data in (PLAIN[:3000], a_piece_is_lost(PLAIN, 3000)):
        with pytest.raises(ImageError):
            decode(data)
