"""Couriers: each sink is told everything, in order, at least once, and none waits for another; a sink of your own."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from bridging import RELAY, Remembered, append, bridged, queues, told, waiting
from serve_rows import NOON, decided, ng
from waiting import eventually

from coe.serve.bridge import outbox_relay
from coe.serve.bridge.cfx import CfxFormat
from coe.serve.bridge.sinks import EventFormat, Origin, Sink, SinkRequest
from coe.serve.database import event_log, fault_log, recipe_versions, states
from coe.serve.enums import FaultKind, LineState, Process, Subject

pytestmark = pytest.mark.usefixtures("hasty")


def open_faults(database):
    return [(fault.process, fault.kind, fault.about) for fault in database.read(fault_log.open_faults)]


def test_every_sink_is_told_every_event_in_order_and_the_outbox_empties(sqlite_database):
    one, other = Remembered(), Remembered()
    with told(sqlite_database, one=one, other=other):
        append(sqlite_database, *range(250))
        eventually(lambda: len(one.numbers) == len(other.numbers) == 250)
        eventually(lambda: not any(queue.waiting for queue in queues(sqlite_database)))
    assert one.numbers == other.numbers == list(range(250))
    assert [message.id for message in one.told] == [message.id for message in other.told]


def test_a_sink_that_hangs_or_fails_holds_up_no_other(sqlite_database):
    hangs, fails, works = Remembered(), Remembered(), Remembered()
    hangs.gate.clear()
    fails.is_down = True
    with told(sqlite_database, hangs=hangs, fails=fails, works=works):
        append(sqlite_database, 1, 2, 3)
        eventually(lambda: works.numbers == [1, 2, 3])
        assert not hangs.told
        assert not fails.told
        hangs.gate.set()
        eventually(lambda: hangs.numbers == [1, 2, 3])


def test_what_waits_while_a_sink_is_down_is_told_once_it_is_back_and_the_fault_is_raised_and_cleared(sqlite_database):
    sink = Remembered()
    with told(sqlite_database, plant=sink):
        append(sqlite_database, 1)
        eventually(lambda: sink.numbers == [1])
        sink.is_down = True
        append(sqlite_database, 2, 3)
        eventually(lambda: open_faults(sqlite_database) == [(Process.WEB, FaultKind.SINK, "plant")])
        eventually(lambda: queues(sqlite_database)[0].error == "it is down")
        assert waiting(sqlite_database, "plant") == 3, "two events, and that of the fault"
        sink.fails_after, sink.is_down = 2, False  # it takes one of them, and fails again
        eventually(lambda: waiting(sqlite_database, "plant") == 2)
        assert sink.numbers == [1, 2]
        sink.fails_after = -1
        eventually(lambda: not open_faults(sqlite_database))
    assert [message.name for message in sink.told][:4] == ["recipe.staged"] * 3 + ["fault.raised"]
    assert sink.numbers == [1, 2, 3], "what was told before a failure is not told again"


def test_pauses_grow_to_a_minute_and_begin_anew_after_a_success(sqlite_database, monkeypatch):
    class Watched(threading.Event):
        pauses: ClassVar[list[float]] = []

        def wait(self, timeout=None):
            self.pauses.append(timeout or 0.0)
            sink.is_down = len(self.pauses) != 8
            if len(self.pauses) == 11:
                self.set()
            return self.is_set()

    monkeypatch.setattr(outbox_relay, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(outbox_relay, "LONGEST_PAUSE_S", 60.0)
    sqlite_database.write(event_log.register_sinks, ["plant"], NOON)
    append(sqlite_database, 1, 2)
    sink = Remembered()
    sink.is_down = True
    stop = Watched()
    outbox_relay.OutboxRelay("plant", lambda: Sink(sink, EventFormat(Origin("a"))), sqlite_database, stop).run()
    assert stop.pauses == [1, 2, 4, 8, 16, 32, 60, 60, outbox_relay.LOOK_S, 1, 2]
    assert sink.numbers == [1, 2]
    (again, fault) = sqlite_database.read(fault_log.newest)
    assert (fault.times, fault.cleared_by, again.times) == (8, "web", 2)


def test_a_sink_that_takes_some_messages_and_fails_again_waits_no_longer_each_time(sqlite_database, monkeypatch):
    class Watched(threading.Event):
        pauses: ClassVar[list[float]] = []

        def wait(self, timeout=None):
            self.pauses.append(timeout or 0.0)
            sink.fails_after = len(sink.told) + 10
            if len(sink.numbers) == 40:
                self.set()
            return self.is_set()

    monkeypatch.setattr(outbox_relay, "FIRST_PAUSE_S", 1.0)
    monkeypatch.setattr(outbox_relay, "LONGEST_PAUSE_S", 60.0)
    sqlite_database.write(event_log.register_sinks, ["plant"], NOON)
    append(sqlite_database, *range(1, 41))
    sink, stop = Remembered(), Watched()
    sink.fails_after = 10
    outbox_relay.OutboxRelay("plant", lambda: Sink(sink, EventFormat(Origin("a"))), sqlite_database, stop).run()
    assert {*stop.pauses} - {outbox_relay.LOOK_S} == {1.0}
    assert sink.numbers == [*range(1, 41)]


def test_a_sink_whose_code_fails_is_tried_again_like_any_other(sqlite_database):
    class Broken(Remembered):
        def send(self, message):
            if not self.shown or self.connections < 3:
                raise KeyError("a mistake")
            super().send(message)

        def close(self):
            raise RuntimeError("the library is confused")

    sink = Broken()
    with told(sqlite_database, plant=sink):
        append(sqlite_database, 1)
        eventually(lambda: sink.numbers == [1])


def test_a_request_that_no_answer_can_repeat_holds_nothing_up(sqlite_database):
    class Asked(Remembered):
        def look(self):
            return [SinkRequest(body) for body in asked]

        def send(self, message):
            assert message.encoded
            super().send(message)

    topics = {"SupportedTopics": [{"TopicName": ["CFX"]}], "SupportedTopicQueryType": "All"}
    asked = [
        {"MessageName": "CFX.AreYouThereRequest", "MessageBody": {}, "Source": float("nan")},
        {"MessageName": "CFX.AreYouThereRequest", "MessageBody": {}, "RequestID": "\ud800"},
        {"MessageName": "CFX.WhoIsThereRequest", "MessageBody": topics},
        {"MessageName": "CFX.AreYouThereRequest", "MessageBody": {}, "Source": "mes"},
    ]
    sink = Asked()
    with bridged(sqlite_database, {"plant": lambda: Sink(sink, CfxFormat(Origin("aoi-1", "aoi-1")))}):
        eventually(lambda: "CFX.AreYouThereResponse" in [message.name for message in sink.told])
    assert (sink.connections, open_faults(sqlite_database)) == (1, [])


def test_the_state_of_the_station_is_shown_at_the_start_and_when_it_changes_and_a_message_names_the_recipe(
    sqlite_database,
):
    sink = Remembered()
    with told(sqlite_database, plant=sink):
        eventually(lambda: [one.line for one in sink.shown] == [LineState.DOWN])
        sqlite_database.write(states.change, Subject.LINE, LineState.WAITING, by="line", now_us=NOON)
        eventually(lambda: [one.line for one in sink.shown] == [LineState.DOWN, LineState.WAITING])
        sqlite_database.write(decided, "k1", ng())
        eventually(lambda: len(sink.told) == 3)
    body = sink.told[2].body
    assert (body["kind"], body["station"]) == ("board.decided", "aoi-1")
    assert (body["body"]["recipe"], body["body"]["version"], body["body"]["verdict"]) == ("demo", 1, "NG")
    assert sink.told[2].id == body["id"]


def test_a_recipe_is_read_once_for_many_messages_and_few_recipes_are_kept(sqlite_database, monkeypatch):
    read_ids, get = [], recipe_versions.get
    monkeypatch.setattr(recipe_versions, "get", lambda connection, id: read_ids.append(id) or get(connection, id))
    kept = recipe_versions.KeptRecipes(most=2)
    with sqlite_database.writing() as connection:
        made = [recipe_versions.add(connection, "a", {"n": number}, by="ann", now_us=NOON) for number in range(3)]
        ids = [recipe.id for recipe in made]
        for at in (0, 1, 0, 0, 2, 0, 1):
            assert kept.get(connection, ids[at]).content == {"n": at}
    assert read_ids == [ids[0], ids[1], ids[2], ids[1]]
    read_ids.clear()
    sink = Remembered()
    with told(sqlite_database, one=sink):
        with sqlite_database.writing() as connection:
            for key in ("k1", "k2", "k3"):
                decided(connection, key, ng())
        eventually(lambda: len(sink.told) >= 6 and not waiting(sqlite_database, "one"))
    assert len(read_ids) == 1


def test_a_failure_that_cannot_be_noted_ends_no_relay(sqlite_database, monkeypatch):
    sink, noted = Remembered(), threading.Event()

    def cannot(*_, **__):
        noted.set()
        raise ValueError("no driver takes it")

    with told(sqlite_database, plant=sink):
        with monkeypatch.context() as patch:
            patch.setattr(fault_log, "note", cannot)
            sink.is_down = True
            append(sqlite_database, 1)
            assert noted.wait(20)
        sink.is_down = False
        eventually(lambda: sink.numbers == [1])


DOCS = Path(__file__).resolve().parents[2] / "docs" / "integration.md"


def test_the_example_of_the_docs_is_told_by_its_path_and_by_its_entry_point(sqlite_database, tmp_path):
    section = DOCS.read_text(encoding="utf-8").partition("### A sink of your own")[2].partition("\n### ")[0]
    code, config, entry = re.findall(r"```(?:python|yaml|toml)\n(.*?)```", section, re.S)
    theirs = tmp_path / "theirs"
    (about := theirs / "plant_log-1.dist-info").mkdir(parents=True)
    (theirs / "plant_log.py").write_text(code)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plant-log\nVersion: 1\n")
    (about / "entry_points.txt").write_text(entry.replace("project.entry-points.", "").replace('"', ""))
    file = tmp_path / "serve.yaml"
    file.write_text(f"station: aoi-1\ndata: .\n{config}  plant-log:\n    night: {{file: night.jsonl}}\n")
    with sqlite_database.writing() as connection:
        event_log.register_sinks(connection, ["day", "night"], NOON)
        decided(connection, "k1", ng())
    command, environment = [sys.executable, "-c", RELAY, str(file)], {**os.environ, "PYTHONPATH": str(theirs)}
    bridge = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=tmp_path, env=environment)
    logs = [tmp_path / f"{sink}.jsonl" for sink in ("day", "night")]
    try:
        eventually(lambda: all(log.exists() and "board.decided" in log.read_text() for log in logs))
    finally:
        bridge.communicate()
    for log in logs:
        told = [json.loads(line) for line in log.read_text().splitlines()]
        assert [one["kind"] for one in told] == ["board.accepted", "board.decided"]
        assert {one["station"] for one in told} == {"aoi-1"}
    assert bridge.returncode == 0
