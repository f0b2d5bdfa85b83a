"""DeepPCB: its pairs, defects that are drawn into them, and how an expert is measured."""

import json
import re
from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image
from tables import with_slow_rows

from apps.data_set import DataMissing
from apps.deeppcb import evaluate, measures, train
from apps.deeppcb.data import LABELS, Defect, Pair, find, read, split_held_out
from apps.deeppcb.drawn import drawn, name
from apps.deeppcb.evaluate import report
from apps.deeppcb.images import write
from apps.deeppcb.measures import ImageBoxes
from apps.deeppcb.pairs import lay_out
from apps.deeppcb.train import balanced, with_drawn
from coe.board import rules
from coe.core import Expert
from coe.pictures.finding import find as find_images
from coe.pictures.photographs import Purpose
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from experts import pair_data
from experts.golden import GoldenKind


def pair(folder, key):
    template = np.full((640, 640), 255, np.uint8)
    template[::40] = template[:, 100:140] = 0
    tested = template.copy()
    tested[300:320, 110:130] = 255
    for ending, picture in (("test", tested), ("temp", template)):
        Image.fromarray(picture).save(folder / f"{key}_{ending}.jpg")
    names = (folder / f"{key}_test.jpg", folder / f"{key}_temp.jpg", folder / f"{key}.txt")
    return Pair(key, "group1", *names, (Defect(2, (105, 295, 135, 325)),))


ROW = "group1/a/001.jpg group1/a_not/001.txt\n"


def test_pairs_of_rare_board_types_are_repeated(tmp_path):
    one = pair(tmp_path, "a")
    several = [*[one] * 12, *[replace(one, group="rare")] * 5, *[replace(one, group="single")]]

    def counts(most):
        return Counter(each.group for each in balanced(several, most))

    assert counts(1) == {"group1": 12, "rare": 5, "single": 1}
    assert counts(4) == {"group1": 12, "rare": 10, "single": 4}
    described = lay_out({"train": balanced(several, 4), "val": []}, tmp_path / "pairs")
    assert len(list((described.parent / "images" / "train").iterdir())) == 26


def test_pairs_are_read_back_with_their_boxes(tmp_path):
    splits = {"train": [pair(tmp_path, "a"), pair(tmp_path, "b")], "val": [pair(tmp_path, "c")]}
    described = lay_out(splits, tmp_path / "pairs")
    expert = Expert("e", "golden", LABELS, 640, "b/e")
    plan = TrainingPlan(described, tmp_path, 1, 8, 1e-3)
    parts = pair_data.read(expert, plan)
    training, held = parts[Purpose.LEARN], parts[Purpose.TEST]
    assert [files.image.name for files in (*training, *held)] == ["group1-a-0.jpg", "group1-b-1.jpg", "group1-c-0.jpg"]
    assert pair_data.inverse(expert, described) == (1, 0, 3, 2, 5, 4), "an open is a short in the negative"
    (labelled,) = pair_data.labelled(held, len(LABELS), plan, remarks := [])
    assert not remarks
    assert labelled.labels.tolist() == [2]
    assert labelled.boxes[0] == pytest.approx([105, 295, 135, 325], abs=0.01)


@pytest.mark.parametrize(
    ("row", "note", "words"),
    [
        (None, None, "cannot be read"),
        ("a b c\n", None, "found 'a b c'"),
        (ROW, "1 2 3 4 0\n", "'1 2 3 4 0' is not 'x1 y1 x2 y2 class'"),
        (ROW, "1 2 3 4 7\n", "is not 'x1 y1 x2 y2 class'"),
        (ROW, "1 2 3 x 1\n", "is not 'x1 y1 x2 y2 class'"),
        (ROW, "1 2 3 4\n", "found '1 2 3 4'"),
        (ROW, None, "cannot be read"),
    ],
)
def test_a_damaged_list_or_note_is_one_sentence(tmp_path, row, note, words):
    (tmp_path / "splits").mkdir()
    (tmp_path / "PCBData/group1/a_not").mkdir(parents=True)
    for path, text in (("splits/test.txt", row), ("PCBData/group1/a_not/001.txt", note)):
        if text is not None:
            (tmp_path / path).write_text(text)
    with pytest.raises(DataMissing, match=re.escape(words)):
        read(tmp_path, "test")


@pytest.fixture
def listed(tmp_path):
    """A small data set of two board types, each with ten pairs in the training list, and a test list of two pairs."""
    rows, root = {"trainval": [], "test": []}, tmp_path / "deeppcb"
    for group in ("group1", "group2"):
        folder, notes = root / "PCBData" / group / "a", root / "PCBData" / group / "a_not"
        for path in (folder, notes):
            path.mkdir(parents=True)
        for number in range(11):
            key = f"{group[-1]}{number:02}"
            pair(folder, key)
            (notes / f"{key}.txt").write_text("105 295 135 325 3\n")
            rows["trainval" if number < 10 else "test"].append(f"{group}/a/{key}.jpg {group}/a_not/{key}.txt\n")
    (root / "splits").mkdir()
    for split, lines in rows.items():
        (root / "splits" / f"{split}.txt").write_text("".join(lines))
    return root


@pytest.mark.slow
def test_training_draws_into_no_pair_that_is_held_out(listed, monkeypatch):
    asked = []

    def noted(one, wanted, chance):
        asked.append(one.tested)
        return drawn(one, wanted, chance)

    monkeypatch.setattr(train, "drawn", noted)
    train.main(data=listed, out=listed / "out", store=listed / "store", epochs=1, threads=1, draw=2)
    trained = [(group, number) for group in (1, 2) for number in range(9)]
    assert [path.name for path in asked] == [f"{group}{number:02}_test.jpg" for group, number in trained]
    seen = {part: sorted((listed / "out/pairs/images" / part).iterdir()) for part in ("train", "val")}
    assert (len(seen["train"]), len(seen["val"])) == (36, 2)
    names = {f"group{group}-{group}{number:02}" for group, number in trained}
    assert {path.name[:10] for path in seen["train"]} == names
    assert Store(listed / "store").manifest("deeppcb-golden/pcb-golden").metrics["epoch"] == 1


def test_the_threshold_is_chosen_on_the_pairs_that_are_held_out(listed, monkeypatch):
    def detected(pairs, store, weights):
        """A right box of 0.9 in the two pairs held out, of 0.3 in others; and wrong boxes of less."""
        held = all(one.key.endswith("09") for one in pairs)
        scores = np.array((0.9, 0.755) if held else (0.3, 0.1))
        boxes = np.array([(105, 295, 135, 325), (0, 0, 9, 9)], float)
        shown = [ImageBoxes(boxes[:1], np.array([2]), boxes, np.array([2, 2]), scores) for _ in pairs]
        return evaluate.Detected(shown, 0.001)

    monkeypatch.setattr(evaluate, "detect", detected)
    evaluate.main(data=listed, out=listed / "out", store=listed / "store")
    reports = json.loads((listed / "out/golden.json").read_text())
    assert 0.755 < reports["all"]["threshold"] <= 0.9
    assert (reports["held out"]["recall"], reports["all"]["recall"], reports["all"]["images"]) == (1.0, 0.0, 2)
    assert reports["all, few false calls"]["threshold"] == pytest.approx(0.76), "above the false boxes of 0.755"


def test_escapes_and_false_boxes_are_counted_by_what_touches_a_defect():
    def image(*boxes):
        rows = np.array(boxes, np.float64).reshape(-1, 5)
        truth = np.array([(10.0, 10.0, 30.0, 30.0), (60.0, 60.0, 80.0, 80.0)])
        return ImageBoxes(truth, np.array([0, 1]), rows[:, :4], np.zeros(len(rows), np.int64), rows[:, 4])

    first = image((10, 10, 30, 30, 0.9), (200, 200, 220, 220, 0.8))
    measures = report([first, image((58, 58, 70, 70, 0.9), (0, 0, 5, 5, 0.1)), image()], limit=0.5)
    assert measures["escaped_images"] == pytest.approx(1 / 3)
    assert measures["escaped_defects"] == pytest.approx(4 / 6)
    assert measures["false_images"] == pytest.approx(1 / 3), "a box under the threshold does not count"


def test_lists_and_notes_become_pairs_and_missing_data_says_what_to_do(listed):
    with pytest.raises(DataMissing, match="--data or COE_DATA"):
        find(listed / "PCBData")
    pairs = read(find(listed.parent), "trainval")
    assert [(pair.group, pair.defects[0].label) for pair in pairs[9:11]] == [("group1", 2), ("group2", 2)]
    assert pairs[1].tested.is_file()
    assert pairs[1].template.is_file()
    train, held = split_held_out(pairs, 10)
    assert ([pair.key for pair in held], len(train)) == (["109", "209"], 18)
    for _ in range(2):  # again, over itself
        table = write(listed, read(listed, "test"), listed / "out")
    items, _ = find_images(table, {"group1", "group2"})
    assert [item.error for item in items] == [None] * 2
    assert [item.reference.name for item in items] == ["110_temp.jpg", "210_temp.jpg"]
    assert all(item.reference.is_file() for item in items)


def shown(true, found):
    return measures.ImageBoxes(
        np.array([box for box, _ in true], float).reshape(-1, 4),
        np.array([label for _, label in true], int),
        np.array([box for box, _, _ in found], float).reshape(-1, 4),
        np.array([label for _, label, _ in found], int),
        np.array([score for _, _, score in found], float),
    )


A, B, FAR = (0, 0, 10, 10), (50, 50, 60, 60), (90, 90, 99, 99)


def test_the_program_that_measures_the_expert_gets_nearly_every_box_of_it(listed, tmp_path):
    pairs = read(listed, "test")
    expert, kind = rules.load(evaluate.BOARD_FILE).experts[evaluate.EXPERT], GoldenKind()
    store = Store(tmp_path / "store")
    state = kind.skeleton(expert).state_dict()
    store.put(expert.weights, kind="golden", labels=expert.labels, input_size=expert.input_size, state=state)
    found = evaluate.detect(pairs, store.root, expert.weights)
    # What was not trained scores every label with a hundredth.
    assert all(0 < score < kind.threshold for image in found.shown for score in image.scores)
    assert all(len(image.scores) for image in found.shown)


def test_boxes_are_found_by_their_overlap_and_scored_by_hand():
    assert measures.overlap(np.array([A], float), np.array([A, (0, 5, 10, 15), FAR], float)).tolist() == [
        [1.0, pytest.approx(1 / 3), 0.0]
    ]
    image = shown([(A, 0), (B, 1)], [(A, 0, 0.9), (A, 0, 0.8), (B, 0, 0.7)])
    assert measures.hits(image, 0.33).tolist() == [True, False, False]
    image = shown([(A, 0), (B, 0)], [(B, 0, 0.7), (A, 0, 0.9), (FAR, 0, 0.8), (FAR, 1, 0.95)])
    # right, wrong, right: precision 1 at the first half of recall, 2/3 at the second
    assert measures.average_precision([image], 0, 0.5) == pytest.approx((1 + 2 / 3) / 2)
    assert measures.average_precision([image], 1, 0.5) is None
    late = shown([(A, 0), (B, 0)], [(FAR, 0, 0.9), (A, 0, 0.8), (B, 0, 0.7)])
    assert measures.average_precision([late], 0, 0.5) == pytest.approx(2 / 3), "the best at this or a lower threshold"
    assert measures.average_precision([image, late], 0, 0.5) == pytest.approx(0.25 * (1 + 3 * 4 / 6))
    assert measures.mean_average_precision([shown([(A, 0), (B, 1)], [(A, 0, 0.9)])], 3, 0.5) == 0.5
    image = shown([(A, 0), (B, 0)], [(A, 0, 0.9), (B, 0, 0.6), (FAR, 0, 0.3)])
    at = measures.score_at([image], 0.25, 0.33)
    assert (at.precision, at.recall, at.f) == (pytest.approx(2 / 3), 1.0, pytest.approx(0.8))
    steady = measures.steady_score([image], 0.33)
    assert (steady.f, steady.threshold) == (1.0, pytest.approx(0.45, abs=0.011)), "0.31 to 0.60 are equally good"
    assert measures.score_at([shown([(A, 0)], [])], 0.5, 0.33).f == 0.0


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
        pairs = read(find(), "trainval")[::20]
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
