"""OK is earned: how near a part is to good ones, which good pictures look bad, and what an exam shows."""

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Shown
from coe.store.exam import Exam, ExamItem, added, stops_of
from coe.store.kinds import resolve
from experts import exam, suspects
from experts.nearness import LEAST_DEVIATIONS, Cloud, Nearness, NearnessNetwork


def drawn(seed, count, far=0.0):
    """Features (n, 300), in some directions more varied than in others; `far` off in ten of them."""
    chance = np.random.default_rng(seed)
    features = chance.normal(size=(count, 300)) * np.linspace(1.5, 0.5, 300) + 5
    features[:, 100:110] += far
    return features


@pytest.mark.parametrize("share", [0.01, 0.05])
def test_good_parts_are_near_and_others_are_not(share):
    near = Nearness.of(drawn(1, 20), np.arange(20), share)
    assert (near.of_others(drawn(2, 400)) > near.limit).mean() < 4 * share
    assert (near.of_others(drawn(3, 50, far=6.0)) > near.limit).all()


def test_a_network_says_what_was_learned_and_parts_that_are_all_the_same_give_numbers():
    near = Nearness.of(drawn(1, 20), np.arange(20), 0.05)
    network = NearnessNetwork(300)
    network.fill(near)
    further = drawn(4, 30, far=2.0)
    said = network(torch.from_numpy(further)).numpy()
    np.testing.assert_allclose(said, near.of_others(further) - near.limit, atol=0.1)
    features = np.concatenate([drawn(1, 20), drawn(5, 1, far=6.0), drawn(5, 1, far=6.0)])
    near = Nearness.of(features, np.array([*range(20), 20, 20]), 0.05)
    assert (near.deviations[20:] > near.limit).all()
    assert (near.of_changed(features[20:], np.array([20, 20])) > near.limit).all()
    cloud = Cloud.of(np.ones((5, 8)))
    assert np.isfinite(cloud.logarithms(np.array([np.ones(8), np.zeros(8)]))).all()


def test_bad_pictures_among_the_good_are_found_by_their_like_or_by_a_gap():
    good, bad = drawn(1, 20), drawn(6, 20, far=14.0)
    mixed = np.concatenate([good[:17], bad[:3]])
    assert suspects.beside_bad(mixed, bad[3:]) == ([17, 18, 19], True)
    assert suspects.beside_bad(good, bad) == ([], True)
    found, are_left_out = suspects.beside_bad(good, drawn(9, 60))
    assert (len(found) > 5, are_left_out) == (True, False), "where bad parts look as good ones do, none is left out"
    good, bad = drawn(1, 20), drawn(6, 3, far=40.0)
    for count in (0, 1, 2, 3):
        mixed = np.concatenate([good[: 20 - count], bad[:count]])
        assert suspects.far_from_most(mixed) == list(range(20 - count, 20))


@given(st.lists(st.floats(-3, 8) | st.just(float("inf")), min_size=1, max_size=40), st.floats(1.3, 3))
def test_a_limit_is_tightened_until_a_tenth_passes_or_to_the_least(deviations, limit):
    new = exam.tightened(limit, deviations)
    passing = sum(one <= new for one in deviations)
    assert LEAST_DEVIATIONS <= new <= limit
    assert passing <= len(deviations) // 10 or new == LEAST_DEVIATIONS
    if sum(one <= limit for one in deviations) <= len(deviations) // 10:
        assert new == limit


def pictures(count):
    chance = np.random.default_rng(3)
    images = chance.integers(90, 110, (count, 3, 128, 128)).astype(np.uint8)
    images[:, :, 44:76, 36:92] = chance.integers(200, 220, (count, 3, 32, 56))
    return torch.from_numpy(images)


def test_an_exam_shows_the_part_missing_and_turned_and_its_rows_add_up():
    images = pictures(4)
    missing, turned = exam.sheets(images)
    assert (missing.item, turned.item) == (Shown.MISSING, Shown.TURNED)
    assert missing.made_of.tolist() == [0, 1, 2, 3]
    assert turned.made_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3], "in two boxes each"
    assert turned.least(np.array([1.0, 5, 2, 0, 3, 7, 4, 8])).tolist() == [1, 0, 3, 4]
    around = torch.ones(128, 128, dtype=torch.bool)
    around[24:98, 16:112] = False
    for boxes in (turned.images[::2], turned.images[1::2]):
        assert torch.equal(boxes[:, :, around], images[:, :, around])
        assert not torch.equal(boxes[:, :, 48:72, 40:88], images[:, :, 48:72, 40:88])
    assert int(missing.images[:, :, 48:72, 40:88].max()) < 130, "nothing is left of the part"
    assert torch.equal(missing.images[:, :, :30], images[:, :, :30]), "and all around it"
    some = [exam.graded(Shown.MISSING, np.array([True, False])), exam.graded(Shown.MISSING, np.array([False]))]
    (item,) = added(some)
    assert (item.shown, item.passed) == (3, 1)


def crowded(seed, at=(0, 0), contrast=1.0):
    """A part (3, 128, 128) between two like it, with print close to a third side, moved by `at` pixels."""
    chance = np.random.default_rng(seed)
    board = np.full((128, 128, 3), (30.0, 90.0, 160.0))
    for top in (-22, 42, 106):
        board[max(0, top) : top + 44, 28:100] = (190, 180, 170)  # its pads, and its body
        board[max(0, top + 2) : top + 42, 44:84] = (40, 36, 34)
    board[30:98, 104:112] = (240, 240, 235)
    board = contrast * board + (1 - contrast) * np.array((30, 90, 160))
    moved = np.roll(board * chance.uniform(0.8, 1.2), at, (0, 1))
    return (moved + chance.normal(0, 4, moved.shape)).clip(0, 255).astype(np.uint8).transpose(2, 0, 1)


def boxes(found):
    return [one and (one.part.left, one.part.top, one.part.right, one.part.bottom) for one in found]


def is_near(box, wanted, by=8):
    return box is not None and max(abs(one - two) for one, two in zip(box, wanted, strict=True)) <= by


def test_a_part_is_found_between_its_like_and_print_whatever_strange_parts_there_are():
    moves = [(0, 0), (4, 4), (-4, 0), (0, 4), (4, -4), (0, 0), (-4, -4), (0, 0)]
    images = [crowded(seed, at) for seed, at in enumerate(moves)]
    found = boxes(exam.parts_of([*images, crowded(9, contrast=0.02)]))
    for (down, across), box in zip([*moves, (0, 0)], found, strict=True):
        assert is_near(box, (28 + across, 42 + down, 100 + across, 86 + down)), f"{box} moved by {across, down}"
    good = [crowded(seed) for seed in range(12)]
    turned = [crowded(seed)[:, ::-1, ::-1].copy() for seed in range(20, 26)]
    assert all(is_near(box, (28, 42, 100, 86)) for box in boxes(exam.parts_of([*good, *turned])))


def test_a_frame_of_one_colour_is_no_part_of_a_picture_also_in_a_padded_input():
    """Else the whole framed picture would be the part, and be turned and covered with what is around it."""
    chance, framed = np.random.default_rng(5), []
    for seed in range(8):
        image = np.tile(np.array((124, 116, 104), np.uint8)[:, None, None], (1, 128, 128))
        image[:, 8:120] = chance.integers(250, 254, (3, 112, 128))  # a frame, as a JPEG keeps it
        content = cv2.resize(crowded(seed).transpose(1, 2, 0), (88, 88), interpolation=cv2.INTER_AREA)
        image[:, 20:108, 20:108] = content.transpose(2, 0, 1)
        framed.append(image)
    assert all(is_near(box, (39, 49, 89, 79)) for box in boxes(exam.parts_of(framed)))


def nowhere():
    """Pictures in which nobody can tell where a part is."""
    chance = np.random.default_rng(7)
    anywhere = chance.integers(90, 110, (12, 3, 128, 128)).astype(np.uint8)
    for image, (left, top) in zip(anywhere, chance.choice([4, 88], (12, 2)), strict=True):
        image[:, top : top + 32, left : left + 32] = 200
    weave = chance.integers(60, 140, (12, 8, 8)).astype(np.uint8)
    return {
        "parts at any place": list(anywhere),
        "a surface": [np.stack([cv2.resize(one, (128, 128), interpolation=cv2.INTER_CUBIC)] * 3) for one in weave],
        "one colour": [np.full((3, 128, 128), 100, np.uint8)] * 3,
    }


@pytest.mark.parametrize("what", list(nowhere()))
def test_where_nobody_can_tell_the_place_the_exam_does_not_tell_what_passes(what):
    images = nowhere()[what]
    assert exam.parts_of(images) == [None] * len(images)
    (sheet,) = exam.sheets(torch.from_numpy(np.stack(images)))
    assert (sheet.item, len(sheet.images)) == (Shown.TURNED, len(images))
    for passed, told in ((0, {}), (12, {Shown.TURNED: False})):
        taken = Exam.of([ExamItem(item=Shown.TURNED, shown=12, passed=passed)])
        assert (stops_of(taken).get("", {}), len(taken.notes)) == (told, 1), "undecided, or proved to pass"
        assert stops_of(Exam(is_surface=True).again(taken.items)).get("", {}) == told


def test_a_part_is_turned_where_it_lies_and_its_pads_or_leads_stay_where_its_body_is_missing():
    picture = np.full((80, 120, 3), 60, np.uint8)
    picture[:, :, 2] = np.random.default_rng(0).integers(110, 130, (80, 120))
    picture[28:52, 24:36] = picture[28:52, 84:96] = 220  # pads
    picture[30:50, 34:86] = 30
    picture[33:39, 40:50] = 160  # a mark at one end
    picture[16:21, 50:70] = 230  # print beside it
    made = dict(exam.made_of(picture, exam.part_of(picture)))
    outside = np.ones(picture.shape[:2], bool)
    outside[15:65, 10:110] = False
    for pixels in made.values():
        assert pixels.shape == picture.shape
        assert (pixels[outside] == picture[outside]).all()
    turned, bare = made[Shown.TURNED], made[Shown.MISSING]
    assert turned[41:47, 70:80, 0].mean() > 120
    assert turned[33:39, 40:50, 0].mean() < 60
    assert bare[34:46, 50:70, 2].mean() > 100, "the surroundings lie over the body"
    assert bare[34:46, 50:70, 0].max() < 100, "and none of the print"
    assert (bare[32:48, 26:30, 0] > 200).all(), "and the pads are seen"
    picture = np.full((96, 96, 3), 60, np.uint8)
    picture[:, :, 2] = np.random.default_rng(0).integers(110, 130, (96, 96))
    picture[28:68, 24:72] = 30
    picture[40:46, 32:64:2] = 110  # its print
    picture[16:28, 28:68:8] = picture[68:80, 28:68:8] = 220
    bare = dict(exam.made_of(picture, exam.part_of(picture)))[Shown.MISSING]
    assert bare[34:62, 30:66, 2].min() > 90, "no body and no print"
    assert (bare[18:24, 28:68:8, 0] > 150).all(), "and the leads are seen"


@pytest.mark.parametrize("name", ["probe", "patch", "resnet18"])
def test_calibration_shows_kinds_that_see_wholes_the_part_missing_too(name):
    part = pictures(1)[0].permute(1, 2, 0).numpy()
    made = dict(resolve(name).must_not_pass(part))
    turned = made[Shown.TURNED]
    assert (turned[:20] == part[:20]).all(), "the board stays as it is"
    assert (turned[46:74, 40:88] != part[46:74, 40:88]).any()
    assert made[Shown.MISSING][46:74, 40:88].mean() < 130, "the surroundings lie over it"
    plain = np.full_like(part, 100)
    assert set(dict(resolve(name).must_not_pass(plain))) == {Shown.TURNED}
