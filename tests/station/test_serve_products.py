"""Several recipes on one line, or on several boxes: what is wrong with one stops no other."""

import io
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from quick_line import QuickDevice
from serving import activated, config_of, embedded, embedded_database
from stations import DARK, LIGHT, accept, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually

from coe import Inspector
from coe.core import Verdict
from coe.inspector.line import Line
from coe.serve.clock import now_us
from coe.serve.database import call_rows, event_log, fault_log, recipe_versions, row_types, states
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
class Opener:
    """Opens lines, and remembers them with the boards that they were opened for."""

    tiny: tuple[Path, Path]
    device: QuickDevice = field(default_factory=QuickDevice)
    lines: list[Line] = field(default_factory=list)
    opened: list[list[str]] = field(default_factory=list)

    def __call__(self, boards):
        line = quick_opener(self.tiny, self.device)(boards)
        self.lines.append(line)
        self.opened.append([board.name for board in boards])
        return line


@pytest.fixture
def opener(tiny):
    return Opener(tiny)


def verdict_of(database, board):
    return state_of(database, board.id).verdict


def add(database, rules, name="tiny"):
    with database.writing() as connection:
        recipe = recipe_versions.add(connection, name, {"rules": rules}, by="ann", now_us=now_us())
        return recipe, recipe_versions.ask_activation(connection, recipe.id, by="ann", now_us=now_us())


def answer(database, asked):
    return database.read(row_types.get, Activation, asked.id)


def is_answered(database, asked):
    return lambda: answer(database, asked).state is not ActivationState.ASKED


def open_faults(database):
    return [(fault.kind, fault.about) for fault in database.read(fault_log.open_faults)]


def decided_by(config, database, boards, opener):
    """Decide boards; return of each its key, verdict and calls."""
    with deciding(config, database, opener):
        eventually(lambda: all(verdict_of(database, board) is not None for board in boards))
    with database.reading() as connection:
        return [
            (board.key, verdict_of(database, board), [call.refdes for call in call_rows.of_board(connection, board.id)])
            for board in boards
        ]


def test_boards_of_two_recipes_that_come_in_turn_get_the_verdicts_of_separate_lines_and_nothing_is_reopened(
    config, database, opener, tiny, tmp_path, sqlite_template
):
    pictures = [{"R1": LIGHT, "R2": DARK}, {"R1": LIGHT}, {"R1": DARK}]
    strict, mild = activated(database, TINY, "strict"), activated(database, MILD, "mild")
    mixed = [
        accept(config, database, recipe.id, shown, key=f"{recipe.name}-{number}")
        for number, shown in enumerate(pictures)
        for recipe in (strict, mild)
    ]
    together = decided_by(config, database, mixed, opener)
    assert opener.opened in ([["mild 1", "strict 1"]], [["strict 1", "mild 1"]])
    separate = []
    for name, rules in (("strict", TINY), ("mild", MILD)):
        alone = config_of(tmp_path / name, drain_s=5)
        alone.data.mkdir()
        with embedded(alone, sqlite_template) as own:
            recipe = activated(own, rules, name)
            same = [accept(alone, own, recipe.id, shown, key=f"{name}-{n}") for n, shown in enumerate(pictures)]
            separate += decided_by(alone, own, same, Opener(tiny))
    assert sorted(together, key=str) == sorted(separate, key=str)
    assert {verdict for _, verdict, _ in together} == {Verdict.OK, Verdict.NG, Verdict.REVIEW}


def test_a_recipe_is_decided_with_its_calibration(config, database, opener):
    """A component of which a score of 1 is asked for is REVIEW; without the calibration it is OK."""
    scores = "{min_scores: {ok: 1.0}}"
    calibration = f"board: tiny\nexperts: {{body-a: {scores}, body-b: {scores}, body-c: {scores}}}\n"
    recipes = [activated(database, TINY), activated(database, TINY, "sure", calibration=calibration)]
    boards = [accept(config, database, recipe.id, {"R1": LIGHT}, key=recipe.name) for recipe in recipes]
    assert [verdict for _, verdict, _ in decided_by(config, database, boards, opener)] == [Verdict.OK, Verdict.REVIEW]


def test_a_version_is_activated_in_mid_stream_and_begun_boards_keep_theirs(config, database, opener):
    first = activated(database, TINY)
    opener.device.gate.clear()
    begun = accept(config, database, first.id, {"R1": DARK})
    with deciding(config, database, opener):
        eventually(opener.device.reached.is_set)
        second, asked = add(database, MILD)
        # It is active while a board of the version before is under way.
        eventually(is_answered(database, asked))
        assert verdict_of(database, begun) is None
        new = accept(config, database, second.id, {"R1": DARK}, key="k2")
        old = accept(config, database, first.id, {"R1": DARK}, key="k3")
        opener.device.gate.set()
        eventually(lambda: all(verdict_of(database, board) for board in (begun, new, old)))
    assert answer(database, asked).state is ActivationState.ACTIVE
    assert [verdict_of(database, board) for board in (begun, new, old)] == [Verdict.NG, Verdict.REVIEW, Verdict.NG]
    assert opener.opened == [["tiny 1"]]
    with database.reading() as connection:
        assert recipe_versions.active(connection, "tiny") == second
        told = [event.kind for event in event_log.after(connection, 0)]
    assert told.count(EventKind.RECIPE_ACTIVATED) == 1


def test_a_version_without_boards_leaves_the_line(config, database, opener, monkeypatch):
    monkeypatch.setattr(worker_station, "STAYS_S", 0.0)
    activated(database, TINY)
    with deciding(config, database, opener):
        eventually(lambda: bool(opener.lines))
        _, asked = add(database, MILD)
        eventually(is_answered(database, asked))
        eventually(lambda: opener.lines[0].boards == ("tiny 2",))
        eventually(lambda: facts_of(database).get("recipes") == ["tiny 2"])
    assert len(opener.lines) == 1


def facts_of(database):
    return dict(database.read(states.heartbeats)[Process.WORKER].facts)


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
def test_an_expert_that_is_missing_or_torn_at_an_activation_leaves_the_other_recipes_running(
    config, database, own_tiny, damage
):
    """The new version needs body-b for another component; body-c, which the first needs, is damaged on the disk too."""
    few = TINY.replace("  B: {count: 3, inspect: body-b, min_score: 0.2, then: {ok: joint, bad: REVIEW}}\n", "")
    first = activated(database, few.replace("  body-b: {kind: narrow, labels: [ok, bad], input: 48}\n", ""))
    opener = Opener(own_tiny)
    with deciding(config, database, opener):
        before = accept(config, database, first.id, {"R1": DARK})
        eventually(lambda: verdict_of(database, before) is not None)
        damage(own_tiny[1], "body-b")
        without(own_tiny[1], "body-c")
        second, asked = add(database, TINY)
        eventually(is_answered(database, asked))
        after = accept(config, database, first.id, {"R1": LIGHT}, key="k2")
        unopened = accept(config, database, second.id, {"R1": LIGHT}, key="k3")
        eventually(lambda: bool(verdict_of(database, after) and verdict_of(database, unopened)))
    failed = answer(database, asked)
    assert failed.state is ActivationState.FAILED
    assert [verdict_of(database, board) for board in (before, after, unopened)] == [
        Verdict.NG,
        Verdict.OK,
        Verdict.REVIEW,
    ]
    assert open_faults(database) == [(FaultKind.RECIPE_REFUSED, "tiny 2")]
    assert opener.opened == [["tiny 1"]]
    assert database.read(recipe_versions.active, "tiny") == first


def test_a_recipe_that_cannot_be_opened_at_the_start_keeps_only_its_own_boards_from_the_experts(
    config, database, opener
):
    bad = activated(database, TINY.replace("body-a", "body-x"), "bad")
    good = activated(database, TINY, "good")
    boards = [
        accept(config, database, recipe.id, {"R1": LIGHT}, key=f"k{number}")
        for number, recipe in enumerate((good, bad, good))
    ]
    decided = decided_by(config, database, boards, opener)
    assert [verdict for _, verdict, _ in decided] == [Verdict.OK, Verdict.REVIEW, Verdict.OK]
    (call,) = database.read(call_rows.of_board, boards[1].id)
    assert (call.reason, "body-x" in call.detail) == (CallReason.FAILED, True)
    assert open_faults(database) == [(FaultKind.INSPECTOR_FAILED, "bad 1")]


def test_a_recipe_that_was_mended_is_opened_without_a_board_and_its_fault_is_cleared(
    config, database, own_tiny, monkeypatch
):
    monkeypatch.setattr(worker_station, "REFUSED_S", 0.0)
    recipe = activated(database, TINY)
    moved = own_tiny[1] / "elsewhere"
    (own_tiny[1] / "tiny" / "body-a").rename(moved)
    with deciding(config, database, Opener(own_tiny)):
        eventually(lambda: "no active recipe" in database.read(why_not_ready, now_us()))
        assert open_faults(database) == [(FaultKind.INSPECTOR_FAILED, "tiny 1")]
        moved.rename(own_tiny[1] / "tiny" / "body-a")
        eventually(lambda: not database.read(why_not_ready, now_us()))
        said = database.read(row_types.listed, StateChange, state_change.c.subject == Subject.LINE)
        assert [change.state for change in said] == [LineState.STARTING, LineState.WAITING]
        for about in ("tiny 9", "other tiny 9"):
            database.write(fault_log.note, NewFault(Process.WORKER, FaultKind.RECIPE_REFUSED, "", about), now_us())
        _, asked = add(database, TINY)
        eventually(is_answered(database, asked))
        others = [(FaultKind.RECIPE_REFUSED, "other tiny 9")]
        eventually(lambda: open_faults(database) == others)
        board = accept(config, database, recipe.id, {"R1": LIGHT}, key="k2")
        eventually(lambda: verdict_of(database, board) is not None)
    assert verdict_of(database, board) is Verdict.OK
    for kind in (FaultKind.INSPECTOR_FAILED, FaultKind.RECIPE_REFUSED):
        database.write(fault_log.note, NewFault(Process.WORKER, kind, "gone", "tiny 1"), now_us())
    with deciding(config, database, Opener(own_tiny)):  # a worker that began after it was mended
        eventually(lambda: open_faults(database) == others)


def test_a_recipe_that_could_not_be_read_again_has_its_fault_after_other_changes(config, database, own_tiny):
    opener, recipe, fault = Opener(own_tiny), activated(database, TINY), [(FaultKind.RECIPE_REFUSED, "tiny 1")]
    body, moved = own_tiny[1] / "tiny" / "body-a", own_tiny[1] / "elsewhere"
    with deciding(config, database, opener):
        eventually(lambda: bool(opener.lines))
        body.rename(moved)
        again = database.write(recipe_versions.ask_activation, recipe.id, by="ann", now_us=now_us())
        eventually(is_answered(database, again))
        moved.rename(body)
        assert open_faults(database) == fault
        assert answer(database, again).state is ActivationState.FAILED
        board = accept(config, database, recipe.id, {"R1": DARK})
        eventually(lambda: verdict_of(database, board) is Verdict.NG)
        _, other = add(database, MILD, "other")
        eventually(is_answered(database, other))
        assert open_faults(database) == fault
    assert len(opener.lines) == 1


def test_board_files_that_are_removed_from_the_disk_change_nothing(config, database, opener):
    recipe = activated(database, TINY, "stays")
    activated(database, TINY, "other")
    with deciding(config, database, opener):
        eventually(lambda: bool(opener.lines))
        shutil.rmtree(config.data / RECIPES)
        _, asked = add(database, MILD, "other")
        eventually(is_answered(database, asked))
        board = accept(config, database, recipe.id, {"R1": DARK})
        eventually(lambda: verdict_of(database, board) is not None)
    assert answer(database, asked).state is ActivationState.ACTIVE
    assert verdict_of(database, board) is Verdict.NG


def test_recipes_that_clash_take_turns_and_the_new_version_becomes_active(config, database, opener):
    first = activated(database, CHAINED)
    opener.device.gate.clear()
    begun = accept(config, database, first.id, {"R1": LIGHT})
    with deciding(config, database, opener):
        eventually(opener.device.reached.is_set)
        second, asked = add(database, REVERSED)
        opener.device.gate.set()
        eventually(is_answered(database, asked))
        new = accept(config, database, second.id, {"R1": DARK}, key="k2")
        eventually(lambda: verdict_of(database, new) is not None)
        old = accept(config, database, first.id, {"R1": DARK}, key="k3")
        eventually(lambda: verdict_of(database, old) is not None)
    assert answer(database, asked).state is ActivationState.ACTIVE
    assert [verdict_of(database, board) for board in (begun, new, old)] == [Verdict.OK, Verdict.REVIEW, Verdict.NG]
    assert opener.opened == [["tiny 1"], ["tiny 2"], ["tiny 1"]]


SHOWN = {"R1": LIGHT, "R2": DARK}


def on_cluster(config, tiny, cluster):
    line = LineSettings(
        store=tiny[1], memory=100_000_000, executors="cpu=1", threads=1, profile="none", cluster=cluster
    )
    return config.model_copy(update={"line": line})


def verdicts_of_one_box(tiny):
    with Inspector(tiny[0], store=tiny[1], memory="100MB", executors="cpu=1", threads=1, profile=None) as alone:
        return {
            refdes: alone.submit(np.asarray(Image.open(io.BytesIO(content))), "C", order="RGB").result().verdict
            for refdes, content in SHOWN.items()
        }


def change_over(config, database, tiny, adjust):
    """Inspect boards of two recipes, activate a third in the middle, and compare all with one box."""
    called = {refdes for refdes, verdict in verdicts_of_one_box(tiny).items() if verdict is not Verdict.OK}
    boards = [accept(config, database, activated(database, TINY, name).id, SHOWN, key=name) for name in ("one", "two")]
    with deciding(config, database, None, adjust=adjust):
        eventually(lambda: all(state_of(database, board.id).verdict is not None for board in boards), 200)
        with database.writing() as connection:
            content = {"rules": TINY.replace("count: 1", "count: 2")}
            third = recipe_versions.add(connection, "one", content, by="ann", now_us=now_us())
            asked = recipe_versions.ask_activation(connection, third.id, by="ann", now_us=now_us())

        def state():
            found = database.read(row_types.get, Activation, asked.id)
            return found.state

        eventually(lambda: state() is ActivationState.ACTIVE, 200)
        # The new version, and a board of a recipe that was on the line before.
        boards += [
            accept(config, database, third.id, SHOWN, key="third"),
            accept(config, database, boards[1].recipe_id, SHOWN, key="fourth"),
        ]
        eventually(lambda: all(state_of(database, board.id).verdict is not None for board in boards), 200)
    with database.reading() as connection:
        assert fault_log.open_faults(connection) == []
        for board in boards:
            assert {call.refdes for call in call_rows.of_board(connection, board.id)} == called


def test_products_change_on_several_boxes(config, database, tiny, thread_boxes):
    made = []

    def adjust(line):
        made.append(thread_boxes(2))
        return line.but(experiment=Experiment(make_boxes=made[-1]))

    change_over(on_cluster(config, tiny, "auto"), database, tiny, adjust)
    assert len(made) == 2, "the boxes were opened again for the new version, once"
    assert made[0].address == "auto"


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.filterwarnings("default")
def test_products_change_on_machines_of_a_ray_cluster(config, database, tiny, monkeypatch):
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
        change_over(on_cluster(config, tiny, cluster.address), database, tiny, None)
    finally:
        cluster.shutdown()
