"""Experts that learned good parts alone, on a line; of one look and of two."""

import pytest
from golden_parts import bad, good, moved, noisy, part
from picture_folders import saved
from PIL import Image

from coe.board import rules
from coe.cli import experts_command, inspect
from coe.core import Heat
from coe.results import records

BOARD = """\
board: fresh   # from its first day on
experts:
  # what good parts do not show
  any: {kind: "golden_parts:PatchPart", labels: [strange], input: 96, reject: [strange], then: {none: OK}}
components:
  U1: {inspect: any, reference: U1}
"""


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fresh.yaml").write_text(BOARD, encoding="utf-8")
    saved(tmp_path / "good" / "U1", *(good(seed) for seed in range(8)))
    return tmp_path


@pytest.fixture
def learned(fresh, call):
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    train = ("train", "fresh/any", "--board", "fresh.yaml", "--data", "good/U1", "--epochs", "1", "--threads", "1")
    said = call(
        *train, "--false-calls", "0.02", "--no-prepare", "--allow-kind", "golden_parts", command=experts_command
    )
    assert said.status == 0, said.err
    assert ("good_parts 8" in said.out, "only 8 good parts" in said.words) == (True, True)
    assert "wanted_false_calls 0.02" in said.out
    return fresh


@pytest.mark.slow
def test_an_expert_learns_from_good_parts_and_is_calibrated(learned, call):
    saved(learned / "verified" / "any" / "none", *(good(seed) for seed in range(50, 62)))
    saved(learned / "verified" / "any" / "strange", *(bad(good(seed)) for seed in range(70, 82)))
    arguments = ("calibrate", "fresh.yaml", "--images", "verified", "--allow-kind", "golden_parts", "--escapes", "0.3")
    shown = call(*arguments, "--plots", "plots", command=experts_command)
    assert shown.status == 0, shown.err
    assert "pictures: 24" in shown.out
    assert "nothing was written; --write does" in shown.words
    assert (learned / "plots" / "any.png").is_file()
    assert (learned / "fresh.yaml").read_text(encoding="utf-8") == BOARD

    strict = (*arguments[:-1], "0.05")
    for more, holds in (((), False), (("--unproven",), True)):
        few = call(*strict, *more, command=experts_command)
        assert (few.status, "not proven" in few.words) == (1, True), "12 bad parts do not prove it"
        assert ("ignore_under" in few.out) is holds
    copied = learned / "verified" / "any" / "none" / "copy.bmp"
    Image.fromarray(good(3)).save(copied)
    refused = call(*arguments, command=experts_command)
    assert (refused.status, "1 of its 25 pictures, such as any/none/copy.bmp" in refused.words) == (1, True)
    copied.unlink()

    assert call(*arguments, "--write", command=experts_command).status == 0
    assert (learned / "fresh.yaml").read_text(encoding="utf-8") == BOARD
    assert 0 < rules.load(learned / "fresh.yaml").experts["any"].ignore_under["strange"] < 1

    saved(learned / "line" / "U1", good(90), bad(good(91)), part(5))
    ran = call(
        *("--board", "fresh.yaml", "--images", "line", "--out", "run", "--memory", "200MiB"),
        *("--allow-kind", "golden_parts", "--precision", "fp32"),
        command=inspect,
    )
    assert ran.status == 1, ran.err
    results = {result.request.image: result for result in records.read(learned / "run" / "results.jsonl")}
    assert [results[f"U1/0{number}.png"].verdict for number in range(3)] == ["OK", "NG", "REVIEW"]
    heat = results["U1/01.png"].findings[0].heat
    assert isinstance(heat, Heat)
    assert max(heat.values) > 200
    report = (learned / "run" / "report.html").read_text(encoding="utf-8")
    assert report.count("Heat map") == 2, "the title and the text for people who do not see the picture"


def test_an_expert_that_learned_in_another_frame_is_refused(learned, call):
    saved(learned / "line" / "U1", good(90))
    run = ("--board", "fresh.yaml", "--images", "line", "--allow-kind", "golden_parts", "--precision", "fp32")
    assert call(*run, "--out", "before", command=inspect).status == 0
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    assert call(*run, "--out", "same", command=inspect).status == 0, "the same pictures make the same reference"
    saved(learned / "moved" / "U1", *(moved(good(seed), 4, 3) for seed in range(8)))
    assert call("reference", "fresh.yaml", "--images", "moved", command=experts_command).status == 0
    refused = call(*run, "--out", "after", command=inspect)
    assert refused.status == 2
    verified = call("verify", "--allow-kind", "golden_parts", command=experts_command)
    assert verified.status == 1
    assert "fresh/any: the reference with which it was trained is damaged or missing" in verified.words
    assert "expert 'any' was trained with other references than the present 'fresh/U1'" in refused.words


@pytest.mark.usefixtures("fresh")
def test_wrong_arguments_are_said(call):
    arguments = ("calibrate", "fresh.yaml", "--images", "good", "--allow-kind", "golden_parts")
    assert "--escapes or --false-calls" in call(*arguments, command=experts_command).words
    unclear = call(*arguments, "--escapes", "0.1", command=experts_command)
    assert (unclear.status, "<expert>/<label>/<picture>, or a table" in unclear.words) == (2, True)
    other = ("train", "a/b", "--kind", "resnet18", "--input", "64", "--labels", "a,b", "--data", "good/U1")
    assert "does not learn from good parts alone" in call(*other, "--false-calls", "0.1", command=experts_command).words


FIRST_DAY = """\
board: fresh
experts:
  d: {kind: "golden_parts:FirstDay", labels: [different], input: 160, reject: [different], then: {none: OK}}
components:
  U1: {inspect: d, reference: U1}
  U2: {inspect: d, reference: U2}
"""


def test_good_parts_of_several_components_set_the_limit_of_the_first_day(fresh, call):
    (fresh / "fresh.yaml").write_text(FIRST_DAY, encoding="utf-8")
    saved(fresh / "good" / "U2", *(noisy(part(4), seed) for seed in range(6)))
    train = ("train", "fresh/d", "--board", "fresh.yaml", "--data", "good", "--epochs", "1", "--no-prepare")
    refused = call(*train, "--allow-kind", "golden_parts", command=experts_command)
    assert (refused.status, "no reference 'fresh/U" in refused.words) == (2, True)
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    said = call(*train, "--allow-kind", "golden_parts", command=experts_command)
    assert said.status == 0, said.err
    assert "good_parts 14" in said.out
    (fresh / "good" / "U2").rename(fresh / "good" / "u2")
    assert call(*train, "--allow-kind", "golden_parts", command=experts_command).status == 2, (
        "no component is called u2"
    )
    (fresh / "good" / "u2").rename(fresh / "u2")
    assert "no good part of fresh/U2" in call(*train, "--allow-kind", "golden_parts", command=experts_command).words
    (fresh / "u2").rename(fresh / "good" / "U2")
    assert call(*train, "--allow-kind", "golden_parts", command=experts_command).status == 0

    saved(fresh / "line" / "U1", good(90), bad(good(91)))
    saved(fresh / "line" / "U2", noisy(part(4), 92), bad(part(4)))
    run = ("--board", "fresh.yaml", "--images", "line", "--out", "run", "--allow-kind", "golden_parts")
    assert call(*run, "--precision", "fp32", command=inspect).status == 1
    results = {result.request.image: result for result in records.read(fresh / "run" / "results.jsonl")}
    assert {name: result.verdict for name, result in sorted(results.items())} == {
        "U1/00.png": "OK",
        "U1/01.png": "NG",
        "U2/00.png": "OK",
        "U2/01.png": "NG",
    }
    report = (fresh / "run" / "report.html").read_text(encoding="utf-8")
    assert "fresh/U2, version 1" in report
    assert call("verify", "--allow-kind", "golden_parts", command=experts_command).status == 0, (
        "a new reference may come"
    )
