"""`coe-experts evaluate`: what passes and what is called by the rules, pictures that are wrong, and what is refused."""

import pytest
from lamp import STATED, lamp, picture

from coe.cli import experts_command

RULES = """board: b
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark]}
components:
  strict: {count: 1, inspect: lamp, min_score: 0.9}
  plain: {count: 1, inspect: lamp}
  other: {count: 1, inspect: lamp}
"""


@pytest.fixture
def board(tmp_path, call):
    (tmp_path / "b.yaml").write_text(RULES)
    lamp(tmp_path / "lamp.onnx")
    options = ("--kind", "onnx", "--input", "32", "--labels", "dark,bright", *STATED, "--no-prepare")
    words = ("import", "b/lamp", tmp_path / "lamp.onnx", *options, "--store", tmp_path / "store")
    said = call(*words, command=experts_command)
    assert said.status == 0, said.err
    return tmp_path / "b.yaml"


@pytest.fixture
def evaluate(board, tmp_path, call):
    def run(*options):
        arguments = (board, "--images", tmp_path / "labelled", "--store", tmp_path / "store", *options)
        return call("evaluate", *arguments, command=experts_command)

    return run


def rows(out):
    """Return the words of the lines that tell rates."""
    return [line.split() for line in out.splitlines() if line.startswith("lamp ") and "%" in line]


def test_rates_are_told_by_expert_and_component_with_their_bounds(evaluate, tmp_path):
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
    assert "lamp/bright/called.png = lamp/dark/20.png" in said.words, "they contradict each other"
    assert "lamp: 9 of 11 as labelled" in said.out
    strict, plain = rows(said.out)
    assert strict == ["lamp", "strict", "9", "of", "11", "1", "of", "4", "75.14%", "2", "of", "7", "65.87%"]
    assert plain == ["lamp", "plain,", "other", "9", "of", "11", "1", "of", "4", "75.14%", "1", "of", "7", "52.07%"]
    assert "lamp/dark/escape.png: expected dark, said bright: an escape" in said.out
    assert "lamp/bright/called.png: expected bright, said dark: a false call" in said.out
    assert "lamp/bright/faint.png: expected bright, said bright: a false call" in said.out
    assert "for defects like those in the pictures" in said.out
    page = (tmp_path / "page.html").read_text()
    for words in ("for defects like those", "1 of 4", "2 of 7", "lamp/dark/escape.png", "an escape", "data:image/jpeg"):
        assert words in page
    assert "lamp/dark/10.png" not in page


def test_the_report_shows_escapes_of_all_experts_first(evaluate, board, tmp_path):
    more = "  also: {kind: onnx, labels: [dark, bright], input: 32, reject: [dark], weights: b/lamp}\ncomponents:\n"
    board.write_text(RULES.replace("components:\n", more) + "  last: {count: 1, inspect: also}\n")
    picture(tmp_path / "labelled/also/bright/called.png", 20)
    picture(tmp_path / "labelled/lamp/dark/escape.png", 230)
    assert evaluate("--report", tmp_path / "page.html").status == 1
    page = (tmp_path / "page.html").read_text()
    assert 0 < page.index("lamp/dark/escape.png") < page.index("also/bright/called.png")


def test_a_picture_that_cannot_be_read_is_no_success_and_weights_that_do_not_fit_are_refused(evaluate, tmp_path, board):
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    assert evaluate("--report", tmp_path / "page.html").status == 0
    assert "every picture is judged as it is labelled" in (tmp_path / "page.html").read_text()
    (tmp_path / "labelled/lamp/dark/b.png").write_bytes(b"no picture")
    said = evaluate("--report", tmp_path / "page.html")
    assert (said.status, "not judged: lamp/dark/b.png" in said.words) == (3, True)
    assert "1 of 1 as labelled" in said.out
    assert "lamp" in (tmp_path / "page.html").read_text()
    picture(tmp_path / "labelled/lamp/dark/a.png", 5)
    board.write_text(RULES.replace("[dark, bright]", "[dark, bright, blue]"))
    said = evaluate()
    assert (said.status, "its weights 'b/lamp' are" in said.words) == (2, True)


def test_labels_and_experts_of_no_board_are_refused(evaluate, board, tmp_path, call):
    picture(tmp_path / "labelled/lamp/none/a.png", 5)
    said = evaluate()
    assert (said.status, "it is no detector" in said.words) == (2, True)
    arguments = ("--images", tmp_path / "labelled", "--escapes", "0.5", "--store", tmp_path / "store")
    said = call("calibrate", board, *arguments, command=experts_command)
    assert (said.status, "it is no detector" in said.words) == (1, True)
    picture(tmp_path / "labelled/lump/dark/a.png", 5)
    assert evaluate().status == 2


def test_pictures_that_the_expert_learned_from_are_refused(tmp_path, call):
    for label, level in (("ok", 200), ("bad", 20)):
        for number in range(3):
            picture(tmp_path / "learned" / label / f"{number}.png", level + number)
    (tmp_path / "b.yaml").write_text(RULES.replace("onnx", "narrow").replace("dark", "bad").replace("bright", "ok"))
    store = ("--store", tmp_path / "store")
    options = ("--kind", "narrow", "--input", "32", "--labels", "bad,ok", "--epochs", "1", "--no-prepare")
    said = call("train", "b/lamp", "--data", tmp_path / "learned", *options, *store, command=experts_command)
    assert said.status == 0, said.err
    picture(tmp_path / "labelled/lamp/ok/another-name.png", 201)
    picture(tmp_path / "labelled/lamp/ok/new.png", 190)
    images = ("--images", tmp_path / "labelled", *store)
    said = call("evaluate", tmp_path / "b.yaml", *images, command=experts_command)
    assert (said.status, "lamp/ok/another-name.png" in said.words, "as labelled" in said.out) == (2, True, False)
    (tmp_path / "labelled/lamp/ok/another-name.png").unlink()
    assert call("evaluate", tmp_path / "b.yaml", *images, command=experts_command).status in (0, 1)
