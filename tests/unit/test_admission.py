"""Who is let in, and in which order: first come, first served."""

import sys
import threading
import time
from functools import partial

import pytest

from coe.errors import LineClosed, LineFull
from coe.runtime.admission import Admission, Ticket
from coe.runtime.inputs import Workers


def enter(admission, size, *, wait=True):
    ticket = Ticket(admission, size)
    ticket.enter(wait=wait)
    return ticket


def inside(tickets):
    return "".join(str(number) for number, ticket in enumerate(tickets) if ticket.answered)


ROWS = {
    "small images wait behind a large one": (9, (40, 40, 90, 10, 10), "01", (0, "01"), (1, "0123"), (2, "01234")),
    "who is larger than all is let in alone": (9, (1, 500, 1), "0", (0, "01"), (1, "012")),
    "places bound as bytes do": (2, (1, 1, 1, 1), "01", (1, "012")),
    "who gives up waiting lets those behind go on": (9, (50, 90, 20), "0", (1, "02")),
    "leaving twice gives one place back": (1, (1, 1, 1), "0", (0, "01"), (0, "01"), (0, "01")),
    "leaving twice gives bytes back once": (9, (60, 60, 60), "0", (0, "01"), (0, "01")),
}
"""By what a row shows: places, sizes, who is inside, then who leaves or gives up and who is or was inside by then."""


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_who_is_let_in_as_others_leave(row):
    places, sizes, first, *steps = row
    admission = Admission(places, limit_bytes=100)
    tickets = [enter(admission, size) for size in sizes]
    assert inside(tickets) == first
    for number, then in steps:
        tickets[number].leave()
        assert inside(tickets) == then


def test_a_place_may_be_abandoned_at_any_time_and_room_is_given_back_by_what_fails():
    admission = Admission(places=1, limit_bytes=100)
    first, dropped, last = (enter(admission, 1) for _ in range(3))
    # As a collection of garbage that has come by on the thread that holds the lock.
    with admission._lock:
        dropped.abandon()
    first.leave()
    assert last.answered
    assert not dropped.answered
    last.leave()
    assert admission.wait_empty(0)
    admission = Admission(places=1, limit_bytes=100)

    with pytest.raises(SystemExit):
        admission.within(10, sys.exit)
    assert admission.wait_empty(0)


def test_who_does_not_wait_is_turned_away_also_where_somebody_else_waits():
    admission = Admission(places=9, limit_bytes=100)
    first = enter(admission, 40)
    with pytest.raises(LineFull, match="1 images"):
        enter(admission, 90, wait=False)
    waiting = enter(admission, 90)
    with pytest.raises(LineFull, match="1 images"):
        enter(admission, 10, wait=False)
    first.leave()
    assert waiting.answered
    assert enter(admission, 10, wait=False).answered
    enter(admission, 90).abandon()
    assert enter(admission, 0, wait=False).answered, "an abandoned place holds nobody up"


def test_an_end_wakes_those_who_wait_also_in_the_middle_of_another_call():
    admission = Admission(places=1, limit_bytes=100)
    tickets = [enter(admission, 1) for _ in range(3)]
    admission.close()
    for ticket in tickets[1:]:
        with pytest.raises(LineClosed):
            ticket.wait()
    with pytest.raises(LineClosed):
        enter(admission, 1)
    assert not admission.wait_empty(0)
    tickets[0].leave()
    assert admission.wait_empty()
    admission, seen = Admission(places=9, limit_bytes=100), []

    class Size(int):
        """A size at which a signal handler ends the admission, while the caller is giving the bytes back."""

        def __rsub__(self, other):
            admission.close()
            seen.append(waiting.answered)
            return other - int(self)

    staying, leaving, waiting = enter(admission, 60), enter(admission, Size(30)), enter(admission, 90)
    leaving.leave()
    assert seen == [False]
    with pytest.raises(LineClosed):
        waiting.wait()
    staying.leave()
    assert admission.wait_empty(0)


def test_many_threads_never_pass_the_bounds():
    admission = Admission(places=3, limit_bytes=100)
    lock, now, seen = threading.Lock(), [], []

    def look(size):
        with lock:
            now.append(size)
            seen.append(list(now))
        with lock:
            now.remove(size)

    def work(seed):
        for turn in range(50):
            size = (seed * 37 + turn * 11) % 140 + 1
            admission.within(size, partial(look, size))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert admission.wait_empty(0)
    assert len(seen) == 8 * 50
    assert all(len(sizes) == 1 or (len(sizes) <= 3 and sum(sizes) <= 100) for sizes in seen)


def test_urgent_work_goes_first_and_all_is_done_before_the_end_behind_which_none_is_taken():
    workers, done = Workers(1, "test"), []
    for name in "ab":
        workers.put(lambda name=name: done.append(name))
    futures = [workers.submit(lambda name=name: done.append(name)) for name in "xy"]
    workers.close()
    for taking in (workers.put, workers.submit):
        with pytest.raises(LineClosed):
            taking(lambda: None)
    for thread in workers.threads:
        thread.start()
        thread.join(60)
    assert done == ["x", "y", "a", "b"]
    assert all(future.done() for future in futures)


def test_several_threads_lose_no_work():
    workers, done = Workers(4, "test"), []
    for thread in workers.threads:
        thread.start()
    futures = []
    for number in range(500):
        workers.put(lambda number=number: done.append(number))
        futures.append(workers.submit(lambda number=number: -number))
    workers.close()
    for thread in workers.threads:
        thread.join(60)
    assert sorted(done) == list(range(500))
    assert [future.result(0) for future in futures] == [-number for number in range(500)]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_what_urgent_work_raises_goes_to_its_future(error):
    def fail():
        raise error

    workers = Workers(1, "test")
    failed, next_one = workers.submit(fail), workers.submit(lambda: "done")
    workers.close()
    workers.threads[0].start()
    workers.threads[0].join(60)
    assert failed.exception(0) is error
    assert next_one.result(0) == "done"


def test_they_say_how_long_the_longest_work_under_way_takes():
    workers, go_on, begun = Workers(2, "test"), threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(60)

    assert workers.longest_s() == 0
    for thread in workers.threads:
        thread.start()
    workers.submit(work)
    assert begun.wait(60)
    first_s = workers.longest_s()
    while workers.longest_s() <= first_s:
        time.sleep(0.001)
    go_on.set()
    workers.close()
    for thread in workers.threads:
        thread.join()
    assert workers.longest_s() == 0
