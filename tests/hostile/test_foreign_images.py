"""Images of Pillow, torch and others: the same pixels as the array, or an error; nothing about colours is guessed."""

import io
import re
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from coe.errors import ConfigError, ImageError
from coe.pictures.image_source import ImageSource

RGB = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
BGR = np.ascontiguousarray(RGB[..., ::-1])
ENCODED = cv2.imencode(".png", BGR)[1]


class Wrapped:
    """An image of a library that nobody here knows."""

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


def test_a_damaged_jpeg_that_pillow_has_opened_is_refused():
    """Pillow would fill what is missing with grey, without an error."""
    data = bytearray(saved("JPEG", quality=95))
    del data[len(data) // 2 : len(data) // 2 + 60]
    with pytest.raises(ImageError):
        ImageSource.of(opened(bytes(data))).decode()


@pytest.mark.parametrize(
    ("image", "order", "error"),
    [
        (torch.from_numpy(RGB), None, ConfigError),
        (Wrapped(BGR), None, ConfigError),
        (memoryview(RGB), None, ConfigError),
        (Image.fromarray(RGB), "BGR", ConfigError),
        (torch.zeros(20, 30, requires_grad=True), "RGB", TypeError),
        (torch.zeros(20, 30, device="meta"), "RGB", TypeError),
        (Image.fromarray(RGB).convert("CMYK"), None, TypeError),
        (opened(saved("GIF")), None, TypeError),
        (io.BytesIO(ENCODED.tobytes()), None, TypeError),
        ([[1, 2], [3, 4]], None, TypeError),
    ],
)
def test_what_cannot_be_known_is_refused_at_the_call(image, order, error):
    with pytest.raises(error):
        ImageSource.of(image, order)


@pytest.mark.parametrize(
    ("image", "way"),
    [
        (cv2.UMat(np.ascontiguousarray(BGR)), "`get()`"),
        (io.BytesIO(), "`read()`"),
        ((b"", RGB.shape), "np.frombuffer"),
        ((True, RGB), "the second"),
        (cv2.VideoCapture(), "`read()` returns, of a pair the second"),
        ({"image": RGB}, "np.frombuffer"),
        (None, "imread"),
    ],
)
def test_what_is_no_image_has_a_way_to_one(image, way):
    with pytest.raises(TypeError, match=re.escape(way)):
        ImageSource.of(image)


def test_a_transparent_colour_counts_loaded_or_not():
    data = saved("PNG", transparency=tuple(int(value) for value in RGB[0, 0]))
    loaded = opened(data)
    loaded.load()
    for image in (data, opened(data), loaded):
        pixels = ImageSource.of(image).decode()
        assert (pixels[0, 0] == 255).all()
        np.testing.assert_array_equal(pixels[5:], RGB[5:])


def test_the_first_picture_of_a_phone_s_file_is_taken_as_it_lies():
    data = saved("MPO", save_all=True, append_images=[Image.new("RGB", (30, 20))])
    image = opened(data)
    assert image.format == "MPO"
    np.testing.assert_array_equal(ImageSource.of(image).decode(), ImageSource.of(data).decode())


def test_an_image_whose_file_is_closed_says_so():
    file = io.BytesIO(saved("PNG"))
    image = Image.open(file)
    file.close()
    with pytest.raises(TypeError, match="load"):
        ImageSource.of(image)
