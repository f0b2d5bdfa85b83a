"""The thread that hands pictures to an `Inspector`. It alone may wait for room; the loop never does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coe.core import Failure, FailureKind, Request, Result
from coe.errors import ImageError, LineClosed, sentence_of
from coe.pictures.image_source import ImageLike
from coe.pictures.picture_file import PictureFile
from coe.serve import failpoints
from coe.serve.worker.items import Item
from coe.serve.worker.locating import Located
from coe.serve.worker.verdicts import UNSEEN_BY_LINE, BoardRun


@dataclass(frozen=True, slots=True)
class Found:
    """A component's result; `run` is the attempt that it belongs to, `at_s` when it came, on the monotonic clock."""

    run: BoardRun
    item: Item
    result: Result
    at_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """A board to hand in; `located` has the crops of a whole board, and is let go once they are handed in."""

    run: BoardRun
    items: Sequence[Item]
    located: Located | None


class Feeder:
    """Takes boards from the loop, hands their pictures in one by one, and gives results back through `found`.

    It rings when the loop has something to do: a board has all its results, a result is late, the line has failed. A
    result by itself gives the loop nothing to do, and each look of the loop takes the interpreter from the experts.
    """

    def __init__(self, now_s: Callable[[], float], ring: Callable[[], None]) -> None:
        self._now_s, self._ring = now_s, ring
        self._boards: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._found: queue.SimpleQueue[Found] = queue.SimpleQueue()
        self._handing = 0
        self._missing: dict[BoardRun, int] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="coe-feeder", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether every picture of every board was handed in, so that the line has room for another board."""
        with self._lock:
            return self._handing == 0

    def feed(self, run: BoardRun, located: Located | None = None) -> None:
        """Hand in the pictures of a board that have no result yet; the crops of a whole board come from `located`."""
        items = run.waiting
        with self._lock:
            self._handing += 1
            if items:
                self._missing[run] = len(items)
        self._boards.put(_Task(run, items, located))

    def found(self) -> list[Found]:
        """Return the results since the last call."""
        results = []
        while True:
            try:
                results.append(self._found.get_nowait())
            except queue.Empty:
                return results

    def close(self) -> None:
        """End the thread, once the line that it feeds is closed."""
        self._boards.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._feed_next():
            pass

    def _feed_next(self) -> bool:
        """Hand in a board, when there is one; False at the end. No picture of it is held here while none waits."""
        task = self._boards.get()
        if task is None:
            return False
        for item in task.items:
            self._hand_in(task, item)
        with self._lock:
            self._handing -= 1
        self._ring()
        return True

    def _hand_in(self, task: _Task, item: Item) -> None:
        run, product = task.run, task.run.product
        assert product is not None
        left_s = run.due_s - self._now_s()
        # The line's serial stands for one handing in of a board; serials of feeders may be missing or come back.
        serial = str(run.board.id)
        request = Request(0, item.component, item.refdes, serial, item.refdes)
        try:
            future = product.line.submit(
                _image(task, item),
                item.component,
                serial=serial,
                refdes=item.refdes,
                name=f"{serial}/{item.refdes}",
                # The station decides by due times itself; a strategy that does not heed them inspects in its own order.
                within_s=left_s if 0 < left_s < float("inf") and product.line.hurries else None,
                board=product.name,
            )
        except LineClosed as error:
            self._answer(run, item, Result.refused(request, Failure(FailureKind.LINE, str(error)), 0.0))
        except Exception as error:  # one picture that cannot be handed in must not stop the others
            reason = sentence_of(error, during="the picture was handed in")
            self._answer(run, item, Result.refused(request, Failure(FailureKind.IMAGE, reason), 0.0))
        else:
            failpoints.reached(failpoints.Failpoint.SUBMITTED)
            future.add_done_callback(lambda done: self._answer(run, item, done.result()))

    def _answer(self, run: BoardRun, item: Item, result: Result) -> None:
        self._found.put(Found(run, item, result, self._now_s()))
        with self._lock:
            self._missing[run] -= 1
            is_last = self._missing[run] == 0
            if is_last:
                del self._missing[run]
        if is_last or run.is_decided or (result.failure is not None and result.failure.kind in UNSEEN_BY_LINE):
            self._ring()


def _image(task: _Task, item: Item) -> ImageLike:
    """Return the picture of a component; a crop is cut now, and the line copies it. Raises ImageError."""
    if item.image is not None:
        return PictureFile(item.image, item.sha256)
    if task.located is None:
        raise ImageError(f"{item.refdes} has no crop")
    return task.located.crop(item.refdes)
