"""A picture against its reference: what differs, and why a picture cannot be compared."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from golden_parts import DEFECT, bad, moved, noisy, part

from coe.comparing.comparison import compare
from coe.store.kinds import Reference
from experts.pair import compared, differences

GOOD = part(3)
GREY = np.dstack([GOOD.mean(axis=2).astype(np.uint8)] * 3)
BLANK = np.full_like(GOOD, 128)


def scratched(picture: np.ndarray) -> np.ndarray:
    copy = picture.copy()
    copy[60:64, 20:120] = 10
    return copy


def test_the_difference_is_where_the_picture_differs_and_nowhere_else() -> None:
    difference = compare(moved(bad(GOOD), 5, -3), GOOD).difference
    assert difference is not None
    x1, y1, x2, y2 = DEFECT
    assert difference[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].min() > 40
    difference[y1 - 2 : y2 + 2, x1 - 2 : x2 + 2] = 0
    assert difference[8:-8, 8:-8].max() < 20


def test_what_good_parts_vary_by_is_no_difference() -> None:
    spread = np.full(GOOD.shape[:2], 30, np.uint8)
    noise = noisy(GOOD, 1, levels=4)
    without, with_spread = compare(noise, GOOD).difference, compare(noise, GOOD, spread).difference
    assert without is not None
    assert with_spread is not None
    assert np.array_equal(with_spread, np.maximum(without, spread) - spread)


def test_experts_see_the_difference_that_people_are_shown() -> None:
    picture = moved(bad(GOOD), 2, 1, 1.5)
    reference = Reference(GOOD, np.full(GOOD.shape[:2], 5, np.uint8))
    stack, shown = compared(picture, reference).stack, compare(picture, reference.image, reference.spread).difference
    assert stack is not None
    assert shown is not None
    assert np.array_equal(differences(stack), shown)


@pytest.mark.parametrize(
    ("picture", "reference", "doubt"),
    [
        (GOOD[:100], GOOD, "it is 160 x 100 pixels and its reference 160 x 160"),
        (GOOD[::4, ::4].copy(), GOOD, "40 x 40 pixels show too little of a reference of 160 x 160; give at least 50%"),
        (part(5), GOOD, "it does not fit its reference: "),
        (BLANK, GOOD, "it does not fit its reference: 0.00"),
        (GOOD, np.zeros_like(GOOD), "its reference is dark; was the light on?"),
        (GOOD // 12, GOOD // 12, "its reference is dark; was the light on?"),
        (BLANK, noisy(np.full_like(GOOD, 15), 1, 10), "its reference is dark; was the light on?"),
        (noisy(np.full_like(GOOD, 10), 1, 8), np.full_like(GOOD, 48), "it is dark; was the light on?"),
        (BLANK, np.full_like(GOOD, 220), "it does not fit its reference: 0.00"),
        (GREY, GOOD, "it is grey and its reference has colours; take both with one camera"),
        (GOOD, GREY, "it has colours and its reference is grey; take both with one camera"),
    ],
)
def test_a_picture_that_cannot_be_compared_says_why(picture: np.ndarray, reference: np.ndarray, doubt: str) -> None:
    comparison = compare(picture, reference)
    assert comparison.doubt.startswith(doubt)
    assert comparison.difference is None


@pytest.mark.parametrize(("picture", "reference"), [(GREY, GREY), (GOOD, GOOD), (GREY + np.uint8(2), GREY)])
def test_equal_colours_are_no_doubt(picture: np.ndarray, reference: np.ndarray) -> None:
    assert compare(picture, reference).doubt == ""


@pytest.mark.parametrize("levels", [0, 4, 6])
def test_a_scratch_on_a_blank_part_is_a_difference(levels: float) -> None:
    """Under the noise of a camera, too."""
    reference = noisy(BLANK, 1, levels)
    difference = compare(noisy(scratched(BLANK), 2, levels), reference).difference
    assert difference is not None
    assert (difference[60:64, 20:120] > 80).all()
    assert compare(noisy(BLANK, 3, levels), reference).doubt == ""


def marked(words: str) -> np.ndarray:
    picture = np.full((140, 200, 3), 120, np.uint8)
    return np.asarray(
        cv2.putText(picture, words, (80, 75), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (180, 180, 180), 1), np.uint8
    )


@pytest.mark.parametrize("words", ["", "C47"])
def test_a_part_with_another_thin_mark_does_not_fit(words: str) -> None:
    """A thin mark is not the noise of a blank part."""
    assert compare(noisy(marked(words), 1, 1), noisy(marked("R12"), 2, 1)).doubt.startswith("it does not fit")
    assert compare(noisy(marked("R12"), 1, 1), noisy(marked("R12"), 2, 1)).doubt == ""


def test_a_frame_drawn_into_a_grey_picture_leaves_it_comparable() -> None:
    picture = GREY.copy()
    picture[30:34, 20:120] = (0, 255, 0)
    assert compare(picture, GREY).doubt == ""
