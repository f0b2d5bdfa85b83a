"""DeepPCB as a data set of pairs, and what is counted on its tested pictures."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.deeppcb import drawn, evaluate, train
from apps.deeppcb.data import LABELS, DataMissing, Defect, Pair, read
from apps.deeppcb.evaluate import every_label, report, reports_of
from apps.deeppcb.measures import ImageBoxes
from apps.deeppcb.pairs import lay_out
from apps.deeppcb.train import balanced, known, weights_without
from coe.board import rules
from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from experts import pair_data
from experts.taken import Part


def pair(folder: Path, key: str) -> Pair:
    template = np.full((640, 640), 255, np.uint8)
    template[::40] = template[:, 100:140] = 0
    tested = template.copy()
    tested[300:320, 110:130] = 255
    for name, picture in (("test", tested), ("temp", template)):
        Image.fromarray(picture).save(folder / f"{key}_{name}.jpg")
    names = (folder / f"{key}_test.jpg", folder / f"{key}_temp.jpg", folder / f"{key}.txt")
    return Pair(key, "group1", *names, (Defect(2, (105, 295, 135, 325)),))


def test_pairs_of_rare_board_types_are_repeated(tmp_path: Path) -> None:
    one = pair(tmp_path, "a")
    several = [*[one] * 12, *[replace(one, group="rare")] * 5, *[replace(one, group="single")]]

    def counts(most: int) -> Counter[str]:
        return Counter(each.group for each in balanced(several, most))

    assert counts(1) == {"group1": 12, "rare": 5, "single": 1}
    assert counts(4) == {"group1": 12, "rare": 10, "single": 4}
    described = lay_out({"train": balanced(several, 4), "val": []}, tmp_path / "pairs")
    assert len(list((described.parent / "images" / "train").iterdir())) == 26


def test_pairs_are_read_back_with_their_boxes(tmp_path: Path) -> None:
    splits = {"train": [pair(tmp_path, "a"), pair(tmp_path, "b")], "val": [pair(tmp_path, "c")]}
    described = lay_out(splits, tmp_path / "pairs")
    expert = Expert("e", "golden", LABELS, 640, "b/e")
    plan = TrainingPlan(described, tmp_path, 1, 8, 1e-3)
    parts = pair_data.read(expert, plan)
    training, held = parts[Part.TRAINING], parts[Part.HELD_OUT]
    assert [files.image.name for files in (*training, *held)] == [
        "group1-a-0.jpg",
        "group1-b-1.jpg",
        "group1-c-0.jpg",
    ]
    assert pair_data.inverse(expert, described) == (1, 0, 3, 2, 5, 4), "an open is a short in the negative"
    (labelled,) = pair_data.labelled(held, len(LABELS), plan, remarks := [])
    assert not remarks
    assert labelled.labels.tolist() == [2]
    assert labelled.boxes[0] == pytest.approx([105, 295, 135, 325], abs=0.01)


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("1 2 3 4 0\n", "'1 2 3 4 0' is no x1 y1 x2 y2 class"),
        ("1 2 3 4 7\n", "is no x1 y1 x2 y2 class"),
        ("1 2 3 x 1\n", "is no x1 y1 x2 y2 class"),
        ("1 2 3 4\n", "'1 2 3 4' has not 5 words"),
        (None, "cannot be read"),
    ],
)
def test_a_damaged_annotation_is_one_sentence(tmp_path: Path, note: str | None, words: str) -> None:
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "test.txt").write_text("group1/a/001.jpg group1/a_not/001.txt\n")
    path = tmp_path / "PCBData" / "group1" / "a_not" / "001.txt"
    path.parent.mkdir(parents=True)
    if note is not None:
        path.write_text(note)
    with pytest.raises(DataMissing, match=re.escape(words)):
        read(tmp_path, "test")


def test_a_list_with_a_line_too_long_and_a_list_that_is_missing_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "splits").mkdir()
    with pytest.raises(DataMissing, match="cannot be read"):
        read(tmp_path, "test")
    (tmp_path / "splits" / "test.txt").write_text("a b c\n")
    with pytest.raises(DataMissing, match="has not 2 words"):
        read(tmp_path, "test")


def test_types_that_are_left_out_must_be_known_and_leave_others(tmp_path: Path) -> None:
    one = pair(tmp_path, "a")
    both = [one, replace(one, group="group2")]
    known(["group2"], both)
    with pytest.raises(ConfigError, match="no board type 'group9': the training list has only group1, group2"):
        known(["group9"], both)
    with pytest.raises(ConfigError, match="all board types are left out"):
        known(["group2", "group1"], both)


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """A small data set of two board types, each with ten pairs in the training list, and a test list of two pairs."""
    rows: dict[str, list[str]] = {"trainval": [], "test": []}
    for group in ("group1", "group2"):
        folder, notes = tmp_path / "PCBData" / group / "a", tmp_path / "PCBData" / group / "a_not"
        for path in (folder, notes):
            path.mkdir(parents=True)
        for number in range(11):
            key = f"{group[-1]}{number:02}"
            pair(folder, key)
            (notes / f"{key}.txt").write_text("105 295 135 325 3\n")
            rows["trainval" if number < 10 else "test"].append(f"{group}/a/{key}.jpg {group}/a_not/{key}.txt\n")
    (tmp_path / "splits").mkdir()
    for name, lines in rows.items():
        (tmp_path / "splits" / f"{name}.txt").write_text("".join(lines))
    return tmp_path


def test_training_draws_into_no_pair_that_is_held_out_or_left_out(
    listed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []

    def noted(one: Pair, wanted: int, chance: np.random.Generator) -> object:
        asked.append(one.tested)
        return drawn.drawn(one, wanted, chance)

    monkeypatch.setattr(train, "drawn", noted)
    train.main(
        data=listed, out=listed / "out", store=listed / "store", leave_out=["group2"], epochs=1, threads=1, draw=2
    )
    assert [path.name for path in asked] == [f"1{number:02}_test.jpg" for number in range(9)]
    seen = {part: sorted((listed / "out/pairs/images" / part).iterdir()) for part in ("train", "val")}
    assert (len(seen["train"]), len(seen["val"])) == (18, 1)
    assert {path.name[:10] for path in seen["train"]} == {f"group1-1{number:02}" for number in range(9)}
    assert Store(listed / "store").manifest(weights_without(["group2"])).metrics["epoch"] == 1


def test_the_threshold_is_chosen_on_the_pairs_that_are_held_out(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def detected(pairs: list[Pair], store: Path | None, weights: str) -> evaluate.Detected:
        """A right box of 0.9 in the two pairs held out, of 0.3 in others; and wrong boxes of less."""
        held = all(one.key.endswith("09") for one in pairs)
        scores = np.array((0.9, 0.755) if held else (0.3, 0.1))
        boxes = np.array([(105, 295, 135, 325), (0, 0, 9, 9)], float)
        shown = [ImageBoxes(boxes[:1], np.array([2]), boxes, np.array([2, 2]), scores) for _ in pairs]
        return evaluate.Detected(shown, shown, dict.fromkeys(evaluate.PARTS, 0.001))

    monkeypatch.setattr(evaluate, "detect", detected)
    evaluate.main(data=listed, out=listed / "out", store=listed / "store")
    reports = json.loads((listed / "out/golden.json").read_text())
    assert 0.755 < reports["all"]["threshold"] <= 0.9
    assert (reports["held out"]["recall"], reports["all"]["recall"], reports["all"]["images"]) == (1.0, 0.0, 2)
    assert reports["all, few false calls"]["threshold"] == pytest.approx(0.76), "above the false boxes of 0.755"


def test_an_expert_without_some_types_has_a_name_of_its_own() -> None:
    expert = rules.load("deeppcb_golden").experts["pcb-golden"]
    assert weights_without(["group2", "group1"]) == f"{expert.weights}-without-group1-without-group2"


def test_escapes_and_false_boxes_are_counted_by_what_touches_a_defect() -> None:
    def image(*boxes: tuple[float, ...]) -> ImageBoxes:
        rows = np.array(boxes, np.float64).reshape(-1, 5)
        truth = np.array([(10.0, 10.0, 30.0, 30.0), (60.0, 60.0, 80.0, 80.0)])
        return ImageBoxes(truth, np.array([0, 1]), rows[:, :4], np.zeros(len(rows), np.int64), rows[:, 4])

    measures = report(
        [
            image((10, 10, 30, 30, 0.9), (200, 200, 220, 220, 0.8)),
            image((58, 58, 70, 70, 0.9), (0, 0, 5, 5, 0.1)),
            image(),
        ],
        limit=0.5,
    )
    assert measures["escaped_images"] == pytest.approx(1 / 3)
    assert measures["escaped_defects"] == pytest.approx(4 / 6)
    assert measures["false_images"] == pytest.approx(1 / 3), "a box under the threshold does not count"


def test_a_box_that_may_have_two_labels_counts_for_both_where_all_labels_are_counted(tmp_path: Path) -> None:
    one = replace(pair(tmp_path, "a"), defects=(Defect(0, (10, 10, 30, 30)), Defect(2, (60, 60, 80, 80))))
    candidates = np.array(
        [
            [10, 10, 30, 30, 0.4, 0.0, 0.5, 0.0, 0.0, 0.001],
            [60, 60, 80, 80, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0],
        ],
        np.float32,
    )
    every = every_label(one, candidates)
    assert sorted(zip(every.labels.tolist(), every.scores.round(3).tolist(), strict=True)) == [
        (0, 0.4), (2, 0.5), (2, 0.9),
    ]  # fmt: skip
    best = [place for place, score in enumerate(every.scores) if score > 0.45]
    line = replace(every, boxes=every.boxes[best], labels=every.labels[best], scores=every.scores[best])
    measures = reports_of([one], [line], 0.3, [every])
    assert set(measures) == {"group1", "all"}
    for part in measures.values():
        assert part["ap33"]["open"] == 0.0
        assert part["ap33_every_label"]["open"] == 1.0
        assert part["ap33_every_label"]["mousebite"] == part["ap33"]["mousebite"] == 1.0
    assert "map33_every_label" not in report([line], 0.3)
