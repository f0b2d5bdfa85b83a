"""Whatever the bytes are, `decode` gives the whole picture or an ImageError."""

import io
import os
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from thorough import THOROUGH

from coe.errors import ImageError, UnsupportedImage
from coe.pictures import decoding
from coe.pictures.decoding import decode
from coe.pictures.exif import SeenSize, seen_size
from coe.pictures.formats import pixels_in
from coe.pictures.image_source import ImageSource
from coe.pictures.jpeg import plain

HEIGHT, WIDTH = 19, 26
RGB = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
SMOOTH = cv2.GaussianBlur(RGB, (7, 7), 0)
WIDE = RGB.astype(np.uint16) * 257


def saved(picture, form, **options):
    data = io.BytesIO()
    picture.save(data, form, **options)
    return data.getvalue()


def encode(form, mode="RGB", **options):
    return saved(Image.fromarray(SMOOTH).convert(mode), form, **options)


def by_opencv(extension, pixels):
    return bytes(cv2.imencode(extension, pixels)[1].tobytes())


FILES = {
    "jpeg": encode("JPEG"),
    "jpeg progressive": encode("JPEG", progressive=True),
    "jpeg grey": encode("JPEG", "L"),
    "jpeg cmyk": encode("JPEG", "CMYK"),
    "png": encode("PNG"),
    "png palette": encode("PNG", "P"),
    "png alpha": encode("PNG", "RGBA"),
    "png bilevel": encode("PNG", "1"),
    "png 16-bit": by_opencv(".png", WIDE),
    "png 16-bit grey": by_opencv(".png", WIDE[..., 0]),
    "bmp": encode("BMP"),
    "bmp palette": encode("BMP", "P"),
    "bmp bilevel": encode("BMP", "1"),
    "tiff": encode("TIFF"),
    "tiff palette": encode("TIFF", "P"),
    "tiff bilevel": encode("TIFF", "1", compression="group4"),
    "tiff packbits": encode("TIFF", compression="packbits"),
    "tiff lzw": encode("TIFF", compression="tiff_lzw"),
    "tiff deflate": encode("TIFF", compression="tiff_deflate"),
    "tiff 16-bit": by_opencv(".tiff", WIDE),
    "tiff 16-bit grey": by_opencv(".tiff", WIDE[..., 0]),
}
QUIET = [name for name in FILES if not name.startswith("tiff ") or name == "tiff palette"]
"""libtiff itself writes to stderr about damaged compressed data; flips leave those out to keep the output clean."""


@pytest.fixture(params=sorted(FILES))
def file(request):
    return FILES[request.param]


def test_every_format_gives_rgb_bytes_and_every_truncation_is_an_error(file, capfd):
    pixels = decode(file)
    assert (pixels.shape, pixels.dtype) == ((HEIGHT, WIDTH, 3), np.uint8)
    assert pixels.flags.c_contiguous
    assert pixels.flags.writeable
    for end in range(0, len(file), 1 if len(file) < 1500 else 7):
        with pytest.raises(ImageError):
            decode(file[:end])
    for cut in range(1, 40):
        with pytest.raises(ImageError):
            decode(file[:-cut])
    assert capfd.readouterr() == ("", "")


@settings(max_examples=80 * THOROUGH, deadline=None)
@given(
    st.sampled_from(QUIET),
    st.integers(0, 10_000),
    st.lists(
        st.tuples(st.one_of(st.integers(0, 120), st.integers(0, 10_000)), st.integers(1, 255)), min_size=1, max_size=6
    ),
)
def test_damage_gives_a_picture_or_an_image_error(name, keep, flips):
    data = bytearray(FILES[name][: 8 + keep])
    for at, bits in flips:
        data[at % len(data)] ^= bits
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            pixels = decode(bytes(data), limit_pixels=1_000_000)
        except ImageError as error:
            cause = error.__cause__
        else:
            cause = None
            assert (pixels.ndim, pixels.shape[2], pixels.dtype) == (3, 3, np.uint8)
    assert not isinstance(cause, Warning)  # it would have been shown to the user instead


@given(
    st.binary(max_size=200), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"II*\0", b"MM\0+"])
)
def test_noise_is_an_image_error(noise, magic):
    with pytest.raises(ImageError):
        decode(magic + noise)


@pytest.mark.parametrize("tag", [256, 257, 258, 259, 262, 273, 277, 278, 279])
@pytest.mark.parametrize("kind", [0, 2, 5, 6, 8, 9, 11, 77])
def test_a_tiff_whose_tag_has_another_type_gives_its_pixels_or_is_refused(tag, kind):
    """tifffile passes over a tag of an unknown type, and takes what is usual for it."""
    data = bytearray(tiff("<", 1, 16, 1, GREY16.tobytes()))
    whole = decode(bytes(data))
    struct.pack_into("<H", data, data.index(struct.pack("<HHI", tag, 4, 1)) + 2, kind)
    with suppress(ImageError):
        assert (decode(bytes(data)) == whole).all()


@pytest.mark.parametrize("change", [lambda entry: bytes(12), lambda entry: entry[:2] + b"\x4d" + entry[3:]])
def test_a_tiff_that_lost_a_tag_is_refused(change):
    """Without its predictor, a picture is one of differences; tifffile would pass over what stands there."""
    predictor = struct.pack("<HHII", 317, 3, 1, 2)
    data = tiff("<", 1, 16, 1, GREY16.tobytes(), predictor)
    assert not (decode(data)[..., 0] == GREY16 >> 8).all()
    with pytest.raises(ImageError):
        decode(data.replace(predictor, change(predictor)))
    with pytest.raises(ImageError):
        decode(tiff("<", 1, 16, 1, GREY16.tobytes(), predictor + predictor))


def changed(form, at, code, *values):
    data = bytearray(encode(form))
    struct.pack_into(code, data, at, *values)
    return bytes(data)


def png_chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def bomb_png(side):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(bytes(100))) + png_chunk(b"IEND", b"")


FOREIGN = "JPEG, PNG, BMP or TIFF"
BOMB = r"\b(100|89\.\d+) mega"
PNG, JPEG = FILES["png"], FILES["jpeg"]
WIDE_TIFF = encode("TIFF").replace(struct.pack("<HHII", 256, 4, 1, WIDTH), struct.pack("<HHII", 256, 4, 1, 10**8))
REFUSED = {
    "empty": (b"", "is empty"),
    "html": (b"<html>404</html>", FOREIGN),
    "gif": (b"GIF89a" + bytes(50), FOREIGN),
    "cut": (PNG[:-5], "truncated"),
    "flipped bit": (changed("PNG", len(PNG) // 2, "B", PNG[len(PNG) // 2] ^ 4), "damaged"),
    "bomb png": (bomb_png(40_000), BOMB),
    "bomb of 2^62 pixels": (bomb_png(2**31 - 1), BOMB),
    "bomb bmp": (changed("BMP", 18, "<ii", 40_000, 40_000), BOMB),
    "bomb jpeg": (changed("JPEG", JPEG.index(b"\xff\xc0") + 5, ">HH", 40_000, 40_000), BOMB),
    "bomb tiff": (WIDE_TIFF, BOMB),
}
for number in (4, 5, 6, 11):
    REFUSED[f"bmp of compression {number}"] = changed("BMP", 30, "<I", number), "PNG"
for form in ("PNG", "JPEG", "BMP", "TIFF"):
    for size in ((1, 1), (7, 100), (100, 7)):
        says = f"{size[0]} x {size[1]} pixels"
        REFUSED[f"{form} of {size[0]} x {size[1]}"] = saved(Image.new("RGB", size), form), says


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_picture_of_a_sound_size_is_refused_by_its_reason(name):
    data, says = REFUSED[name]
    with pytest.raises(ImageError, match=says):
        decode(data)


def test_palettes_pages_odd_exif_and_remarks_and_a_limit_that_is_given():
    picture = Image.new("P", (9, 9), 0)
    picture.putpalette([10, 20, 30, 40, 50, 60])
    picture.putpixel((3, 4), 1)
    pixels = decode(saved(picture, "PNG", transparency=b"\0"))
    assert (pixels[4, 3] == (40, 50, 60)).all()
    assert (pixels == 255).all(axis=2).sum() == 80
    assert (decode(encode("TIFF", big_tiff=True)) == SMOOTH).all()
    pages = [Image.fromarray(SMOOTH).rotate(180)]
    assert (decode(encode("TIFF", save_all=True, append_images=pages)) == SMOOTH).all()
    for name in ("exif", "xmp", "transparency", "interlace"):
        texts = PngInfo()
        texts.add_text(name, "seen by a microscope")
        assert (decode(encode("PNG", pnginfo=texts)) == SMOOTH).all(), name
    exif = Image.Exif()
    exif[274], exif[270] = 6, "a camera with a long name"
    data = encode("JPEG", exif=exif)
    damaged = data.replace(struct.pack("<H", 270), b"\xff\xff").replace(b"II*\0\x08\0", b"II*\0\xff\xff")
    assert decode(damaged.replace(b"MM\0*\0\0\0\x08", b"MM\0*\0\0\xff\xff")).shape == (HEIGHT, WIDTH, 3)
    assert decode(PNG, limit_pixels=WIDTH * HEIGHT).shape == (HEIGHT, WIDTH, 3)
    with pytest.raises(ImageError, match=f"{WIDTH} x {HEIGHT}"):
        decode(PNG, limit_pixels=WIDTH * HEIGHT - 1)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "JPEG in XMP", "PNG in XMP", "TIFF in XMP"])
def test_orientation_is_applied(form):
    exif, name, *in_xmp = Image.Exif(), *form.split(" in ")
    xmp = '<rdf:Description tiff:Orientation="6"/>'
    texts = PngInfo()
    if in_xmp:
        texts.add_itxt("XML:com.adobe.xmp", xmp)
    else:
        exif[274] = 6
    tags = {"tiffinfo": {700: xmp.encode()}} if form == "TIFF in XMP" else {"exif": exif, "pnginfo": texts}
    pixels = decode(encode(name, xmp=xmp.encode() if form == "JPEG in XMP" else b"", **tags))
    assert pixels.shape == (WIDTH, HEIGHT, 3)
    assert np.abs(pixels.astype(int) - np.rot90(SMOOTH, -1)).mean() < 12


TURN = struct.pack(">HHIHH", 274, 3, 1, 6, 0)


def with_exif(block):
    return JPEG[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2) + block + JPEG[2:]


@pytest.mark.parametrize(
    ("entries", "turns"),
    [
        ([TURN], -1),
        ([TURN, struct.pack(">HHII", 0x8769, 4, 1, 9000)], -1),  # more outside of the block
        ([struct.pack(">HHII", 271, 2, 20, 9000), TURN], -1),
        ([TURN, struct.pack(">HHII", 282, 5, 2, 8)], -1),  # two resolutions
        ([struct.pack(">HHII", 274, 4, 1, 6)], -1),
        ([struct.pack(">HHII", 274, 3, 0, 9000)], 0),  # no number
        ([struct.pack(">HHII", 274, 3, 3, 9000)], 0),
    ],
)
def test_a_turn_counts_whatever_else_the_exif_block_says(entries, turns):
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + len(entries).to_bytes(2) + b"".join(entries)
    assert (decode(with_exif(exif)) == np.rot90(decode(JPEG), turns)).all()


NUMBERS = {"B": 1, "H": 3, "I": 4, "b": 6, "h": 8, "i": 9, "Q": 16, "q": 17}
"""The types of whole numbers in EXIF, as `struct` names them."""


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("count", [1, 2, 3, 9])
@pytest.mark.parametrize("form", NUMBERS)
def test_a_turn_may_be_any_whole_number(tmp_path, form, count, order):
    values = struct.pack(f"{order}{count}{form}", 6, *[1] * (count - 1))
    at = struct.pack(order + "I", 8 + 2 + 12 + 4) if len(values) > 4 else values.ljust(4, b"\0")
    entry = struct.pack(order + "HHI", 274, NUMBERS[form], count) + at
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 1)
    exif = head + entry + bytes(4) + (values if len(values) > 4 else b"")
    upright = np.rot90(decode(FILES["jpeg"]), -1)
    for prefix in (b"Exif\0\0", b"Exif\0\0Exif\0\0"):
        data = with_exif(prefix + exif)
        assert (decode(data) == upright).all()
        (path := tmp_path / "a.jpg").write_bytes(data)
        assert seen_size(path) == SeenSize(HEIGHT, WIDTH, 6)
        with warnings.catch_warnings(), Image.open(path) as picture:
            warnings.simplefilter("ignore")  # Pillow warns of a second number
            picture.load()
            assert ImageSource.of(picture).decode().shape == upright.shape


@pytest.mark.parametrize("place", ["in front of the pixels", "behind the pixels"])
@pytest.mark.parametrize("chunk", ["eXIf", "iTXt"])
def test_a_turn_in_a_png_counts_wherever_it_stands(tmp_path, chunk, place):
    """As in an image that Pillow has loaded, which may be handed in as well."""
    exif = b"MM\0*\0\0\0\x08\0\1" + TURN + bytes(4)
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<rdf:Description tiff:Orientation="6"/>'
    at = 33 if place.startswith("in front") else PNG.index(b"IEND") - 4
    data = PNG[:at] + png_chunk(chunk.encode(), exif if chunk == "eXIf" else xmp) + PNG[at:]
    upright = np.rot90(SMOOTH, -1)
    assert (decode(data) == upright).all()
    with Image.open(io.BytesIO(data)) as picture:
        picture.load()
        assert (ImageSource.of(picture).decode() == upright).all()
    (tmp_path / "a.png").write_bytes(data)
    assert seen_size(tmp_path / "a.png") == SeenSize(HEIGHT, WIDTH, 6)


def test_arrays_count_as_they_are_paths_by_content_and_decoding_is_booked_by_pixels(tmp_path):
    assert (decode(RGB) == RGB[..., ::-1]).all()
    assert (decode(RGB[..., 0]) == RGB[..., :1]).all()
    assert (decode(RGB[..., :1]) == RGB[..., :1]).all()
    thin = np.dstack([np.zeros((9, 9, 3), np.uint8), np.full((9, 9), 51, np.uint8)])
    assert (decode(thin, order="RGB") == 204).all()  # alpha lies over white
    (path := tmp_path / "really-a-png.jpg").write_bytes(PNG)
    for image in (path, str(path), bytearray(PNG)):
        assert (decode(image) == SMOOTH).all()
    (path := tmp_path / "a.jpg").write_bytes(JPEG)
    # Three bytes a pixel for the array, and Pillow's four; the file too where it is still to be read.
    assert ImageSource.of(JPEG, "BGR").decoding_bytes() == 7 * WIDTH * HEIGHT
    assert ImageSource.of(path, "BGR").decoding_bytes() == len(JPEG) + 7 * WIDTH * HEIGHT
    path.write_bytes(b"no picture")
    assert ImageSource.of(path, "BGR").decoding_bytes() == len(b"no picture")
    assert ImageSource.of(tmp_path / "nowhere", "BGR").decoding_bytes() == 0
    assert ImageSource.of(np.zeros((7, 5, 3), np.uint8), "BGR").decoding_bytes() == 3 * 7 * 5


@pytest.mark.parametrize(
    ("thing", "says"),
    [
        (RGB.astype(np.float32), "float32"),
        (RGB.astype(np.uint16), "uint16"),
        (RGB > 3, "bool"),
        (RGB[..., :2], r"shape \(19, 26, 2\)"),
        (RGB[None], r"shape \(1, 19, 26, 3\)"),
        (RGB[0, 0], r"shape \(3,\)"),
        (np.zeros((), np.uint8), r"shape \(\)"),
        (np.zeros((0, 10, 3), np.uint8), "10 x 0 pixels"),
        (np.zeros((4, 40, 3), np.uint8), "40 x 4 pixels"),
        *[(thing, "path") for thing in (5, None, [[1, 2, 3]])],
    ],
)
def test_things_that_are_no_image(thing, says):
    with pytest.raises(ImageError, match=says):
        decode(thing)
    with pytest.raises(ImageError, match="'GBR'"):
        decode(RGB, order="GBR")


def test_paths_that_cannot_be_read(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe.png")
    for path, says in [
        (tmp_path / "gone.png", "No such file"),
        (tmp_path, "not a file"),
        (pipe, "not a file"),
        (Path("a\0b"), "cannot be read"),
    ]:
        with pytest.raises(ImageError, match=says):
            decode(path)
    huge = tmp_path / "huge.png"
    with huge.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ImageError, match="1024 MiB"):
        decode(huge)


def test_threads_do_not_disturb_each_other():
    files = [*FILES.values()] * 4
    with ThreadPoolExecutor(8) as pool:
        for file, pixels in zip(files, pool.map(decode, files), strict=True):
            assert (pixels == decode(file)).all()


def tiff(order, photometric, bits, samples, rows, further=b""):
    """A TIFF of one strip as a frame grabber writes it, 16 x 12 pixels; `order` is "<" or ">"."""
    tags = {256: 16, 257: 12, 258: bits, 259: 1, 262: photometric, 273: 8, 277: samples, 278: 12, 279: len(rows)}
    entries = b"".join(struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in tags.items()) + further
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8 + len(rows))
    return head + rows + struct.pack(order + "H", len(entries) // 12) + entries + bytes(4)


GREY16 = np.arange(16 * 12, dtype=np.uint16).reshape(12, 16) * 300


def test_a_tiff_that_begins_with_a_smaller_page_is_refused():
    thumbnail, whole = Image.fromarray(SMOOTH).resize((20, 16)), Image.fromarray(SMOOTH)
    for options in ({"save_all": True, "big_tiff": big} for big in (False, True)):
        with pytest.raises(UnsupportedImage, match="smaller"):
            decode(saved(thumbnail, "TIFF", append_images=[whole], **options))
        assert (decode(saved(whole, "TIFF", append_images=[thumbnail], **options)) == SMOOTH).all()


@pytest.mark.parametrize(
    # IPTC as LONG, EXIF beyond the end, a directory in itself, and a turn as BYTE.
    ("tag", "kind", "count", "value"),
    [(33723, 4, 20, 8), (34665, 4, 1, 10**6), (34665, 4, 1, 200), (274, 1, 1, 3)],
)
def test_what_is_written_wrongly_beside_the_pixels_costs_no_picture(tag, kind, count, value):
    grey = (GREY16 >> 8).astype(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pixels = decode(tiff("<", 1, 8, 1, grey.tobytes(), struct.pack("<HHII", tag, kind, count, value)))
    assert (pixels[..., 0] == (grey[::-1, ::-1] if tag == 274 else grey)).all()


@pytest.mark.parametrize("order", ["BGR", "RGB"])
def test_the_colours_of_an_array_in_any_layout_are_put_in_order(order):
    one_column, subclass = np.broadcast_to(RGB[:, :1], RGB.shape), RGB.copy().view(np.recarray)
    for array in (RGB, RGB[::-1, ::-1], RGB[:, ::2], np.asfortranarray(RGB), one_column, subclass):
        pixels = decode(array, order=order)
        assert (pixels == np.asarray(array)[..., :: -1 if order == "BGR" else 1]).all()
        assert (type(pixels), pixels.flags.c_contiguous) == (np.ndarray, True)


@pytest.mark.parametrize("form", ["BMP", "TIFF"])
@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("written", [0.1, 0.5, 0.95])
def test_a_file_that_was_reserved_and_not_written_to_its_end_is_refused(form, mode, written):
    pixels = np.random.default_rng(0).integers(1, 256, (64, 64, 3), np.uint8)
    data = saved(Image.fromarray(pixels).convert(mode), form)
    assert decode(data).shape == (64, 64, 3)
    there = int(written * len(data))
    with pytest.raises(ImageError, match="zeros"):
        decode(data[:there] + bytes(len(data) - there))


def test_zeros_behind_the_pixels_say_nothing_of_them():
    """They fill a block of the disk, or are another page."""
    another = {"save_all": True, "append_images": [Image.new("RGB", (WIDTH, HEIGHT))]}
    for whole in (saved(Image.fromarray(RGB), "BMP"), saved(Image.fromarray(RGB), "TIFF", **another)):
        assert (decode(whole) == RGB).all()
        assert (decode(whole + bytes(4096)) == RGB).all()


@pytest.mark.parametrize("name", FILES)
def test_the_header_says_what_is_decoded_and_cut_short_nothing_else(name):
    assert pixels_in(io.BytesIO(FILES[name])) == WIDTH * HEIGHT
    for end in range(min(300, len(FILES[name]))):
        assert pixels_in(io.BytesIO(FILES[name][:end])) in (None, 0, WIDTH * HEIGHT)


def test_what_has_no_header_tells_nothing_and_a_lie_is_found(monkeypatch):
    for data in (b"", b"\xff\xd8\xff", b"BM", b"II*\0" + b"\xff" * 40, b"GIF89a", bytes(1000)):
        assert pixels_in(io.BytesIO(data)) is None
    monkeypatch.setattr(decoding, "pixels_in", lambda file: WIDTH * HEIGHT - 1)
    with pytest.raises(ImageError, match="is damaged"):
        decode(FILES["png"])


def test_a_jpeg_of_two_headers_counts_as_its_larger_one_when_memory_is_reserved_and_when_it_is_decoded():
    at = JPEG.index(b"\xff\xc0")
    frame = bytearray(JPEG[at : JPEG.index(b"\xff\xc4")])
    frame[5:9] = struct.pack(">HH", 2 * HEIGHT, 3 * WIDTH)
    two = JPEG[:at] + bytes(frame) + JPEG[at:]
    assert plain(two).pixels == pixels_in(io.BytesIO(two)) == 6 * WIDTH * HEIGHT


def test_a_pillow_image_of_wide_numbers_is_not_to_be_cut_off_at_255():
    for mode in "IF":
        with pytest.raises(TypeError, match="bits="):
            ImageSource.of(Image.fromarray(GREY16.astype(np.int32)).convert(mode))
