"""A begun board, and the decision that its results give. What has no verdict of the experts is REVIEW.

Nothing unseen becomes OK. No database, no clock; one thread at a time; a crash forgets a begun board, and it is begun
again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from coe.board.router import Router
from coe.board.steps import Step
from coe.core import Failure, FailureKind, Finding, Result, Verdict, decided, worst
from coe.errors import ConfigError, RulesError, sentence_of
from coe.placement import serial_of
from coe.serve.clock import SECOND_US
from coe.serve.database import board_rows
from coe.serve.database.board_rows import Amendment, Decision, GoodComponent
from coe.serve.database.tables import Board, NewCall, View
from coe.serve.enums import CallReason
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.request import BoardRequest

if TYPE_CHECKING:
    from coe.serve.worker.product import Product

NOWHERE: Mapping[str, Any] = {"polygon": []}  # of a component in a whole board, as long as nobody knows where it lies


@dataclass(frozen=True, slots=True)
class Item:
    """A component with its picture: a file with its `sha256`, or None for a crop of the board's picture.

    `place` says where it lies in the view, as JSON: `{"polygon": [[x, y], ...], "size": [width, height]}`, the corners
    in pixels of the view, from the upright crop's top left on and round, and the pixels of the crop; see
    `coe.serve.component_pictures.CropPlace`. It is None if the view shows the component alone.
    """

    refdes: str
    component: str
    view_id: int
    image: Path | None
    place: Any = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A component, or a whole unit, that no expert can look at: REVIEW, for a reason; with view and place if any."""

    refdes: str
    component: str
    reason: CallReason
    detail: str
    view_id: int | None = None
    place: Any = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A picture of a whole board, a file with its `sha256`; `cut` divides it, `bad_marks` are bad units.

    `bits` of its 16-bit samples count. `serials` are those of its units as the board was handed in.
    """

    view_id: int
    path: Path
    cut: WholeBoard
    bad_marks: Sequence[str]
    sha256: str
    bits: int | None = None
    serials: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Items:
    """What a board consists of, why all of it is in doubt, and the picture in which items are still to be located."""

    seen: Sequence[Item]
    unseen: Sequence[Unseen]
    reason: str = ""
    whole: Whole | None = None

    @property
    def number(self) -> int:
        """How many components there are."""
        return len(self.seen) + len(self.unseen)


def items_of(board: Board, content: Mapping[str, Any], views: Sequence[View], pictures: Pictures) -> Items:
    """Return the components of a board, in the order in which the request, or parts.csv, names them.

    `content` is that of the recipe's row. Components of a whole board are not located. A board whose components cannot
    be named has one that is unseen.
    """
    try:
        return _named(board, RecipeContent.model_validate(content), views, pictures)
    except Exception as error:  # rows of another version of the service: one board must not end the line
        reason = sentence_of(error, during="the components were named")
        return Items([], [Unseen("", "", CallReason.FAILED, reason)], reason)


def _named(board: Board, content: RecipeContent, views: Sequence[View], pictures: Pictures) -> Items:
    request = BoardRequest.model_validate(board.request)
    by_name: Mapping[str, View] = {view.name: view for view in views}
    if request.whole is not None:
        return _of_whole(request, content, by_name[request.whole], pictures)
    seen = [
        Item(shown.refdes, shown.component, view.id, pictures.path(view.file), sha256=view.sha256)
        for view, shown in ((by_name[name], shown) for name, shown in request.views.items())
    ]
    shown_refdes = {item.refdes for item in seen}
    detail = "the recipe names the component, but no picture of it arrived"
    unseen = [
        Unseen(refdes, component, CallReason.MISSING_VIEW, detail)
        for refdes, component in content.components.items()
        if refdes not in shown_refdes
    ]
    return Items(seen, unseen)


def _of_whole(request: BoardRequest, content: RecipeContent, view: View, pictures: Pictures) -> Items:
    try:
        if content.whole is None:
            raise ConfigError("the recipe does not say how whole boards are cut")
        sites = content.whole.layout.sites
    except ConfigError as error:  # the recipe was in order when the board was accepted, and an update refuses it
        return Items([], [Unseen("", "", CallReason.FAILED, str(error), view.id, NOWHERE)], str(error))
    bad = list(dict.fromkeys(request.bad_marks))
    units = content.whole.layout.units
    of_panel = {unit: serial_of(request.serial, unit) for unit in units} if request.serial else {}
    return Items(
        [Item(site.name, site.component, view.id, None, NOWHERE) for site in sites if site.unit not in bad],
        [skipped(unit, "it was named as bad", view.id) for unit in bad],
        whole=Whole(
            view.id, pictures.path(view.file), content.whole, bad, view.sha256, content.bits, of_panel | request.serials
        ),
    )


def skipped(unit: str, why: str, view_id: int, place: Any = NOWHERE) -> Unseen:
    """Return the item that stands for all components of a unit that is not inspected."""
    return Unseen(unit, "", CallReason.SKIPPED, f"unit '{unit}' is skipped: {why}", view_id, place)


UNSEEN_BY_LINE = (FailureKind.LINE, FailureKind.STOPPED)  # of the line itself: nobody has looked at the image
_LATE = "there was no finding when the board was due"


@dataclass(slots=True, eq=False)
class BoardRun:
    """A board under inspection by `product` (None: nobody looks); `due_s` is monotonic, infinity without due time."""

    board: Board
    items: Items
    due_s: float = math.inf
    product: Product | None = None
    is_decided: bool = False
    results: dict[str, Result] = field(default_factory=dict)  # by refdes, those that came in time
    afterwards: dict[str, Result] = field(default_factory=dict)  # after due time or decision: never OK
    late: list[Result] = field(default_factory=list)  # those of them that are not written yet

    @property
    def waiting(self) -> list[Item]:
        """The components that have no result yet."""
        return [item for item in self.items.seen if item.refdes not in self.results | self.afterwards]

    @property
    def is_complete(self) -> bool:
        """Whether every component that can be seen has its result."""
        return len(self.results) + len(self.afterwards) == len(self.items.seen)

    def take(self, refdes: str, result: Result, at_s: float) -> None:
        """Take in a component's result, which came at a time of the monotonic clock; a second one changes nothing.

        The decision may be written long after the due time, as while the database is locked. It tells what was known
        then.
        """
        if refdes in self.results or refdes in self.afterwards:
            return
        if self.is_decided or at_s >= self.due_s:
            self.afterwards[refdes] = result
            self.late.append(result)
        else:
            self.results[refdes] = result


def decision_of(run: BoardRun, now_us: int, failure: Failure | None = None) -> Decision:
    """Decide a board by what is known now: components without a result are late, or have a `failure`; REVIEW."""
    calls: list[NewCall] = []
    good: list[GoodComponent] = []
    for item in run.items.seen:
        result = run.results.get(item.refdes)
        if result is None:
            unjudged = (CallReason.FAILED, failure.reason) if failure else (CallReason.LATE, _LATE)
            calls.append(_review(item, *unjudged))
        elif result.verdict is Verdict.OK:
            rows = [finding.to_dict() for finding in result.findings]
            good.append(GoodComponent(item.refdes, item.component, item.view_id, item.place, rows))
        else:
            calls.append(_called(run, item, result))
    calls += [_review(part, part.reason, part.detail) for part in run.items.unseen]
    verdict = worst([call.verdict for call in calls])
    if verdict is Verdict.OK and (run.items.reason or not run.items.number):
        verdict = Verdict.REVIEW
    return Decision(
        board=run.board,
        verdict=verdict,
        decided_us=now_us,
        late=any(call.late for call in calls),
        calls=calls,
        good=good,
        reason=run.items.reason,
    )


def amendment_of(run: BoardRun, now_us: int) -> Amendment:
    """Return what late results add to a decided board: those that are worse than REVIEW may raise its severity."""
    by_refdes = {item.refdes: item for item in run.items.seen}
    raised: list[NewCall] = []
    for result in run.late:
        item = by_refdes[result.request.refdes]
        if result.verdict is Verdict.NG:
            raised.append(_called(run, item, result))
    return Amendment(run.board.id, now_us, raised)


def culprit(router: Router, component: str, findings: Sequence[Finding]) -> Finding | None:
    """Return the finding with the worst consequence by the rules, the first of several; None without findings."""
    rule = router.components.get(component)
    by_expert = decided({finding.expert: finding for finding in findings})
    if rule is None:
        return None
    worst_finding, worst_severity = None, -2
    for step in rule.root.walk():
        if (finding := by_expert.get(step.expert)) is not None:
            severity = _severity(router, step, finding)
            if severity > worst_severity:
                worst_finding, worst_severity = finding, severity
    return worst_finding


def _severity(router: Router, step: Step, finding: Finding) -> int:
    """Return how severe the consequence of a finding is by itself; -1 if other experts follow."""
    try:
        verdict = router.next(step, finding).verdict
    except RulesError:  # no rule covers the label, so the component has no verdict
        return Verdict.NG.severity
    return -1 if verdict is None else verdict.severity


def _called(run: BoardRun, item: Item, result: Result) -> NewCall:
    finding = culprit(run.product.router, item.component, result.findings) if run.product else None
    score = finding.score if finding and math.isfinite(finding.score) else None
    detail = result.error or (finding.doubt or finding.reading if finding else "")
    if result.failure is not None and result.failure.kind.is_of_picture and detail[:1].islower():
        detail = f"the picture {detail}"  # an ImageError begins with a verb, any other error with its type
    return _call_of(
        item,
        result.verdict or Verdict.REVIEW,
        CallReason.EXPERT if result.failure is None else CallReason.FAILED,
        detail=detail,
        expert=finding.expert if finding else "",
        label=finding.label if finding else "",
        score=score,
        late=result.late,
        findings=[finding.to_dict() for finding in result.findings],
    )


def _review(part: Item | Unseen, reason: CallReason, detail: str) -> NewCall:
    return _call_of(part, Verdict.REVIEW, reason, detail=detail, late=reason is CallReason.LATE)


def _call_of(part: Item | Unseen, verdict: Verdict, reason: CallReason, **more: Any) -> NewCall:
    where: dict[str, Any] = {"view_id": part.view_id, "place": part.place}
    return NewCall(part.refdes, part.component, verdict, reason, **where, **more)


def is_lost_image(result: Result, image: Path | None) -> bool:
    """Return whether the file of a picture could not be read; a disk that does not answer is not asked again."""
    if image is None or result.failure is None or not result.failure.kind.is_of_picture:
        return False
    return result.failure.kind is FailureKind.LATE or not is_file(image)


def is_file(path: Path) -> bool:
    """Return whether a file is there; on a disk that fails it is not."""
    try:
        return path.is_file()
    except OSError:
        return False


# The boards that wait for the worker, in the order of their acceptance
ALONE_FROM = 2  # after so many attempts that ended with the worker, a board is inspected alone
_TOGETHER = 500


@dataclass(frozen=True, slots=True)
class Queued:
    """A board that waits; `due_s` is on the monotonic clock, and infinity without a due time."""

    board: Board
    due_s: float


class Queue:
    """The undecided boards that the worker has not begun, as far as it has looked."""

    def __init__(self) -> None:
        self._waiting: dict[int, Queued] = {}
        # Due times with their boards, some of which have left: nobody looks at thousands of boards at each step.
        self._dues: list[tuple[float, int]] = []
        self._seen_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Queued]:
        """Yield the boards in their order."""
        return iter(list(self._waiting.values()))

    def look(self, connection: Connection, now_us: int, now_s: float) -> None:
        """Take in the boards that were accepted since the last look."""
        while True:
            new = board_rows.undecided(connection, after_id=self._seen_id, limit=_TOGETHER)
            for board in new:
                self._waiting[board.id] = queued = Queued(board, due_s(board, now_us, now_s))
                heapq.heappush(self._dues, (queued.due_s, board.id))
                self._seen_id = board.id
            if len(new) < _TOGETHER:
                return

    def first(self) -> Queued | None:
        """Return the board whose turn it is."""
        return next(iter(self._waiting.values()), None)

    def next_due(self) -> Queued | None:
        """Return the board that is due first."""
        while self._dues and self._dues[0][1] not in self._waiting:
            heapq.heappop(self._dues)
        return self._waiting[self._dues[0][1]] if self._dues else None

    def leave(self, id: int) -> None:
        """Take a board out: it was begun, decided or aborted."""
        self._waiting.pop(id, None)

    def come_back(self, boards_again: list[Queued]) -> None:
        """Put boards back that were begun, in their order before the others, because nobody has looked at them."""
        again = {queued.board.id: queued for queued in boards_again}
        self._waiting = dict(sorted((again | self._waiting).items()))
        for queued in boards_again:
            heapq.heappush(self._dues, (queued.due_s, queued.board.id))


def must_wait(board: Board, under_way: Sequence[Board]) -> bool:
    """Whether a board may not be inspected beside those that are under way."""
    return bool(under_way) and any(one.attempts >= ALONE_FROM for one in (board, *under_way))


def due_s(board: Board, now_us: int, now_s: float) -> float:
    """Return when a board is due on the monotonic clock; a clock set back gives it no more time than it had."""
    if board.due_us is None:
        return math.inf
    left_us = min(board.due_us - now_us, board.due_us - board.accepted_us)
    return now_s + left_us / SECOND_US
