"""Alignment with a reference: known motions are found, and what does not fit says so."""

import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
from golden_parts import DEFECT, bad, half_second, moved, noisy, part, second_look
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from thorough import THOROUGH

from coe.cluster import cluster_engine
from coe.cluster.messages import CarriedImage
from coe.comparing.alignment import align, same_shape
from coe.comparing.alternates import alike_in_size, best_of
from coe.comparing.comparison import MOST, compare, settle
from coe.comparing.motion import LEAST_FIT, LEAST_SEEN, fit_of, lasting_differences
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.store.kinds import Reference
from experts.pair import compared, differences

PART = part(2)
POINTS = np.array([[40, 40, 1], [120, 50, 1], [70, 120, 1]], np.float64).T


MOTIONS = [(0, 0, 3, 1), (-4, 6, -2, 1), (3, 2, 1, 1.04), (0, 0, 0, 0.96), (1, -1, 1, 1.02), (2, 1, -1.5, 1.01)]


@pytest.mark.parametrize(("right", "down", "degrees", "scale"), MOTIONS)
def test_a_moved_part_is_brought_back(right, down, degrees, scale):
    alignment = align(noisy(moved(PART, right, down, degrees, scale), seed=1), PART)
    motion = cv2.getRotationMatrix2D((79.5, 79.5), degrees, scale)
    motion[:, 2] += (right, down)
    assert np.abs(alignment.to_picture @ POINTS - motion @ POINTS).max() < 1.0, "pixels"
    assert alignment.fit > 0.95
    assert alignment.seen > LEAST_SEEN


@settings(max_examples=12 * THOROUGH, deadline=None)
@given(st.integers(-12, 12), st.integers(-12, 12), st.integers(0, 3))
def test_every_shift_is_found_to_the_pixel(right, down, seed):
    reference = part(seed)
    alignment = align(moved(reference, right, down), reference)
    assert np.abs(alignment.to_picture - [[1, 0, right], [0, 1, down]]).max() < 0.5


def test_a_picture_in_place_is_not_warped_and_what_it_does_not_show_comes_from_the_reference():
    picture = noisy(PART, seed=3)
    alignment = align(picture, PART)
    assert np.array_equal(alignment.image, picture)
    assert alignment.seen == 1.0
    alignment = align(moved(PART, right=12), PART)
    assert alignment.seen == pytest.approx(148 / 160, abs=0.01)
    assert np.array_equal(alignment.image[:, -11:], PART[:, -11:])
    assert all(align(part(seed), PART).fit < LEAST_FIT for seed in (5, 6, 7))


def test_no_long_shift_wins_in_a_regular_pattern_or_by_the_little_that_it_shows():
    rows, columns = np.mgrid[0:160, 0:160]
    grid = np.dstack([np.where((rows // 8 + columns // 8) % 2, 220, 30).astype(np.uint8)] * 3)
    faulty = grid.copy()
    faulty[10:26, 10:26] = 128
    alignment = align(faulty, grid)
    assert alignment.seen == 1.0
    assert np.array_equal(alignment.to_picture, np.eye(2, 3))
    reference = np.full((160, 160, 3), 220, np.uint8)
    for top in range(10, 150, 40):
        reference[top : top + 20] = 30
    picture = reference.copy()
    reference[10:50, 20:80] = picture[90:130, 20:80] = 120
    assert align(picture, reference).seen == 1.0


def disc():
    """A part that looks the same however it is turned."""
    picture = np.full((240, 240, 3), 90, np.uint8)
    return np.asarray(cv2.circle(picture, (120, 120), 48, (200, 180, 60), -1), np.uint8)


def bar():
    """A part that looks nearly the same however far it is moved along its bar, or stretched."""
    picture = np.zeros((240, 240, 3), np.uint8)
    picture[:] = np.linspace(30, 220, 240).astype(np.uint8)[None, :, None]
    picture[80:86] = 250
    return picture


def dot():
    picture = np.full((140, 200, 3), (60, 110, 70), np.uint8)
    return np.asarray(cv2.circle(picture, (100, 70), 17, (200, 200, 190), -1), np.uint8)


@pytest.mark.parametrize(
    ("x1", "y1", "x2", "y2", "grey"), [(8, 131, 40, 140, 20), (164, 1, 198, 10, 20), (152, 0, 183, 6, 240)]
)
def test_no_turn_moves_a_defect_out_of_the_frame(x1, y1, x2, y2, grey):
    """What the picture shows outside of the frame is compared with nothing."""
    for seed in range(4):
        defective = dot()
        defective[y1:y2, x1:x2] = grey
        aligned = align(noisy(defective, seed, levels=2), dot()).image
        assert lasting_differences(aligned, dot()) > (x2 - x1) * (y2 - y1) / 2


@pytest.mark.parametrize(
    ("good", "x", "y", "side", "shift", "degrees"),
    [
        (disc(), 0, 220, 16, (4, -2), -1.14),
        (disc(), 217, 222, 18, (3, 0), 0.0),
        (bar(), 1, 211, 23, (1, 0), 0.0),
        (bar(), 1, 230, 9, (-3, 4), 0.0),
        (bar(), 109, 220, 19, (1, 1), 0.0),
    ],
)
def test_no_motion_hides_a_defect_at_the_border(good, x, y, side, shift, degrees):
    """A part with little to align by: a turn or a stretch that moves the defect out of the picture fits best."""
    defective = good.copy()
    defective[y : y + side, x : x + side] = 245 if defective[y : y + side, x : x + side].mean() < 128 else 10
    picture = noisy(moved(defective, *shift, degrees), seed=1, levels=2)
    assert lasting_differences(align(picture, good).image, good) > side**2 / 3


def nut():
    """A part with soft outlines: a turn and a stretch of two pixels change little of it."""
    picture = np.full((300, 300, 3), (60, 70, 60), np.uint8)
    cv2.ellipse(picture, (140, 150), (95, 110), 10, 0, 360, (190, 190, 165), -1)
    cv2.line(picture, (140, 80), (150, 240), (150, 140, 100), 4)
    cv2.circle(picture, (110, 120), 4, (120, 90, 50), -1)
    return np.asarray(cv2.GaussianBlur(picture, (0, 0), 4), np.uint8)


@pytest.mark.parametrize("side", range(4))
@pytest.mark.parametrize("seed", [0, 1, 2, 6, 8])
def test_no_motion_leaves_a_thin_line_of_a_bar_at_the_border(seed, side):
    """A bar of three pixels: a motion that moves two of them out of the frame leaves what does not count."""
    chance = np.random.default_rng(seed)
    length = int(chance.integers(60, 140))
    first = int(chance.integers(0, 300 - length))
    defective = np.rot90(nut(), side).copy()
    defective[:3, first : first + length] = 200
    reference = noisy(nut(), 100 + seed, levels=6)
    aligned = align(noisy(np.rot90(defective, -side).copy(), seed, levels=6), reference).image
    assert lasting_differences(aligned, reference) > 3 * length / 2


def test_the_aspect_decides_whether_a_picture_can_be_compared_and_a_single_grey_can():
    assert same_shape(np.zeros((100, 200, 3), np.uint8), np.zeros((50, 100, 3), np.uint8))
    assert same_shape(np.zeros((100, 200, 3), np.uint8), np.zeros((50, 101, 3), np.uint8))
    assert not same_shape(np.zeros((100, 200, 3), np.uint8), np.zeros((200, 100, 3), np.uint8))
    grey, other = np.full((40, 40, 3), 90, np.uint8), np.full((40, 40, 3), 200, np.uint8)
    assert fit_of(grey[:, :, 0], grey[:, :, 0]) == 1.0
    assert fit_of(grey[:, :, 0], other[:, :, 0]) == 0.0, "they differ everywhere"
    grey[:20, :20] = 200
    assert fit_of(grey[:, :, 0], np.full((40, 40), 90, np.uint8)) == 0.75, "a quarter differs"
    stripes = np.tile(np.uint8([110, 146]), (40, 20))
    assert fit_of(np.full((40, 40), 128, np.uint8), stripes) == 0.0, "a fine pattern is no single grey"
    grey[:20, :20] = 90
    assert align(grey, np.ascontiguousarray(PART[60:100, 60:100])).fit <= 1.0
    assert align(np.full_like(PART, 90), PART).fit == 0.0


@pytest.mark.parametrize("shape", [(16, 4000), (4000, 16), (20, 2000), (8, 3000)])
def test_a_strip_is_compared_too(shape):
    """Made smaller by its longer side alone, nothing would be left of it."""
    chance = np.random.default_rng(0)
    strip = np.repeat(np.repeat(chance.integers(0, 255, shape, np.uint8)[..., None], 3, axis=2)[::4, ::4], 4, axis=0)
    strip = np.ascontiguousarray(np.repeat(strip, 4, axis=1)[: shape[0], : shape[1]])
    assert align(strip, strip).fit == pytest.approx(1.0, abs=1e-3)
    assert align(np.ascontiguousarray(255 - strip), strip).fit < 0.5


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=20 * THOROUGH, deadline=None)
def test_pictures_of_a_few_pixels_have_a_fit(height, width, seed):
    chance = np.random.default_rng(seed)
    reference, other = chance.integers(0, 256, (2, height, width, 3), np.uint8)
    assert align(reference, reference).fit == pytest.approx(1.0, abs=1e-3)
    assert -1.001 <= align(other, reference).fit <= 1.001


GOOD = part(3)
GREY = np.dstack([GOOD.mean(axis=2).astype(np.uint8)] * 3)
BLANK = np.full_like(GOOD, 128)


def test_the_difference_is_where_the_picture_differs_beyond_what_good_parts_vary_by():
    difference = compare(moved(bad(GOOD), 5, -3), GOOD).difference
    x1, y1, x2, y2 = DEFECT
    assert difference[y1 + 2 : y2 - 2, x1 + 2 : x2 - 2].min() > 40
    difference[y1 - 2 : y2 + 2, x1 - 2 : x2 + 2] = 0
    assert difference[8:-8, 8:-8].max() < 20
    spread = np.full(GOOD.shape[:2], 30, np.uint8)
    noise = noisy(GOOD, 1, levels=4)
    without, with_spread = compare(noise, GOOD).difference, compare(noise, GOOD, spread).difference
    assert np.array_equal(with_spread, np.maximum(without, spread) - spread)


def test_experts_see_the_difference_that_people_are_shown_with_the_settled_reference():
    picture = moved(bad(GOOD), 2, 1, 1.5)
    reference = Reference(GOOD, np.full(GOOD.shape[:2], 5, np.uint8))
    stack, shown = compared(picture, reference).stack, compare(picture, reference.image, reference.spread).difference
    assert np.array_equal(differences(stack), shown)
    across, down = np.meshgrid(np.arange(320, dtype=np.float32), np.arange(320, dtype=np.float32))
    down -= 5 * np.exp(-(((across - 160) / 50) ** 2))  # no turn and no scale undoes a bulge
    picture = cv2.remap(GOOD_PART, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    pair = compared(picture, Reference(GOOD_PART, np.zeros((320, 320), np.uint8)))
    remaining = lasting_differences(*(np.repeat(pair.stack[:, :, place, None], 3, axis=2) for place in (0, 1)))
    assert remaining < 0.4 * lasting_differences(pair.alignment.image, GOOD_PART)


def framed(picture):
    """Return a grey picture as a program drew a frame into it."""
    copy = picture.copy()
    copy[30:34, 20:120] = (0, 255, 0)
    return copy


@pytest.mark.parametrize(
    ("picture", "reference", "doubt"),
    [
        (GOOD[:100], GOOD, "160 x 100 pixels.* 160 x 160"),
        (GOOD[::4, ::4].copy(), GOOD, "40 x 40 pixels.* 160 x 160.* 50%"),
        (part(5), GOOD, "not fit"),
        (BLANK, GOOD, "not fit.* 0.00"),
        (GOOD, np.zeros_like(GOOD), "reference is dark"),
        (GOOD // 12, GOOD // 12, "reference is dark"),
        (BLANK, noisy(np.full_like(GOOD, 15), 1, 10), "reference is dark"),
        (noisy(np.full_like(GOOD, 10), 1, 8), np.full_like(GOOD, 48), "it is dark"),
        (BLANK, np.full_like(GOOD, 220), "not fit.* 0.00"),
        (GREY, GOOD, "it is grey"),
        (GOOD, GREY, "reference is grey"),
        (GREY, GREY, None),
        (GOOD, GOOD, None),
        (GREY + np.uint8(2), GREY, None),
        (framed(GREY), GREY, None),
    ],
)
def test_a_picture_that_cannot_be_compared_says_why(picture, reference, doubt):
    comparison = compare(picture, reference)
    assert re.search(doubt, comparison.doubt) if doubt else not comparison.doubt
    assert (comparison.difference is None) == (doubt is not None)


@pytest.mark.parametrize("levels", [0, 4, 6])
def test_a_scratch_on_a_blank_part_is_a_difference(levels):
    """Under the noise of a camera, too."""
    reference, scratched = noisy(BLANK, 1, levels), BLANK.copy()
    scratched[60:64, 20:120] = 10
    difference = compare(noisy(scratched, 2, levels), reference).difference
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
    assert "not fit" in compare(noisy(marked(words), 1, 1), noisy(marked("R12"), 2, 1)).doubt
    assert compare(noisy(marked("R12"), 1, 1), noisy(marked("R12"), 2, 1)).doubt == ""


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
    assert best_of(cut, (reference(part()[:, :100], "narrow"), *BOTH)).id == "narrow", "as none has its shape"
    other, flat = part(9), np.full((160, 160, 3), 128, np.uint8)
    assert best_of(other, (reference(flat, "flat"), reference(other // 2, "dim"))).id == "dim"
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
