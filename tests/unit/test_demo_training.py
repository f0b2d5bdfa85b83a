import multiprocessing
import signal
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from apps.demo import work
from apps.demo.build import ending_workers, exit_by, missing_experts
from apps.demo.evaluate import tally, total
from apps.demo.lessons import BODY, BODY_DEFECTS, Amount, boxes, data_of, expose, label_of, shots
from apps.demo.production import BoardPlace
from apps.demo.recipe import fingerprint, recipe
from apps.demo.render import LabelledImage, photograph
from apps.demo.site import Truth
from apps.demo.verdicts import Count
from coe.board import rules
from coe.core import Failure, FailureKind, Request, Result, Verdict
from coe.store.store import Store

BOARD = rules.load("demo")
AMOUNT = Amount(ok=4, damage=4, other=3)


def test_classifiers_learn_every_label_and_a_detector_sees_only_what_reaches_it():
    expert = BOARD.experts["soic-body"]
    listed = shots(expert, False, ["U-SOIC8-EEPROM"], AMOUNT, seed=1)
    assert {shot.label for shot in listed} == set(expert.labels)
    assert {shot.label for shot in listed if shot.defect in {"bridged", "lifted", "reversed"}} == {"ok"}
    assert len({(shot.split, shot.label, shot.stem) for shot in listed}) == len(listed)
    assert {shot.split for shot in listed} == {"train", "val"}
    listed = shots(BOARD.experts["polarity"], True, ["LED-0805-GRN", "U-SOIC8-EEPROM"], AMOUNT, seed=1)
    assert {shot.defect for shot in listed} == {None, "reversed", "bridged", "lifted"}
    assert not BODY_DEFECTS & {shot.defect for shot in listed}


def test_all_classifiers_share_one_start_and_label_files_hold_the_experts_own_labels():
    for name, expert in BOARD.experts.items():
        if expert.kind == "resnet18":
            assert recipe(name).init == BODY.id
            rows = [label_of(label, BODY.labels) for label in expert.labels]
            assert len(set(rows)) == len(rows)
            assert rows[0] == "ok"
            assert "ok" not in rows[1:]
    picture = photograph("LED-0805-GRN", None, np.random.default_rng(1))
    size = picture.image.shape[0]
    joint, mark = Truth("joint", (0, 0, 1, 1)), Truth("reversed", (0, size / 4, size / 2, size))
    made = LabelledImage(picture.image, (joint,), (mark,))
    assert boxes(BOARD.experts["polarity"], made) == "1 0.25000 0.62500 0.50000 0.75000\n"


def test_data_sets_are_laid_out_as_trainers_read_them(tmp_path):
    body, marks = BOARD.experts["led-lens"], BOARD.experts["polarity"]
    few = Amount(1, 1, 1)
    expose(body, False, shots(body, False, ["LED-0805-GRN"], few, 1), tmp_path / "body")
    assert {path.name for path in (tmp_path / "body" / "train").iterdir()} == set(body.labels)
    assert data_of(body, False, tmp_path / "body") == tmp_path / "body"
    expose(marks, True, shots(marks, True, ["LED-0805-GRN"], few, 1), tmp_path / "marks")
    sheet = data_of(marks, True, tmp_path / "marks")
    assert "names:\n- mark\n- reversed" in sheet.read_text()
    images = sorted(path.stem for path in (tmp_path / "marks" / "images").rglob("*.png"))
    assert images == sorted(path.stem for path in (tmp_path / "marks" / "labels").rglob("*.txt"))


def test_a_fingerprint_depends_on_seed_recipe_expert_and_what_it_starts_from(monkeypatch):
    expert, other = BOARD.experts["led-lens"], BOARD.experts["qfp-body"]
    prints = [fingerprint(expert, 1), fingerprint(expert, 2), fingerprint(expert, 1, quick=True), fingerprint(other, 1)]
    assert len(set(prints)) == 4
    assert fingerprint(expert, 1) == prints[0]
    board = rules.load("demo")
    second, other = board.experts["polarity"], board.experts["chip-resistor"]
    before = [fingerprint(expert, 1) for expert in (second, other)]
    experts = {**board.experts, "solder-joints": replace(board.experts["solder-joints"], input_size=96)}
    monkeypatch.setattr(rules, "load", lambda name: replace(board, experts=experts))
    after = [fingerprint(expert, 1) for expert in (second, other)]
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_only_what_is_not_there_or_outdated_is_trained(tmp_path):
    store = Store(tmp_path)
    everything = missing_experts(store, 1, False)
    assert set(everything) == set(BOARD.experts)
    assert everything[0] == "solder-joints"  # takes longest, and another starts from it
    for name, source in (("led-lens", work.source_of("led-lens", 1, False)), ("qfp-body", "made long ago")):
        expert = BOARD.experts[name]
        known = {"kind": expert.kind, "labels": expert.labels, "input_size": expert.input_size}
        store.put(expert.weights, state={"w": torch.zeros(1)}, source=source, **known)
    assert set(everything) - set(missing_experts(store, 1, False)) == {"led-lens"}
    assert "led-lens" in missing_experts(store, 2, False)


@pytest.mark.parametrize(
    ("defect", "verdict", "wrong"),
    [("", "OK", None), ("", "NG", "false_calls"), ("", "REVIEW", "good_reviewed"), ("missing", "NG", None),
     ("missing", "OK", "escapes"), ("missing", "REVIEW", "bad_reviewed")],
)  # fmt: skip
def test_verdicts_are_counted_against_the_truth(defect, verdict, wrong):
    count = Count()
    count.add(defect, Result(Request(1, "R0402-10K"), Verdict(verdict), (), 0.0))
    assert count.wrong == (wrong is not None)
    assert wrong is None or getattr(count, wrong) == 1
    assert count.accuracy == (0.0 if wrong else 1.0)


def test_an_image_that_could_not_be_inspected_is_not_right():
    place = BoardPlace("SN1", "R1", "R0402-10K", "", (1,))
    result = Result(Request(1, "R0402-10K"), None, (), 0.0, Failure(FailureKind.IMAGE, "unreadable"))
    parts, defects = tally([(place, result)])
    assert parts.keys() == {"R0402-10K"}
    assert defects.keys() == {"ok"}
    assert total(parts).errors == total(parts).wrong == total(parts).images == 1


def test_workers_end_with_a_build_that_is_told_to_end():
    context = multiprocessing.get_context("spawn")
    earlier, worker = (context.Process(target=time.sleep, args=(600,)) for _ in range(2))
    earlier.start()

    def work_until_told():
        with ending_workers():
            worker.start()
            exit_by(signal.SIGTERM, None)

    with pytest.raises(SystemExit, match="143"):
        work_until_told()
    worker.join(60)
    assert worker.exitcode == -signal.SIGTERM
    assert earlier.is_alive()  # somebody else's
    earlier.terminate()
    earlier.join()
