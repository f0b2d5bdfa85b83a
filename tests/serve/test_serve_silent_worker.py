"""A worker that stands still keeps no board waiting, and is started again."""

from pathlib import Path

import pytest
from quick_line import QuickDevice
from serving import activated, embedded_database, locked
from stations import DARK, LIGHT, accept, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually

from coe.core import Verdict
from coe.serve.clock import SECOND_US, Clocks, now_us
from coe.serve.database import call_rows, event_log, fault_log, states
from coe.serve.database.connecting import Database
from coe.serve.database.database_errors import DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import NewFault
from coe.serve.enums import CallReason, EventKind, FaultKind, Process
from coe.serve.service_config import ServeConfig
from coe.serve.silent_worker import AWAY_S, SILENT_S, STARTS_FOR, SilentWorker

PID = 7


database = embedded_database(busy_s=0.1)


class Watch:
    """A look at the worker of a service at times that a test sets."""

    def __init__(self, config: ServeConfig, database: Database) -> None:
        self.passed_s, self.database = 0.0, database
        self.refusals = list[DatabaseError]()
        clocks = Clocks(lambda: now_us() + round(self.passed_s * SECOND_US), lambda: self.passed_s)
        self._silent = SilentWorker(config, database, self.refusals.append, clocks)

    def at(self, passed_s: float, pid: int | None = PID, every_s: float = AWAY_S) -> str:
        """Look again and again until then, as the supervisor does; return what the last look says."""
        while True:
            self.passed_s = min(passed_s, self.passed_s + every_s)
            why = self._silent.look(pid, 0.0)
            if why or self.passed_s >= passed_s:
                return why

    def beat(self, pid: int = PID) -> None:
        self.database.write(states.beat, Process.WORKER, pid=pid, now_us=now_us())

    def faults(self) -> list[tuple[FaultKind, str]]:
        with self.database.reading() as connection:
            return [(fault.kind, fault.about) for fault in fault_log.open_faults(connection)]


@pytest.fixture
def watch(config: ServeConfig, database: Database) -> Watch:
    watch = Watch(config, database)
    watch.beat()
    assert watch.at(0) == ""
    return watch


def decisions_of(database: Database, board_id: int) -> int:
    happened = database.read(event_log.after, 0)
    return sum(one.kind is EventKind.BOARD_DECIDED and one.board_id == board_id for one in happened)


SILENT = [(FaultKind.PROCESS_SILENT, "worker")]


def test_boards_that_are_due_while_the_worker_is_silent_are_review_and_late_once_and_the_worker_goes_on_with_the_others(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path], watch: Watch
) -> None:
    recipe = activated(database, TINY)
    due = accept(config, database, recipe.id, {"R1": LIGHT, "R2": DARK}, within_s=30)
    other = accept(config, database, recipe.id, {"R1": LIGHT}, key="k2")
    for passed_s in (SILENT_S - 1, SILENT_S, 29):
        assert watch.at(passed_s) == ""
        assert watch.faults() == (SILENT if passed_s >= SILENT_S else [])
        assert state_of(database, due.id).verdict is None
    assert watch.at(32) == ""
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
    assert watch.at(33) == ""
    assert watch.faults() == []


def test_a_worker_that_was_silent_decides_no_board_again_that_it_had_begun(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_silent_worker_is_killed_after_the_time_of_the_config_and_one_that_starts_has_longer(
    config: ServeConfig, watch: Watch
) -> None:
    most_s = config.line.hangs_after_s
    assert watch.at(most_s, pid=None) == ""
    assert watch.at(most_s) == ""
    assert watch.at(most_s + 1, pid=PID + 1) == ""
    assert watch.at(most_s + 1)
    assert watch.at(most_s + 2) == ""  # the next one has its time
    assert watch.at(most_s + 2 + STARTS_FOR * most_s, pid=PID + 1)


def test_a_worker_is_not_silent_while_nobody_can_write(config: ServeConfig, database: Database, watch: Watch) -> None:
    with locked(database):
        assert watch.at(2 * config.line.hangs_after_s) == ""
    assert {error.kind for error in watch.refusals} == {DatabaseErrorKind.BUSY}
    assert watch.at(2 * config.line.hangs_after_s + 1) == ""
    assert watch.faults() == []


def test_a_worker_is_not_silent_while_the_database_answers_nobody(
    config: ServeConfig, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise DatabaseError(DatabaseErrorKind.LOST, "no answer")

    with monkeypatch.context() as failing:
        failing.setattr(fault_log, "note", fail)  # of parts of a disk that fails
        assert watch.at(2 * SILENT_S) == ""
    away_s = 10 * config.line.hangs_after_s
    assert watch.at(away_s, every_s=away_s) == ""
    assert watch.at(away_s + SILENT_S - 1) == ""
    assert watch.faults() == []


def test_a_fault_of_an_earlier_supervisor_is_cleared_by_the_first_sign(config: ServeConfig, database: Database) -> None:
    with database.writing() as connection:
        new = NewFault(Process.SUPERVISOR, FaultKind.PROCESS_SILENT, "before", Process.WORKER)
        fault_log.note(connection, new, 1)
    watch = Watch(config, database)
    watch.at(1)
    watch.beat()
    watch.at(2)
    assert watch.faults() == []
