"""Trials: a version of a recipe inspects stored boards again, beside the line. No verdict changes.

The gate starts a process for each trial and ends with it; a trial that was not finished begins anew. The process reads
pictures and rows, and tells the gate what it counts: one of the least priority must not hold the lock of the database,
for which the line waits.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from coe.board import calibration_file
from coe.core import Result, Verdict
from coe.errors import ImageError, sentence_of
from coe.helpers.strict_model import StrictModel
from coe.helpers.system import usable_cores
from coe.inspector.asked_boards import AskedBoard
from coe.pictures.picture_file import PictureFile
from coe.serve.component_pictures import CropPlace, Cutter
from coe.serve.database import row_types, states, trial_rows, views
from coe.serve.database.connecting import Database, DatabaseError, open_database
from coe.serve.database.repairs import SuspectedPictures
from coe.serve.database.tables import StoredTrial, View
from coe.serve.database.trial_rows import StoredBoard, StoredPart, TrialNews
from coe.serve.enums import LineState, TrialState, Truth
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.serve.statistics import AskedCount, Figure, Unit, figure
from coe.serve.worker.product import RECIPES, write_board

if TYPE_CHECKING:
    from coe.inspector.line import Line

MOST_BOARDS = 100_000
MOST_CHANGED = 60  # so many parts of each kind of change are listed; all are counted
TOGETHER = 100  # how many boards are read at a time
NOTE_S = 1.0  # how often the counts are told
LOOKS = 16  # how many pictures are inspected until the trial rests
BESIDE = 0.05  # the share of the machine's cores that a trial takes while the line works, up to one core
REST_S = 1.0  # how often a trial that rests looks whether the line still works
AGAIN_S, TRIES = 5.0, 10  # after this time and so often a trial whose database was away begins again


class TrialRequest(StrictModel):
    """A version of a recipe (the active one if none is given), on so many of its newest boards."""

    recipe: str
    version: Annotated[int, Field(ge=1)] | None = None
    boards: Annotated[int, Field(ge=1, le=MOST_BOARDS)] = 1000


@dataclass(frozen=True, slots=True)
class TriedPart:
    """A part: what is true, what the line said, and what the trial says; None if its picture is gone or unreadable."""

    board: int
    refdes: str
    component: str
    truth: Truth
    today: Verdict
    then: Verdict | None
    call: int | None = None


_CHANGES = {
    (Truth.DEFECT, False): "new escapes",
    (Truth.DEFECT, True): "escapes found",
    (Truth.GOOD, False): "false calls gone",
    (Truth.GOOD, True): "new false calls",
}
_UNKNOWN_CHANGES = {False: "calls gone, truth not known", True: "new calls, truth not known"}
CHANGES = (*_CHANGES.values(), *_UNKNOWN_CHANGES.values())  # the kinds of changes, the gravest first


@dataclass(slots=True)
class TrialCounts:
    """Counts by truth, called and called in the trial, and changed parts; no expert judged those `left_out`."""

    boards: int = 0
    left_out: int = 0
    seen: Counter[tuple[Truth, bool, bool | None]] = field(default_factory=Counter)
    changed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, part: TriedPart) -> None:
        """Count a part."""
        called, would = part.today is not Verdict.OK, None if part.then is None else part.then is not Verdict.OK
        self.seen[part.truth, called, would] += 1
        if would not in (None, called):
            listed = self.changed.setdefault(_change(part.truth, would=would is True), [])
            if len(listed) < MOST_CHANGED:
                listed.append(asdict(part))

    def number(self, truths: Iterable[Truth], *, today: bool | None = None, then: Iterable[bool | None] = ()) -> int:
        """Return how many parts there are of some truths, which the line called or not, and the trial would or not."""
        wanted, would = set(truths), set(then)
        return sum(
            count
            for (truth, called, would_be), count in self.seen.items()
            if truth in wanted and today in (None, called) and (not would or would_be in would)
        )

    @property
    def changes(self) -> dict[str, int]:
        """How many parts change, by the kind of change, the gravest first."""
        found = Counter[str]()
        for (truth, called, would_be), count in self.seen.items():
            if would_be not in (None, called):
                found[_change(truth, would=would_be is True)] += count
        return {kind: found[kind] for kind in CHANGES if found[kind]}

    @property
    def json(self) -> dict[str, Any]:
        """The counts as JSON, as `of_json` reads them."""
        seen = [[*key, count] for key, count in self.seen.items()]
        return {"boards": self.boards, "left_out": self.left_out, "changed": self.changed, "seen": seen}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> TrialCounts:
        """Return the counts of a row; none for an empty one."""
        seen = Counter({(Truth(row[0]), row[1], row[2]): row[3] for row in data.get("seen", ())})
        return cls(data.get("boards", 0), data.get("left_out", 0), seen, dict(data.get("changed", {})))


def _change(truth: Truth, *, would: bool) -> str:
    return _CHANGES.get((truth, would), _UNKNOWN_CHANGES[would])


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of the line, and the same of the tried recipe on the same parts."""

    today: Figure
    then: Figure


def compared(counts: TrialCounts) -> list[Compared]:
    """Return escapes and false calls, today's beside those of the tried recipe.

    What nobody has looked at is no evidence: parts that the trial would call, and that nobody was asked about, lie
    between the bounds of its false calls.
    """
    number, defect, unsaid = counts.number, [Truth.DEFECT], [Truth.OPEN, Truth.UNASKED]
    known, innocent = number(defect), number([Truth.GOOD, *unsaid])
    unsure = number([Truth.GOOD], then=[None]) + number(unsaid, then=[True, None])
    return [
        Compared(
            _escapes(known, number(defect, today=False), 0),
            _escapes(known, number(defect, then=[False]), number(defect, then=[None])),
        ),
        Compared(
            _false_calls(innocent, number([Truth.GOOD], today=True), number(unsaid, today=True)),
            _false_calls(innocent, number([Truth.GOOD], then=[True]), unsure),
        ),
    ]


def _escapes(known: int, missed: int, unknown: int) -> Figure:
    definition = "known defects that are not called / known defects: confirmed calls and reported escapes"
    asked = AskedCount(known, unknown)
    return figure("escapes", "Escapes", Unit.PERCENT, definition, missed, known, "no known defects", asked)


def _false_calls(innocent: int, false: int, unsure: int) -> Figure:
    definition = "1,000,000 x parts answered as good that are called / parts without a known defect"
    asked = AskedCount(false + unsure, unsure)
    return figure("false_calls", "False calls", Unit.PPM, definition, false, innocent, "no parts", asked)


# The process


class TrialOver(Exception):
    """The trial was dropped, or the gate is gone."""


def main(config: ServeConfig, id: int, news: Connection) -> None:
    """Carry out a trial for the gate, which reads the other end of `news`."""
    with suppress(BrokenPipeError):  # the gate is gone
        run(config, id, news.send)


def run(config: ServeConfig, id: int, tell: Callable[[TrialNews], None]) -> None:
    """Carry out a trial, and tell how far it is and why it fails; it begins again when its database was away."""
    with closing(open_database(config.database_url)) as database:
        for left in reversed(range(TRIES)):
            try:
                asked = database.read(row_types.get, StoredTrial, id)
                assert asked is not None
                with closing(_RunningTrial(config, database, asked, tell)) as trial:
                    return trial.run()
            except TrialOver:
                return
            except Exception as error:  # whatever it is: the page says so, and the next trial begins
                if not (isinstance(error, DatabaseError) and left):
                    reason = sentence_of(error, during="stored boards were inspected again")
                    return tell(TrialNews(TrialState.FAILED, {}, reason))
                time.sleep(AGAIN_S)


@dataclass(eq=False)
class _RunningTrial:
    config: ServeConfig
    database: Database
    trial: StoredTrial
    tell: Callable[[TrialNews], None]
    _counts: TrialCounts = field(default_factory=TrialCounts)
    _line: Line | None = None
    _noted_s: float = 0.0
    _parent: int = field(default_factory=os.getppid)

    def __post_init__(self) -> None:
        self._pictures = Pictures(self.config.pictures)
        self._cutter = Cutter(self.config.limits.pixels)
        self._board_file = self.config.data / RECIPES / f"trial-{self.trial.id}.yaml"
        self._pace = TrialPace(min(1.0, BESIDE * usable_cores()), self._line_works, self._wait)

    def run(self) -> None:
        """Inspect the stored boards; raises TrialOver."""
        self._note()
        before_id, left = self.trial.newest_id + 1, TrialRequest.model_validate(self.trial.asked).boards
        while left > 0:
            limit = min(left, TOGETHER)
            ids = self.database.read(trial_rows.boards_before, self.trial.recipe, before_id, limit=limit)
            if not ids:
                break
            with self.database.reading() as connection:
                boards = list(trial_rows.stored(connection, ids, SuspectedPictures(connection)))
                shown = {part.view_id for board in boards for part in board.parts if part.view_id is not None}
                files = views.of_ids(connection, shown)
            for board in boards:
                self._judge(board, files)
            before_id, left = ids[-1], left - len(ids)
        self._note()
        self.tell(TrialNews(TrialState.DONE, self._counts.json))

    def close(self) -> None:
        """Close its line."""
        if self._line is not None:
            self._line.close()
            for file in (self._board_file, calibration_file.path_for(self._board_file)):
                file.unlink(missing_ok=True)

    def _note(self) -> None:
        """Tell the counts; raises TrialOver if nobody wants them."""
        self._noted_s = time.monotonic()
        trial = self.database.read(row_types.get, StoredTrial, self.trial.id)
        if os.getppid() != self._parent or trial is None or trial.state not in trial_rows.UNFINISHED:
            raise TrialOver
        self.tell(TrialNews(TrialState.RUNNING, self._counts.json))

    def _note_in_time(self) -> None:
        if time.monotonic() - self._noted_s >= NOTE_S:
            self._note()

    def _line_works(self) -> bool:
        return self.database.read(states.line) is LineState.RUNNING

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._note_in_time()

    def _judge(self, board: StoredBoard, files: Mapping[int, View]) -> None:
        for start in range(0, len(board.parts), LOOKS):
            some = board.parts[start : start + LOOKS]
            looks = [self._look(part, files) for part in some]
            for part, look in zip(some, looks, strict=True):
                then = None if look is None else look.result().verdict
                said = (part.refdes, part.component, part.truth, part.today, then, part.call)
                self._counts.add(TriedPart(board.id, *said))
            self._pace.rest()
        self._counts.boards += 1
        self._counts.left_out += board.left_out
        self._note_in_time()

    def _look(self, part: StoredPart, files: Mapping[int, View]) -> Future[Result] | None:
        view = files.get(part.view_id or 0)
        place = CropPlace.of(part.place)
        if view is None or view.removed_us is not None or (part.place is not None and place is None):
            return None
        line = self._opened()
        try:
            image: Any = PictureFile(self._pictures.path(view.file), view.sha256)
            if place is not None:
                image = self._cutter.cut(image, place, self.config.limits.pixels)
            return line.submit(image, part.component, refdes=part.refdes)
        except (OSError, ImageError):  # retention was quicker, or the file is damaged
            return None

    def _opened(self) -> Line:
        """Return the line of the trial, with the tried recipe and memory of its own; raises CoeError."""
        if self._line is None:
            from coe.inspector.line import Line  # torch takes seconds to import

            path = write_board(self._board_file, RecipeContent.model_validate(self.trial.content))
            line_options = self.config.line.options([AskedBoard(path)], memory=self.config.trials.memory, cluster=None)
            self._line = line = Line(line_options.but(executors="cpu=1", threads=1, profile=None))
            line.ready()
            self._pace.begin()
        return self._line


class TrialPace:
    """Gives processor time to a trial: as much as it likes, but `share` of a core while the line works.

    The least priority alone sets no bound: a trial would take whole cores that the line leaves free for a moment, and
    with them the caches and the memory's speed that the line needs. `line_works` says whether it does, and `wait` waits
    for so many seconds at most.
    """

    def __init__(
        self,
        share: float,
        line_works: Callable[[], bool],
        wait: Callable[[float], None],
        now_s: Callable[[], float] = time.monotonic,
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._share, self._line_works, self._wait = share, line_works, wait
        self._now_s, self._cpu_s = now_s, cpu_s
        self.begin()

    def begin(self) -> None:
        """Count the time from now on."""
        self._began_s, self._began_cpu_s = self._now_s(), self._cpu_s()

    def rest(self) -> None:
        """Rest for the processor time that was taken since the last rest, or until the line does not work."""
        until_s = self._began_s + (self._cpu_s() - self._began_cpu_s) / self._share
        while (left_s := until_s - self._now_s()) > 0 and self._line_works():
            self._wait(min(left_s, REST_S))
        self.begin()
