"""Whole boards: where the components lie in their picture, found on a thread, one board ahead of the experts.

The loop never waits for a picture, and one picture at a time is looked at. A picture is held from then until the feeder
has handed its crops in, so two pictures are in memory at most: the board that is fed, and the board after it.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.core import Failure, FailureKind, Request, Result
from coe.errors import ImageError, LineClosed, sentence_of
from coe.pictures.image_source import ImageLike
from coe.pictures.picture_file import PictureFile
from coe.placement import BoardPicture, Layout, Site, outline, read_board
from coe.serve import failpoints
from coe.serve.database import board_rows
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board
from coe.serve.enums import CallReason
from coe.serve.worker.line_watch import LineWatch, picture_hang
from coe.serve.worker.verdicts import NOWHERE, UNSEEN_BY_LINE, BoardRun, Item, Items, Unseen, Whole, is_file, skipped
from coe.serve.worker.write_report import WorkerReport


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The items of a whole board, its picture (tens of megabytes) and sites; `lost` is the path of a missing file."""

    items: Items
    is_registered: bool
    lost: Path | None
    picture: BoardPicture | None
    sites: Mapping[str, Site]

    def crop(self, refdes: str) -> NDArray[np.uint8]:
        """Return the crop of an item, (H, W, 3) uint8 BGR; raises ImageError if it cannot be cut."""
        if self.picture is None:
            raise ImageError(f"{refdes} has no crop")
        return self.picture.crop(self.sites[refdes])


def locate(whole: Whole, items: Items) -> Located:
    """Read the picture of a board, find the board, and say which `items` can be inspected; raises nothing."""
    lost = None if is_file(whole.path) else whole.path
    try:
        layout = whole.cut.layout
        picture = read_board(PictureFile(whole.path, whole.sha256), layout, "", skip=whole.bad_marks, bits=whole.bits)
        is_registered = picture.location is not None and picture.location.registered
        sites = {site.name: site for site in layout.sites}
        return Located(_items(whole, layout, picture), is_registered, lost, picture, sites)
    except Exception as error:  # one picture must not stop the line
        reason = sentence_of(error, during="the board was located")
        failed = [
            Unseen(item.refdes, item.component, CallReason.FAILED, reason, whole.view_id, NOWHERE)
            for item in items.seen
        ]
        return Located(Items([], [*failed, *items.unseen], reason), False, lost, None, {})


def _items(whole: Whole, layout: Layout, picture: BoardPicture) -> Items:
    location = picture.location
    bad = dict.fromkeys(whole.bad_marks, "it was named as bad") | dict(location.skipped if location else {})
    is_registered = location is not None and location.registered and not picture.unread
    seen: list[Item] = []
    unseen: list[Unseen] = []
    for unit, why in bad.items():
        place = _place(picture, [site for site in layout.sites if site.unit == unit], whole.bits)
        unseen.append(skipped(unit, why, whole.view_id, place))
    for site in layout.sites:
        if site.unit in bad:
            continue
        refusal, place = picture.refusal(site), _place(picture, [site], whole.bits)
        if refusal is None:
            seen.append(Item(site.name, site.component, whole.view_id, None, place))
            continue
        reason = CallReason.OUTSIDE if is_registered else CallReason.NOT_REGISTERED
        if refusal.failure is not None:
            reason, detail = CallReason.FAILED, refusal.failure.reason
        else:
            detail = refusal.findings[0].doubt
        unseen.append(Unseen(site.name, site.component, reason, detail, whole.view_id, place))
    return Items(seen, unseen, _reason(picture, whole.serials))


def _reason(picture: BoardPicture, handed_in: Mapping[str, str]) -> str:
    """Return why the whole board must be reviewed; "" if it is registered, and its code says its serial."""
    if picture.location is None:
        return picture.why
    if not picture.location.registered:
        return f"not registered: {picture.location.why}"
    if picture.unread:
        return next(iter(picture.unread.values()))
    for unit, read in picture.serials.items() if picture.layout.codes else ():
        if unit not in picture.location.skipped and read != handed_in.get(unit, read):
            return f"its code says '{read}', and it was submitted as '{handed_in[unit]}'"
    return ""


def _place(picture: BoardPicture, sites: Sequence[Site], bits: int | None) -> Any:
    """Return where a crop lies in the picture, or the rectangle around several, as JSON."""
    fit = picture.location.fit if picture.location is not None else None
    if fit is None or picture.rgb is None:
        return NOWHERE
    height, width = picture.rgb.shape[:2]
    corners = np.concatenate([outline(site, fit, width, height).corners for site in sites])
    size = {"size": [sites[0].crop.width_px, sites[0].crop.height_px]} if len(sites) == 1 else {}
    counted = {} if bits is None else {"bits": bits}
    if len(sites) > 1:
        (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
        corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
    # Finer than a warp places its pixels, so that a crop can be cut again as it was.
    return {"polygon": [[round(float(x), 2), round(float(y), 2)] for x, y in corners], **size, **counted}


@dataclass(slots=True, eq=False)
class _Attempt:
    """A board that is being located, or that is located; `is_noted` says that its end is written."""

    board: Board
    future: Future[Located]
    is_noted: bool = False


class Locating:
    """Locates one board at a time; the loop's thread alone uses it."""

    def __init__(self, database: Database, ring: Callable[[], None], report: WorkerReport, watch: LineWatch) -> None:
        self._database, self._ring, self._report = database, ring, report
        self._since_s = math.inf
        # While a picture is looked at for ever, no other whole board would be located.
        watch.further.append(lambda: picture_hang(time.monotonic() - self._since_s, watch.hangs_after_s))
        self._thread = ThreadPoolExecutor(1, "coe-locating")
        self._attempt: _Attempt | None = None

    def look_at(self, board: Board, items_of: Callable[[Board], Items]) -> bool:
        """Begin to locate a board unless another is; return whether nothing is left. Counted first. DatabaseError."""
        attempt = self._attempt
        if board.request.get("whole") is None:
            return True
        if attempt is not None and attempt.board.id == board.id:
            if attempt.future.done() and not attempt.is_noted:
                self._note(attempt)
            return attempt.future.done()
        if attempt is not None and not attempt.future.done():
            return False
        self._attempt = None  # two pictures would be held
        items = items_of(board)
        if items.whole is None:
            return True
        with self._database.writing() as connection:
            if not board_rows.take_up(connection, board.id):
                return True  # it was aborted, and will not begin
        self._attempt = _Attempt(board, self._thread.submit(self._located, items.whole, items))
        self._attempt.future.add_done_callback(lambda _: self._ring())
        return False

    def of(self, board: Board) -> Located | None:
        """Return a board that was located; None if it was not."""
        attempt = self._attempt
        is_it = attempt is not None and attempt.board.id == board.id and attempt.future.done()
        return attempt.future.result() if attempt is not None and is_it else None

    def forget(self, board: Board) -> None:
        """Let a board go that was begun, decided or aborted."""
        if self._attempt is not None and self._attempt.board.id == board.id:
            self._attempt = None

    def _note(self, attempt: _Attempt) -> None:
        """Write that a board is located, or that its picture is gone."""
        board, found = attempt.board, attempt.future.result()
        if found.is_registered:
            self._database.write(board_rows.located, board.id)
            failpoints.reached(failpoints.Failpoint.LOCATED)
        if found.lost is not None:
            self._report.picture_gone(board.id, f"board {board.id}", found.lost)
        attempt.is_noted = True

    def close(self) -> None:
        """End the thread; the picture that it looks at comes to its end."""
        self._attempt = None
        self._thread.shutdown()

    def _located(self, whole: Whole, items: Items) -> Located:
        self._since_s = time.monotonic()
        try:
            failpoints.reached(failpoints.Failpoint.LOCATING)
            return locate(whole, items)
        finally:
            self._since_s = math.inf


# The thread that hands pictures to an `Inspector`. It alone may wait for room; the loop never does


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
            reason = sentence_of(error, during="the picture was submitted")
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
