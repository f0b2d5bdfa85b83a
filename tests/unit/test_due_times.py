"""Who is in a hurry, and which boards miss; what is certain is said by the test."""

import math
from collections.abc import Mapping

from coe.core import Request
from coe.deadlines import Change, Deadlines


def made(least_s: float = 0.0, max_wait_s: float = 100.0) -> Deadlines:
    """Deadlines of images each of which needs `least_s`."""

    def doom(dues: Mapping[int, float], now: float) -> float:
        return min(dues.values()) - least_s

    return Deadlines(max_wait_s, doom)


def test_an_image_is_in_a_hurry_once_half_of_what_it_may_wait_is_over() -> None:
    book = made(max_wait_s=10.0)
    book.arrived(Request(0, "R"), 1.0)
    assert list(book.changes(5.9)) == []
    assert list(book.changes(6.0)) == [Change(0, 11.0, math.inf)]
    assert list(book.changes(7.0)) == []
    assert book.due_s(0) == 11.0


def test_half_of_the_time_is_half_of_what_is_left_beside_the_work() -> None:
    book = made(least_s=4.0)
    book.arrived(Request(0, "R", due_s=5.0), 0.0)
    assert [*book.changes(0.0), *book.changes(0.4)] == []
    assert list(book.changes(0.5)) == [Change(0, 5.0, math.inf)]


def test_all_images_of_a_serial_go_by_the_earliest_due_time() -> None:
    book = made()
    book.arrived(Request(0, "R", serial="S", due_s=30.0), 0.0)
    book.arrived(Request(1, "R", serial="S", due_s=10.0), 0.0)
    book.arrived(Request(2, "R", due_s=20.0), 0.0)
    assert list(book.changes(5.0)) == [Change(0, 10.0, math.inf), Change(1, 10.0, math.inf)]
    book.arrived(Request(3, "R", serial="S", due_s=40.0), 6.0)
    assert list(book.changes(6.0)) == [Change(3, 10.0, math.inf)]


def test_a_board_that_misses_is_told_once_and_is_in_no_hurry_any_more() -> None:
    book = made(least_s=4.0)
    book.arrived(Request(0, "R", serial="S", due_s=10.0), 0.0)
    book.arrived(Request(1, "R", serial="S", due_s=12.0), 0.0)
    assert len(list(book.changes(5.0))) == 2
    assert book.missed() == []
    assert list(book.changes(7.0)) == [Change(0, math.inf, 10.0), Change(1, math.inf, 10.0)]
    assert [board.name for board in book.missed()] == ["S"]
    book.replied(Request(0, "R", serial="S", due_s=10.0), 11.0)
    assert (list(book.changes(11.0)), book.missed()) == ([], [])


def test_a_late_reply_that_nobody_foresaw_is_told() -> None:
    book = made()
    late = Request(0, "R", image="x.png", due_s=10.0)
    book.arrived(late, 0.0)
    list(book.changes(9.0))
    book.replied(late, 11.0)
    assert list(book.changes(11.0)) == []
    assert [(board.name, board.due_s) for board in book.missed()] == [("x.png", 10.0)]
    book.check(idle=True)


def test_a_board_is_looked_at_seldom_however_many_images_it_has() -> None:
    looks = []

    def doom(dues: Mapping[int, float], now: float) -> float:
        looks.append(len(dues))
        return 1000.0

    book = Deadlines(1e6, doom)
    for number in range(1000):
        book.arrived(Request(number, "R", serial="S", due_s=1000.0), number * 1e-3)
        list(book.changes(number * 1e-3))
    assert sum(looks) < 10 * 1000


def test_waiting_counts_from_when_an_image_was_handed_in() -> None:
    book = made(max_wait_s=10.0)
    book.arrived(Request(0, "R", submitted_s=5.0), 5.5)
    # Handed in before the other, decoded after it.
    book.arrived(Request(1, "R", submitted_s=1.0), 6.0)
    assert list(book.changes(6.0)) == [Change(1, 11.0, math.inf)]
    assert list(book.changes(10.0)) == [Change(0, 15.0, math.inf)]


def test_half_of_the_time_until_it_is_due_counts_from_there_too() -> None:
    book = made()
    book.arrived(Request(0, "R", due_s=10.0, submitted_s=0.0), 6.0)
    assert list(book.changes(6.0)) == [Change(0, 10.0, math.inf)]
