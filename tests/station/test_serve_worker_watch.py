"""A worker that is gone, hangs, or has many boards at a time keeps no board waiting."""

import threading
import time
from contextlib import contextmanager
from itertools import pairwise

import pytest
from quick_line import QuickDevice
from serving import activated, embedded_database, locked
from stations import DARK, LIGHT, quick_opener
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, png

from coe.core import Verdict
from coe.errors import ConfigError
from coe.pictures.picture_file import PictureFile
from coe.scheduler.events import Late
from coe.serve import worker_watch
from coe.serve.clock import CLOCKS, SECOND_US, Clocks, now_us
from coe.serve.database import board_rows, event_log, fault_log, row_types, states
from coe.serve.database.connecting import DatabaseError, open_database
from coe.serve.database.states import SILENT_S
from coe.serve.database.tables import Board, NewFault
from coe.serve.enums import UNDECIDED, CallReason, EventKind, FaultKind, LineState, Process, Subject
from coe.serve.worker import locating
from coe.serve.worker import station as station_module
from coe.serve.worker import write_report as report_module
from coe.serve.worker.line_watch import LineHangs, LineWatch
from coe.serve.worker.product import Products
from coe.serve.worker.station import Station
from coe.serve.worker.verdicts import BoardRun, Items, Queue
from coe.serve.worker.write_report import WorkerReport
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
        while self.passed_s < passed_s:
            self.passed_s = min(passed_s, self.passed_s + every_s)
            self._watch.look()

    def faults(self):
        return [(fault.kind, fault.about) for fault in self.database.read(fault_log.open_faults)]


def beat(database):
    database.write(states.beat, Process.WORKER, pid=PID, now_us=now_us())


@pytest.fixture
def watch(config, database):
    database.write(states.change, Subject.LINE, LineState.RUNNING, by="worker", now_us=now_us())
    beat(database)
    return Watch(config, database)


SILENT = [(FaultKind.PROCESS_SILENT, "worker")]


def test_boards_that_are_due_while_the_worker_is_silent_are_review_and_late_once_and_the_worker_goes_on_with_the_others(
    shop, watch
):
    due, other = shop.accept({"R1": LIGHT, "R2": DARK}, within_s=30), shop.accept({"R1": LIGHT}, key="k2")
    for passed_s in (SILENT_S - 1, SILENT_S, 29):
        watch.at(passed_s)
        assert watch.faults() == (SILENT if passed_s >= SILENT_S else [])
        assert not shop.is_decided(due)
    watch.at(32)
    for _ in range(2):
        found = shop.state(due)
        assert (found.verdict, found.late, found.calls) == (Verdict.REVIEW, True, 2)
        assert {call.reason for call in shop.calls(due)} == {CallReason.LATE}
        assert shop.kinds(due).count(EventKind.BOARD_DECIDED) == 1
        shop.decide(other)
        assert shop.verdict(other) is Verdict.OK
    watch.at(33)
    assert watch.faults() == []


def test_a_worker_that_was_silent_decides_no_board_again_that_it_had_begun(shop, monkeypatch):
    shop.device.gate.clear()
    board = shop.accept({"R1": LIGHT}, within_s=60)
    with shop.deciding() as station:
        eventually(shop.device.reached.is_set)
        monkeypatch.setattr(states, "heartbeats", lambda connection: {})  # it goes on, and nobody hears it
        Watch(shop.config, shop.database).at(70)
        assert shop.verdict(board) is Verdict.REVIEW
        shop.device.gate.set()
        eventually(lambda: station.is_idle)
    assert shop.kinds(board).count(EventKind.BOARD_DECIDED) == 1
    assert shop.verdict(board) is Verdict.REVIEW


@pytest.mark.parametrize("age_s", [0, 5, 3600])
def test_silence_counts_from_the_row_when_web_starts_again(shop, watch, age_s):
    due, later = shop.accept({"R1": LIGHT}, within_s=1), Watch(shop.config, shop.database, age_s)
    decided_s = next(at for at in range(1, 20) if later.at(at) or shop.is_decided(due))
    assert decided_s == max(3, SILENT_S - age_s), "a worker that lives gives a sign meanwhile"
    beat(shop.database)
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
    beat(database)
    watch.at(2)
    assert watch.faults() == []


@pytest.fixture
def hasty(shop):
    """A shop in which all hangs after a second."""
    line = shop.config.line.model_copy(update={"hangs_after_s": 1.0})
    shop.config = shop.config.model_copy(update={"line": line})
    return shop


def hang_of(station):
    with pytest.raises(LineHangs) as hang:
        eventually(lambda: bool(station.step()))
    return str(hang.value)


@contextmanager
def station_of(shop, answers, **options):
    """Give a worker of a shop, step by step; it ends once what hangs answers."""
    station = Station(shop.config, shop.database, **options)
    try:
        yield station
    finally:
        answers.set()
        station.close()


@pytest.fixture
def answers(monkeypatch):
    """Let pictures be read for ever, as from a mount whose server is gone, until this is set."""
    answers, read, locate = threading.Event(), PictureFile.read, locating.locate
    monkeypatch.setattr(PictureFile, "read", lambda self, limit: answers.wait() and read(self, limit))
    monkeypatch.setattr(locating, "locate", lambda *given: answers.wait() and locate(*given))
    return answers


def hung(database):
    return [fault.about for fault in database.read(fault_log.open_faults) if fault.kind is FaultKind.EXPERT_HANGS]


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_picture_that_is_read_for_ever_ends_the_line_and_the_next_line_goes_on(hasty, answers, is_whole):
    """Boards without a due time, and all boards after them, would wait."""
    if is_whole:
        hasty.recipe = activated(hasty.database, TINY, whole=WHOLE)
    board = hasty.accept({"top": png(BOARD)}, {"whole": "top"}) if is_whole else hasty.accept({"R1": LIGHT})
    with station_of(hasty, answers, open_line=quick_opener(hasty.tiny, QuickDevice())) as station:
        assert "a picture has been read for" in hang_of(station)
        assert hung(hasty.database) == [""]
        assert hasty.state(board).attempts == 1
    hasty.decide(board)
    assert hasty.verdict(board) is (Verdict.NG if is_whole else Verdict.OK)


def test_boards_whose_time_ends_hide_no_picture_that_is_read_for_ever(hasty, answers):
    """Each is decided when it is due, and its picture waits for the thread behind the first."""
    hasty.recipe = activated(hasty.database, TINY, whole=WHOLE)
    for number in range(8):
        within_s = 0.3 * (number + 1)
        hasty.accept({"top": png(BOARD)}, {"whole": "top"}, key=f"k{number}", within_s=within_s)
    with station_of(hasty, answers, open_line=quick_opener(hasty.tiny, QuickDevice())) as station:
        assert "a picture has been read for" in hang_of(station)


def test_a_line_that_never_loads_its_first_experts_is_found(shop, monkeypatch):
    answers, waits = threading.Event(), threading.Event()

    def load():
        waits.set()
        answers.wait()

    def opener(config, watch):
        return quick_opener(shop.tiny, QuickDevice(load=[load] * 20), watchers=[watch])

    monkeypatch.setattr(station_module, "line_opener", opener)
    assert shop.recipe.version == 1  # active from here on
    ahead_s = 0.0
    with station_of(shop, answers, clocks=Clocks(now_s=lambda: time.monotonic() + ahead_s)) as station:
        eventually(lambda: bool(station.step()) or waits.is_set())
        ahead_s = 115.0
        station.step()
        ahead_s = 135.0
        assert "no load has ended for 1" in hang_of(station)
        assert len(hung(shop.database)) == 1


def jam(shop, number, within_s=None):
    return [shop.accept({"R1": LIGHT}, key=f"k{at}", within_s=within_s) for at in range(number)]


def undecided(database):
    return database.read(board_rows.count_undecided)


def endangered(database):
    new = database.read(event_log.after, 0)
    return [event.board_id for event in new if event.kind is EventKind.BOARD_ENDANGERED]


@pytest.fixture
def line_watch():
    return LineWatch(time.monotonic, 120)


@pytest.fixture
def report(database, line_watch):
    return WorkerReport(database, CLOCKS, line_watch, "here")


@pytest.fixture
def products(config):
    products = Products(config.data, lambda boards: pytest.fail("no line is needed"), lambda: None)
    yield products
    products.close(at_once=True)


@pytest.mark.parametrize("is_overdue", [True, False])
def test_the_line_looks_around_between_boards_that_are_overdue_or_whose_recipe_cannot_be_opened(shop, is_overdue):
    def refuse(boards):
        raise ConfigError("there are no weights")

    jam(shop, 8, within_s=0.001 if is_overdue else None)
    opener = quick_opener(shop.tiny, QuickDevice()) if is_overdue else refuse
    station, left = Station(shop.config, shop.database, open_line=opener), [8]
    while left[-1]:
        station.step()
        left.append(undecided(shop.database))
    station.close()
    assert all(0 <= before - after <= 2 for before, after in pairwise(left))


def test_the_board_that_is_due_first_is_found_whoever_has_left_and_come_back(shop):
    dues = {"a": 50.0, "b": None, "c": 20.0, "d": 30.0}
    ids = {key: shop.accept({"R1": LIGHT}, key=key, within_s=s).id for key, s in dues.items()}
    queue = Queue()
    shop.database.read(queue.look, now_us(), 0.0)
    waiting = {queued.board.id: queued for queued in queue}

    def due():
        queued = queue.next_due()
        return queued.board.id

    assert due() == ids["c"]
    for key in ("c", "d"):
        queue.leave(ids[key])
    assert due() == ids["a"]
    queue.come_back([waiting[ids["d"]]])
    assert due() == ids["d"]
    for key in ("d", "a"):
        queue.leave(ids[key])
    assert due() == ids["b"]  # without a due time
    queue.leave(ids["b"])
    assert queue.next_due() is None


def test_few_boards_in_danger_are_named_in_one_transaction(shop, report, products, monkeypatch):
    monkeypatch.setattr(report_module, "NAMED_TOGETHER", 2)
    monkeypatch.setattr(report_module, "BEAT_S", 0.0)
    ids = [board.id for board in jam(shop, 5, within_s=0.001)]
    queue = Queue()
    shop.database.read(queue.look, now_us() + 1_000_000, time.monotonic())
    named = []
    for _ in range(4):
        report.worked({}, queue, LineState.WAITING, products)
        named.append(endangered(shop.database))
    assert named == [ids[:2], ids[:4], ids, ids]


def test_a_board_that_will_be_late_is_named_once_the_database_answers(shop, report, line_watch, products):
    """The scheduler says it once."""
    board, *_ = jam(shop, 1, within_s=60)
    runs = {board.id: BoardRun(board, Items([], []), due_s=1e9)}
    report.worked(runs, Queue(), LineState.RUNNING, products)
    line_watch.observe(None, [Late(str(board.id), 0.0)], 0.0)
    other = open_database(shop.config.database_url)
    with other.writing(), pytest.raises(DatabaseError):
        report.worked(runs, Queue(), LineState.RUNNING, products)
    other.close()
    assert endangered(shop.database) == []
    report.worked(runs, Queue(), LineState.RUNNING, products)
    report.worked(runs, Queue(), LineState.RUNNING, products)
    assert endangered(shop.database) == [board.id]


def test_all_boards_in_danger_are_locked_before_the_first_event(shop, monkeypatch):
    """Who takes a board back has its lock, and waits for that of events: PostgreSQL would end one of the two."""
    first, second = jam(shop, 2)
    seen = []
    append = event_log.append

    def look(connection, *new):
        seen.append({row_types.get(connection, Board, board.id).endangered_us for board in (first, second)})
        return append(connection, *new)

    monkeypatch.setattr(board_rows.event_log, "append", look)
    shop.database.write(board_rows.endanger, [first, second], 7)
    assert seen == [{7}, {7}]


def test_a_jam_that_begins_while_boards_are_under_way_ends_in_their_order(shop):
    ahead_s = 0.0
    boards_of_jam = jam(shop, 4, within_s=500)
    shop.device.gate.clear()
    clocks = Clocks(now_s=lambda: time.monotonic() + ahead_s)
    station = Station(shop.config, shop.database, open_line=quick_opener(shop.tiny, shop.device), clocks=clocks)
    eventually(lambda: station.step() or shop.device.reached.is_set())
    ahead_s = 1000.0
    eventually(lambda: station.step() or not undecided(shop.database))
    shop.device.gate.set()
    station.close()
    assert {shop.state(board).verdict for board in boards_of_jam} == {Verdict.REVIEW}
    assert all(shop.state(board).state not in UNDECIDED for board in boards_of_jam)
