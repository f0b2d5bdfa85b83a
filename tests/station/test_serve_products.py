"""Several recipes on one line, or on several boxes: what is wrong with one stops no other."""

import io
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serving import activated, config_of, embedded, embedded_database
from stations import DARK, LIGHT, Shop, deciding, quick_opener
from tiny_line import TINY
from waiting import eventually

from coe import Inspector
from coe.core import Verdict
from coe.inspector.line import Line
from coe.serve.clock import now_us
from coe.serve.database import event_log, fault_log, recipe_versions, row_types, states
from coe.serve.database.tables import Activation, NewFault, StateChange, state_change
from coe.serve.enums import ActivationState, CallReason, EventKind, FaultKind, LineState, Process, Subject
from coe.serve.gate.state_routes import why_not_ready
from coe.serve.service_config import LineSettings
from coe.serve.worker import station as worker_station
from coe.serve.worker.product import RECIPES
from coe.store.store import Store
from coe.testing import Experiment

MILD = TINY.replace("bad: NG", "bad: REVIEW")
"""A dark C is REVIEW by these rules, and NG by those of TINY."""
CHAINED = """
board: tiny
experts:
  body-a: {kind: narrow, labels: [ok, bad], input: 48, then: {ok: OK, bad: REVIEW}}
  body-c: {kind: narrow, labels: [ok, bad], input: 48}
components:
  C: {inspect: body-c, then: {ok: body-a, bad: NG}}
"""
REVERSED = """
board: tiny
experts:
  body-a: {kind: narrow, labels: [ok, bad], input: 48}
  body-c: {kind: narrow, labels: [ok, bad], input: 48, then: {ok: OK, bad: NG}}
components:
  C: {inspect: body-a, then: {ok: body-c, bad: REVIEW}}
"""
"""The experts of CHAINED in the other order: no line can inspect both."""

database = embedded_database(busy_s=2.0)


@dataclass
class Mixed(Shop):
    """A shop of several recipes, which remembers its lines and the boards that they were opened for."""

    lines: list[Line] = field(default_factory=list)
    opened: list[list[str]] = field(default_factory=list)

    def open_line(self, boards):
        self.lines.append(quick_opener(self.tiny, self.device)(boards))
        self.opened.append([board.name for board in boards])
        return self.lines[-1]

    def deciding(self):
        return deciding(self.config, self.database, self.open_line)

    def verdicts(self, *boards):
        return [self.verdict(board) for board in boards]

    def until_decided(self, *boards):
        eventually(lambda: None not in self.verdicts(*boards))


@pytest.fixture
def shop(config, database, tiny):
    return Mixed(config, database, tiny)


@pytest.fixture
def own(config, database, own_tiny):
    """A shop whose experts a test may damage."""
    return Mixed(config, database, own_tiny)


def add(database, rules, name="tiny"):
    with database.writing() as connection:
        recipe = recipe_versions.add(connection, name, {"rules": rules}, by="ann", now_us=now_us())
        return recipe, recipe_versions.ask_activation(connection, recipe.id, by="ann", now_us=now_us())


def answer(database, asked):
    return database.read(row_types.get, Activation, asked.id)


def until_answered(shop, asked):
    eventually(lambda: answer(shop.database, asked).state is not ActivationState.ASKED)


def open_faults(database):
    return [(fault.kind, fault.about) for fault in database.read(fault_log.open_faults)]


def decided_by(shop, boards):
    """Decide boards; return of each its key, verdict and calls."""
    with shop.deciding():
        shop.until_decided(*boards)
    return [(board.key, shop.verdict(board), [call.refdes for call in shop.calls(board)]) for board in boards]


def test_boards_of_two_recipes_that_come_in_turn_get_the_verdicts_of_separate_lines_and_nothing_is_reopened(
    shop, tmp_path, sqlite_template
):
    pictures = [{"R1": LIGHT, "R2": DARK}, {"R1": LIGHT}, {"R1": DARK}]
    strict, mild = activated(shop.database, TINY, "strict"), activated(shop.database, MILD, "mild")
    mixed = [
        shop.accept(shown, recipe=recipe, key=f"{recipe.name}-{number}")
        for number, shown in enumerate(pictures)
        for recipe in (strict, mild)
    ]
    together = decided_by(shop, mixed)
    assert shop.opened in ([["mild 1", "strict 1"]], [["strict 1", "mild 1"]])
    separate = []
    for name, rules in (("strict", TINY), ("mild", MILD)):
        config = config_of(tmp_path / name, drain_s=5)
        config.data.mkdir()
        with embedded(config, sqlite_template) as own:
            alone, recipe = Mixed(config, own, shop.tiny), activated(own, rules, name)
            same = [alone.accept(shown, recipe=recipe, key=f"{name}-{n}") for n, shown in enumerate(pictures)]
            separate += decided_by(alone, same)
    assert sorted(together, key=str) == sorted(separate, key=str)
    assert {verdict for _, verdict, _ in together} == {Verdict.OK, Verdict.NG, Verdict.REVIEW}


def test_a_recipe_is_decided_with_its_calibration(shop):
    """A component of which a score of 1 is asked for is REVIEW; without the calibration it is OK."""
    scores = "{min_scores: {ok: 1.0}}"
    calibration = f"board: tiny\nexperts: {{body-a: {scores}, body-b: {scores}, body-c: {scores}}}\n"
    sure = activated(shop.database, TINY, "sure", calibration=calibration)
    boards = [shop.accept({"R1": LIGHT}), shop.accept({"R1": LIGHT}, recipe=sure, key="k2")]
    assert [verdict for _, verdict, _ in decided_by(shop, boards)] == [Verdict.OK, Verdict.REVIEW]


def test_a_version_is_activated_in_mid_stream_and_begun_boards_keep_theirs(shop):
    shop.device.gate.clear()
    begun = shop.accept({"R1": DARK})
    with shop.deciding():
        eventually(shop.device.reached.is_set)
        second, asked = add(shop.database, MILD)
        # It is active while a board of the version before is under way.
        until_answered(shop, asked)
        assert shop.verdict(begun) is None
        new, old = shop.accept({"R1": DARK}, recipe=second, key="k2"), shop.accept({"R1": DARK}, key="k3")
        shop.device.gate.set()
        shop.until_decided(begun, new, old)
    assert answer(shop.database, asked).state is ActivationState.ACTIVE
    assert shop.verdicts(begun, new, old) == [Verdict.NG, Verdict.REVIEW, Verdict.NG]
    assert shop.opened == [["tiny 1"]]
    assert shop.database.read(recipe_versions.active, "tiny") == second
    told = [event.kind for event in shop.database.read(event_log.after, 0)]
    assert told.count(EventKind.RECIPE_ACTIVATED) == 1


def test_a_version_without_boards_leaves_the_line(shop, monkeypatch):
    def facts():
        return dict(shop.database.read(states.heartbeats)[Process.WORKER].facts)

    monkeypatch.setattr(worker_station, "STAYS_S", 0.0)
    activated(shop.database, TINY)
    with shop.deciding():
        eventually(lambda: bool(shop.lines))
        until_answered(shop, add(shop.database, MILD)[1])
        eventually(lambda: shop.lines[0].boards == ("tiny 2",))
        eventually(lambda: facts().get("recipes") == ["tiny 2"])
    assert len(shop.lines) == 1


def without(store, name):
    shutil.rmtree(store / "tiny" / name)


def torn(store, name):
    """Change one byte of the weights of an expert, as a failing disk does."""
    manifest = Store(store).manifest(f"tiny/{name}")
    path = next(file for file in (store / "tiny" / name).rglob("*") if file.stat().st_size == manifest.bytes)
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [without, torn])
def test_an_expert_that_is_missing_or_torn_at_an_activation_leaves_the_other_recipes_running(own, damage):
    """The new version needs body-b for another component; body-c, which the first needs, is damaged on the disk too."""
    few = TINY.replace("  B: {count: 3, inspect: body-b, min_score: 0.2, then: {ok: joint, bad: REVIEW}}\n", "")
    few = few.replace("  body-b: {kind: narrow, labels: [ok, bad], input: 48}\n", "")
    own.recipe = first = activated(own.database, few)
    with own.deciding():
        before = own.accept({"R1": DARK})
        own.until_decided(before)
        damage(own.tiny[1], "body-b")
        without(own.tiny[1], "body-c")
        second, asked = add(own.database, TINY)
        until_answered(own, asked)
        after, unopened = own.accept({"R1": LIGHT}, key="k2"), own.accept({"R1": LIGHT}, recipe=second, key="k3")
        own.until_decided(after, unopened)
    assert answer(own.database, asked).state is ActivationState.FAILED
    assert own.verdicts(before, after, unopened) == [Verdict.NG, Verdict.OK, Verdict.REVIEW]
    assert open_faults(own.database) == [(FaultKind.RECIPE_REFUSED, "tiny 2")]
    assert own.opened == [["tiny 1"]]
    assert own.database.read(recipe_versions.active, "tiny") == first


def test_a_recipe_that_cannot_be_opened_at_the_start_keeps_only_its_own_boards_from_the_experts(shop):
    bad = activated(shop.database, TINY.replace("body-a", "body-x"), "bad")
    good = activated(shop.database, TINY, "good")
    boards = [shop.accept({"R1": LIGHT}, recipe=one, key=f"k{n}") for n, one in enumerate((good, bad, good))]
    assert [verdict for _, verdict, _ in decided_by(shop, boards)] == [Verdict.OK, Verdict.REVIEW, Verdict.OK]
    (call,) = shop.calls(boards[1])
    assert (call.reason, "body-x" in call.detail) == (CallReason.FAILED, True)
    assert open_faults(shop.database) == [(FaultKind.INSPECTOR_FAILED, "bad 1")]


def test_a_recipe_that_was_mended_is_opened_without_a_board_and_its_fault_is_cleared(own, monkeypatch):
    monkeypatch.setattr(worker_station, "REFUSED_S", 0.0)
    database, recipe, moved = own.database, own.recipe, own.tiny[1] / "elsewhere"
    (own.tiny[1] / "tiny" / "body-a").rename(moved)
    with own.deciding():
        eventually(lambda: "no active recipe" in database.read(why_not_ready, now_us()))
        assert open_faults(database) == [(FaultKind.INSPECTOR_FAILED, "tiny 1")]
        moved.rename(own.tiny[1] / "tiny" / "body-a")
        eventually(lambda: not database.read(why_not_ready, now_us()))
        said = database.read(row_types.listed, StateChange, state_change.c.subject == Subject.LINE)
        assert [change.state for change in said] == [LineState.STARTING, LineState.WAITING]
        for about in ("tiny 9", "other tiny 9"):
            database.write(fault_log.note, NewFault(Process.WORKER, FaultKind.RECIPE_REFUSED, "", about), now_us())
        until_answered(own, add(database, TINY)[1])
        others = [(FaultKind.RECIPE_REFUSED, "other tiny 9")]
        eventually(lambda: open_faults(database) == others)
        board = own.accept({"R1": LIGHT}, recipe=recipe, key="k2")
        own.until_decided(board)
    assert own.verdict(board) is Verdict.OK
    for kind in (FaultKind.INSPECTOR_FAILED, FaultKind.RECIPE_REFUSED):
        database.write(fault_log.note, NewFault(Process.WORKER, kind, "gone", "tiny 1"), now_us())
    with own.deciding():  # a worker that began after it was mended
        eventually(lambda: open_faults(database) == others)


def test_a_recipe_that_could_not_be_read_again_has_its_fault_after_other_changes(own):
    database, recipe, fault = own.database, own.recipe, [(FaultKind.RECIPE_REFUSED, "tiny 1")]
    body, moved = own.tiny[1] / "tiny" / "body-a", own.tiny[1] / "elsewhere"
    with own.deciding():
        eventually(lambda: bool(own.lines))
        body.rename(moved)
        again = database.write(recipe_versions.ask_activation, recipe.id, by="ann", now_us=now_us())
        until_answered(own, again)
        moved.rename(body)
        assert open_faults(database) == fault
        assert answer(database, again).state is ActivationState.FAILED
        board = own.accept({"R1": DARK})
        eventually(lambda: own.verdict(board) is Verdict.NG)
        until_answered(own, add(database, MILD, "other")[1])
        assert open_faults(database) == fault
    assert len(own.lines) == 1


def test_board_files_that_are_removed_from_the_disk_change_nothing(shop):
    assert shop.recipe.version == activated(shop.database, TINY, "other").version
    with shop.deciding():
        eventually(lambda: bool(shop.lines))
        shutil.rmtree(shop.config.data / RECIPES)
        _, asked = add(shop.database, MILD, "other")
        until_answered(shop, asked)
        board = shop.accept({"R1": DARK})
        shop.until_decided(board)
    assert answer(shop.database, asked).state is ActivationState.ACTIVE
    assert shop.verdict(board) is Verdict.NG


def test_recipes_that_clash_take_turns_and_the_new_version_becomes_active(shop):
    shop.recipe = activated(shop.database, CHAINED)
    shop.device.gate.clear()
    begun = shop.accept({"R1": LIGHT})
    with shop.deciding():
        eventually(shop.device.reached.is_set)
        second, asked = add(shop.database, REVERSED)
        shop.device.gate.set()
        until_answered(shop, asked)
        new = shop.accept({"R1": DARK}, recipe=second, key="k2")
        shop.until_decided(new)
        old = shop.accept({"R1": DARK}, key="k3")
        shop.until_decided(old)
    assert answer(shop.database, asked).state is ActivationState.ACTIVE
    assert shop.verdicts(begun, new, old) == [Verdict.OK, Verdict.REVIEW, Verdict.NG]
    assert shop.opened == [["tiny 1"], ["tiny 2"], ["tiny 1"]]


SHOWN = {"R1": LIGHT, "R2": DARK}


def on_cluster(shop, cluster):
    line = {"store": shop.tiny[1], "memory": 100_000_000, "executors": "cpu=1", "threads": 1, "profile": "none"}
    shop.config = shop.config.model_copy(update={"line": LineSettings(**line, cluster=cluster)})
    return shop


def verdicts_of_one_box(tiny):
    with Inspector(tiny[0], store=tiny[1], memory="100MB", executors="cpu=1", threads=1, profile=None) as alone:
        return {
            refdes: alone.submit(np.asarray(Image.open(io.BytesIO(content))), "C", order="RGB").result().verdict
            for refdes, content in SHOWN.items()
        }


def change_over(shop):
    """Inspect boards of two recipes, activate a third in the middle, and compare all with one box."""
    database = shop.database
    called = {refdes for refdes, verdict in verdicts_of_one_box(shop.tiny).items() if verdict is not Verdict.OK}
    boards = [shop.accept(SHOWN, recipe=activated(database, TINY, name), key=name) for name in ("one", "two")]
    with deciding(shop.config, database, None):
        shop.until_decided(*boards)
        third, asked = add(database, TINY.replace("count: 1", "count: 2"), "one")
        until_answered(shop, asked)
        assert answer(database, asked).state is ActivationState.ACTIVE
        # The new version, and a board of a recipe that was on the line before.
        two = database.read(recipe_versions.active, "two")
        boards += [shop.accept(SHOWN, recipe=recipe, key=f"{recipe.name} again") for recipe in (third, two)]
        shop.until_decided(*boards)
    assert shop.faults() == []
    for board in boards:
        assert {call.refdes for call in shop.calls(board)} == called


def test_products_change_on_several_boxes(shop, thread_boxes, monkeypatch):
    made = []

    def open_line(options):
        made.append(thread_boxes(2))
        return Line(options.but(experiment=Experiment(make_boxes=made[-1])))

    monkeypatch.setattr("coe.inspector.line.Line", open_line)
    change_over(on_cluster(shop, "auto"))
    assert len(made) == 2, "the boxes were opened again for the new version, once"
    assert made[0].address == "auto"


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.filterwarnings("default")
def test_products_change_on_machines_of_a_ray_cluster(shop, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed (requirements.real.lock)")
    from ray.cluster_utils import Cluster

    here = Path(__file__).parents[1]
    path = [str(here.parent), str(here / "installed"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        change_over(on_cluster(shop, cluster.address))
    finally:
        cluster.shutdown()
