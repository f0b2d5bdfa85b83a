"""`coe-board new --photos`: what photographs lack, and the commands that go from them to a report."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from exams import exam
from picture_folders import encoded, saved, write

from coe.board import drafting, rules
from coe.bring.board.first_board import rules_text
from coe.cli import board_command, experts_command
from coe.core import NOTHING, Expert, Finding, Verdict
from coe.errors import RulesError
from coe.store.store import Store


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 255, (21, 16, 16, 3), np.uint8)
    for folder, pictures in {"R1/good": noise[:10], "U2/gut": noise[10:20], "R1/cracked": noise[20:]}.items():
        saved(tmp_path / "photos" / folder, *pictures)
    return tmp_path / "photos"


def new(call, *more):
    return call("new", "line7", "--photos", "photos", *more, command=board_command)


def test_the_commands_are_those_from_photographs_to_a_report(photos, call):
    said = new(call)
    assert said.status == 0, said.err
    steps = [line.split()[:2] for line in said.out.splitlines() if line.startswith("  coe-")]
    names = ["split", "choose", "evaluate"]
    assert steps == [*(["coe-experts", name] for name in names), ["coe-inspect", "--board"]]
    assert "R1: only 1 of cracked" in said.words
    assert "U2" not in said.words
    assert not (photos / "split.csv").exists(), "nothing is run without --run"


def test_a_note_asks_for_as_many_good_pictures_as_can_be_compared(photos, call):
    for number in range(6, 10):
        (photos / "U2/gut" / f"{number:02d}.png").unlink()
    said = new(call)
    assert all(word in said.words for word in ("U2: only 6 of gut", "10"))


def test_a_run_ends_with_what_still_passes_and_the_commands_that_mend_it(photos, call, monkeypatch):
    def run(made):
        board = Path("routing_rules/line7.yaml")
        board.write_text(
            "board: line7\nexperts: {R1: {kind: k, labels: [good, bad], input: 64, reject: [bad]}}\n"
            "components: {R1: {inspect: R1}}\n"
        )
        taken = exam(missing=not blind)
        Store().put("line7/R1", kind="k", labels=("good", "bad"), input_size=64, state={}, exam=taken)
        return 0

    monkeypatch.setattr(board_command, "run_commands", run)
    for blind in (True, False):
        said = new(call, "--polarity", "R1", "--run")
        assert said.status == 0, said.err
        end = said.out.partition("coe-inspect")[2]
        told = ("still passes", "coe-experts split photos", "coe-experts choose", "--polarity R1")
        assert [word in end for word in told] == [blind] * 4
        Path("routing_rules/line7.yaml").unlink()


def test_placement_files_say_which_parts_have_a_polarity_and_a_draft_lets_nothing_pass(tmp_path):
    parts = (("R0402", ("R1", "R2")), ("SOT-23", ("X1",)), ("any", ("D3",)))
    drawn = SimpleNamespace(parts=[SimpleNamespace(name=name, refdes=refdes) for name, refdes in parts], unseen=())
    board = rules.of_bytes(Path("b.yaml"), rules_text("b", drawn).encode())
    assert [component.polarity for component in board.components.values()] == [None, True, True]
    (path := tmp_path / "b.yaml").write_text(text := drafting.draft_of("b", EXPERTS), encoding="utf-8")
    board = rules.load(path)
    board.check_detectors(board.experts)
    assert text.count("TODO") > 4
    for expert in EXPERTS:
        read, component = board.experts[expert.id], board.components[expert.id]
        assert (read.kind, read.labels, read.input_size) == (expert.kind, expert.labels, expert.input_size)
        for label in (*expert.labels, NOTHING):
            said = board.router.next(component.root, Finding(expert.id, "fp32", label, 1.0))
            assert said.verdict is Verdict.REVIEW
    with pytest.raises(RulesError):
        drafting.draft_of("b", [Expert("OK", "resnet18", ("ok",), 64, "b/OK")])


@pytest.mark.parametrize("name", ["loose.png", "R1/good/deep/x.png", "V3/10K/1.png"])
def test_what_a_board_cannot_be_made_of_is_refused(photos, call, name):
    write(photos / name, encoded())
    said = new(call)
    assert (said.status, name.split("/", maxsplit=1)[0] in said.err) == (2, True)
    assert not Path("routing_rules").exists()


@pytest.mark.parametrize("name", ["Kondensator 10µF", "-R1", "電容", "R" * 101])
def test_a_folder_that_cannot_be_a_component_is_named_before_anything_is_split(photos, call, name):
    write(photos / name / "good" / "1.png", encoded())
    said = new(call)
    assert (said.status, name[:80] in said.err, "pattern" in said.err) == (2, True, False)
    assert call("choose", "line7.yaml", "--images", "photos", command=experts_command).status == 2


def test_a_board_that_is_there_is_never_replaced(photos, call):
    Path("routing_rules").mkdir()
    Path("routing_rules/line7.yaml").write_text("board: line7\n", encoding="utf-8")
    assert new(call).status == 2


EXPERTS = [
    Expert("body", "resnet18", ("ok", "no", "1", "a: b", "schräg, 'x'"), 64, "b/body"),
    Expert("0402", "onnx", ("joint",), 320, "b/0402"),
]
