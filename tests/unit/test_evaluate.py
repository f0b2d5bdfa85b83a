"""`coe-experts evaluate`: what passes and what is called by the rules, pictures that are wrong, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from tiny_line import Call

from coe.cli import experts

RULES = """board: b
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark]}
components:
  strict: {count: 1, inspect: lamp, min_score: 0.9}
  plain: {count: 1, inspect: lamp}
  other: {count: 1, inspect: lamp}
"""


def lamp(path: Path) -> None:
    """Write a classifier that takes bytes: the brighter the picture, the surer it says the second of two labels."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("Sub", ["mean", "middle"], ["off"]),
        helper.make_node("Mul", ["off", "steep"], ["up"]),
        helper.make_node("Neg", ["up"], ["down"]),
        helper.make_node("Unsqueeze", ["up", "one"], ["up1"]),
        helper.make_node("Unsqueeze", ["down", "one"], ["down1"]),
        helper.make_node("Concat", ["down1", "up1"], ["logits"], axis=1),
    ]
    constants = [
        numpy_helper.from_array(np.float32(128), "middle"),
        numpy_helper.from_array(np.float32(0.02), "steep"),
        numpy_helper.from_array(np.array([1], np.int64), "one"),
    ]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, ["n", 3, 32, 32])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "lamp", [images], [logits], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


def picture(path: Path, level: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((32, 32, 3), level, np.uint8))


@pytest.fixture
def board(tmp_path: Path, call: Call) -> Path:
    (tmp_path / "b.yaml").write_text(RULES)
    lamp(tmp_path / "lamp.onnx")
    options = ("--kind", "onnx", "--input", "32", "--labels", "dark,bright", "--no-prepare")
    said = call("import", "b/lamp", tmp_path / "lamp.onnx", *options, "--store", tmp_path / "store", command=experts)
    assert said.status == 0, said.err
    return tmp_path / "b.yaml"


@pytest.fixture
def evaluate(board: Path, tmp_path: Path, call: Call) -> Any:
    def run(*options: object) -> Any:
        arguments = (board, "--images", tmp_path / "labelled", "--store", tmp_path / "store", *options)
        return call("evaluate", *arguments, command=experts)

    return run


def rows(out: str) -> list[list[str]]:
    """Return the words of the lines that tell rates."""
    return [line.split() for line in out.splitlines() if line.startswith("lamp ")]


def test_rates_are_told_by_expert_and_component_with_their_bounds(evaluate: Any, tmp_path: Path) -> None:
    folder = tmp_path / "labelled" / "lamp"
    for level in (10, 20, 30):
        picture(folder / "dark" / f"{level}.png", level)
    picture(folder / "dark" / "escape.png", 230)
    for level in (200, 210, 220, 235, 240):
        picture(folder / "bright" / f"{level}.png", level)
    picture(folder / "bright" / "faint.png", 150)  # bright, and not sure enough for `strict`
    picture(folder / "bright" / "called.png", 20)
    said = evaluate("--report", tmp_path / "page.html")
    assert said.status == 1, said.err
    assert "lamp: 9 of 11 as labelled" in said.out
    strict, plain = rows(said.out)
    assert strict == ["lamp", "strict", "9", "of", "11", "1", "of", "4", "75.14%", "2", "of", "7", "65.87%"]
    assert plain == ["lamp", "plain,", "other", "9", "of", "11", "1", "of", "4", "75.14%", "1", "of", "7", "52.07%"]
    assert "lamp/dark/escape.png: labelled dark, said bright: an escape" in said.out
    assert "lamp/bright/called.png: labelled bright, said dark: a false call" in said.out
    assert "lamp/bright/faint.png: labelled bright, said bright: a false call" in said.out
    page = (tmp_path / "page.html").read_text()
    for words in ("1 of 4", "2 of 7", "lamp/dark/escape.png", "an escape", "data:image/jpeg"):
        assert words in page
    assert "lamp/dark/10.png" not in page


def test_pictures_that_are_all_judged_as_labelled(evaluate: Any, tmp_path: Path) -> None:
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    picture(tmp_path / "labelled/lamp/bright/b.png", 250)
    said = evaluate("--report", tmp_path / "page.html")
    assert (said.status, "2 of 2 as labelled" in said.out) == (0, True)
    assert "every picture is judged as it is labelled" in (tmp_path / "page.html").read_text()


def test_a_picture_that_cannot_be_read_is_told_and_is_no_success(evaluate: Any, tmp_path: Path) -> None:
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    (tmp_path / "labelled/lamp/dark/b.png").write_bytes(b"no picture")
    said = evaluate("--report", tmp_path / "page.html")
    assert (said.status, "not judged: lamp/dark/b.png" in said.words) == (3, True)
    assert "1 of 1 as labelled" in said.out
    assert "lamp" in (tmp_path / "page.html").read_text()


def test_labels_and_experts_that_the_board_does_not_have_are_refused(evaluate: Any, tmp_path: Path) -> None:
    picture(tmp_path / "labelled/lamp/none/a.png", 5)
    said = evaluate()
    assert (said.status, "it is no detector" in said.words) == (2, True)
    picture(tmp_path / "labelled/lump/dark/a.png", 5)
    assert evaluate().status == 2


def test_weights_that_do_not_fit_the_rules_are_refused(evaluate: Any, board: Path, tmp_path: Path) -> None:
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    board.write_text(RULES.replace("[dark, bright]", "[bright, dark]"))
    said = evaluate()
    assert (said.status, "its weights 'b/lamp' are" in said.words) == (2, True)


def test_pictures_that_the_expert_learned_from_are_refused(tmp_path: Path, call: Call) -> None:
    for label, level in (("ok", 200), ("bad", 20)):
        for number in range(3):
            picture(tmp_path / "learned" / label / f"{number}.png", level + number)
    (tmp_path / "b.yaml").write_text(RULES.replace("onnx", "narrow").replace("dark", "bad").replace("bright", "ok"))
    store = ("--store", tmp_path / "store")
    options = ("--kind", "narrow", "--input", "32", "--labels", "bad,ok", "--epochs", "1", "--no-prepare")
    said = call("train", "b/lamp", "--data", tmp_path / "learned", *options, *store, command=experts)
    assert said.status == 0, said.err
    picture(tmp_path / "labelled/lamp/ok/another-name.png", 201)
    picture(tmp_path / "labelled/lamp/ok/new.png", 190)
    images = ("--images", tmp_path / "labelled", *store)
    said = call("evaluate", tmp_path / "b.yaml", *images, command=experts)
    assert (said.status, "lamp/ok/another-name.png" in said.words, "as labelled" in said.out) == (2, True, False)
    (tmp_path / "labelled/lamp/ok/another-name.png").unlink()
    assert call("evaluate", tmp_path / "b.yaml", *images, command=experts).status in (0, 1)
