"""A JPEG of which a part is missing or damaged is refused, whole ones give the pixels that Pillow gives."""

from __future__ import annotations

import io
import random
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from coe.board.images import decode
from coe.errors import ImageError

HEIGHT, WIDTH = 150, 200
NOISE = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
PICTURE = Image.fromarray(cv2.GaussianBlur(NOISE, (5, 5), 0))


def saved(mode: str = "RGB", **options: object) -> bytes:
    data = io.BytesIO()
    PICTURE.convert(mode).save(data, "JPEG", quality=90, **options)
    return data.getvalue()


def turned(turn: int) -> bytes:
    exif = Image.Exif()
    exif[274] = turn
    return saved(exif=exif)


WHOLE = {
    "as it comes": saved(),
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
    "bytes behind its end": saved() + b"written by a camera",
} | {f"turned, EXIF {turn}": turned(turn) for turn in range(1, 9)}


@pytest.mark.parametrize("name", WHOLE)
def test_the_pixels_are_those_of_pillow(name: str) -> None:
    with Image.open(io.BytesIO(WHOLE[name])) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    pixels = decode(WHOLE[name])
    assert (pixels == expected).all()
    assert (pixels.dtype, pixels.flags.c_contiguous, pixels.flags.writeable) == (np.uint8, True, True)


def scan_of(data: bytes) -> int:
    """Where the pixels of the first scan begin."""
    at = data.index(b"\xff\xda")
    return at + 2 + int.from_bytes(data[at + 2 : at + 4])


def a_piece_is_lost(data: bytes, at: int) -> bytes:
    return data[:at] + data[at + 700 :]


def the_rest_is_lost_but_not_the_end(data: bytes, at: int) -> bytes:
    return data[:at] + b"\xff\xd9"


@pytest.mark.parametrize("name", ["as it comes", "colour in full", "progressive", "restarts", "grey", "four inks"])
@pytest.mark.parametrize("damage", [a_piece_is_lost, the_rest_is_lost_but_not_the_end])
def test_a_jpeg_that_lost_a_part_is_refused(
    name: str, damage: Callable[[bytes, int], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    """Pillow and OpenCV decode nearly all of these, with parts that are grey or lie elsewhere, and say nothing."""
    whole = WHOLE[name]
    start = scan_of(whole)
    places = range(start, len(whole) - 702, (len(whole) - start) // 30)
    for at in places:
        with pytest.raises(ImageError, match="is damaged: its bytes do not add up to a picture"):
            decode(damage(whole, at))
    assert len(places) > 20
    assert capfd.readouterr() == ("", "")


def refused_share(damaged: list[bytes]) -> float:
    refused = 0
    for data in damaged:
        try:
            decode(data)
        except ImageError:
            refused += 1
    return refused / len(damaged)


def test_damage_that_keeps_the_length_is_mostly_found() -> None:
    """A JPEG has no checksum: behind wrong bytes the codes fall into step again, and sometimes their number fits."""
    whole, rng = WHOLE["colour in full"], random.Random(0)
    start = scan_of(whole)
    pieces, flips = [], []
    for _ in range(200):
        at = rng.randrange(start, len(whole) - 702)
        pieces.append(whole[:at] + rng.randbytes(700) + whole[at + 700 :])
        flipped = bytearray(whole)
        for _ in range(30):
            flipped[rng.randrange(start, len(whole) - 2)] ^= 1 << rng.randrange(8)
        flips.append(bytes(flipped))
    assert refused_share(pieces) > 0.9
    assert refused_share(flips) > 0.9


def test_a_form_that_is_whole_but_not_supported_is_called_so() -> None:
    """Some telephones write a wrong end of the frequencies into the header of the scan; libjpeg warns of it."""
    data = bytearray(WHOLE["as it comes"])
    end_of_frequencies = scan_of(bytes(data)) - 2
    assert data[end_of_frequencies] == 63
    data[end_of_frequencies] = 62
    with pytest.raises(ImageError, match="not supported; save it as PNG"):
        decode(bytes(data))


def test_a_size_that_differs_from_that_of_the_header_is_refused() -> None:
    """Pillow reads the last header of a frame, libjpeg accepts only one."""
    data = WHOLE["as it comes"]
    at = data.index(b"\xff\xc0")
    frame = bytearray(data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4])])
    frame[5:9] = (HEIGHT // 2).to_bytes(2) + (WIDTH // 2).to_bytes(2)
    with pytest.raises(ImageError):
        decode(data[:at] + frame + data[at:])
