"""The demonstration: pictures that are drawn, data sets, boards, and what is trained anew."""

import multiprocessing
import signal
import time
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from apps.boards.make import board_file, main
from apps.demo import whole, work
from apps.demo.build import ending_workers, exit_by, missing_experts
from apps.demo.evaluate import tally, total
from apps.demo.lessons import BODY, BODY_DEFECTS, Amount, boxes, data_of, expose, label_of, shots
from apps.demo.production import BoardPlace, lot, read_truth, shoot, take, write_truth
from apps.demo.recipe import fingerprint, recipe
from apps.demo.render import COMPONENTS, LabelledImage, photograph, render
from apps.demo.site import Truth
from apps.demo.verdicts import Count
from coe.board import rules
from coe.core import Failure, FailureKind, Request, Result, Verdict
from coe.placement import blind_to, lay_out, overlay, overlay_of, read_board, read_places, read_recipe
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
            assert (len(set(rows)), rows[0], "ok" in rows[1:]) == (len(rows), "ok", False)
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


COUNTED = {
    **{("", "OK"): None, ("", "NG"): "false_calls", ("", "REVIEW"): "good_reviewed"},
    **{("missing", "NG"): None, ("missing", "OK"): "escapes", ("missing", "REVIEW"): "bad_reviewed"},
}


def test_verdicts_are_counted_against_the_truth_and_an_image_that_could_not_be_inspected_is_not_right():
    for (defect, verdict), wrong in COUNTED.items():
        count = Count()
        count.add(defect, Result(Request(1, "R0402-10K"), Verdict(verdict), (), 0.0))
        assert (count.wrong, count.accuracy) == ((0, 1.0) if wrong is None else (1, 0.0))
        assert wrong is None or getattr(count, wrong) == 1
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


CASES = [(name, defect) for name, kind in COMPONENTS.items() for defect in (None, *kind.defects)]
# Every component, and every defect on the first component that can have it; `make test-all` draws the others too.
_FIRST = {defect: name for name, defect in reversed(CASES)}
SAMPLED = [
    pytest.param(name, defect, marks=() if defect is None or _FIRST[defect] == name else pytest.mark.slow)
    for name, defect in CASES
]
JOINTS = {"Q-SOT23-NPN": 3, "U-SOIC8-EEPROM": 8, "U-QFP32-MCU": 32, "J-PH4": 4}
MARKED = {name for name, kind in COMPONENTS.items() if "reversed" in kind.defects}


@pytest.mark.parametrize(("component", "defect"), SAMPLED)
def test_a_defect_is_seen_and_its_truths_lie_in_a_picture_that_its_seed_decides(component, defect):
    size = COMPONENTS[component].size
    image, again, other, good = (
        render(component, wrong, np.random.default_rng(seed))
        for wrong, seed in ((defect, 5), (defect, 5), (defect, 6), (None, 5))
    )
    assert (image.shape, image.dtype) == ((size, size, 3), np.uint8)
    assert np.array_equal(image, again)
    assert not np.array_equal(image, other)
    assert defect is None or (np.abs(image.astype(int) - good).max(axis=2) > 40).sum() > 15
    picture = photograph(component, defect, np.random.default_rng(8))
    height, width = picture.image.shape[:2]
    for truth in (*picture.joints, *picture.marks):
        x0, y0, x1, y1 = truth.xyxy
        assert 0 <= x0 < x1 <= width
        assert 0 <= y0 < y1 <= height
    joints = [truth.label for truth in picture.joints]
    if defect == "bridged":
        assert (joints.count("bridge"), joints.count("joint")) == (1, JOINTS[component] - 2)
    elif defect == "lifted":
        assert sorted(joints) == ["joint"] * (JOINTS[component] - 1) + ["lifted"]
    elif defect not in {"missing", "shifted", "rotated"}:
        assert joints == ["joint"] * JOINTS.get(component, 0)
    marks = [truth.label for truth in picture.marks]
    if component in MARKED and defect != "missing":
        assert marks == ["reversed" if defect == "reversed" else "mark"]
    else:
        assert marks == []


def test_training_pictures_show_several_defects_and_what_the_board_does_not_have_is_said():
    labels = [t.label for t in photograph("U-QFP32-MCU", "lifted", np.random.default_rng(1), several=True).joints]
    assert labels.count("lifted") > 1
    assert labels.count("bridge") > 1
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no component 'R9999'; it has R0402-10K"):
        render("R9999", None, rng)
    with pytest.raises(ValueError, match="'R0402-10K' has no defect 'bridged'; it has missing"):
        render("R0402-10K", "bridged", rng)


def test_the_board_file_and_the_renderer_agree():
    board = rules.load("demo")
    assert {name: part.count for name, part in board.components.items()} == {
        name: kind.count for name, kind in COMPONENTS.items()
    }
    for name, kind in COMPONENTS.items():
        labels = {label for step in board.components[name].root.walk() for label in board.experts[step.expert].labels}
        for defect in kind.defects:
            assert any(defect.startswith(label) for label in labels), f"nothing finds '{defect}' of {name}"


def test_a_lot_is_as_a_line_makes_it_and_places_of_one_board_share_its_solder_mask():
    places = lot(6, seed=4)
    assert places == lot(6, seed=4)
    assert places != lot(6, seed=5)
    assert len({place.file for place in places}) == len(places) == 6 * sum(kind.count for kind in COMPONENTS.values())
    assert len({place.serial for place in places if place.defect}) == 3
    assert 3 <= sum(bool(place.defect) for place in places) <= 9
    assert sum(bool(place.defect) for place in lot(6, seed=4, defective=0.5)) > len(places) / 3
    first, second = [place for place in lot(1, seed=2) if place.component == "R0402-10K"][:2]
    one, two = (take(place)[2:12, 2:12].mean(axis=(0, 1)) for place in (first, second))
    assert np.argmax(one) == np.argmax(two)


def test_images_and_truth_are_found_where_they_are_said_to_be(tmp_path):
    kinds = (("R1", ""), ("R2", "missing"))
    places = [BoardPlace("SN1", name, "R0402-10K", defect, (1, 0, 1)) for name, defect in kinds]
    shoot(places, tmp_path / "images")
    write_truth(places, tmp_path / "images")
    found = sorted(path.relative_to(tmp_path / "images").as_posix() for path in (tmp_path / "images").rglob("*.*"))
    assert found == ["SN1/R1__R0402-10K.png", "SN1/R2__R0402-10K.png"]
    assert read_truth(tmp_path / "images") == {found[0]: "", found[1]: "missing"}


SEED = 1


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "parts.csv").write_text(whole.parts(), encoding="utf-8")
    (folder / "recipe.yaml").write_text(whole.recipe(), encoding="utf-8")
    return lay_out(read_recipe(folder / "recipe.yaml"), read_places(folder / "parts.csv"))


def places(board):
    listed = lot(board + 1, SEED)
    return [place for place in listed if place.serial == listed[-1].serial]


def test_a_board_holds_the_parts_of_its_rules(layout):
    counts = {name: sum(site.component == name for site in layout.sites) for name in COMPONENTS}
    assert counts == {name: component.count for name, component in rules.load("demo").components.items()}
    assert blind_to(layout) == ()
    for name in ("demo", "first_look"):
        layout.check(rules.load(name).components, name)


@pytest.mark.slow
def test_the_crops_of_a_board_show_its_single_pictures(layout):
    chosen = places(0)
    board = read_board(whole.whole_board(chosen, np.random.default_rng(3)), layout, "SN1")
    crops = {picture.refdes: picture.image for picture in board.pictures()}
    assert len(crops) == len(chosen)
    assert board.location.residual_um < 4  # a fifth of a pixel
    for place in chosen:
        alone, crop = take(place), crops[place.refdes]
        assert crop.shape == alone.shape
        # Nothing is moved or turned: without their grain the pictures are alike.
        smooth = [cv2.GaussianBlur(each, (0, 0), 1.5).astype(float) for each in (alone, crop)]
        assert np.abs(smooth[0] - smooth[1])[3:-3, 3:-3].mean() < 3, place
    assert overlay_of(board).shape[1] == overlay(board.rgb, layout, board.location).shape[1]


def test_a_build_writes_what_coe_inspect_takes(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "whole_board", lambda places, rng: np.zeros((20, 20, 3), np.uint8))
    whole.main(["--images", str(tmp_path / "boards"), "--boards", "2"])
    assert sorted(path.name for path in (tmp_path / "boards").iterdir()) == ["DB-001-0001.png", "DB-001-0002.png"]
    assert {path.name for path in tmp_path.iterdir()} == {"boards", "boards.truth.csv", "parts.csv", "recipe.yaml"}


@pytest.mark.parametrize(("letter", "seed"), [("A", 1), ("B", 2)])
def test_the_committed_file_is_what_the_script_makes_and_another_seed_another(letter, seed, tmp_path):
    out = tmp_path / "board.yaml"
    main(["--board", letter, "--seed", str(seed), "--out", str(out)])
    assert out.read_text() == (Path(__file__).parents[2] / f"routing_rules/board_{letter.lower()}.yaml").read_text()
    assert board_file(letter, 8) != board_file(letter, 9)
