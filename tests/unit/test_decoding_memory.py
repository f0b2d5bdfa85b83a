"""Decoding takes what was booked for it, whatever the picture is made of."""

import io

import numpy as np
import pytest
import tifffile
from PIL import Image

from coe.pictures.image_source import ImageSource
from coe.runtime.trial import peak_growth_bytes

WIDTH, HEIGHT = 2600, 2400


def encoded(mode, form, turn=1):
    exif, out = Image.Exif(), io.BytesIO()
    exif[274] = turn
    colour = "grey" if mode.endswith("A") else 0  # of a transparent picture nothing would be visible
    Image.new(mode, (WIDTH, HEIGHT), colour).save(out, form, exif=exif)
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
    "wide colours": lambda: tiff(np.full((HEIGHT, WIDTH, 3), 50_000, np.uint16)),
    "wide colours with alpha": lambda: tiff(np.full((HEIGHT, WIDTH, 4), 50_000, np.uint16)),
    "a compressed TIFF": lambda: tiff(np.full((HEIGHT, WIDTH, 3), 99, np.uint8), compression="zlib", rowsperstrip=64),
    "tiles": lambda: tiff(np.full((HEIGHT, WIDTH, 3), 99, np.uint8), tile=(256, 256)),
    "an array with alpha": lambda: np.full((HEIGHT, WIDTH, 4), 99, np.uint8),
    "a grey array": lambda: np.zeros((HEIGHT, WIDTH), np.uint8),
}


@pytest.mark.serial
@pytest.mark.parametrize("name", PICTURES)
def test_decoding_takes_no_more_than_was_booked(name):
    source = ImageSource.of(PICTURES[name](), "BGR")
    # Another that is as small as may be: what is set up once is no part of it.
    ImageSource.of(np.full((50, 50, 4), 99, np.uint8), "BGR").decode()
    ImageSource.of(tiff(np.full((50, 50, 4), 99, np.uint8), compression="zlib"), "BGR").decode()
    grown = peak_growth_bytes(source.decode)
    assert grown < source.decoding_bytes() + 1.5 * WIDTH * HEIGHT
