"""The demo board made for real: a build in small, and the full one's figures where it has been made."""

from types import SimpleNamespace

import pytest
from exams import exam
from rich.console import Console

from apps.demo import first_look
from apps.demo.build import Edition, build, examine, missing_experts
from apps.demo.evaluate import inspect, tally, total
from apps.demo.production import lot, read_truth
from apps.demo.recipe import KEPT
from coe import Inspector
from coe.board import rules
from coe.core import Shown
from coe.inspector import weights_used
from coe.store.bodies import names
from coe.store.kinds import ModuleKind, resolve
from coe.store.skeletons import random_weights
from coe.store.store import Store


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


def test_polarity_takes_an_exam_so_that_the_board_accepts_turned_parts_only_where_none_can_be(tmp_path):
    store, polarity = Store(tmp_path / "store"), rules.load("demo").experts["polarity"]
    kind = resolve(polarity.kind)
    assert isinstance(kind, ModuleKind)
    state = random_weights(kind, polarity, 1)
    entry = {"kind": kind.name, "labels": polarity.labels, "input_size": polarity.input_size}
    store.put(polarity.weights, state=state, **entry)
    examine(store)
    manifest = store.manifest(polarity.weights)
    assert manifest.exam is not None
    assert [(one.item, one.is_passed) for one in manifest.exam.items] == [(Shown.TURNED, True)], "it sees no mark"
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
