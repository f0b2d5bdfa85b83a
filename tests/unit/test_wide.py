"""Images of cameras of more than 8 bits, of Pillow, torch and others: the same pixels as the array, or an error."""

import io
import re
import struct
import zlib
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from coe.board import rules
from coe.errors import ConfigError, ImageError, RulesError, UnsupportedImage
from coe.pictures.array_images import AS_FILLED
from coe.pictures.decoding import decode
from coe.pictures.image_source import ImageSource, Picture

RNG = np.random.default_rng(5)


def camera(bits, channels=1):
    """Values of a camera of so many bits, all of them filled; (H, W) or (H, W, channels) uint16."""
    values = RNG.integers(0, 1 << bits, (20, 30, channels), dtype=np.uint16)
    values[3, 4] = (1 << bits) - 1
    return values[..., 0] if channels == 1 else values


def rgb(values, shift):
    narrow = (values >> shift).astype(np.uint8)
    return np.repeat(narrow[..., None], 3, axis=2) if narrow.ndim == 2 else narrow


def png(values, significant=None):
    data = cv2.imencode(".png", values[..., ::-1] if values.ndim == 3 else values)[1].tobytes()
    if significant is None:
        return data
    chunk = b"sBIT" + bytes([significant]) * (values.shape[2] if values.ndim == 3 else 1)
    return data[:33] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


def tiff(values, **options):
    data = io.BytesIO()
    options.setdefault("photometric", "rgb" if values.ndim == 3 else "minisblack")
    tifffile.imwrite(data, values, **{"metadata": None, **options})
    return data.getvalue()


FILES = {
    "png": png,
    "tiff": tiff,
    "big-endian tiff": lambda values: tiff(values, byteorder=">"),
    "lzw": lambda values: tiff(values, compression="lzw", predictor=True),
    "big-endian deflate": lambda values: tiff(values, compression="zlib", byteorder=">", tile=(16, 16)),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("bits", [8, 9, 10, 12, 14, 15, 16])
def test_as_many_bits_count_as_are_asked_for(bits, file, channels):
    values = camera(bits, channels)
    data = FILES[file](values)
    assert (decode(data, bits=bits) == rgb(values, bits - 8)).all()
    if bits > 14:
        assert (decode(data) == rgb(values, 8)).all()
    else:
        with pytest.raises(ImageError, match=r"bits .*bits: 12.*--bits 12.*bits=12"):
            decode(data)
        assert (decode(data, bits=16) == rgb(values, 8)).all()  # a picture that is meant to be so dark
        assert (decode(data, bits=AS_FILLED) == rgb(values, bits - 8)).all()
    if bits > 8:
        with pytest.raises(ImageError, match=f"has samples up to {(1 << bits) - 1}, more than {bits - 1} bits hold"):
            decode(data, bits=bits - 1)


def test_white_may_be_zero_and_neither_samples_next_to_colours_nor_a_chosen_range_say_how_many_bits_count():
    values = camera(12)
    assert (decode(tiff(values, photometric="miniswhite"), bits=12) == 255 - rgb(values, 4)).all()
    values = np.dstack([camera(12, 3), np.full((20, 30), 65535, np.uint16)])
    data = tiff(values, extrasamples=("unspecified",))
    assert (decode(data, bits=12) == rgb(values[..., :3], 4)).all()
    with pytest.raises(ImageError, match="state the significant bits"):
        decode(data)
    with pytest.raises(UnsupportedImage):
        decode(tiff(values, extrasamples=("unassalpha",)), bits=12)
    with pytest.raises(ImageError, match="state the significant bits"):
        decode(tiff(values, extrasamples=("unassalpha",)))
    data = tiff(camera(12), imagej=True, metadata={"min": 0.0, "max": 3000.0})
    with pytest.raises(ImageError, match="state the significant bits"):
        decode(data)
    too_little = tiff(camera(12), imagej=True, metadata={"min": 0.0, "max": 1023.0})
    with pytest.raises(ImageError, match="more than 10 bits hold, as the file states"):
        decode(too_little)


@pytest.mark.parametrize("channels", [1, 3])
def test_what_the_file_says_counts(channels):
    values = camera(12, channels)
    said = [png(values, significant=12)]
    if channels == 1:
        said.append(tiff(values, imagej=True, metadata={"min": 0.0, "max": 4095.0}))
        said.append(tiff(values, extratags=[(281, 3, 1, 4095, True)]))
    for data in said:
        assert (decode(data) == rgb(values, 4)).all()
        assert (decode(data, bits=16) == rgb(values, 8)).all()


@pytest.mark.parametrize("bits", [10, 12, 14])
@pytest.mark.parametrize("dark", [1, 1 / 40])
def test_a_png_that_was_stretched_as_its_standard_asks_is_not_stretched_twice(bits, dark):
    values = (camera(bits) * dark).astype(np.int64)
    top = (1 << bits) - 1
    for stretched in (
        values << (16 - bits),
        values << (16 - bits) | values >> (2 * bits - 16),
        np.rint(values * 65535 / top),
    ):
        wide = stretched.astype(np.uint16)
        assert (decode(png(wide, significant=bits)) == rgb(wide, 8)).all()


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_uint16_are_taken_with_bits_alone(order):
    for values in (camera(12), camera(12, 3), camera(12, 4)):
        array = values.astype(f"{order}u2")
        with pytest.raises(ImageError, match="bits=12"):
            decode(array)
        assert decode(array, bits=12, order="RGB").shape == (20, 30, 3)
    values = camera(12, 3)
    assert (decode(values, bits=12, order="RGB") == rgb(values, 4)).all()
    assert (decode(values, bits=12) == rgb(values, 4)[..., ::-1]).all()
    with pytest.raises(ImageError, match="more than 10 bits hold"):
        decode(values, bits=10)


@pytest.mark.parametrize("bits", [7, 17, 0, True, 12.0, "12"])
def test_bits_that_are_none_are_refused(bits):
    with pytest.raises(ConfigError, match="bits"):
        Picture(camera(12), "A", bits=bits).check()


def test_a_board_file_says_how_many_bits_count(tmp_path):
    expert = "{{kind: resnet18, labels: [a, c], input: 32, reject: [c]}}"
    text = f"board: b\n{{}}experts:\n  e: {expert}\ncomponents:\n  A: {{{{inspect: e}}}}\n"
    path = tmp_path / "b.yaml"
    path.write_text(text.format("bits: 12\n"))
    assert rules.load(path).bits == 12
    path.write_text(text.format(""))
    assert rules.load(path).bits is None
    path.write_text(text.format("bits: 20\n"))
    with pytest.raises(RulesError, match=r"b\.yaml:2: bits"):
        rules.load(path)


RGB = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
BGR = np.ascontiguousarray(RGB[..., ::-1])
ENCODED = cv2.imencode(".png", BGR)[1]


class Wrapped:
    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


def opened(data):
    return Image.open(io.BytesIO(data))


def saved(form, **options):
    file = io.BytesIO()
    Image.fromarray(RGB).save(file, form, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("image", "order"),
    [
        (BGR, None),
        (RGB, "RGB"),
        (Image.fromarray(RGB), None),
        (Image.fromarray(RGB), "RGB"),
        (Image.fromarray(RGB).convert("RGBA"), None),
        (opened(ENCODED.tobytes()), None),
        (torch.from_numpy(RGB), "RGB"),
        (torch.from_numpy(BGR), "BGR"),
        (torch.from_numpy(RGB).permute(2, 0, 1).permute(1, 2, 0), "RGB"),
        (Wrapped(BGR), "BGR"),
        (memoryview(RGB), "RGB"),
        (memoryview(BGR), "BGR"),
        (memoryview(ENCODED.reshape(1, -1)), None),
        (SimpleNamespace(__array_interface__=RGB.__array_interface__), "RGB"),
        (ENCODED, None),
        (ENCODED.reshape(-1, 1), None),
        (ENCODED.tobytes(), None),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_each_form_gives_the_pixels(image, order):
    np.testing.assert_array_equal(ImageSource.of(image, order).decode(), RGB)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA"])
def test_a_pillow_image_is_what_pillow_shows(mode):
    picture = Image.fromarray(RGB).convert(mode)
    np.testing.assert_array_equal(ImageSource.of(picture).decode(), np.asarray(picture.convert("RGB")))


@pytest.mark.parametrize(
    ("image", "order", "error", "way"),
    [
        (torch.from_numpy(RGB), None, ConfigError, ""),
        (Wrapped(BGR), None, ConfigError, ""),
        (memoryview(RGB), None, ConfigError, ""),
        (Image.fromarray(RGB), "BGR", ConfigError, ""),
        (torch.zeros(20, 30, requires_grad=True), "RGB", TypeError, ""),
        (torch.zeros(20, 30, device="meta"), "RGB", TypeError, ""),
        (Image.fromarray(RGB).convert("CMYK"), None, TypeError, ""),
        (opened(saved("GIF")), None, TypeError, ""),
        (io.BytesIO(ENCODED.tobytes()), None, TypeError, "`read()`"),
        ([[1, 2], [3, 4]], None, TypeError, ""),
        (cv2.UMat(np.ascontiguousarray(BGR)), None, TypeError, "`get()`"),
        ((b"", RGB.shape), None, TypeError, "np.frombuffer"),
        ((True, RGB), None, TypeError, "the second"),
        (cv2.VideoCapture(), None, TypeError, "of a pair, the second"),
        ({"image": RGB}, None, TypeError, "np.frombuffer"),
        (None, None, TypeError, "imread"),
    ],
)
def test_what_cannot_be_known_is_refused_at_the_call_with_a_way_to_an_image(image, order, error, way):
    with pytest.raises(error, match=re.escape(way) or None):
        ImageSource.of(image, order)


def test_a_transparent_colour_counts_loaded_or_not():
    data = saved("PNG", transparency=tuple(int(value) for value in RGB[0, 0]))
    loaded = opened(data)
    loaded.load()
    for image in (data, opened(data), loaded):
        pixels = ImageSource.of(image).decode()
        assert (pixels[0, 0] == 255).all()
        np.testing.assert_array_equal(pixels[5:], RGB[5:])


def test_of_pillow_s_images_the_first_picture_counts_and_damage_or_a_closed_file_is_told():
    data = saved("MPO", save_all=True, append_images=[Image.new("RGB", (30, 20))])
    image = opened(data)
    assert image.format == "MPO"
    np.testing.assert_array_equal(ImageSource.of(image).decode(), ImageSource.of(data).decode())
    file = io.BytesIO(saved("PNG"))
    image = Image.open(file)
    file.close()
    with Image.open(io.BytesIO(saved("PNG"))) as left:
        pass
    for one in (image, left):
        with pytest.raises(TypeError, match="load"):
            ImageSource.of(one)
    data = bytearray(saved("JPEG", quality=95))
    del data[len(data) // 2 : len(data) // 2 + 60]
    with pytest.raises(ImageError):
        ImageSource.of(opened(bytes(data))).decode()
