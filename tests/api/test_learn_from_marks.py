"""`coe-experts learn`: an expert learns from verdicts that a person corrected, and is replaced if better."""

import json
import os
import shutil
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from golden_parts import good
from PIL import Image

from coe.cli import experts_command
from coe.cli import inspect as inspect_cli
from coe.core import Expert, Finding, Verdict
from coe.errors import ConfigError
from coe.learn import lessons
from coe.learn.answers import PictureAnswer
from coe.learn.evaluation import Evaluation, JudgedPicture
from coe.pictures.photographs import Photograph
from coe.results import marks
from coe.results.marks import PictureMark
from coe.store import kinds
from coe.store.learned import PictureDigests
from coe.store.store import Store

BOARD = """
board: lamps
experts:
  lamp: {kind: narrow, labels: [bright, dark], input: 32}
components:
  L: {inspect: lamp, then: {bright: OK, dark: NG}}
"""
ID = "lamps/lamp"


def picture(path, level, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(-20, 20, (40, 40, 3))
    Image.fromarray((noise + level).astype(np.uint8)).save(path)


@pytest.fixture
def place(tmp_path):
    """A board whose expert calls everything bright; photographs; and pictures of a board, of which half are dark."""
    (tmp_path / "lamps.yaml").write_text(BOARD, encoding="utf-8")
    expert = Expert("lamp", "narrow", ("bright", "dark"), 32, ID)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        state = kinds.resolve("narrow").skeleton(expert).state_dict()
    state["fc.bias"] = torch.tensor([1.0, -1.0])
    Store(tmp_path / "store").put(
        ID, kind="narrow", labels=expert.labels, input_size=32, state=state, source="naive", metrics={"turned": 1.0}
    )
    for number in range(12):
        picture(tmp_path / "photos" / "L" / "good" / f"{number}.png", 200, number)
        picture(tmp_path / "photos" / "L" / "dark" / f"{number}.png", 50, number)
        for level, name in ((200, "a"), (50, "b")):
            picture(tmp_path / "boards" / "SN1" / f"R{number}{name}__L.png", level, 100 + number)
    return tmp_path


@pytest.fixture
def run(place, call):
    def command(name, *arguments):
        return call(name, *arguments, "--store", place / "store", command=experts_command).status

    return command


@pytest.fixture
def inspected(place, call):
    line = ("--store", place / "store", "--memory", "200MB", "--profile", "none")
    board = ("--board", place / "lamps.yaml", "--images", place / "boards", "--out", place / "run")
    assert call(*board, *line, command=inspect_cli).status == 0, "all is called bright"
    return place / "run"


@pytest.mark.slow
def test_an_expert_learns_from_marks_and_the_former_can_be_gone_back_to(place, inspected, run):
    more = ["--no-prepare"]
    for number in range(12):
        for name, word in (("a", "good"), ("b", "bad" if number % 2 else "dark")):
            more += ["--mark", f"SN1/R{number}{name}__L.png={word}"]
    at = (place / "lamps.yaml", "--from", inspected, "--photos", place / "photos", "--epochs", "12", "--batch", "4")
    store = Store(place / "store")
    assert run("learn", *at, *more) == 0
    assert (store.manifest(ID).version, store.earlier(ID, 1).source) == (2, "naive")
    assert store.learned(ID) is not None
    assert store.manifest(ID).metrics["turned"], "it learns as it did"
    assert run("restore", f"{ID}@1") == 0
    assert store.manifest(ID).source == "naive"


def test_layers_that_were_frozen_stay_so(place, inspected, run):
    store = Store(place / "store")
    before = store.load(ID)
    body = {name: tensor for name, tensor in before.items() if not name.startswith("fc.")}
    store.put("backbones/narrow", kind="narrow", labels=[], input_size=32, state=body, source="elsewhere")
    marks.write(inspected, [PictureMark(image=f"SN1/R{n}b__L.png", label="dark", component="L") for n in range(4)])
    at = (place / "lamps.yaml", "--from", inspected, "--photos", place / "photos", "--epochs", "1", "--no-prepare")
    assert run("learn", *at, "--take") == 0
    after = store.load(ID)
    assert all(torch.equal(after[name], before[name]) for name in body)
    assert not torch.equal(after["fc.weight"], before["fc.weight"])


GOOD_ALONE = """
board: line7
experts:
  eye: {kind: patch, labels: [strange], input: 64, reject: [strange], then: {none: OK}}
components:
  U: {inspect: eye}
"""


@pytest.mark.slow
def test_a_kind_that_learns_from_good_parts_alone_needs_no_reference_and_learns_its_looks_anew(tmp_path, run, place):
    board, store = tmp_path / "line7.yaml", Store(place / "store")
    board.write_text(GOOD_ALONE, encoding="utf-8")
    expert = Expert("eye", "patch", ("strange",), 64, "line7/eye", alternates=2)
    state = kinds.resolve("patch").skeleton(expert).state_dict()
    known = {"wanted_false_calls": 0.2}
    store.put("line7/eye", kind="patch", labels=["strange"], input_size=64, state=state, looks=2, metrics=known)
    for number in range(6):
        for folder in ("looks/U/good", "export/U"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(good(number + 10 * len(folder))).save(tmp_path / folder / f"{number}.png")
        marks.add(tmp_path / "export", PictureMark(image=f"U/{number}.png", label="good", component="U"))
    at = (board, "--from", tmp_path / "export", "--photos", tmp_path / "looks", "--epochs", "1", "--no-prepare")
    assert run("learn", *at, "--take") == 0
    manifest = store.manifest("line7/eye")
    assert (manifest.version, manifest.looks, manifest.metrics["wanted_false_calls"]) == (2, 1, 0.2)
    assert manifest.body is not None, "the backbone is stored once"


def test_the_last_word_counts_an_empty_one_takes_it_back_and_a_picture_that_is_younger_is_named(tmp_path):
    at = "2026-11-26T06:00:00Z"
    said_s = datetime.fromisoformat(at).timestamp()
    for name, taken_s in {"before": said_s - 60, "within the second": said_s + 0.9, "after": said_s + 60}.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (taken_s, taken_s))
    (tmp_path / "undated").touch()
    words = [PictureMark(image=name, label="good", at=at) for name in ("before", "within the second", "after", "gone")]
    assert lessons.changed_since([*words, PictureMark(image="undated", label="good")], tmp_path) == ["after"]
    for label in ("good", "dark"):
        marks.add(tmp_path, PictureMark(image="a.png", label=label, component="L"))
    marks.add(tmp_path, PictureMark(image="b.png", label="good", component="L"))
    assert {mark.image: mark.label for mark in marks.read(tmp_path)} == {"a.png": "dark", "b.png": "good"}
    marks.add(tmp_path, PictureMark(image="a.png", label=""))
    assert [mark.image for mark in marks.read(tmp_path)] == ["b.png"]
    (tmp_path / marks.MARKS).write_text(json.dumps({"image": 3}) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"{marks.MARKS}:1"):
        marks.read(tmp_path)


def evaluation(*right, bad=False):
    """What an expert says of pictures: which are judged as they should be; the others are escapes or false calls."""
    pictures = [
        PictureAnswer(Photograph(Path(f"{n}"), name=f"{n}", expert="lamp", label="dark"), None)
        for n in range(len(right))
    ]
    judged = [
        JudgedPicture(one, Finding("lamp", "fp32", "dark", 1.0), Verdict.OK, bad and not ok, not bad and not ok)
        for one, ok in zip(pictures, right, strict=True)
    ]
    return Evaluation(Expert("lamp", "narrow", ("bright", "dark"), 32, ID), tuple(judged), (), ())


@pytest.mark.parametrize(
    ("only_after", "only_before", "is_better"),
    [(5, 0, True), (4, 0, False), (8, 1, True), (6, 1, False), (0, 0, False), (30, 30, False), (1, 9, False)],
)
def test_an_expert_is_better_only_if_mcnemars_exact_test_says_so(only_after, only_before, is_better):
    """One-sided: 1 / 2**5 and (9 + 1) / 2**9 are under 0.05; 1 / 2**4 and (7 + 1) / 2**7 are not."""
    before = evaluation(*[False] * only_after, *[True] * only_before, *[True] * 20)
    after = evaluation(*[True] * only_after, *[False] * only_before, *[True] * 20)
    compared = lessons.LessonComparison(before, after)
    assert (compared.only_after, compared.only_before, compared.is_better) == (only_after, only_before, is_better)


@pytest.mark.parametrize(("image", "word"), [("SN1/R0a__L.png", "scratched"), ("SN1/none.png", "good"), (None, None)])
def test_a_word_that_says_nothing_teaches_nothing(place, inspected, run, image, word):
    if image:
        marks.write(inspected, [PictureMark(image=image, label=word, component="L")])
    assert run("learn", place / "lamps.yaml", "--from", inspected, "--photos", place / "photos") == 2
    assert Store(place / "store").manifest(ID).version == 1


def test_a_picture_that_two_people_call_otherwise_teaches_nothing(place, inspected, run, call):
    """In two runs of one name, and in a photograph's folder and a run; of a copy that was saved anew it is said."""
    at = (place / "lamps.yaml", "--photos", place / "photos", "--epochs", "1", "--no-prepare")
    (again := place / "again" / "run").parent.mkdir()
    shutil.copytree(inspected, again)
    marks.write(inspected, [PictureMark(image="SN1/R0a__L.png", label="good", component="L")])
    marks.write(again, [PictureMark(image="SN1/R0a__L.png", label="dark", component="L")])
    assert run("learn", *at, "--from", inspected, "--from", again) == 2
    (copy := place / "photos" / "L" / "dark" / "x.png").write_bytes((place / "boards/SN1/R0a__L.png").read_bytes())
    assert run("learn", *at, "--from", inspected) == 2
    assert Store(place / "store").manifest(ID).version == 1
    Image.open(copy).save(copy.with_suffix(".bmp"))
    copy.unlink()
    said = call("learn", *at, "--from", inspected, "--store", place / "store", command=experts_command)
    assert said.status != 2
    assert "L/dark/x.bmp = " in said.words


def test_a_mark_of_an_image_without_a_result_or_a_component_is_refused(place, inspected, run, tmp_path):
    result = json.loads((inspected / "results.jsonl").read_text().splitlines()[0]) | {"component": ""}
    (tmp_path / "results.jsonl").write_text(json.dumps(result) + "\n")
    for source, image in ((inspected, "SN1/none.png"), (tmp_path, result["image"])):
        given = ("--from", source, "--photos", place / "photos", "--mark", f"{image}=good")
        assert run("learn", place / "lamps.yaml", *given) == 2


def test_marked_pictures_of_equal_content_are_never_on_both_sides():
    pictures = [Photograph(Path(f"{n}.png"), name=f"{n}.png", expert="lamp", label="dark") for n in range(9)]
    digests = {one.path: PictureDigests(n, n // 3) for n, one in enumerate(pictures)}
    lesson = lessons.divided(pictures, digests)
    sides = [{digests[one.path].pixels for one in side} for side in (lesson.learn, lesson.held_out)]
    assert sides == [{0, 2}, {1}]
