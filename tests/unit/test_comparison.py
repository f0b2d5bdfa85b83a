"""A picture against its reference: what differs, and why a picture cannot be compared."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from golden_parts import DEFECT, bad, half_second, moved, noisy, part, second_look
from PIL import Image

from coe.cluster import cluster_engine
from coe.cluster.messages import CarriedImage
from coe.comparing.alternates import alike_in_size, best_of
from coe.comparing.comparison import MOST, compare, settle
from coe.comparing.motion import lasting_differences
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.store.kinds import Reference
from experts.pair import compared, differences

GOOD = part(3)
GREY = np.dstack([GOOD.mean(axis=2).astype(np.uint8)] * 3)
BLANK = np.full_like(GOOD, 128)


def scratched(picture):
    copy = picture.copy()
    copy[60:64, 20:120] = 10
    return copy


def test_the_difference_is_where_the_picture_differs_beyond_what_good_parts_vary_by():
    difference = compare(moved(bad(GOOD), 5, -3), GOOD).difference
    x1, y1, x2, y2 = DEFECT
    assert difference[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].min() > 40
    difference[y1 - 2 : y2 + 2, x1 - 2 : x2 + 2] = 0
    assert difference[8:-8, 8:-8].max() < 20
    spread = np.full(GOOD.shape[:2], 30, np.uint8)
    noise = noisy(GOOD, 1, levels=4)
    without, with_spread = compare(noise, GOOD).difference, compare(noise, GOOD, spread).difference
    assert without is not None
    assert with_spread is not None
    assert np.array_equal(with_spread, np.maximum(without, spread) - spread)


def test_experts_see_the_difference_that_people_are_shown_with_the_settled_reference():
    picture = moved(bad(GOOD), 2, 1, 1.5)
    reference = Reference(GOOD, np.full(GOOD.shape[:2], 5, np.uint8))
    stack, shown = compared(picture, reference).stack, compare(picture, reference.image, reference.spread).difference
    assert stack is not None
    assert shown is not None
    assert np.array_equal(differences(stack), shown)
    across, down = np.meshgrid(np.arange(320, dtype=np.float32), np.arange(320, dtype=np.float32))
    down -= 5 * np.exp(-(((across - 160) / 50) ** 2))  # no turn and no scale undoes a bulge
    picture = cv2.remap(GOOD_PART, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    pair = compared(picture, Reference(GOOD_PART, np.zeros((320, 320), np.uint8)))
    assert pair.stack is not None
    remaining = lasting_differences(*(np.repeat(pair.stack[:, :, place, None], 3, axis=2) for place in (0, 1)))
    assert remaining < 0.4 * lasting_differences(pair.alignment.image, GOOD_PART)


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
def test_a_picture_that_cannot_be_compared_says_why(picture, reference, doubt):
    comparison = compare(picture, reference)
    assert comparison.doubt.startswith(doubt)
    assert comparison.difference is None


@pytest.mark.parametrize(("picture", "reference"), [(GREY, GREY), (GOOD, GOOD), (GREY + np.uint8(2), GREY)])
def test_equal_colours_are_no_doubt(picture, reference):
    assert compare(picture, reference).doubt == ""


@pytest.mark.parametrize("levels", [0, 4, 6])
def test_a_scratch_on_a_blank_part_is_a_difference(levels):
    """Under the noise of a camera, too."""
    reference = noisy(BLANK, 1, levels)
    difference = compare(noisy(scratched(BLANK), 2, levels), reference).difference
    assert (difference[60:64, 20:120] > 80).all()
    assert compare(noisy(BLANK, 3, levels), reference).doubt == ""


def marked(words):
    picture = np.full((140, 200, 3), 120, np.uint8)
    return np.asarray(
        cv2.putText(picture, words, (80, 75), cv2.FONT_HERSHEY_SIMPLEX, 0.4, (180, 180, 180), 1), np.uint8
    )


@pytest.mark.parametrize("words", ["", "C47"])
def test_a_part_with_another_thin_mark_does_not_fit(words):
    """A thin mark is not the noise of a blank part."""
    assert compare(noisy(marked(words), 1, 1), noisy(marked("R12"), 2, 1)).doubt.startswith("it does not fit")
    assert compare(noisy(marked("R12"), 1, 1), noisy(marked("R12"), 2, 1)).doubt == ""


def test_a_frame_drawn_into_a_grey_picture_leaves_it_comparable():
    picture = GREY.copy()
    picture[30:34, 20:120] = (0, 255, 0)
    assert compare(picture, GREY).doubt == ""


# Places of a reference that lie beside those of the picture are moved there, and defects are not explained away


GOOD_PART = part(1, 320)
SPREAD = np.arange(320 * 320, dtype=np.uint32).reshape(320, 320).astype(np.uint8)


def stretched(picture, most, from_column=200):
    """Return the picture with its right side moved down, more and more towards the border."""
    height, width = picture.shape[:2]
    across, down = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    down -= np.clip((across - from_column) / (width - from_column), 0, 1) * most
    return cv2.remap(picture, across, down.astype(np.float32), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@pytest.mark.parametrize("most", [3, 5])
def test_a_stretched_border_no_longer_differs_but_a_hole_in_it_does(most):
    picture = stretched(GOOD_PART, most)
    before = lasting_differences(picture, GOOD_PART)
    reference, spread = settle(picture, GOOD_PART, SPREAD)
    assert lasting_differences(picture, reference) < 0.4 * before
    assert not np.array_equal(spread, SPREAD), "the spread belongs to the reference's pixels"
    place = (slice(150, 166), slice(280, 296))
    picture[place] = 255 - picture[place]
    hole = np.abs(picture.astype(int) - settle(picture, GOOD_PART, SPREAD)[0]).max(axis=2) > 40
    assert hole[place].mean() > 0.8


def test_pictures_in_place_or_with_a_hole_keep_their_reference_and_no_further_reach_is_settled():
    picture = noisy(GOOD_PART, 1)
    assert settle(picture, GOOD_PART, SPREAD)[0] is GOOD_PART
    for top, left in ((60, 60), (150, 40), (200, 200)):
        holed = GOOD_PART.copy()
        holed[top : top + 24, left : left + 24] = (255, 0, 0)
        assert settle(holed, GOOD_PART, SPREAD)[0] is GOOD_PART
    picture = stretched(GOOD_PART, 3 * MOST)
    reference, _ = settle(picture, GOOD_PART, SPREAD)
    assert lasting_differences(picture, reference) > 1000


@pytest.mark.parametrize("shape", [(1, 1), (3, 200), (63, 63), (64, 200), (65, 700)])
def test_a_picture_of_any_shape_is_compared(shape):
    chance = np.random.default_rng(0)
    picture, reference = (chance.integers(0, 255, (*shape, 3), dtype=np.uint8) for _ in range(2))
    moved, spread = settle(picture, reference, np.zeros(shape, np.uint8))
    assert (moved.shape, spread.shape) == ((*shape, 3), shape)


# Which of several references a picture is compared with


def reference(picture, id):
    return Reference(picture, np.zeros(picture.shape[:2], np.uint8), id)


BOTH = (reference(part(), "first"), reference(second_look(part()), "second"))


@pytest.mark.parametrize("alternates", [BOTH, BOTH[::-1]])
@pytest.mark.parametrize(
    ("picture", "fits"),
    [
        (part(), "first"),
        (second_look(part()), "second"),
        (moved(noisy(bad(part()), 1), 3, -2), "first"),
        (moved(noisy(bad(second_look(part())), 2), -3, 2), "second"),
        (half_second(part()), "first"),
    ],
)
def test_the_whole_part_decides(alternates, picture, fits):
    assert best_of(picture, alternates).id == fits


def test_what_cannot_be_compared_goes_to_what_it_resembles_most_and_equals_to_the_first():
    cut = part()[:120]
    assert best_of(cut, (reference(part()[:, :100], "narrow"), *BOTH)).id == "narrow", (
        "the first, as none has its shape"
    )
    other = part(9)
    assert best_of(
        other, (reference(np.full((160, 160, 3), 128, np.uint8), "flat"), reference(other // 2, "dim"))
    ).id == ("dim")
    assert best_of(part(), (reference(part(), "a"), reference(part(), "b"))).id == "a"


@pytest.mark.parametrize(
    ("height", "width", "alike"),
    [(160, 160, True), (81, 81, True), (79, 79, False), (160, 120, False), (330, 330, False)],
)
def test_sizes_may_differ_by_half(height, width, alike):
    one, other = np.zeros((160, 160, 3), np.uint8), np.zeros((height, width, 3), np.uint8)
    assert alike_in_size(one, other) is alike_in_size(other, one) is alike


def test_a_source_counts_and_decodes_all_alternates_and_carries_them_to_other_boxes(tmp_path):
    sources = [ReferenceSource(ImageSource.of(one.image, "RGB"), id=one.id) for one in BOTH]
    both = replace(sources[0], others=(sources[1],))
    assert both.decoding_bytes() == sum(source.decoding_bytes() for source in sources)
    decoded = both.decode()
    assert [(one.id, one.place) for one in decoded.alternates] == [("first", 0), ("second", 1)]
    assert np.array_equal(decoded.others[0].image, BOTH[1].image)
    for one in BOTH:
        Image.fromarray(one.image).save(tmp_path / f"{one.id}.png")
    sources = [ReferenceSource(ImageSource.of(tmp_path / f"{one.id}.png"), id=one.id) for one in BOTH]
    source = ImageSource.of(part(), "RGB").beside(replace(sources[0], others=(sources[1],)))
    carried = cluster_engine._with_bytes(CarriedImage(source, "U1")).source.reference
    for one in BOTH:
        (tmp_path / f"{one.id}.png").unlink()
    assert [one.id for one in carried.decode().alternates] == ["first", "second"]
