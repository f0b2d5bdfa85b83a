"""Experts that learned good parts alone, on a line; of one look and of two."""

import pytest
from built_once import linked_copy
from golden_parts import bad, good, moved, noisy, part
from picture_folders import saved
from PIL import Image

from coe.board import rules
from coe.cli import experts_command, inspect
from coe.results import records

BOARD = """\
board: fresh   # from its first day on
experts:
  # what good parts do not show
  any: {kind: "golden_parts:PatchPart", labels: [strange], input: 96, reject: [strange], then: {none: OK}}
components:
  U1: {inspect: any, reference: U1}
"""


ALLOW = ("--allow-kind", "golden_parts")


@pytest.fixture
def experts(call):
    return lambda *words: call(*words, *ALLOW, command=experts_command)


@pytest.fixture
def run(call):
    """Inspect the pictures of `line` by the board; return status and words, and write what results are."""
    given = ("--board", "fresh.yaml", "--images", "line", "--memory", "200MiB", "--precision", "fp32", *ALLOW)
    return lambda out: call(*given, "--out", out, command=inspect)


@pytest.fixture
def fresh(tmp_path, monkeypatch, backbone):
    monkeypatch.chdir(tmp_path)
    linked_copy(backbone.parents[2], tmp_path / "store")
    (tmp_path / "fresh.yaml").write_text(BOARD, encoding="utf-8")
    saved(tmp_path / "good" / "U1", *(good(seed) for seed in range(8)))
    return tmp_path


def verdicts(folder):
    return {result.request.image: result.verdict for result in records.read(folder / "results.jsonl")}


@pytest.fixture
def learned(fresh, call, experts):
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    train = ("train", "fresh/any", "--board", "fresh.yaml", "--data", "good/U1", "--epochs", "1", "--threads", "1")
    said = experts(*train, "--false-calls", "0.02", "--no-prepare")
    assert said.status == 0, said.err
    assert ("good_parts 8" in said.out, "only 8 good parts" in said.words) == (True, True)
    assert "wanted_false_calls 0.02" in said.out
    return fresh


@pytest.mark.slow
def test_an_expert_learns_from_good_parts_and_is_calibrated(learned, experts, run):
    saved(learned / "verified" / "any" / "none", *(good(seed) for seed in range(50, 62)))
    saved(learned / "verified" / "any" / "strange", *(bad(good(seed)) for seed in range(70, 82)))
    calibrate = ("calibrate", "fresh.yaml", "--images", "verified", "--escapes")
    shown = experts(*calibrate, "0.3", "--plots", "plots")
    assert (shown.status, "pictures: 24" in shown.out, "--write" in shown.words) == (0, True, True), shown.err
    assert (learned / "plots" / "any.png").is_file()
    for more, holds in (((), False), (("--unproven",), True)):
        few = experts(*calibrate, "0.05", *more)
        assert (few.status, "proven" in few.words) == (1, True), "12 bad parts do not prove it"
        assert ("ignore_under" in few.out) is holds
    copied = learned / "verified" / "any" / "none" / "copy.bmp"
    Image.fromarray(good(3)).save(copied)
    refused = experts(*calibrate, "0.3")
    assert (refused.status, "1 of its 25 pictures, such as any/none/copy.bmp" in refused.words) == (1, True)
    copied.unlink()

    assert experts(*calibrate, "0.3", "--write").status == 0
    assert (learned / "fresh.yaml").read_text(encoding="utf-8") == BOARD
    assert 0 < rules.load(learned / "fresh.yaml").experts["any"].ignore_under["strange"] < 1

    saved(learned / "line" / "U1", good(90), bad(good(91)), part(5))
    assert run("run").status == 1
    assert list(verdicts(learned / "run").values()) == ["OK", "NG", "REVIEW"]
    (heat,) = [
        result.findings[0].heat
        for result in records.read(learned / "run" / "results.jsonl")
        if result.request.image == "U1/01.png"
    ]
    assert max(heat.values) > 200
    report = (learned / "run" / "report.html").read_text(encoding="utf-8")
    assert report.count("Heat map") == 2, "the title and the text for people who do not see the picture"


def test_an_expert_that_learned_in_another_frame_is_refused(learned, call, experts, run):
    saved(learned / "line" / "U1", good(90))
    assert run("before").status == 0
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    assert run("same").status == 0, "the same pictures make the same reference"
    saved(learned / "moved" / "U1", *(moved(good(seed), 4, 3) for seed in range(8)))
    assert call("reference", "fresh.yaml", "--images", "moved", command=experts_command).status == 0
    refused, verified = run("after"), experts("verify")
    assert (refused.status, "'any'" in refused.words, "'fresh/U1'" in refused.words) == (2, True, True)
    assert (verified.status, "fresh/any: the reference" in verified.words) == (1, True)


@pytest.mark.usefixtures("fresh")
def test_wrong_arguments_are_said(experts):
    arguments = ("calibrate", "fresh.yaml", "--images", "good")
    other = ("train", "a/b", "--kind", "resnet18", "--input", "64", "--labels", "a,b", "--data", "good/U1")
    for words, named in (
        (arguments, "--escapes or --false-calls"),
        ((*arguments, "--escapes", "0.1"), "<expert>/<label>/<picture>"),
        ((*other, "--false-calls", "0.1"), "good parts alone"),
    ):
        said = experts(*words)
        assert (said.status, named in said.words) == (2, True)


FIRST_DAY = """\
board: fresh
experts:
  d: {kind: "golden_parts:FirstDay", labels: [different], input: 160, reject: [different], then: {none: OK}}
components:
  U1: {inspect: d, reference: U1}
  U2: {inspect: d, reference: U2}
"""


def test_good_parts_of_several_components_set_the_limit_of_the_first_day(fresh, call, experts, run):
    (fresh / "fresh.yaml").write_text(FIRST_DAY, encoding="utf-8")
    saved(fresh / "good" / "U2", *(noisy(part(4), seed) for seed in range(6)))
    train = ("train", "fresh/d", "--board", "fresh.yaml", "--data", "good", "--epochs", "1", "--no-prepare")
    refused = experts(*train)
    assert (refused.status, "no reference 'fresh/U" in refused.words) == (2, True)
    assert call("reference", "fresh.yaml", "--images", "good", command=experts_command).status == 0
    (fresh / "good" / "U2").rename(fresh / "good" / "u2")
    assert experts(*train).status == 2, "no component is called u2"
    (fresh / "good" / "u2").rename(fresh / "u2")
    assert "no good part of fresh/U2" in experts(*train).words
    (fresh / "u2").rename(fresh / "good" / "U2")
    said = experts(*train)
    assert (said.status, "good_parts 14" in said.out) == (0, True), said.err

    saved(fresh / "line" / "U1", good(90), bad(good(91)))
    saved(fresh / "line" / "U2", noisy(part(4), 92), bad(part(4)))
    assert run("run").status == 1
    expected = {"U1/00.png": "OK", "U1/01.png": "NG", "U2/00.png": "OK", "U2/01.png": "NG"}
    assert verdicts(fresh / "run") == expected
    assert "fresh/U2, version 1" in (fresh / "run" / "report.html").read_text(encoding="utf-8")
    assert experts("verify").status == 0, "a new reference may come"
