"""Whole boards: where the components lie in their picture, found on a thread, one board ahead of the experts.

The loop never waits for a picture, and one picture at a time is looked at. A picture is held from then until the feeder
has handed its crops in, so two pictures are in memory at most: the board that is fed, and the board after it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.errors import ImageError, sentence_of
from coe.pictures.picture_file import PictureFile
from coe.placement import BoardPicture, Layout, Site, outline, read_board
from coe.serve import failpoints
from coe.serve.database import board_rows
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board
from coe.serve.enums import CallReason
from coe.serve.worker.items import NOWHERE, Item, Items, Unseen, Whole, skipped
from coe.serve.worker.line_watchers import LineWatch, picture_hang
from coe.serve.worker.verdicts import is_file
from coe.serve.worker.write_report import WorkerReport


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The items of a whole board with its picture, from which crops are cut; it holds tens of megabytes.

    `lost` is the path of the picture if its file is gone.
    """

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
    """Read the picture of a board with these `items`, find the board, and say what of it can be inspected.

    Raises nothing for any picture.
    """
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
            return f"its code says '{read}', and it was handed in as '{handed_in[unit]}'"
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
        """Begin to locate a whole board, unless another is being located; return whether nothing is left to locate.

        The attempt is counted before, because a picture may end the process. Raises DatabaseError.
        """
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
