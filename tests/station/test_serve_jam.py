"""Many boards at a time, as after a jam: the line looks around between them, and no transaction grows with them."""

import time
from itertools import pairwise

import pytest
from quick_line import QuickDevice
from serving import embedded_database
from stations import LIGHT, quick_opener
from waiting import eventually

from coe.core import Verdict
from coe.errors import ConfigError
from coe.scheduler.events import Late
from coe.serve.clock import CLOCKS, Clocks, now_us
from coe.serve.database import board_rows, event_log, row_types
from coe.serve.database.connecting import DatabaseError, open_database
from coe.serve.database.tables import Board
from coe.serve.enums import UNDECIDED, EventKind, LineState
from coe.serve.worker import write_report as report_module
from coe.serve.worker.line_watch import LineWatch
from coe.serve.worker.product import Products
from coe.serve.worker.station import Station
from coe.serve.worker.verdicts import BoardRun, Items, Queue
from coe.serve.worker.write_report import WorkerReport

database = embedded_database(busy_s=0.1)


def jam(shop, number, within_s=None):
    return [shop.accept({"R1": LIGHT}, key=f"k{at}", within_s=within_s) for at in range(number)]


def undecided(database):
    return database.read(board_rows.count_undecided)


def endangered(database):
    new = database.read(event_log.after, 0)
    return [event.board_id for event in new if event.kind is EventKind.BOARD_ENDANGERED]


@pytest.fixture
def watch():
    return LineWatch(time.monotonic, 120)


@pytest.fixture
def report(database, watch):
    return WorkerReport(database, CLOCKS, watch, "here")


@pytest.fixture
def products(config):
    products = Products(config.data, lambda boards: pytest.fail("no line is needed"), lambda: None)
    yield products
    products.close(at_once=True)


def test_the_line_looks_around_between_boards_that_are_overdue(shop):
    jam(shop, 8, within_s=0.001)
    station = Station(shop.config, shop.database, open_line=quick_opener(shop.tiny, QuickDevice()))
    left = []
    while not left or left[-1]:
        station.step()
        left.append(undecided(shop.database))
    station.close()
    assert max(before - after for before, after in pairwise([8, *left])) <= 2
    assert left == sorted(left, reverse=True)


def test_the_line_looks_around_between_boards_of_a_recipe_that_cannot_be_opened(shop):
    def refuse(boards):
        raise ConfigError("there are no weights")

    jam(shop, 8)
    station = Station(shop.config, shop.database, open_line=refuse)
    left = [8]
    while left[-1]:
        station.step()
        left.append(undecided(shop.database))
    station.close()
    assert max(before - after for before, after in pairwise(left)) <= 2


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


def test_a_board_that_will_be_late_is_named_once_the_database_answers(shop, report, watch, products):
    """The scheduler says it once."""
    board, *_ = jam(shop, 1, within_s=60)
    runs = {board.id: BoardRun(board, Items([], []), due_s=1e9)}
    report.worked(runs, Queue(), LineState.RUNNING, products)
    watch.observe(None, [Late(str(board.id), 0.0)], 0.0)
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
