"""Pictures of cameras: JPEGs that are whole, layouts of pixels, checksums, and memory for decoding."""

import hashlib
import io
import random
import re
import warnings
from types import SimpleNamespace

import cv2
import numpy as np
import pages
import pytest
import tifffile
from PIL import Image, ImageOps

from coe.core import Expert, FailureKind
from coe.errors import ConfigError, DamagedImage, ImageError, UnsupportedImage
from coe.learn import labelled
from coe.pictures import finding
from coe.pictures.decoding import decode
from coe.pictures.image_source import ImageSource
from coe.pictures.jpeg import Jpeg
from coe.runtime.trial import peak_growth_bytes

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
            with pytest.raises(DamagedImage):
                decode(data)
    assert len(places) > 20
    assert capfd.readouterr() == ("", "")


def without_scans(data):
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
    bare = PLAIN[:2] + PLAIN[PLAIN.index(b"\xff\xdb") :]
    red_green_blue = with_segment(0xEE, b"Adobe\0\x64\0\0\0\0\0", bare)
    with Image.open(io.BytesIO(red_green_blue)) as picture:
        expected = np.asarray(picture.convert("RGB"))
    assert (decode(red_green_blue) == expected).all()
    assert (decode(bare) == decode(PLAIN)).all()


SMALL = WHOLE["grey"][:300]
FAULTS = {
    "cut in a length": (PLAIN[:23], "truncated"),
    "cut before a mark": (PLAIN[:20], "truncated"),
    "cut in a table": (PLAIN[:300], "truncated"),
    "cut": (PLAIN[:-2], "truncated"),
    "too much fill": (PLAIN[:2] + 70_000 * b"\xff" + PLAIN[2:], "damaged"),
    "no picture": (PLAIN[:2] + b"\xff\xd9", "damaged"),
    "junk": (PLAIN.replace(b"\xff\xdb", 9 * b"junk" + b"\xff\xdb", 1), "damaged"),
    "junk behind a table": (PLAIN.replace(b"\xff\xc0", b"junk\xff\xc0", 1), "damaged"),
    "a small picture that is too long": (with_segment(0xE2, SMALL).replace(SMALL, SMALL + b"x", 1), "damaged"),
    "no mark": (PLAIN[:2] + b"\xff\0" + PLAIN[2:], "damaged"),
    "too many segments": (b"\xff\xd8" + 10_001 * segment(0xFE, b"") + PLAIN[2:], "damaged"),
    "a wrong table": (segment(0xC4, b"\0\xff").join(PLAIN.split(b"\xff\xc4", 1)), "damaged"),
    "odd steps": (saved("CMYK", subsampling="4:2:0"), "PNG"),
    # Behind the end of arithmetic codes a decoder reads zeros: a picture that was cut would pass.
    "arithmetic codes": (PLAIN.replace(b"\xff\xc0", b"\xff\xc9", 1), "arithmetic"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_sentence_fits_the_fault(fault):
    data, says = FAULTS[fault]
    with pytest.raises(UnsupportedImage if fault in ("odd steps", "arithmetic codes") else DamagedImage, match=says):
        decode(data)


def test_a_size_that_differs_from_the_header_is_refused_and_a_last_byte_may_be_zero_behind_fill():
    """Pillow reads the last header of a frame, libjpeg accepts only one."""
    data = PLAIN
    at = data.index(b"\xff\xc0")
    frame = bytearray(data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4])])
    frame[5:9] = (HEIGHT // 2).to_bytes(2) + (WIDTH // 2).to_bytes(2)
    with pytest.raises(ImageError):
        decode(data[:at] + frame + data[at:])
    unpadded = Jpeg(PLAIN[:-2] + b"\xff\0\0\0\xff\xd9").unpadded()
    assert unpadded.endswith(b"\xff\0\xff\xd9")


def test_a_cut_picture_is_refused_at_once(monkeypatch):
    """The search for padding holds the interpreter's lock, so only the fault that padding causes leads to it."""
    monkeypatch.setattr(Jpeg, "unpadded", lambda picture: pytest.fail("searched"))
    for data in (PLAIN[:3000], a_piece_is_lost(PLAIN, 3000)):
        with pytest.raises(ImageError):
            decode(data)


WIDTH_DECODING, HEIGHT_DECODING = 2600, 2400


def encoded(mode, form, turn=1):
    exif, out = Image.Exif(), io.BytesIO()
    exif[274] = turn
    colour = "grey" if mode.endswith("A") else 0  # of a transparent picture nothing would be visible
    Image.new(mode, (WIDTH_DECODING, HEIGHT_DECODING), colour).save(out, form, exif=exif)
    return out.getvalue()


def tiff(pixels, **options):
    out = io.BytesIO()
    options = {"rowsperstrip": 64, **options} if "tile" not in options else options
    tifffile.imwrite(out, pixels, photometric="rgb", metadata=None, **options)
    return out.getvalue()


PICTURES = {
    "colour": lambda: encoded("RGB", "PNG"),
    "alpha": lambda: encoded("RGBA", "PNG"),
    "grey with alpha": lambda: encoded("LA", "PNG"),
    "turned": lambda: encoded("RGB", "JPEG", turn=6),
    "four inks": lambda: encoded("CMYK", "JPEG"),
    "wide colours": lambda: tiff(np.full((HEIGHT_DECODING, WIDTH_DECODING, 3), 50_000, np.uint16)),
    "wide colours with alpha": lambda: tiff(np.full((HEIGHT_DECODING, WIDTH_DECODING, 4), 50_000, np.uint16)),
    "a compressed TIFF": lambda: tiff(
        np.full((HEIGHT_DECODING, WIDTH_DECODING, 3), 99, np.uint8), compression="zlib", rowsperstrip=64
    ),
    "tiles": lambda: tiff(np.full((HEIGHT_DECODING, WIDTH_DECODING, 3), 99, np.uint8), tile=(256, 256)),
    "an array with alpha": lambda: np.full((HEIGHT_DECODING, WIDTH_DECODING, 4), 99, np.uint8),
    "a grey array": lambda: np.zeros((HEIGHT_DECODING, WIDTH_DECODING), np.uint8),
}


@pytest.mark.serial
@pytest.mark.parametrize("name", PICTURES)
def test_decoding_takes_no_more_than_was_booked(name):
    source = ImageSource.of(PICTURES[name](), "BGR")
    # Another that is as small as may be: what is set up once is no part of it.
    ImageSource.of(np.full((50, 50, 4), 99, np.uint8), "BGR").decode()
    ImageSource.of(tiff(np.full((50, 50, 4), 99, np.uint8), compression="zlib"), "BGR").decode()
    grown = peak_growth_bytes(source.decode)
    assert grown < source.decoding_bytes() + 1.5 * WIDTH_DECODING * HEIGHT_DECODING


PAGE = pages.ROOT / "docs" / "cameras.md"
RED, GREEN, BLUE = (np.array(colour, np.uint8) for colour in ([250, 20, 10], [10, 240, 30], [20, 10, 230]))
GREY = np.arange(20 * 24, dtype=np.uint16).reshape(20, 24).astype(np.uint8)


@pytest.fixture(scope="module")
def page():
    names = {}
    for block in pages.blocks(PAGE):
        if block.language == "python" and block.reason is None and "def " in block.text:
            exec(compile(block.text, block.place, "exec", dont_inherit=True), names)
    return names


def mosaic(colour, pattern):
    """Return what a sensor with a pattern, as "RGGB", sees of one colour."""
    frame = np.empty((20, 24), np.uint8)
    for place, letter in enumerate(pattern):
        frame[place // 2 :: 2, place % 2 :: 2] = colour["RGB".index(letter)]
    return frame


def seen(frame, order=None):
    return ImageSource.of(frame, order).decode()


@pytest.mark.parametrize("colour", [RED, GREEN, BLUE], ids=["red", "green", "blue"])
@pytest.mark.parametrize(
    ("pixel_format", "pattern"),
    [("BayerRG8", "RGGB"), ("BayerGR8", "GRBG"), ("BayerGB8", "GBRG"), ("BayerBG8", "BGGR")],
)
def test_a_bayer_frame_has_the_colours_of_the_scene(page, pixel_format, pattern, colour):
    frame = mosaic(colour, pattern)
    grab = SimpleNamespace(GrabSucceeded=lambda: True, Array=frame)
    component = SimpleNamespace(data=frame.ravel(), width=24, height=20, data_format=pixel_format)
    buffer = SimpleNamespace(payload=SimpleNamespace(components=[component]))
    for image in (page["frame_of_pylon"](grab, pixel_format), page["frame_of_harvesters"](buffer)):
        np.testing.assert_array_equal(seen(image), np.broadcast_to(colour, (20, 24, 3)))


def test_unknown_bayer_formats_and_frames_that_are_not_whole_are_errors(page):
    component = SimpleNamespace(data=GREY.ravel(), width=24, height=20, data_format="BayerRG12")
    with pytest.raises(KeyError):
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=GREY), "BayerRG12")
    with pytest.raises(KeyError):
        page["frame_of_harvesters"](SimpleNamespace(payload=SimpleNamespace(components=[component])))
    with pytest.raises(OSError, match="incomplete frame"):
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: False, ErrorDescription="lost packets"), "Mono8")
    with pytest.raises(OSError, match="incomplete frame"):
        page["frame_of_vmbpy"](SimpleNamespace(get_status=lambda: -1), 0)
    with pytest.raises(OSError, match="no frame"):
        page["watch"](SimpleNamespace(read=lambda: (False, None)), None, 1)


def test_a_grey_frame_stays_as_it_is_also_of_12_bits(page):
    component = SimpleNamespace(data=GREY.ravel(), width=24, height=20, data_format="Mono8")
    vimba = SimpleNamespace(get_status=lambda: 0, as_numpy_ndarray=lambda: GREY[..., None])
    for image in (
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=GREY), "Mono8"),
        page["frame_of_vmbpy"](vimba, 0),
        page["frame_of_harvesters"](SimpleNamespace(payload=SimpleNamespace(components=[component]))),
    ):
        np.testing.assert_array_equal(seen(image), np.repeat(GREY[..., None], 3, 2))
    wide = (GREY.astype(np.uint16) << 4) + 9
    frame = page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=wide), "Mono12")
    np.testing.assert_array_equal(ImageSource.of(frame, bits=12).decode(), np.repeat(GREY[..., None], 3, 2))


NOISE_CHECKSUMS = cv2.GaussianBlur(np.random.default_rng(2).integers(0, 256, (240, 320, 3), np.uint8), (3, 3), 0)
EXPERT = Expert("e", "resnet18", ("ok", "bad"), 32, "b/e")


def damaged_unseen(whole):
    """A JPEG in which a bit was flipped, and of which no decoder knows it."""
    start = whole.index(b"\xff\xda") + 14
    for at in range(start, len(whole) - 66, 97):
        damaged = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        try:
            if (decode(damaged) != decode(whole)).any():
                return damaged
        except DamagedImage:
            continue
    raise AssertionError("each damage was found")


@pytest.fixture
def folder(tmp_path):
    """A table of two pictures, of which one was damaged after its checksum was taken."""
    whole = cv2.imencode(".jpg", NOISE_CHECKSUMS)[1].tobytes()
    (tmp_path / "a.jpg").write_bytes(whole)
    (tmp_path / "b.jpg").write_bytes(damaged_unseen(whole))
    checksum = hashlib.sha256(whole).hexdigest()
    rows = ["path,component,sha256", f"a.jpg,A,{checksum}", f"b.jpg,A,{checksum.upper()}"]
    (tmp_path / "images.csv").write_text("\n".join(rows))
    return tmp_path


def test_a_table_states_checksums(folder):
    decode(folder / "b.jpg")  # nothing else would find it
    (whole, damaged), _ = finding.find(folder, ["A"])
    assert decode(whole.file).shape == (240, 320, 3)
    with pytest.raises(DamagedImage, match="SHA-256"):
        decode(damaged.file)


def test_what_is_no_checksum_is_an_error_of_its_line_and_verified_pictures_have_them_too(folder):
    for stated in ("12ab", "g" * 64, "a" * 63, "sha256:" + "a" * 64):
        (folder / "images.csv").write_text(f"path,component,sha256\na.jpg,A,{stated}\nb.jpg,A,\n")
        (wrong, unsaid), _ = finding.find(folder, ["A"])
        assert (wrong.failure.kind, unsaid.failure) == (FailureKind.IMAGE, None)
        assert "images.csv:2: " in wrong.failure.reason
    checksum = hashlib.sha256((folder / "a.jpg").read_bytes()).hexdigest()
    (folder / "images.csv").write_text(f"path,expert,label,sha256\na.jpg,e,ok,{checksum}\nb.jpg,e,bad,{checksum}\n")
    whole, damaged = labelled.find(folder, {"e": EXPERT})
    decode(whole.file)
    with pytest.raises(DamagedImage):
        decode(damaged.file)
    (folder / "images.csv").write_text("path,expert,label,sha256\na.jpg,e,ok,12\n")
    with pytest.raises(ConfigError, match=r"images\.csv:2: '12'"):
        labelled.find(folder, {"e": EXPERT})
