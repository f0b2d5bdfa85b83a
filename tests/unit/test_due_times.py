"""Who is in a hurry, and which boards miss; what is certain is said by the test."""

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Request
from coe.scheduler.deadlines import Deadlines, DueChange
from coe.scheduler.events import Late


def made(least_s: float = 0.0, max_wait_s: float = 100.0) -> Deadlines:
    """Deadlines of images each of which needs `least_s`."""

    def doom(dues: Mapping[int, float], now: float) -> float:
        return min(dues.values()) - least_s

    return Deadlines(max_wait_s, doom)


def told(book: Deadlines) -> list[Late]:
    """Return the boards that are newly certain to miss, as the controller does."""
    missed = book.missed.copy()
    book.missed.clear()
    return missed


def test_an_image_is_in_a_hurry_once_half_of_what_it_may_wait_is_over() -> None:
    book = made(max_wait_s=10.0)
    book.arrived(Request(0, "R"), 1.0)
    assert list(book.changes(5.9)) == []
    assert list(book.changes(6.0)) == [DueChange(0, 11.0, math.inf)]
    assert list(book.changes(7.0)) == []
    assert book.due_s(0) == 11.0


def test_half_of_the_time_is_half_of_what_is_left_beside_the_work() -> None:
    book = made(least_s=4.0)
    book.arrived(Request(0, "R", due_s=5.0), 0.0)
    assert [*book.changes(0.0), *book.changes(0.4)] == []
    assert list(book.changes(0.5)) == [DueChange(0, 5.0, math.inf)]


def test_all_images_of_a_serial_go_by_the_earliest_due_time() -> None:
    book = made()
    book.arrived(Request(0, "R", serial="S", due_s=30.0), 0.0)
    book.arrived(Request(1, "R", serial="S", due_s=10.0), 0.0)
    book.arrived(Request(2, "R", due_s=20.0), 0.0)
    assert list(book.changes(5.0)) == [DueChange(0, 10.0, math.inf), DueChange(1, 10.0, math.inf)]
    book.arrived(Request(3, "R", serial="S", due_s=40.0), 6.0)
    assert list(book.changes(6.0)) == [DueChange(3, 10.0, math.inf)]


def test_a_board_that_misses_is_told_once_and_what_is_due_then_is_in_no_hurry_any_more() -> None:
    book = made(least_s=4.0)
    for number in range(3):
        book.arrived(Request(number, "R", serial="S", due_s=10.0 + number // 2 * 10), 0.0)
    assert len(list(book.changes(5.0))) == 3
    assert told(book) == []
    assert list(book.changes(7.0)) == [
        *(DueChange(number, math.inf, 10.0) for number in (0, 1)),
        DueChange(2, math.inf, 10.0),
    ]
    assert told(book) == [Late("S", 10.0)]
    # The third still has its time; when it misses too, the board has been named already.
    assert list(book.changes(10.0)) == [DueChange(2, 20.0, math.inf)]
    for number in range(2):
        book.replied(Request(number, "R", serial="S", due_s=10.0), 11.0)
        assert (list(book.changes(11.0)), told(book)) == ([], [])
    assert list(book.changes(17.0)) == [DueChange(2, math.inf, 20.0)]
    assert told(book) == []
    book.check()


def test_images_that_come_after_a_miss_hurry_by_their_own_due_times() -> None:
    """A serial that goes on, as of a lot, while the image that missed is still under way."""
    book = made(least_s=1.0)
    book.arrived(Request(0, "R", serial="LOT", due_s=-1.0), 0.0)
    assert (list(book.changes(0.0)), told(book)) == ([], [Late("LOT", -1.0)])
    for number in range(1, 4):
        begin = 10.0 * number
        image = Request(number, "R", serial="LOT", due_s=begin + 4.0)
        book.arrived(image, begin)
        assert list(book.changes(begin)) == []
        assert list(book.changes(begin + 2.0)) == [DueChange(number, begin + 4.0, math.inf)]
        book.replied(image, begin + 3.0)
    # Since then the lot was in time, so it is named again.
    book.arrived(Request(4, "R", serial="LOT", due_s=50.5), 50.0)
    list(book.changes(50.0))
    assert told(book) == [Late("LOT", 50.5)]
    book.check()


def test_an_image_with_a_due_time_that_was_missed_is_in_no_hurry() -> None:
    book = made(least_s=4.0)
    book.arrived(Request(0, "R", serial="S", due_s=10.0), 0.0)
    list(book.changes(7.0))
    book.arrived(Request(1, "R", serial="S", due_s=10.0), 7.5)
    assert [*book.changes(7.5), *book.changes(9.0)] == []
    assert told(book) == [Late("S", 10.0)]
    book.check()


def test_images_that_are_too_many_together_are_all_late_and_later_ones_are_not() -> None:
    """Each needs 1 s, one after the other."""
    book = Deadlines(100.0, lambda dues, now: max(dues.values()) - len(dues))
    for number in range(8):
        book.arrived(Request(number, "R", serial="LOT", due_s=5.0 + number / 8), 0.0)
    assert (list(book.changes(0.0)), told(book)) == ([], [Late("LOT", 5.0)])
    book.arrived(Request(8, "R", serial="LOT", due_s=9.0), 1.0)
    assert list(book.changes(5.0)) == [DueChange(8, 9.0, math.inf)]
    book.check()


@pytest.mark.parametrize("serials", [1, 40, 400])
@pytest.mark.parametrize("within_s", [math.inf, 1.0, 86400.0])
def test_answered_images_are_forgotten_however_far_ahead_they_were_due(serials: int, within_s: float) -> None:
    book = made(max_wait_s=86400.0)
    waiting = Request(-1, "R", serial="first", due_s=86400.0)
    book.arrived(waiting, 0.0)
    for number in range(400):
        now = 0.01 * number
        image = Request(number, "R", serial=f"S{number % serials}", due_s=now + within_s)
        book.arrived(image, now)
        list(book.changes(now))
        book.replied(image, now)
    kept = (book._aging, book._to_hurry, book._to_check, book._boards, book._board_of)
    assert max(map(len, kept)) < 50
    book.replied(waiting, 40.0)
    book.check(idle=True)


def test_a_serial_that_passes_again_by_a_new_version_of_its_board_is_a_board_by_itself() -> None:
    book = made(least_s=4.0)
    book.arrived(Request(0, "R", serial="S", due_s=10.0, board="A", board_key="A"), 0.0)
    assert list(book.changes(7.0)) == []
    assert [late.board for late in told(book)] == ["S"]
    book.arrived(Request(1, "R", serial="S", due_s=15.0, board="A", board_key="A#2"), 7.0)
    assert [*book.changes(7.0), *book.changes(9.0)] == [DueChange(1, 15.0, math.inf)]
    assert list(book.changes(12.0)) == [DueChange(1, math.inf, 15.0)]
    assert [late.board for late in told(book)] == ["S"]


def test_a_late_reply_that_nobody_foresaw_is_told() -> None:
    book = made()
    late = Request(0, "R", image="x.png", due_s=10.0)
    book.arrived(late, 0.0)
    list(book.changes(9.0))
    book.replied(late, 11.0)
    assert list(book.changes(11.0)) == []
    assert [(late.board, late.due_s) for late in told(book)] == [("x.png", 10.0)]
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
    assert list(book.changes(6.0)) == [DueChange(1, 11.0, math.inf)]
    assert list(book.changes(10.0)) == [DueChange(0, 15.0, math.inf)]


def test_half_of_the_time_until_it_is_due_counts_from_there_too() -> None:
    book = made()
    book.arrived(Request(0, "R", due_s=10.0, submitted_s=0.0), 6.0)
    assert list(book.changes(6.0)) == [DueChange(0, 10.0, math.inf)]


def test_an_image_without_a_due_time_goes_with_its_board_whichever_came_first() -> None:
    book = made()
    book.arrived(Request(0, "R", serial="S"), 0.0)
    book.arrived(Request(1, "R", serial="S", due_s=10.0), 0.0)
    book.arrived(Request(2, "R", serial="S"), 1.0)
    book.arrived(Request(3, "R", serial="T"), 1.0)
    assert list(book.changes(4.9)) == []
    assert list(book.changes(5.0)) == [DueChange(number, 10.0, math.inf) for number in range(3)]
    book.arrived(Request(4, "R", serial="S"), 6.0)
    assert list(book.changes(6.0)) == [DueChange(4, 10.0, math.inf)]
    book.check()


def test_a_board_whose_last_image_with_a_due_time_is_answered_is_in_no_hurry_any_more() -> None:
    book = made()
    dated = Request(0, "R", serial="S", due_s=10.0)
    book.arrived(dated, 0.0)
    book.arrived(Request(1, "R", serial="S"), 0.0)
    assert len(list(book.changes(5.0))) == 2
    book.replied(dated, 6.0)
    assert list(book.changes(6.0)) == [DueChange(1, math.inf, 10.0)]
    assert (told(book), list(book.changes(20.0))) == ([], [])
    book.arrived(Request(2, "R", serial="S", due_s=40.0), 20.0)
    assert list(book.changes(30.0)) == [DueChange(1, 40.0, math.inf), DueChange(2, 40.0, math.inf)]


@pytest.mark.parametrize("count", [1, 9, 400])
def test_a_board_is_due_with_the_next_image_once_its_earliest_is_answered(count: int) -> None:
    book = made()
    first = Request(0, "R", serial="S", due_s=10.0)
    book.arrived(first, 0.0)
    for number in range(1, count + 1):
        book.arrived(Request(number, "R", serial="S", due_s=99.0), 0.0)
    assert len(list(book.changes(5.0))) == count + 1
    book.replied(first, 6.0)
    assert list(book.changes(6.0)) == [DueChange(number, math.inf, 10.0) for number in range(1, count + 1)]
    assert list(book.changes(49.5)) == [DueChange(number, 99.0, math.inf) for number in range(1, count + 1)]
    book.check()


def test_a_board_that_misses_says_when_it_was_due_though_others_are_due_later() -> None:
    book = made()
    first = Request(0, "R", serial="S", due_s=10.0)
    book.arrived(first, 0.0)
    book.arrived(Request(1, "R", serial="S", due_s=50.0), 0.0)
    book.replied(first, 11.0)
    assert [(late.board, late.due_s) for late in told(book)] == [("S", 10.0)]


@pytest.mark.parametrize("apart_s", [0.0, 4e-3], ids=["due together", "each due a moment later"])
def test_a_thousand_images_of_one_hurried_board_are_not_gone_through_for_each(apart_s: float) -> None:
    """Counted, not timed: how often the due time of an image is worked out, and how many images looks go through."""
    worked = 0

    class Counted(Deadlines):
        def _set(self, request_id: int, now: float):
            nonlocal worked
            worked += 1
            return super()._set(request_id, now)

    def doom(dues: Mapping[int, float], now: float) -> float:
        nonlocal worked
        worked += len(dues)
        return min(dues.values())

    count = 1000
    book = Counted(1e6, doom)
    requests = [Request(number, "R", serial="S", due_s=20.0 + apart_s * number) for number in range(count)]
    for request in requests:
        now = 9.0 + 4e-3 * request.id
        book.arrived(request, now)
        list(book.changes(now))
    for request in requests:
        now = 14.0 + 4e-3 * request.id
        book.replied(request, now)
        list(book.changes(now))
    assert told(book) == []
    book.check(idle=True)
    assert worked < 20 * count


STEPS = st.lists(
    st.tuples(st.sampled_from(["dated", "undated", "reply", "reply", "wait"]), st.integers(1, 30), st.integers(0, 9)),
    max_size=40,
)


@given(steps=STEPS)
def test_whatever_comes_and_goes_the_books_are_right_and_who_hurries_goes_by_a_due_time_of_the_board(
    steps: list[tuple[str, int, int]],
) -> None:
    book, now, under_way, dues = made(max_wait_s=1e6), 0.0, list[Request](), set[float]()
    for number, (what, time, which) in enumerate(steps):
        now += 0.25
        if what in ("dated", "undated"):
            due_s = now + time if what == "dated" else math.inf
            dues.add(due_s)
            under_way.append(Request(number, "R", serial="S", due_s=due_s))
            book.arrived(under_way[-1], now)
        elif what == "reply" and under_way:
            book.replied(under_way.pop(which % len(under_way)), now)
        list(book.changes(now))
        told(book)
        book.check()
        assert {book.due_s(request.id) for request in under_way} <= dues | {math.inf}
    for request in under_way:
        book.replied(request, now)
    book.check(idle=True)


@pytest.mark.parametrize("due_s", [math.inf, 1.0, 1e6], ids=["never due", "late", "due"])
def test_a_board_that_never_ends_is_not_remembered_for_ever(due_s: float) -> None:
    # All images of a day may bear the number of their lot as their serial.
    book = made()
    for number in range(2000):
        book.arrived(Request(number, "R", serial="lot", due_s=due_s + number * (due_s > 1)), float(number))
        list(book.changes(float(number)))
        told(book)
        if number >= 3:
            book.replied(Request(number - 2, "R", serial="lot", due_s=due_s + (number - 2) * (due_s > 1)), number)
    (board,) = book._boards.values()
    assert len(board.images) == 3
    assert len(board.fresh) + len(board.dues) + len(book._to_check) < 100
    book.check()
