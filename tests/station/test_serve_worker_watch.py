"""A worker that is gone or stands still keeps no board waiting."""

import threading

import pytest
from quick_line import QuickDevice
from serving import activated, embedded_database, locked
from stations import DARK, LIGHT, accept, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually

from coe.core import Verdict
from coe.serve import worker_watch
from coe.serve.clock import SECOND_US, Clocks, now_us
from coe.serve.database import call_rows, event_log, fault_log, states
from coe.serve.database.states import SILENT_S
from coe.serve.database.tables import NewFault
from coe.serve.enums import CallReason, EventKind, FaultKind, LineState, Process, Subject
from coe.serve.worker_watch import STARTS_FOR, WorkerWatch

PID = 7


database = embedded_database(busy_s=0.1)


class Watch:
    """A look at the worker of a service at times that a test sets; `age_s` after its last sign it begins."""

    def __init__(self, config, database, age_s=0.0):
        self.passed_s, self.database = 0.0, database
        clocks = Clocks(lambda: now_us() + round((age_s + self.passed_s) * SECOND_US), lambda: self.passed_s)
        self._watch = WorkerWatch(config, database, clocks)
        self._watch.look()

    def at(self, passed_s, every_s=1.0):
        """Look again and again until then."""
        while self.passed_s < passed_s:
            self.passed_s = min(passed_s, self.passed_s + every_s)
            self._watch.look()

    def beat(self):
        self.database.write(states.beat, Process.WORKER, pid=PID, now_us=now_us())

    def faults(self):
        with self.database.reading() as connection:
            return [(fault.kind, fault.about) for fault in fault_log.open_faults(connection)]


@pytest.fixture
def watch(config, database):
    database.write(states.change, Subject.LINE, LineState.RUNNING, by="worker", now_us=now_us())
    database.write(states.beat, Process.WORKER, pid=PID, now_us=now_us())
    return Watch(config, database)


def decisions_of(database, board_id):
    happened = database.read(event_log.after, 0)
    return sum(one.kind is EventKind.BOARD_DECIDED and one.board_id == board_id for one in happened)


SILENT = [(FaultKind.PROCESS_SILENT, "worker")]


def test_boards_that_are_due_while_the_worker_is_silent_are_review_and_late_once_and_the_worker_goes_on_with_the_others(
    config, database, tiny, watch
):
    recipe = activated(database, TINY)
    due = accept(config, database, recipe.id, {"R1": LIGHT, "R2": DARK}, within_s=30)
    other = accept(config, database, recipe.id, {"R1": LIGHT}, key="k2")
    for passed_s in (SILENT_S - 1, SILENT_S, 29):
        watch.at(passed_s)
        assert watch.faults() == (SILENT if passed_s >= SILENT_S else [])
        assert state_of(database, due.id).verdict is None
    watch.at(32)
    for _ in range(2):
        found = state_of(database, due.id)
        assert (found.verdict, found.late, found.calls) == (Verdict.REVIEW, True, 2)
        with database.reading() as connection:
            assert {call.reason for call in call_rows.of_board(connection, due.id)} == {CallReason.LATE}
            decided = [
                event.board_id for event in event_log.after(connection, 0) if event.kind is EventKind.BOARD_DECIDED
            ]
        assert decided.count(due.id) == 1
        with deciding(config, database, quick_opener(tiny, QuickDevice())):
            eventually(lambda: state_of(database, other.id).verdict is Verdict.OK)
    watch.at(33)
    assert watch.faults() == []


def test_a_worker_that_was_silent_decides_no_board_again_that_it_had_begun(config, database, tiny, monkeypatch):
    recipe, device = activated(database, TINY), QuickDevice()
    device.gate.clear()
    board = accept(config, database, recipe.id, {"R1": LIGHT}, within_s=60)
    with deciding(config, database, quick_opener(tiny, device)) as station:
        eventually(device.reached.is_set)
        monkeypatch.setattr(states, "heartbeats", lambda connection: {})  # it goes on, and nobody hears it
        watch = Watch(config, database)
        watch.at(70)
        assert state_of(database, board.id).verdict is Verdict.REVIEW
        device.gate.set()
        eventually(lambda: station.is_idle)
    assert decisions_of(database, board.id) == 1
    assert state_of(database, board.id).verdict is Verdict.REVIEW


@pytest.mark.parametrize("age_s", [0, 5, 3600])
def test_silence_counts_from_the_row_when_web_starts_again(config, database, watch, age_s):
    recipe = activated(database, TINY)
    due = accept(config, database, recipe.id, {"R1": LIGHT}, within_s=1)
    later = Watch(config, database, age_s)
    decided_s = next(at for at in range(1, 20) if later.at(at) or state_of(database, due.id).verdict is not None)
    assert decided_s == max(3, SILENT_S - age_s), "a worker that lives gives a sign meanwhile"
    later.beat()
    later.at(later.passed_s + 2)
    assert later.faults() == []


@pytest.mark.parametrize("state", [LineState.STARTING, LineState.DOWN])
def test_a_worker_that_starts_or_ended_in_order_is_missed_later(watch, state):
    watch.database.write(states.change, Subject.LINE, state, by="worker", now_us=now_us())
    watch.at(STARTS_FOR * SILENT_S - 1)
    assert watch.faults() == []
    watch.at(STARTS_FOR * SILENT_S)
    assert watch.faults() == SILENT


def test_a_worker_is_not_silent_while_nobody_can_write(config, database, watch):
    with locked(database):
        watch.at(3 * SILENT_S, every_s=4.0)
    watch.at(3 * SILENT_S + 1)
    assert watch.faults() == []


def test_a_worker_is_not_silent_while_the_database_answers_nobody(watch):
    watch.at(100, every_s=100)
    watch.at(100 + SILENT_S - 1)
    assert watch.faults() == []
    watch.at(100 + SILENT_S)
    assert watch.faults() == SILENT


def test_no_error_ends_the_watch(config, database, monkeypatch):
    stop, looks = threading.Event(), iter([ValueError(), None])

    def look(self):
        if (error := next(looks)) is not None:
            raise error
        stop.set()

    monkeypatch.setattr(worker_watch, "LOOK_S", 0.0)
    monkeypatch.setattr(WorkerWatch, "look", look)
    WorkerWatch(config, database).run(stop)
    assert next(looks, "all") == "all"


def test_a_fault_of_an_earlier_web_is_cleared_by_the_first_sign(config, database):
    with database.writing() as connection:
        new = NewFault(Process.WEB, FaultKind.PROCESS_SILENT, "before", Process.WORKER)
        fault_log.note(connection, new, 1)
    watch = Watch(config, database)
    watch.at(1)
    watch.beat()
    watch.at(2)
    assert watch.faults() == []
