"""A trial in a process of its own: it judges stored boards again, beside the line and with less priority.

The gate starts the process and ends with it; a trial that was not finished begins anew. It reads pictures and rows, and
tells the gate what it counts: a process of the least priority must not hold the lock of the database, for which the
line waits.

A part is judged from its stored findings where they tell; what they cannot tell has no verdict: an expert that was not
asked then, boxes that were ignored then and may count now, an expert or a reference that is another now.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from coe.board import calibration_file
from coe.board.rules import Rules
from coe.board.scores import adjusted, honest
from coe.board.steps import Component, Step
from coe.core import Expert, Finding, Result, Verdict, decided, worst
from coe.errors import CoeError, ImageError, RulesError, sentence_of
from coe.helpers.system import usable_cores
from coe.inspector.asked_boards import AskedBoard
from coe.pictures.picture_file import PictureFile
from coe.results.result_lines import finding_of
from coe.serve.component_pictures import CropPlace, Cutter
from coe.serve.database import recipe_versions, row_types, states, trial_rows, views
from coe.serve.database.connecting import Database, DatabaseError, open_database
from coe.serve.database.tables import StoredTrial, View
from coe.serve.database.trial_rows import StoredBoard, StoredPart, TrialNews
from coe.serve.enums import LineState, TrialState
from coe.serve.exportable import SuspectedPictures
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.serve.trial_counts import TrialCounts, TrialRequest, TriedPart
from coe.serve.worker.product import RECIPES, write_board

if TYPE_CHECKING:
    from coe.inspector.line import Line


TOGETHER = 100
"""How many boards are read at a time."""
NOTE_S = 1.0
"""How often the counts are told."""
LOOKS = 16
"""How many pictures are inspected until the trial rests."""
BESIDE = 0.05
"""The share of the machine's cores that a trial takes for pictures while the line works, up to one core."""
AGAIN_S = 5.0
"""After this time a trial whose database was away begins anew."""
TRIES = 10
"""So often a trial begins: a database that answers and yet fails each time may be damaged."""


class TrialOver(Exception):
    """The trial was dropped, or the gate is gone."""


def main(config: ServeConfig, id: int, news: Connection) -> None:
    """Carry out a trial for the gate, which reads the other end of `news`."""
    with suppress(BrokenPipeError):  # the gate is gone
        run(config, id, news.send)


def run(config: ServeConfig, id: int, tell: Callable[[TrialNews], None]) -> None:
    """Carry out a trial, and tell how far it is; what fails is told as its reason.

    It begins anew when its database was away, as while the server was started again.
    """
    database, parent, left = open_database(config.database_url), os.getppid(), TRIES
    try:
        while os.getppid() == parent:
            try:
                asked = database.read(row_types.get, StoredTrial, id)
                assert asked is not None
                left -= 1
                return _carry_out(_RunningTrial(config, database, asked, tell), is_last=left == 0)
            except DatabaseError:
                time.sleep(AGAIN_S)
    finally:
        database.close()


def _carry_out(trial: _RunningTrial, *, is_last: bool) -> None:
    try:
        trial.run()
    except TrialOver:
        return
    except Exception as error:  # whatever it is: the page says so, and the next trial begins
        if isinstance(error, DatabaseError) and not is_last:
            raise
        reason = sentence_of(error, during="stored boards were judged again")
        trial.tell(TrialNews(TrialState.FAILED, trial.counts, reason))
    finally:
        trial.close()


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
        self._asked = TrialRequest.model_validate(self.trial.asked)
        self._content = RecipeContent.model_validate(self.trial.content)
        self._rules = self._content.board(self.trial.recipe)
        self._rejudge = cache(self._new_rejudge)
        self._pictures = Pictures(self.config.pictures)
        self._cutter = Cutter(self.config.limits.pixels)
        self._board_file = self.config.data / RECIPES / f"trial-{self.trial.id}.yaml"
        self._pace = TrialPace(min(1.0, BESIDE * usable_cores()), self._line_works, self._wait)

    def run(self) -> None:
        """Judge the stored boards; raises TrialOver."""
        self._note()
        before_id, left = self.trial.newest_id + 1, self._asked.boards
        while left > 0:
            limit = min(left, TOGETHER)
            ids = self.database.read(trial_rows.boards_before, self.trial.recipe, before_id, limit=limit)
            if not ids:
                break
            self._take(ids)
            before_id, left = ids[-1], left - len(ids)
        self._note()
        self.tell(TrialNews(TrialState.DONE, self.counts))

    @property
    def counts(self) -> Mapping[str, Any]:
        """What it has counted, as JSON."""
        return self._counts.json

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
        self.tell(TrialNews(TrialState.RUNNING, self.counts))

    def _note_in_time(self) -> None:
        if time.monotonic() - self._noted_s >= NOTE_S:
            self._note()

    def _line_works(self) -> bool:
        return self.database.read(states.line) is LineState.RUNNING

    def _wait(self, seconds: float) -> None:
        time.sleep(seconds)
        self._note_in_time()

    def _take(self, ids: Sequence[int]) -> None:
        with self.database.reading() as connection:
            boards = list(trial_rows.stored(connection, ids, SuspectedPictures(connection)))
            shown = {part.view_id for board in boards for part in board.parts if part.view_id is not None}
            files = views.of_ids(connection, shown) if self._asked.inspect else {}
        for board in boards:
            self._judge(board, files)
            self._note_in_time()

    def _judge(self, board: StoredBoard, files: Mapping[int, View]) -> None:
        rejudge = self._rejudge(board.recipe_id)
        verdicts = [rejudge.verdict(part.component, part.findings, part.today) for part in board.parts]
        if self._asked.inspect:
            unknown = (index for index, verdict in enumerate(verdicts) if verdict is None)
            while some := list(islice(unknown, LOOKS)):
                looks = {index: self._look(board.parts[index], files) for index in some}
                for index, look in looks.items():
                    verdicts[index] = None if look is None else look.result().verdict
                    self._counts.inspected += verdicts[index] is not None
                self._pace.rest()
        for part, verdict in zip(board.parts, verdicts, strict=True):
            said = (part.refdes, part.component, part.truth, part.today, verdict, part.call)
            self._counts.add(TriedPart(board.id, *said))
        self._counts.boards += 1
        self._counts.left_out += board.left_out

    def _new_rejudge(self, recipe_id: int) -> Rejudge:
        recipe = self.database.read(recipe_versions.get, recipe_id)
        then: Rules = RecipeContent.model_validate(recipe.content).board(recipe.name)
        return Rejudge(then, self._rules, self._asked.anew)

    def _look(self, part: StoredPart, files: Mapping[int, View]) -> Future[Result] | None:
        """Hand in the picture of a part; None if it is gone, or if nobody knows where the part lies."""
        view = files.get(part.view_id or 0)
        place = CropPlace.of(part.place)
        if view is None or view.removed_us is not None or (part.place is not None and place is None):
            return None
        try:
            image: Any = PictureFile(self._pictures.path(view.file), view.sha256)
            if place is not None:
                image = self._cutter.cut(image, place, self.config.limits.pixels)
            return self._opened().submit(image, part.component, refdes=part.refdes)
        except (OSError, ImageError):  # retention was quicker, or the file is damaged
            return None

    def _opened(self) -> Line:
        """Return the line of the trial, with the tried recipe and memory of its own; raises CoeError."""
        if self._line is None:
            from coe.inspector.line import Line  # torch takes seconds to import, and most trials inspect nothing

            path = write_board(self._board_file, self._content)
            line_options = self.config.line.options([AskedBoard(path)], memory=self.config.trials.memory, cluster=None)
            self._line = line = Line(line_options.but(executors="cpu=1", threads=1, profile=None))
            line.ready()
            self._pace.begin()
        return self._line


REST_S = 1.0
"""How often a trial that rests looks whether the line still works."""


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


class Rejudge:
    """Judges by the rules `now` what was found under the rules `then`. Findings of `anew` count as not there."""

    def __init__(self, then: Rules, now: Rules, anew: Collection[str] = ()) -> None:
        self._now = now
        self._kept = {
            id: _Adjusting(then.experts[id], expert)
            for id, expert in now.experts.items()
            if id in then.experts and id not in anew and _sees_alike(then.experts[id], expert)
        }
        self._alike = {name for name, one in now.components.items() if _compares_alike(then.components.get(name), one)}
        same = {id for id in self._kept if then.experts[id] == now.experts[id]}
        self._unchanged = {
            name
            for name in self._alike
            if _shape(then.components[name]) == (shape := _shape(now.components[name]))
            and same >= {one[0] for one in shape}
        }

    def verdict(self, component: str, rows: Sequence[Mapping[str, Any]], today: Verdict) -> Verdict | None:
        """Return the verdict of a part by the rows of its findings (`Finding.to_dict`); None if they do not tell it.

        `today` is that under the rules `then`.
        """
        if component in self._unchanged:
            return today
        rule = self._now.components.get(component)
        if rule is None or component not in self._alike:
            return None
        by_expert = decided({row["expert"]: finding_of(row) for row in rows})
        return self._walk(rule.root, by_expert)

    def _walk(self, root: Step, by_expert: Mapping[str, Finding]) -> Verdict | None:
        waiting, seen, verdicts, is_known = [root], {root}, list[Verdict](), True
        while waiting:
            step = waiting.pop()
            finding = self._finding(step.expert, by_expert)
            if finding is None:
                is_known = False
                continue
            try:
                consequence = self._now.router.next(step, finding)
            except RulesError:  # no rule covers the label, so the part is called
                verdicts.append(Verdict.REVIEW)
                continue
            if consequence.verdict is not None:
                verdicts.append(consequence.verdict)
            waiting += [one for one in consequence.steps if one not in seen]
            seen |= set(consequence.steps)
        verdict = worst(verdicts)
        return verdict if is_known or verdict is Verdict.NG else None

    def _finding(self, expert: str, by_expert: Mapping[str, Finding]) -> Finding | None:
        finding, adjusting = by_expert.get(expert), self._kept.get(expert)
        return None if finding is None or adjusting is None else adjusting(finding)


class _Adjusting:
    """Gives a finding the honest scores, and the boxes, that it has by another entry of its expert."""

    def __init__(self, then: Expert, now: Expert) -> None:
        self._undo, self._now = 1 / then.temperature, now
        self._is_same = (then.temperature, then.ignore_under) == (now.temperature, now.ignore_under)
        lower = honest_scores(now.ignore_under, 1 / now.temperature)
        self._may_lack_boxes = any(
            score > lower.get(label, 0.0) for label, score in honest_scores(then.ignore_under, self._undo).items()
        )

    def __call__(self, finding: Finding) -> Finding | None:
        if self._is_same:
            return finding
        if self._may_lack_boxes:
            return None
        boxes = tuple(replace(box, score=honest(box.score, self._undo)) for box in finding.boxes)
        raw = replace(finding, score=honest(finding.score, self._undo), boxes=boxes)
        try:
            return adjusted(raw, self._now)
        except CoeError:  # the new entry ignores boxes of an expert that gives none
            return None


def honest_scores(scores: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Return scores by label with their odds divided by a temperature."""
    return {label: honest(score, temperature) for label, score in scores.items()}


def _sees_alike(then: Expert, now: Expert) -> bool:
    """Whether two entries of one name are one expert, so that it would find the same boxes and labels."""
    bare, other = (replace(one, temperature=1.0, ignore_under={}, reject=frozenset()) for one in (then, now))
    return bare == other


def _shape(component: Component) -> list[tuple[Any, ...]]:
    """Return what the rules of a component say, in a form in which equal rules are equal; experts come first."""
    steps = list(component.root.walk())
    places = {step: place for place, step in enumerate(steps)}
    return [
        (
            step.expert,
            step.min_score,
            step.min_scores,
            {
                label: tuple(map(places.__getitem__, outcome)) if isinstance(outcome, tuple) else outcome
                for label, outcome in step.outcomes.items()
            },
        )
        for step in steps
    ]


def _compares_alike(then: Component | None, now: Component) -> bool:
    if then is None or (then.polarity, then.accepts) != (now.polarity, now.accepts):  # stored doubts may not hold
        return False
    return (then.references, then.is_given) == (now.references, now.is_given)
