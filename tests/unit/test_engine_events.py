"""The control thread takes what came while it decided all at once."""

from __future__ import annotations

import queue

from coe.runtime import engine
from coe.runtime.engine import Engine


def test_events_that_came_meanwhile_are_decided_on_together_and_no_more_than_so_many() -> None:
    waiting = Engine.__new__(Engine)
    waiting._queue = queue.SimpleQueue()
    for number in range(engine._MOST_TOGETHER + 3):
        waiting._queue.put(number)  # type: ignore[arg-type]
    events, last = waiting._came()
    assert (len(events), last) == (engine._MOST_TOGETHER, engine._MOST_TOGETHER - 1)
    events, _ = waiting._came()
    assert len(events) == 3
    for what in (7, None, 8):
        waiting._queue.put(what)  # type: ignore[arg-type]
    assert waiting._came() == ([7], None), "the end comes after what came before it"
    assert waiting._came() == ([8], 8)
