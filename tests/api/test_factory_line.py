"""The line that integrators copy: what it passes, coe-inspect passes, and nothing else."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from exams import exam
from rich.console import Console

from apps.demo import first_look
from apps.demo.build import Edition, build, examine, missing_experts
from apps.demo.evaluate import inspect, tally, total
from apps.demo.production import lot, read_truth
from apps.demo.recipe import KEPT
from apps.factory_line import line
from coe import Inspector
from coe.board import rules
from coe.cli import inspect as inspect_cli
from coe.core import Shown
from coe.inspector import weights_used
from coe.learn import evaluation
from coe.store.bodies import names
from coe.store.exam import ExamItem
from coe.store.kinds import ModuleKind, resolve
from coe.store.skeletons import random_weights
from coe.store.store import Store

ALWAYS_OK = """
board: easy
experts:
  look: {kind: resnet18, labels: [ok, fine], input: 48}
components:
  C: {inspect: look, then: {ok: OK, fine: OK}}
  N: {inspect: look, then: {ok: NG, fine: NG}}
  V: {inspect: look, then: {ok: REVIEW, fine: REVIEW}}
"""


@pytest.fixture(scope="module")
def easy(tiny, tmp_path_factory):
    """A board whose components are always OK, NG and REVIEW, and its store."""
    folder = tmp_path_factory.mktemp("easy")
    (folder / "easy.yaml").write_text(ALWAYS_OK, encoding="utf-8")
    from tiny_line import fill

    fill(Store(folder / "store"), rules.load(folder / "easy.yaml"))
    return folder / "easy.yaml", folder / "store"


@pytest.fixture
def both(easy, tmp_path, call):
    """Run the line and coe-inspect over the same folder; give both statuses, and what the line said."""

    def run(*names):
        for name in names:
            path = tmp_path / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((60, 60, 3), 90, np.uint8))
            if "bad" in name:
                path.write_bytes(b"no picture")
        board, store = easy
        given = ("--board", board, "--images", tmp_path / "images", "--store", store, "--memory", "100MB")
        said = call(*given, "--rate", "1000", command=line)
        assert "Traceback" not in said.err
        inspected = call(*given, "--out", tmp_path / "out", command=inspect_cli)
        return said.status, inspected.status, said.out

    return run


@pytest.mark.parametrize(
    ("names", "status", "boards"),
    [
        (["SN1/R1__C.png", "SN1/R2__C.png", "SN2/R1__C.png"], 0, {"board SN1: OK", "board SN2: OK"}),
        (["SN1/R1__C.png", "SN1/R2__N.png", "SN2/R1__C.png"], 1, {"board SN1: NG (R2)", "board SN2: OK"}),
        (["SN1/R1__C.png", "SN1/R2__XX.png", "SN2/R1__C.png"], 3, {"board SN1: REVIEW (R2)", "board SN2: OK"}),
        (["SN1/R1__C.png", "N/R2__C.png"], 3, {"board SN1: OK", "pictures of no board: REVIEW (N/R2__C.png)"}),
        (["x: OK, y/R1__N.png"], 1, {"board x: OK, y: NG (R1)"}),
        (["SN1/R1__C.png", "SN1/bad__C.png"], 3, {"board SN1: REVIEW (bad), 2 images, 1 of them not inspected"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_board_passes_only_if_all_of_it_was_judged_ok(both, names, status, boards):
    ours, theirs, said = both(*names)
    assert (ours, theirs) == (status, status)
    for board in boards:
        assert board in said


@pytest.mark.slow
def test_a_small_build_trains_what_is_asked_for_and_is_not_made_twice(tmp_path):
    images, store = tmp_path / "images", Store(tmp_path / "store")

    def make():
        only = {"chip-resistor", "crystal-can"}
        return build(images, store, Edition(boards=1, quick=True), only=only, workers=1, console=Console(quiet=True))

    trained = make()
    assert store.ids() == ["demo/chip-resistor", "demo/crystal-can"]
    assert set(trained) == {"body", "chip-resistor", "crystal-can"}
    assert {path.relative_to(images).as_posix() for path in images.rglob("*.png")} == set(read_truth(images))
    assert make() == {}
    # What the recipe freezes is one body of them all.
    first, second = (store.manifest(id) for id in store.ids())
    assert first.body == second.body is not None
    assert {next(part for part in KEPT if name.startswith(f"{part}.")) for name in names(store, first)} == set(KEPT)


@pytest.mark.slow
def test_polarity_takes_an_exam_so_that_the_board_accepts_turned_parts_only_where_none_can_be(tmp_path, monkeypatch):
    def stops_turned(board, asked, id, pictures):  # random weights see no mark, so no good picture passes
        return (ExamItem(item=Shown.TURNED, shown=len(pictures), passed=0),)

    monkeypatch.setattr(evaluation, "examined", stops_turned)
    store, polarity = Store(tmp_path / "store"), rules.load("demo").experts["polarity"]
    kind = resolve(polarity.kind)
    assert isinstance(kind, ModuleKind)
    state = random_weights(kind, polarity, 1)
    entry = {"kind": kind.name, "labels": polarity.labels, "input_size": polarity.input_size}
    store.put(polarity.weights, state=state, **entry)
    examine(store)
    manifest = store.manifest(polarity.weights)
    assert manifest.exam is not None
    assert [(one.item, one.is_passed) for one in manifest.exam.items] == [(Shown.TURNED, True)]
    board = rules.load("demo")
    blind = SimpleNamespace(exam=exam(missing=True, turned=False), few_pixels="", knows_good_parts=True)
    manifests = {expert.weights: blind for expert in board.experts.values()} | {polarity.weights: manifest}
    stopped = {name for row in weights_used.exam_rows(board, manifests) for name in row.stopped}
    assert stopped == {name for name, one in board.components.items() if one.steps_of("polarity")}
    assert {name for name, one in board.components.items() if one.accepts} == {"Q-SOT23-NPN"}
    examine(store)
    assert store.manifest(polarity.weights) == manifest, "it took one"


@pytest.mark.slow
def test_the_full_build_judges_boards_that_it_never_saw():
    store = Store()
    if missing_experts(store, 1, False):
        pytest.skip("the demo board is not built, or from another recipe: python -m apps.demo.build")
    with Inspector("demo", store=store, memory="1.5GiB") as line:
        parts, _ = tally(inspect(line, lot(4, seed=9101)))
    assert total(parts).accuracy >= 0.97


@pytest.mark.slow
def test_a_first_look_in_small_is_made_inspected_and_not_made_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(first_look, "NUMBERS", {None: 2, "bridged": 0, "lifted": 0})
    monkeypatch.setattr(first_look, "MORE_GOOD", {})
    for name, value in (("FEW", 2), ("BOARDS", 1), ("COMMON", first_look.Lesson(1, 1e-3))):
        monkeypatch.setattr(first_look, name, value)
    monkeypatch.setattr(first_look, "OF_A_BODY", {})
    monkeypatch.setattr(first_look, "OF_OTHER_BODIES", first_look.Lesson(1, 1e-3))
    images, store, said = tmp_path / "images", Store(tmp_path / "store"), []
    assert first_look.build(images, store, say=said.append) == 11
    assert len(store.ids()) == 11
    assert len(said) == 1 + 1 + 11
    pictures = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.png"))
    assert set(pictures) == set(read_truth(images))
    with Inspector("first_look", store=store, memory="25MB", allow_kinds=first_look.ALLOWED) as line:
        verdicts = [line.submit(images / name, name.split("__")[1][:-4]).result().verdict for name in pictures]
    assert None not in verdicts
    assert first_look.build(images, store, say=said.append) == 0
