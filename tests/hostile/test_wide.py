"""How many bits of wide samples count: a camera of 10, 12 or 14 bits is neither nearly black nor guessed."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
import tifffile

from coe.board import rules
from coe.errors import ConfigError, ImageError, RulesError, UnsupportedImage
from coe.pictures.array_images import AS_FILLED
from coe.pictures.decoding import decode
from coe.pictures.image_source import Picture

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
        with pytest.raises(ImageError, match=r"say how many low bits count .*bits: 12.*--bits 12.*bits=12"):
            decode(data)
        assert (decode(data, bits=16) == rgb(values, 8)).all()  # a picture that is meant to be so dark
        assert (decode(data, bits=AS_FILLED) == rgb(values, bits - 8)).all()
    if bits > 8:
        with pytest.raises(ImageError, match=f"has samples up to {(1 << bits) - 1}, more than {bits - 1} bits hold"):
            decode(data, bits=bits - 1)


def test_white_may_be_zero():
    values = camera(12)
    assert (decode(tiff(values, photometric="miniswhite"), bits=12) == 255 - rgb(values, 4)).all()


def test_samples_next_to_colours_do_not_count():
    values = np.dstack([camera(12, 3), np.full((20, 30), 65535, np.uint16)])
    data = tiff(values, extrasamples=("unspecified",))
    assert (decode(data, bits=12) == rgb(values[..., :3], 4)).all()
    with pytest.raises(ImageError, match="say how many"):
        decode(data)
    with pytest.raises(UnsupportedImage):
        decode(tiff(values, extrasamples=("unassalpha",)), bits=12)
    with pytest.raises(ImageError, match="say how many"):
        decode(tiff(values, extrasamples=("unassalpha",)))


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


def test_a_range_that_was_chosen_to_look_well_says_nothing():
    data = tiff(camera(12), imagej=True, metadata={"min": 0.0, "max": 3000.0})
    with pytest.raises(ImageError, match="say how many"):
        decode(data)
    too_little = tiff(camera(12), imagej=True, metadata={"min": 0.0, "max": 1023.0})
    with pytest.raises(ImageError, match="more than 10 bits hold, as the file says"):
        decode(too_little)


@pytest.mark.parametrize("order", ["<", ">"])
def test_arrays_of_uint16_are_taken_with_bits_alone(order):
    for values in (camera(12), camera(12, 3), camera(12, 4)):
        array = values.astype(f"{order}u2")
        with pytest.raises(ImageError, match="say how many of its bits count"):
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
