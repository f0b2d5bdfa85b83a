"""Alignment with a reference: known motions are found, and what does not fit says so."""

import cv2
import numpy as np
import pytest
from golden_parts import moved, noisy, part
from hypothesis import given, settings
from hypothesis import strategies as st

from coe.comparing.alignment import align, same_shape
from coe.comparing.motion import LEAST_FIT, LEAST_SEEN, fit_of, lasting_differences

PART = part(2)
POINTS = np.array([[40, 40, 1], [120, 50, 1], [70, 120, 1]], np.float64).T


@pytest.mark.parametrize(
    ("right", "down", "degrees", "scale"),
    [
        (0, 0, 0, 1),
        (7, -5, 0, 1),
        (0, 0, 3, 1),
        (-4, 6, -2, 1),
        (3, 2, 1, 1.04),
        (0, 0, 0, 0.96),
        (0, 0, 1.5, 1),
        (0, 0, 0, 1.03),
        (1, -1, 1, 1.02),
        (2, 1, -1.5, 1.01),
    ],
)
def test_a_moved_part_is_brought_back(right, down, degrees, scale):
    picture = noisy(moved(PART, right, down, degrees, scale), seed=1)
    alignment = align(picture, PART)
    motion = cv2.getRotationMatrix2D((79.5, 79.5), degrees, scale)
    motion[:, 2] += (right, down)
    assert np.abs(alignment.to_picture @ POINTS - motion @ POINTS).max() < 1.0, "pixels"
    assert alignment.fit > 0.95
    assert alignment.seen > LEAST_SEEN


@settings(max_examples=25, deadline=None)
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
    pattern = np.where((rows // 8 + columns // 8) % 2, 220, 30).astype(np.uint8)
    grid = np.dstack([pattern] * 3)
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
    """A part with a single round feature."""
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
@settings(max_examples=60, deadline=None)
def test_pictures_of_a_few_pixels_have_a_fit(height, width, seed):
    chance = np.random.default_rng(seed)
    reference, other = chance.integers(0, 256, (2, height, width, 3), np.uint8)
    assert align(reference, reference).fit == pytest.approx(1.0, abs=1e-3)
    assert -1.001 <= align(other, reference).fit <= 1.001
