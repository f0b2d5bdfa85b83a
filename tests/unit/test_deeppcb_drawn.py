"""Defects drawn for training are what their labels say: counted by the parts of copper and base on a whole picture."""

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest
from tables import with_slow_rows

from apps.data_set import DataMissing
from apps.deeppcb import data as deeppcb
from apps.deeppcb.data import LABELS, Defect, Pair
from apps.deeppcb.drawn import drawn, name
from apps.deeppcb.train import with_drawn

SIDE = 640
SPECK = 30
"""Parts of fewer pixels are the ragged border of a stroke."""
MORE = {
    "copper": (1, 0), "spur": (0, 0), "short": (-1, 1),
    "pin-hole": (0, 1), "mousebite": (0, 0), "open": (1, -1),
}  # fmt: skip
"""How many more parts copper and base have with a defect on a board of traces from border to border."""
DARK = ("copper", "spur", "short")


@pytest.fixture
def traces(tmp_path):
    template = np.full((SIDE, SIDE), 255, np.uint8)
    for left in range(20, SIDE - 20, 80):
        template[:, left : left + 40] = 0
    tested = template.copy()
    tested[300:310, 20:60] = 255
    for ending, picture in (("temp", template), ("test", tested)):
        cv2.imwrite(str(tmp_path / f"a_{ending}.png"), picture)
    known = Defect(0, (10, 290, 69, 319))
    return Pair("a", "g", tmp_path / "a_test.png", tmp_path / "a_temp.png", tmp_path / "a.txt", (known,))


def parts(picture):
    counts = []
    for mask, connected in ((picture < 128, 8), (picture >= 128, 4)):
        sizes = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=connected)[2][1:]
        counts.append(int((sizes[:, cv2.CC_STAT_AREA] >= SPECK).sum()))
    return counts[0], counts[1]


def changed_at(picture, template, defect):
    columns, rows = [
        (low + 10 if low else 0, high - 9 if high < SIDE else SIDE)  # boxes end at the border of the picture
        for low, high in zip(defect.xyxy[:2], defect.xyxy[2:], strict=True)
    ]
    place = slice(*rows), slice(*columns)
    drawn_at = np.minimum(picture, template) if LABELS[defect.label] in DARK else np.maximum(picture, template)
    alone = template.copy()
    alone[place] = drawn_at[place]
    return alone


def annotated(tested, good, defect):
    """Return what changed (H, W) at an annotated defect, without the ragged borders beside it."""
    x1, y1, x2, y2 = defect.xyxy
    to_light = LABELS[defect.label] not in DARK
    box = slice(y1, y2), slice(x1, x2)
    different = (tested[box] != good[box]) & (tested[box] == to_light)
    places, stats = cv2.connectedComponentsWithStats(different.astype(np.uint8))[1:3]
    changed = np.zeros_like(tested)
    changed[box] = different & (stats[:, cv2.CC_STAT_AREA] >= 8)[places]
    return changed


@pytest.mark.parametrize("seed", with_slow_rows(range(3), fast=1))
def test_a_drawn_defect_joins_and_splits_what_its_label_says(traces, seed):
    picture, defects = drawn(traces, 60, np.random.default_rng(seed))
    template = np.asarray(cv2.imread(str(traces.template), cv2.IMREAD_GRAYSCALE), np.uint8)
    assert defects[0] == traces.defects[0], "what is annotated stays"
    before, seen = parts(template), set()
    for defect in defects[1:]:
        label = LABELS[defect.label]
        alone = changed_at(picture, template, defect)
        copper, base = (now - then for now, then in zip(parts(alone), before, strict=True))
        if label in ("short", "open") and 0 in (copper, base):
            # At a trace's corner or beside the picture's border one of both is enough.
            assert max(copper, base) > 0, (label, defect)
        elif label not in ("copper", "pin-hole") or min((alone != template).sum(), SPECK) == SPECK:
            assert (copper, base) == MORE[label], (label, defect)
        assert (alone != template).any(), "dark for copper, light for base"
        seen.add(label)
    assert seen == set(LABELS)


def test_what_is_drawn_keeps_away_from_what_is_annotated_and_is_all_that_changes(traces):
    picture, defects = drawn(traces, 30, np.random.default_rng(0))
    tested = np.asarray(cv2.imread(str(traces.tested), cv2.IMREAD_GRAYSCALE), np.uint8)
    assert len(defects) == 31
    different = picture != tested
    assert not different[295:315, 15:65].any(), "5 pixels around what differs there"
    for defect in defects[1:]:
        x1, y1, x2, y2 = defect.xyxy
        assert 0 <= x1 < x2 <= SIDE
        assert 0 <= y1 < y2 <= SIDE
        different[y1:y2, x1:x2] = False
    assert not different.any(), "every change lies in a box"


def test_boxes_are_as_far_from_what_changed_as_the_data_set_draws_them(traces):
    picture, defects = drawn(replace(traces, defects=()), 40, np.random.default_rng(0))
    different = picture != np.asarray(cv2.imread(str(traces.tested), cv2.IMREAD_GRAYSCALE), np.uint8)
    sides = {}
    for defect in defects:
        x1, y1, x2, y2 = defect.xyxy
        if min(x1, y1) == 0 or max(x2, y2) == SIDE:
            continue
        # Other defects reach into boxes: of what changed only the piece that the box was drawn around is measured.
        places = cv2.connectedComponents(different[y1:y2, x1:x2].astype(np.uint8))[1]
        x, y, width, height = cv2.boundingRect((places[6:-6, 6:-6] > 0).astype(np.uint8))
        around = (x + 6, y + 6, x2 - x1 - x - 6 - width, y2 - y1 - y - 6 - height)
        sides.setdefault(LABELS[defect.label], []).append(around)
    for label, around in sides.items():
        further = np.median(around, axis=0) - (10, 10, 9, 9)
        assert (further >= 0).all()
        assert (further <= (0 if label in ("copper", "pin-hole") else 3)).all()


def test_the_same_seed_draws_the_same_and_a_picture_that_cannot_be_read_is_one_sentence(traces):
    first, again, other = (drawn(traces, 10, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert (first[0] == again[0]).all()
    assert first[1] == again[1] != other[1]
    traces.tested.write_bytes(b"no picture")
    with pytest.raises(DataMissing, match=r"a_test\.png'"):
        drawn(traces, 1, np.random.default_rng(0))


def test_what_a_cut_or_a_bump_joins_or_splits_is_its_name():
    light = np.ones((80, 80), bool)
    light[20:60, 20:60] = False  # a pad

    def corner(side):
        cut = np.zeros_like(light)
        cut[20 : 23 + side, 20 + side : 23 + side] = cut[20 + side : 23 + side, 20 : 23 + side] = True
        return cut

    assert name(light, corner(9), True) == "open", "81 pixels"
    assert name(light, corner(7), True) is None, "49 pixels: the data set has both"
    assert name(light, corner(5), True) == "mousebite", "25 pixels"
    assert name(~light, corner(5), False) == "spur", "the same in the negative"
    assert name(~light, corner(9), False) == "short"
    trace = np.ones((80, 80), bool)
    trace[:, 40:42] = False
    cut = np.zeros_like(trace)
    cut[38:42, 40:42] = True
    assert name(trace, cut, True) == "open", "both ends of a thin trace go on"
    light = np.ones((80, 80), bool)
    light[20:60, 20:24] = light[20:24, 20:40] = light[56:60, 20:40] = False  # like a U on its side
    bump, bridge = np.zeros_like(light), np.zeros_like(light)
    bump[36:40, 24:30] = True
    bridge[24:56, 30:34] = True
    assert name(light, bump, False) == "spur"
    assert name(light, bridge, False) == "short"
    light = np.ones((80, 80), bool)
    light[20:60, 20:60] = False
    for right, label in ((50, "pin-hole"), (58, "pin-hole"), (59, None), (60, "mousebite")):
        hole = np.zeros_like(light)
        hole[30:40, right - 10 : right] = True
        assert name(light, hole, True) == label, right


@pytest.mark.data
def test_names_are_those_of_the_annotated_defects():
    try:
        pairs = deeppcb.read(deeppcb.find(), "trainval")[::20]
    except DataMissing as error:
        pytest.skip(str(error))
    counts = Counter()
    for pair in pairs:
        tested, good = (cv2.imread(str(path), cv2.IMREAD_GRAYSCALE) for path in (pair.tested, pair.template))
        for defect in pair.defects:
            label = LABELS[defect.label]
            changed = annotated(tested >= 128, good >= 128, defect)
            light = (tested >= 128) ^ changed
            given = name(light, changed, label not in DARK)
            counts[None if given is None else given == label] += 1
    assert counts[True] >= 0.97 * (counts[True] + counts[False]), counts
    assert counts[None] <= 0.1 * counts.total(), counts


def test_training_sees_pairs_as_they_are_and_again_with_more_defects(traces, tmp_path):
    seen = with_drawn([traces, traces], repeat=1, wanted=5, out=tmp_path / "drawn", seed=0)
    assert (seen[:2], [len(pair.defects) for pair in seen]) == ([traces, traces], [1, 1, 6, 6])
    pictures = [cv2.imread(str(pair.tested), cv2.IMREAD_GRAYSCALE) for pair in seen[2:]]
    assert (pictures[0] != pictures[1]).any(), "each copy has defects of its own"
    assert all(pair.template == traces.template for pair in seen)
    again = with_drawn([traces, traces], repeat=1, wanted=5, out=tmp_path / "again", seed=0)
    assert [pair.defects for pair in again] == [pair.defects for pair in seen]
    assert with_drawn([traces], repeat=4, wanted=0, out=tmp_path / "drawn", seed=0) == [traces], "none: repeated alone"
