"""A line on several boxes of this process: the results are those of one box, whatever becomes of the boxes."""

import gc
import queue
import re
import threading
import weakref
from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from thread_boxes import same
from tiny_line import fill

from coe import Inspector
from coe.board import rules
from coe.cluster.cluster_engine import ClusterEngine
from coe.core import FailureKind
from coe.errors import ConfigError
from coe.inspector.precision import VariantChoice
from coe.runtime import line_engine
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Lost, Reply
from coe.store.store import Store
from coe.testing import Experiment
from coe.variants.prepare import Preparer


@pytest.fixture
def scene(tiny, inspect_all, thread_boxes, pictures, alone):
    """Pictures, what a line on one box says of them, and lines on several boxes."""

    def on(boxes, options):
        return {"cluster": "auto", "experiment": Experiment(make_boxes=boxes), **options}

    return SimpleNamespace(
        boxes=thread_boxes,
        pictures=pictures,
        alone=alone,
        open=lambda boxes, **options: Inspector(tiny[0], store=tiny[1], **on(boxes, options)),
        results=lambda boxes, **options: inspect_all(pictures, **on(boxes, options)),
    )


def named(results):
    return {result.request.image: result for result in results}


def wait_for_a_box(said):
    while "joined" not in said.get(timeout=20):
        pass


@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_results_are_those_of_one_box(scene, machines):
    boxes = scene.boxes(machines)
    same(scene.results(boxes), scene.alone)
    assert boxes.address == "auto"
    assert max(boxes.fetched.values()) == 1, "an image travels once to a box"
    for link in boxes.links:
        assert {stage.request.component for stage in link.stages} <= link.experts


class Cut:
    def __init__(self, after, do):
        self.after, self.do, self.lost = after, do, []

    def observe(self, event, commands, now, control_s=0.0):
        if isinstance(event, Lost):
            self.lost.append(event)
        self.after -= sum(isinstance(command, Reply) for command in commands)
        if self.after <= 0:
            self.after = 1 << 40
            self.do()


def test_a_box_that_is_lost_or_can_run_nothing_costs_no_image_and_an_image_that_crashes_boxes_ends_two(scene):
    boxes = scene.boxes(3)
    cut = Cut(5, lambda: boxes.cut_off(0))
    same(scene.results(boxes, watchers=[cut]), scene.alone)
    assert cut.lost == [Lost("", "its cable was pulled", "box1")]
    left = {expert for link in boxes.links[1:] for expert in link.experts}
    assert left == {"body-a", "body-b", "body-c", "joint"}
    boxes = scene.boxes(2)
    cut = Cut(3, lambda: boxes.links[1].box._out.broke("its last device was lost"))
    same(scene.results(boxes, watchers=[cut]), scene.alone)
    assert cut.lost == [Lost("", "its last device was lost", "box2")]
    boxes, cut = scene.boxes(4), Cut(1 << 40, lambda: None)
    boxes.deadly = lambda stage: stage.request_id == 7
    results = scene.results(boxes, watchers=[cut])
    deadly = results.pop(scene.pictures[7].name)
    assert deadly.failure.kind is FailureKind.RUN
    assert re.fullmatch(r"box\d and box\d crashed while they had this image; .*", deadly.failure.reason)
    same(results, {name: result for name, result in scene.alone.items() if name != scene.pictures[7].name})
    assert [lost.reason for lost in cut.lost] == ["its process died"] * 2


def test_a_watcher_that_fails_costs_no_reply_that_was_decided(scene):
    results = scene.results(scene.boxes(1), watchers=[Cut(1, lambda: 1 / 0)])
    decided = {name: result for name, result in results.items() if result.failure is None}
    assert 0 < len(decided) < len(results)
    same(decided, {name: scene.alone[name] for name in decided})


@pytest.mark.slow
def test_a_box_comes_and_a_box_goes_again_and_again(scene):
    boxes = scene.boxes(2)
    again = [replace(picture, name=f"{picture.name}/{turn}") for turn in range(6) for picture in scene.pictures]
    results, said = {}, queue.SimpleQueue()
    with scene.open(boxes, inbox=40, say=said.put) as line:
        for result in line.stream(again):
            assert result.request.image not in results
            results[result.request.image] = result
            if len(results) in (20, 80):
                boxes.cut_off(len(results) // 60)
                boxes.come()
            if len(results) in (50, 110):
                wait_for_a_box(said)
    assert {name: result.verdict for name, result in results.items()} == {
        picture.name: scene.alone[picture.name.partition("/")[0]].verdict for picture in again
    }


def test_a_box_that_comes_takes_experts_and_stages(scene):
    boxes, said = scene.boxes(1), queue.SimpleQueue()
    with scene.open(boxes, say=said.put) as line:
        same(named(line.stream(scene.pictures)), scene.alone)
        boxes.come()
        wait_for_a_box(said)
        same(named(line.stream(scene.pictures)), scene.alone)
    assert boxes.links[1].experts
    assert boxes.links[1].stages


def test_a_box_that_comes_and_would_run_other_precisions_is_refused(scene):
    boxes, said = scene.boxes(1), queue.SimpleQueue()

    def other(link):
        if link.id == "box2":
            costs = copy(link.box.facts.costs)
            costs.choice = VariantChoice({"joint": "q8"}, {})
            link.box.facts = replace(link.box.facts, costs=costs)

    boxes.after_open = other
    with scene.open(boxes, say=said.put) as line:
        boxes.come()
        while "box1 and box2" not in said.get(timeout=20):
            pass
        same(named(line.stream(scene.pictures)), scene.alone)
    assert not boxes.links[1].stages
    assert boxes.links[1].is_closed


def test_words_for_the_user_that_go_wrong_cost_no_image(scene):
    boxes, heard = scene.boxes(1), threading.Event()

    def say(sentence):
        if "box" in sentence:
            heard.set()
            raise SystemExit(sentence)

    with scene.open(boxes, say=say) as line:
        boxes.come()
        assert heard.wait(20)
        same(named(line.stream(scene.pictures)), scene.alone)


def test_without_any_box_left_each_image_says_so_until_another_comes(scene):
    boxes, said = scene.boxes(1), queue.SimpleQueue()
    with scene.open(boxes, say=said.put) as line:
        assert line.submit(scene.pictures[0].image, "A").result(20).error is None
        boxes.cut_off(0)
        assert line.submit(scene.pictures[0].image, "A").result(20).failure.kind is FailureKind.DEVICE
        boxes.come()
        wait_for_a_box(said)
        assert line.submit(scene.pictures[0].image, "A").result(20).error is None


def test_a_stopped_line_answers_each_image_and_one_that_is_dropped_ends_its_boxes(scene):
    with scene.open(scene.boxes(2)) as line:
        futures = [line.submit(picture.image, picture.component) for picture in scene.pictures]
        line.stop()
        results = [future.result(20) for future in futures]
    kinds = {result.failure.kind for result in results if result.verdict is None}
    assert kinds == {FailureKind.STOPPED}
    line = scene.open(scene.boxes(1))
    threads = line._engine.line_threads.threads
    del line
    gc.collect()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_an_image_that_finds_no_room_or_no_rule_or_is_damaged_is_answered(scene, tmp_path):
    boxes = scene.boxes(2)
    (tmp_path / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with scene.open(boxes) as line:
        broken = [line.submit(tmp_path / name, "A").result(20).failure for name in ("cut.png", "gone.png")]
        unknown = line.submit(scene.pictures[0].image, "Z").result(20).failure
        boxes.room = 10
        full = line.submit(scene.pictures[0].image, "A").result(20).failure
        boxes.room = 1 << 40
        assert line.submit(scene.pictures[0].image, "A").result(20).verdict is not None
        metrics = line.metrics()
    assert [failure.kind for failure in broken] == [FailureKind.DAMAGED, FailureKind.IMAGE]
    assert "No such file" in broken[1].reason
    assert (unknown.kind, "'Z'" in unknown.reason, full.kind) == (FailureKind.RULES, True, FailureKind.LINE)
    assert (metrics.images, metrics.errors) == (5, 4)


def test_counts_are_those_of_all_boxes(scene):
    boxes = scene.boxes(2)
    with scene.open(boxes) as line:
        assert line.ready(20)
        results = list(line.stream(scene.pictures))
        metrics = line.metrics()
        assert repr(line).startswith("<Inspector tiny, <Head of 2 boxes")
        assert line.drift() == []
        assert line.budget_bytes == sum(link.facts.budget_bytes for link in boxes.links)
        with pytest.raises(ConfigError, match="cannot change its boards"):
            line.set_boards("tiny")
    assert metrics.images == 30
    assert metrics.stages == sum(len(result.findings) for result in results)
    assert metrics.ok + metrics.ng + metrics.review == 30
    assert line.metrics().stages == metrics.stages


@pytest.mark.slow
def test_all_boxes_run_the_precision_that_one_box_runs(own_tiny, thread_boxes, pictures, tmp_path):
    board, store = own_tiny
    seen = [tmp_path / f"{picture.name}.png" for picture in pictures[:8]]
    for path, picture in zip(seen, pictures, strict=False):
        cv2.imwrite(str(path), np.asarray(picture.image))
    weights = rules.load(board).experts["body-a"].weights
    assert Preparer(Store(store), ["fp32", "int8"]).prepare(weights, seen, "noise").failed == {}
    options = {"store": store, "precision": "mixed"}
    with Inspector(board, **options, experiment=Experiment(label_floor=0.0)) as line:
        one = looks(line, pictures[:8])
    two = Experiment(label_floor=0.0, make_boxes=thread_boxes(2))
    with Inspector(board, **options, cluster="auto", experiment=two) as line:
        assert looks(line, pictures[:8]) == one
    assert "int8" in {variant for found in one.values() for _, variant, _ in found}


def looks(line, pictures):
    """Return, by image, which experts looked in which variant, and what they said."""
    return {
        result.request.image: [(finding.expert, finding.variant, finding.label) for finding in result.findings]
        for result in line.stream(pictures)
    }


@pytest.mark.slow
def test_several_boards_keep_apart(own_tiny, thread_boxes, pictures, tmp_path):
    first, store = own_tiny
    second = tmp_path / "other.yaml"
    text = first.read_text(encoding="utf-8").replace("board: tiny", "board: other").replace("bad: NG", "bad: OK")
    second.write_text(text, encoding="utf-8")
    fill(Store(store), rules.load(second))
    mixed = [replace(picture, board=("tiny", "other")[n % 2]) for n, picture in enumerate(pictures)]
    with Inspector([first, second], store=store) as line:
        one = named(line.stream(mixed))
    apart = Experiment(make_boxes=thread_boxes(2))
    with Inspector([first, second], store=store, cluster="auto", experiment=apart) as line:
        same(named(line.stream(mixed)), one)
        assert line.boards == ("tiny", "other")


def test_costs_of_an_earlier_line_are_taken_over(tiny, scene, monkeypatch):
    with Inspector(tiny[0], store=tiny[1]) as line:
        costs = line.costs
    monkeypatch.setattr(CpuDevice, "measure", None)
    with scene.open(None, experiment=Experiment(costs=costs, make_boxes=scene.boxes(2))) as line:
        assert line.costs.by_variant == costs.by_variant


@pytest.mark.parametrize("word", [pytest.param("without", marks=pytest.mark.slow), "other"])
def test_a_box_with_another_store_is_refused(own_tiny, thread_boxes, word, monkeypatch):
    boxes = thread_boxes(2)
    board, store = own_tiny

    def damage(id):
        if id != "box2":
            return
        if word == "without":
            store.rename(store.with_name("moved"))
            monkeypatch.setenv("COE_STORE", str(store.with_name("nothing")))
        else:
            fill(Store(store), replace(rules.load(board), experts={"joint": rules.load(board).experts["joint"]}))

    boxes.before_open = damage
    with pytest.raises(ConfigError, match="box2: .*" + ("nothing" if word == "without" else "'joint'")):
        Inspector(board, store=store, cluster="auto", experiment=Experiment(make_boxes=boxes))


TRACED = {"cluster": "auto", "experiment": Experiment(keep_trace=True)}


@pytest.mark.parametrize(
    ("options", "named"), [({"cluster": ""}, "cluster"), (TRACED, "experiment"), ({"cluster": 7}, "cluster=7")]
)
def test_options_of_one_box_are_refused(tiny, options, named):
    with pytest.raises(ConfigError, match=named):
        Inspector(tiny[0], store=tiny[1], **options)


@pytest.mark.parametrize("started", range(4))
def test_a_line_that_got_too_few_threads_closes_its_boxes_and_does_not_disturb_the_end(scene, monkeypatch, started):
    start, asked, caller = threading.Thread.start, [], threading.current_thread()

    def limited(thread):
        # Boxes have theirs before it; the head's own thread starts others.
        if threading.current_thread() is caller and (asked or thread.name == "coe-head"):
            asked.append(thread.name)
            if len(asked) == started + 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(line_engine, "_OPEN", weakref.WeakSet())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        with pytest.raises(RuntimeError, match="new thread") as failed:
            scene.open(scene.boxes(1))
    assert len(asked) == started + 1
    assert any(isinstance(one, ClusterEngine) for one in line_engine._OPEN)
    line_engine.end_open_lines()
    del failed
    gc.collect()
