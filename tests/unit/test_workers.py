"""The order in which threads do work, and what becomes of errors."""

import queue
import threading
import time

import pytest

from coe.errors import LineClosed
from coe.runtime import engine
from coe.runtime.engine import Engine
from coe.runtime.inputs import Workers


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


# The control thread takes what came while it decided all at once


def test_events_that_came_meanwhile_are_decided_on_together_and_no_more_than_so_many():
    waiting = Engine.__new__(Engine)
    waiting._queue, waiting._ending = queue.SimpleQueue(), False
    for number in range(engine._MOST_TOGETHER + 3):
        waiting._queue.put(number)
    events, last = waiting._came()
    assert (len(events), last) == (engine._MOST_TOGETHER, engine._MOST_TOGETHER - 1)
    events, _ = waiting._came()
    assert len(events) == 3
    for what in (7, None, 8):
        waiting._queue.put(what)
    assert waiting._came() == ([7], None), "the end comes after what came before it"
    assert waiting._came() == ([8], 8)
