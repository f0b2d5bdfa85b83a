"""What a trial is asked for, and what it counts: parts by what is true, what the line said, and what would be said.

A trial changes no verdict. What nobody has looked at is no evidence: parts that the tried recipe would call, and that
nobody was asked about, lie between the bounds of its false calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from coe.board.board_spec import BoardSpec, StatedScores
from coe.board.calibration_file import BoardCalibration, CalibratedExpert
from coe.core import NOTHING, Verdict
from coe.errors import RulesError, did_you_mean
from coe.helpers import strict_yaml
from coe.helpers.strict_model import Name, StrictModel, of_yaml
from coe.learn import calibration_text
from coe.serve.recipe_content import RecipeContent
from coe.serve.statistics import AskedCount, Figure, Unit, figure

MOST_CHANGED = 60
"""So many parts of each kind of change are listed; all are counted."""


class Truth(StrEnum):
    """What people have said of a part."""

    DEFECT = "defect"
    """A person confirmed it, or a later test found it."""
    GOOD = "good"
    """A person called it good."""
    ACCEPTED = "accepted"
    """There is a defect, and the board may pass with it: neither an escape nor a false call."""
    OPEN = "open"
    """It is a call that nobody has answered."""
    UNASKED = "unasked"
    """The line said OK, and nobody was asked."""


@dataclass(frozen=True, slots=True)
class TriedPart:
    """A part: what is true, what the line said, and what the tried recipe says; None if only a look would tell."""

    board: int
    refdes: str
    component: str
    truth: Truth
    today: Verdict
    then: Verdict | None
    call: int | None = None

    @property
    def is_called(self) -> bool:
        """Whether the line called it."""
        return self.today is not Verdict.OK

    @property
    def would_be_called(self) -> bool | None:
        """Whether the tried recipe would call it; None if nobody knows."""
        return None if self.then is None else self.then is not Verdict.OK


_Key = tuple[Truth, bool, bool | None]


@dataclass(slots=True)
class TrialCounts:
    """The counts of a trial, and the parts that change.

    `left_out` are parts that no expert had judged, as on a board that was not found: they say nothing of a recipe.
    """

    boards: int = 0
    left_out: int = 0
    inspected: int = 0
    seen: Counter[_Key] = field(default_factory=Counter)
    changed: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, part: TriedPart) -> None:
        """Count a part."""
        self.seen[part.truth, part.is_called, part.would_be_called] += 1
        if part.would_be_called not in (None, part.is_called):
            listed = self.changed.setdefault(_change(part.truth, would=part.would_be_called is True), [])
            if len(listed) < MOST_CHANGED:
                listed.append(asdict(part))

    def number(self, truths: Iterable[Truth], *, today: bool | None = None, then: Iterable[bool | None] = ()) -> int:
        """Return how many parts there are of some truths, which the line called or not, and the recipe would or not."""
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
        names = ("boards", "left_out", "inspected", "changed")
        return {name: getattr(self, name) for name in names} | {"seen": seen}

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> TrialCounts:
        """Return the counts of a row; none for an empty one."""
        seen = Counter({(Truth(row[0]), row[1], row[2]): row[3] for row in data.get("seen", ())})
        numbers = {name: data.get(name, 0) for name in ("boards", "left_out", "inspected")}
        return cls(**numbers, seen=seen, changed=dict(data.get("changed", {})))


_CHANGES = {
    (Truth.DEFECT, False): "new escapes",
    (Truth.DEFECT, True): "escapes found",
    (Truth.GOOD, False): "false calls gone",
    (Truth.GOOD, True): "new false calls",
}
_UNKNOWN_CHANGES = {False: "calls gone, truth not known", True: "new calls, truth not known"}
CHANGES = (*_CHANGES.values(), *_UNKNOWN_CHANGES.values())
"""The kinds of changes, the gravest first."""


def _change(truth: Truth, *, would: bool) -> str:
    return _CHANGES.get((truth, would), _UNKNOWN_CHANGES[would])


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of the line, and the same of the tried recipe on the same parts."""

    today: Figure
    then: Figure


def compared(counts: TrialCounts) -> list[Compared]:
    """Return escapes and false calls, today's beside those of the tried recipe, with bounds."""
    return [
        Compared(_escapes(counts, today=True), _escapes(counts, today=False)),
        Compared(_false_calls(counts, today=True), _false_calls(counts, today=False)),
    ]


def _escapes(counts: TrialCounts, *, today: bool) -> Figure:
    known = counts.number([Truth.DEFECT])
    missed = counts.number([Truth.DEFECT], today=False) if today else counts.number([Truth.DEFECT], then=[False])
    unknown = 0 if today else counts.number([Truth.DEFECT], then=[None])
    definition = "known defects that are not called / known defects: confirmed calls and reported escapes"
    return figure(
        "escapes", "Escapes", Unit.PERCENT, definition, missed, known, "no known defects", AskedCount(known, unknown)
    )


def _false_calls(counts: TrialCounts, *, today: bool) -> Figure:
    innocent = (Truth.GOOD, Truth.OPEN, Truth.UNASKED)
    unsaid = (Truth.OPEN, Truth.UNASKED)
    if today:
        false, unsure = counts.number([Truth.GOOD], today=True), counts.number(unsaid, today=True)
    else:
        false = counts.number([Truth.GOOD], then=[True])
        unsure = counts.number([Truth.GOOD], then=[None]) + counts.number(unsaid, then=[True, None])
    definition = "1,000,000 x parts that people called good, and that are called / parts that are no known defects"
    asked = AskedCount(false + unsure, unsure)
    return figure("false_calls", "False calls", Unit.PPM, definition, false, counts.number(innocent), "no parts", asked)


MOST_BOARDS = 100_000


class TriedScores(StrictModel):
    """Scores of an expert that are tried in the place of those that count: by label, as in a calibration."""

    min_scores: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)
    ignore_under: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


class TrialRequest(StrictModel):
    """A version of a recipe (the active one if none is given), with other scores, on so many of its newest boards.

    With `inspect` the pictures of parts are inspected again whose findings do not tell what the tried recipe says. The
    findings of experts in `anew` tell nothing, as after a training under the same name.
    """

    recipe: str
    version: Annotated[int, Field(ge=1)] | None = None
    scores: dict[Name, TriedScores] = Field(default_factory=dict)
    boards: Annotated[int, Field(ge=1, le=MOST_BOARDS)] = 1000
    inspect: bool = False
    anew: tuple[Name, ...] = ()


def tried(name: str, content: RecipeContent, scores: dict[str, TriedScores]) -> RecipeContent:
    """Return a recipe with other scores, in its calibration; raises RulesError for an unknown expert or label."""
    if not scores:
        return content
    path = Path(f"{name}.yaml")
    spec = of_yaml(strict_yaml.parse(path, content.rules.encode()), BoardSpec)
    entries = calibration_text.entries(path, content.calibration.encode()) if content.calibration else {}
    for expert, changed in scores.items():
        if expert not in spec.experts:
            raise RulesError(f"'{expert}' is not an expert of recipe '{name}'{did_you_mean(expert, spec.experts)}")
        labels = spec.experts[expert].labels
        for scored, known in ((changed.min_scores, [*labels, NOTHING]), (changed.ignore_under, labels)):
            for label in scored:
                if label not in known:
                    raise RulesError(f"'{label}' is not a label of '{expert}'{did_you_mean(label, known)}")
        stated = spec.experts[expert].stated_scores()
        before: StatedScores = entries.get(expert, stated)
        entries[expert] = CalibratedExpert(
            temperature=before.temperature,
            min_scores=before.min_scores | changed.min_scores,
            ignore_under=before.ignore_under | changed.ignore_under,
            stated=stated,
        )
    text = calibration_text.text(path, BoardCalibration(experts=entries, board=spec.board))
    found = content.model_copy(update={"calibration": text})
    found.board(name)
    return found
