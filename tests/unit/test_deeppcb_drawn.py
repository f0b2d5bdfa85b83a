"""Defects drawn for training are what their labels say: counted by the parts of copper and base on a whole picture."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from apps.deeppcb.data import LABELS, Defect, Pair
from apps.deeppcb.drawn import AFTER, BEFORE, Grey, drawn
from apps.deeppcb.golden_train import with_drawn

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
def traces(tmp_path: Path) -> Pair:
    template = np.full((SIDE, SIDE), 255, np.uint8)
    for left in range(20, SIDE - 20, 50):
        template[:, left : left + 25] = 0
    tested = template.copy()
    tested[300:310, 20:45] = 255
    for name, picture in (("temp", template), ("test", tested)):
        cv2.imwrite(str(tmp_path / f"a_{name}.png"), picture)
    known = Defect(0, (20 - BEFORE, 300 - BEFORE, 45 + AFTER, 310 + AFTER))
    return Pair("a", "g", tmp_path / "a_test.png", tmp_path / "a_temp.png", tmp_path / "a.txt", (known,))


def parts(picture: Grey) -> tuple[int, int]:
    """Return how many parts copper and base have."""
    counts = []
    for mask, connected in ((picture < 128, 8), (picture >= 128, 4)):
        sizes = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=connected)[2][1:]
        counts.append(int((sizes[:, cv2.CC_STAT_AREA] >= SPECK).sum()))
    return counts[0], counts[1]


def changed_at(picture: Grey, template: Grey, defect: Defect) -> Grey:
    """Return the template with the change of one defect."""
    # Boxes end at the border of the picture, and are moved by up to 2 pixels.
    columns, rows = [
        (low + BEFORE - 2 if low else 0, high - AFTER + 2 if high < SIDE else SIDE)
        for low, high in zip(defect.xyxy[:2], defect.xyxy[2:], strict=True)
    ]
    place = slice(*rows), slice(*columns)
    drawn_at = np.minimum(picture, template) if LABELS[defect.label] in DARK else np.maximum(picture, template)
    alone = template.copy()
    alone[place] = drawn_at[place]
    return alone


@pytest.mark.parametrize("seed", range(3))
def test_a_drawn_defect_joins_and_splits_what_its_label_says(traces: Pair, seed: int) -> None:
    picture, defects = drawn(traces, 40, np.random.default_rng(seed))
    template = np.asarray(cv2.imread(str(traces.template), cv2.IMREAD_GRAYSCALE), np.uint8)
    assert defects[0] == traces.defects[0], "what is annotated stays"
    before, seen = parts(template), Counter[str]()
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
        seen[label] += 1
    assert set(seen) == set(LABELS)


def test_what_is_drawn_keeps_away_from_what_is_annotated_and_is_all_that_changes(traces: Pair) -> None:
    picture, defects = drawn(traces, 30, np.random.default_rng(0))
    tested = np.asarray(cv2.imread(str(traces.tested), cv2.IMREAD_GRAYSCALE), np.uint8)
    assert len(defects) == 31
    different = picture != tested
    assert not different[296:314, 16:49].any()
    for defect in defects[1:]:
        x1, y1, x2, y2 = defect.xyxy
        assert 0 <= x1 < x2 <= SIDE
        assert 0 <= y1 < y2 <= SIDE
        different[y1:y2, x1:x2] = False
    assert not different.any(), "every change lies in a box"


def test_training_sees_pairs_as_they_are_and_again_with_more_defects(traces: Pair, tmp_path: Path) -> None:
    seen = with_drawn([traces, traces], repeat=1, wanted=5, out=tmp_path / "drawn", seed=0)
    assert seen[:2] == [traces, traces]
    assert [len(pair.defects) for pair in seen] == [1, 1, 6, 6]
    pictures = [cv2.imread(str(pair.tested), cv2.IMREAD_GRAYSCALE) for pair in seen[2:]]
    assert (pictures[0] != pictures[1]).any(), "each copy has defects of its own"
    assert all(pair.template == traces.template for pair in seen)
    assert with_drawn([traces], repeat=4, wanted=0, out=tmp_path / "drawn", seed=0) == [traces], "none: repeated alone"
