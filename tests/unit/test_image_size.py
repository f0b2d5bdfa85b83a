"""The size of a picture is in its header, and what is decoded is no larger than that."""

from __future__ import annotations

import io

import numpy as np
import pytest
from test_images_decode import FILES, HEIGHT, WIDTH

from coe.errors import ImageError
from coe.pictures import decoding
from coe.pictures.formats import pixels_in
from coe.pictures.image_source import ImageSource


@pytest.mark.parametrize("name", FILES)
def test_the_header_says_what_is_decoded(name: str) -> None:
    pixels = decoding.decode(FILES[name])
    assert pixels_in(io.BytesIO(FILES[name])) == pixels.shape[0] * pixels.shape[1] == WIDTH * HEIGHT


@pytest.mark.parametrize("name", FILES)
def test_a_header_that_is_cut_short_tells_nothing_or_the_truth(name: str) -> None:
    for end in range(min(300, len(FILES[name]))):
        assert pixels_in(io.BytesIO(FILES[name][:end])) in (None, 0, WIDTH * HEIGHT)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", b"BM", b"II*\0" + b"\xff" * 40, b"GIF89a", bytes(1000)])
def test_what_has_no_header_tells_nothing(data: bytes) -> None:
    assert pixels_in(io.BytesIO(data)) is None


def test_a_picture_that_is_larger_than_its_header_says_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "pixels_in", lambda file: WIDTH * HEIGHT - 1)
    with pytest.raises(ImageError, match="is damaged"):
        decoding.decode(FILES["jpeg"])


def test_decoding_is_booked_by_pixels_and_a_damaged_picture_by_its_file(tmp_path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(FILES["jpeg"])
    size = len(FILES["jpeg"])
    # Three bytes a pixel for the array, and Pillow's four; the file too where it is still to be read.
    assert ImageSource.of(FILES["jpeg"], "BGR").decoding_bytes() == 7 * WIDTH * HEIGHT
    assert ImageSource.of(path, "BGR").decoding_bytes() == size + 7 * WIDTH * HEIGHT
    path.write_bytes(b"no picture")
    assert ImageSource.of(path, "BGR").decoding_bytes() == len(b"no picture")
    assert ImageSource.of(tmp_path / "nowhere", "BGR").decoding_bytes() == 0
    assert ImageSource.of(np.zeros((7, 5, 3), np.uint8), "BGR").decoding_bytes() == 3 * 7 * 5
