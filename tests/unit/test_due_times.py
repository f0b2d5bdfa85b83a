"""Who is in a hurry, and which boards miss; what is certain is said by the test."""

import math
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coe.core import Request
from coe.scheduler.deadlines import Deadlines, DueChange


def made(least_s=0.0, max_wait_s=100.0):
    def doom(dues, now):
        return min(dues.values()) - least_s

    return Deadlines(max_wait_s, doom)


def told(book):
    """Return the boards that are newly certain to miss, as the controller does."""
    missed = book.missed.copy()
    book.missed.clear()
    return missed


def image(number, due_s=math.inf, serial="S", **more):
    return Request(number, "R", serial=serial, due_s=due_s, **more)


def hurry(due_s, *numbers):
    return [DueChange(number, due_s, math.inf) for number in numbers]


def calm(due_s, *numbers):
    """Return the changes of images that were in a hurry to a due time, and are not any more."""
    return [DueChange(number, math.inf, due_s) for number in numbers]


At = namedtuple("At", "now changes come gone late", defaults=[(), (), (), ()])
"""At a time images come, or are answered; then these change, and these boards are told to miss."""


MANY = range(1, 401)

STORIES = {
    "an image is in a hurry once half of what it may wait is over": [
        made(max_wait_s=10.0),
        At(1.0, come=[image(0)]),
        At(5.9),
        At(6.0, hurry(11.0, 0)),
        At(7.0),
    ],
    "half of the time is half of what is left beside the work": [
        made(least_s=4.0),
        At(0.0, come=[image(0, 5.0)]),
        At(0.4),
        At(0.5, hurry(5.0, 0)),
    ],
    "all images of a serial go by the earliest due time": [
        At(0.0, come=[image(0, 30.0), image(1, 10.0), image(2, 20.0, "")]),
        At(5.0, hurry(10.0, 0, 1)),
        At(6.0, hurry(10.0, 3), come=[image(3, 40.0)]),
    ],
    "a board that misses is told once, and what is due then is in no hurry any more": [
        made(least_s=4.0),
        At(0.0, come=[image(0, 10.0), image(1, 10.0), image(2, 20.0)]),
        At(5.0, hurry(10.0, 0, 1, 2)),
        At(7.0, calm(10.0, 0, 1, 2), late=[("S", 10.0)]),
        # The third still has its time; when it misses too, the board has been named already.
        At(10.0, hurry(20.0, 2)),
        At(11.0, gone=[0]),
        At(11.0, gone=[1]),
        At(17.0, calm(20.0, 2)),
    ],
    "images that come after a miss, as of a lot, hurry by their own due times": [
        made(least_s=1.0, max_wait_s=1e6),
        At(0.0, come=[image(0, -1.0)], late=[("S", -1.0)]),
        At(10.0, come=[image(1, 14.0)]),
        At(12.0, hurry(14.0, 1)),
        At(13.0, gone=[1]),
        At(20.0, come=[image(2, 24.0)]),
        At(22.0, hurry(24.0, 2)),
        At(23.0, gone=[2]),
        # Since then the lot was in time, so it is named again.
        At(50.0, come=[image(4, 50.5)], late=[("S", 50.5)]),
    ],
    "an image with a due time that was missed is in no hurry": [
        made(least_s=4.0),
        At(0.0, come=[image(0, 10.0)]),
        At(7.0, late=[("S", 10.0)]),
        At(7.5, come=[image(1, 10.0)]),
        At(9.0),
    ],
    "images that are too many together, 1 s after each other, are all late, and later ones are not": [
        Deadlines(100.0, lambda dues, now: max(dues.values()) - len(dues)),
        At(0.0, come=[image(number, 5.0 + number / 8) for number in range(8)], late=[("S", 5.0)]),
        At(1.0, come=[image(8, 9.0)]),
        At(5.0, hurry(9.0, 8)),
    ],
    "a serial that passes again by a new version of its board is a board by itself": [
        made(least_s=4.0),
        At(0.0, come=[image(0, 10.0, board="A", board_key="A")]),
        At(7.0, late=[("S", 10.0)]),
        At(7.0, come=[image(1, 15.0, board="A", board_key="A#2")]),
        At(9.0, hurry(15.0, 1)),
        At(12.0, calm(15.0, 1), late=[("S", 15.0)]),
    ],
    "a late reply that nobody foresaw is told": [
        At(0.0, come=[image(0, 10.0, "", image="x.png")]),
        At(9.0, hurry(10.0, 0)),
        At(11.0, gone=[0], late=[("x.png", 10.0)]),
    ],
    "waiting counts from when an image was handed in, also of one that was decoded after a later one": [
        made(max_wait_s=10.0),
        At(5.5, come=[image(0, serial="", submitted_s=5.0)]),
        At(6.0, hurry(11.0, 1), come=[image(1, serial="", submitted_s=1.0)]),
        At(10.0, hurry(15.0, 0)),
    ],
    "half of the time until it is due counts from there too": [
        At(6.0, hurry(10.0, 0), come=[image(0, 10.0, submitted_s=0.0)])
    ],
    "an image without a due time goes with its board, whichever came first": [
        At(0.0, come=[image(0), image(1, 10.0)]),
        At(1.0, come=[image(2), image(3, serial="T")]),
        At(4.9),
        At(5.0, hurry(10.0, 0, 1, 2)),
        At(6.0, hurry(10.0, 4), come=[image(4)]),
    ],
    "a board whose last image with a due time is answered is in no hurry any more": [
        At(0.0, come=[image(0, 10.0), image(1)]),
        At(5.0, hurry(10.0, 0, 1)),
        At(6.0, calm(10.0, 1), gone=[0]),
        At(20.0, come=[image(2, 40.0)]),
        At(30.0, hurry(40.0, 1, 2)),
    ],
    "a board of many images is due with the next once its earliest is answered": [
        At(0.0, come=[image(0, 10.0), *[image(number, 99.0) for number in MANY]]),
        At(5.0, hurry(10.0, 0, *MANY)),
        At(6.0, calm(10.0, *MANY), gone=[0]),
        At(49.5, hurry(99.0, *MANY)),
    ],
    "a board that misses says when it was due though others are due later": [
        At(0.0, come=[image(0, 10.0), image(1, 50.0)]),
        At(11.0, gone=[0], late=[("S", 10.0)]),
    ],
}


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_who_hurries_when_and_which_boards_miss(story):
    book = next((one for one in story if isinstance(one, Deadlines)), None) or made()
    came = {}
    for step in (one for one in story if isinstance(one, At)):
        for one in step.come:
            came[one.id] = one
            book.arrived(one, step.now)
        for number in step.gone:
            book.replied(came.pop(number), step.now)
        assert list(book.changes(step.now)) == list(step.changes)
        assert [(late.board, late.due_s) for late in told(book)] == list(step.late)
        book.check(idle=not came)


@pytest.mark.parametrize("serials", [1, 40, 400])
@pytest.mark.parametrize("within_s", [math.inf, 1.0, 86400.0])
def test_answered_images_are_forgotten_however_far_ahead_they_were_due(serials, within_s):
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


@pytest.mark.parametrize("apart_s", [0.0, 4e-3], ids=["due together", "each due a moment later"])
def test_a_thousand_images_of_one_hurried_board_are_not_gone_through_for_each(apart_s):
    """Counted, not timed: how often the due time of an image is worked out, and how many images looks go through."""
    worked = 0

    class Counted(Deadlines):
        def _set(self, request_id, now):
            nonlocal worked
            worked += 1
            return super()._set(request_id, now)

    def doom(dues, now):
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
def test_whatever_comes_and_goes_the_books_are_right_and_who_hurries_goes_by_a_due_time_of_the_board(steps):
    book, now, under_way, dues = made(max_wait_s=1e6), 0.0, [], set()
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
def test_a_board_that_never_ends_is_not_remembered_for_ever(due_s):
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
