"""Places of a reference that lie beside those of the picture are moved there, and defects are not explained away."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from golden_parts import noisy, part

from coe.comparing.local_shifts import MOST, settle
from coe.comparing.motion import lasting_differences
from coe.store.kinds import Reference
from experts.pair import compared

GOOD = part(1, 320)
SPREAD = np.arange(320 * 320, dtype=np.uint32).reshape(320, 320).astype(np.uint8)


def stretched(picture: np.ndarray, most: float, from_column: int = 200) -> np.ndarray:  # type: ignore[type-arg]
    """Return the picture with its right side moved down, more and more towards the border."""
    height, width = picture.shape[:2]
    across, down = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    down -= np.clip((across - from_column) / (width - from_column), 0, 1) * most
    return cv2.remap(picture, across, down.astype(np.float32), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@pytest.mark.parametrize("most", [3, 5])
def test_a_stretched_border_no_longer_differs_but_a_hole_in_it_does(most: int) -> None:
    picture = stretched(GOOD, most)
    before = lasting_differences(picture, GOOD)
    reference, spread = settle(picture, GOOD, SPREAD)
    assert lasting_differences(picture, reference) < 0.4 * before
    assert not np.array_equal(spread, SPREAD), "the spread belongs to the reference's pixels"
    place = (slice(150, 166), slice(280, 296))
    picture[place] = 255 - picture[place]
    hole = np.abs(picture.astype(int) - settle(picture, GOOD, SPREAD)[0]).max(axis=2) > 40
    assert hole[place].mean() > 0.8


def test_a_picture_in_place_and_one_with_a_hole_keep_their_reference() -> None:
    picture = noisy(GOOD, 1)
    assert settle(picture, GOOD, SPREAD)[0] is GOOD
    for top, left in ((60, 60), (150, 40), (200, 200)):
        holed = GOOD.copy()
        holed[top : top + 24, left : left + 24] = (255, 0, 0)
        assert settle(holed, GOOD, SPREAD)[0] is GOOD


def test_what_lies_further_away_than_the_reach_still_differs() -> None:
    picture = stretched(GOOD, 3 * MOST)
    reference, _ = settle(picture, GOOD, SPREAD)
    assert lasting_differences(picture, reference) > 1000


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (63, 63), (64, 200), (65, 700)])
def test_a_picture_of_any_shape_is_compared(shape: tuple[int, int]) -> None:
    chance = np.random.default_rng(0)
    picture, reference = (chance.integers(0, 255, (*shape, 3), dtype=np.uint8) for _ in range(2))
    moved, spread = settle(picture, reference, np.zeros(shape, np.uint8))
    assert (moved.shape, spread.shape) == ((*shape, 3), shape)


def test_kinds_compare_with_the_settled_reference() -> None:
    across, down = np.meshgrid(np.arange(320, dtype=np.float32), np.arange(320, dtype=np.float32))
    down -= 5 * np.exp(-(((across - 160) / 50) ** 2))  # no turn and no scale undoes a bulge
    picture = cv2.remap(GOOD, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    pair = compared(picture, Reference(GOOD, np.zeros((320, 320), np.uint8)))
    assert pair.stack is not None
    assert pair.alignment is not None
    remaining = lasting_differences(*(np.repeat(pair.stack[:, :, place, None], 3, axis=2) for place in (0, 1)))
    assert remaining < 0.4 * lasting_differences(pair.alignment.image, GOOD)
