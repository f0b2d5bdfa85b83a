"""Stop rules: what the last boards have in common that a person must hear of, and that may hold the line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from coe.config import counted
from coe.helpers.strict_model import StrictModel
from coe.serve.enums import By, CallReason, Outcome

MOST_BOARDS = 1000
Number = Annotated[int, Field(ge=1, le=MOST_BOARDS)]


class Countable(StrEnum):
    """What a rule counts."""

    CALLS = "calls"  # what experts called, unless a person has called it good
    CONFIRMED = "confirmed"  # calls that a person has confirmed
    LATE_BOARDS = "late boards"
    UNSEEN_BOARDS = "unseen boards"  # boards with a part that no expert could judge


_UNSEEN = {CallReason.NOT_REGISTERED, CallReason.OUTSIDE, CallReason.MISSING_VIEW, CallReason.FAILED}


class StopRule(StrictModel):
    """An alarm if `times` of the last `boards` boards have what it counts; in a row if `boards` is not given.

    Of calls, those count together that are the `same` in each of these; with `share` they must be at least so much of
    all calls of these boards. `hold` stops the line until an engineer clears the alarm.
    """

    counts: Countable = Countable.CALLS
    same: tuple[By, ...] = ()
    times: Number
    boards: Number | None = None
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    hold: bool = False

    @property
    def window(self) -> int:
        """How many boards it looks at."""
        return self.boards or self.times

    @property
    def of_calls(self) -> bool:
        """Whether it counts calls, and not whole boards."""
        return self.counts in (Countable.CALLS, Countable.CONFIRMED)

    def may_fire(self, board: Any) -> bool:
        """Whether a board, with its `late` and its number of `calls`, can have what it counts."""
        return bool(board.late if self.counts is Countable.LATE_BOARDS else board.calls)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.window < self.times:
            raise ValueError(f"{self.window} boards cannot match {self.times} times; `boards` must be at least `times`")
        if self.of_calls != bool(self.same):
            ways = ", ".join(By)
            raise ValueError(
                f"`same` states what calls have in common; name some of {ways}"
                if self.of_calls
                else f"`same` is for calls; leave it out with `counts: {self.counts}`"
            )
        if self.share is not None and not self.of_calls:
            raise ValueError(f"`share` is for calls; leave it out with `counts: {self.counts}`")
        return self


StopRules = Mapping[str, StopRule]  # rules by their names
NO_RULES: StopRules = {}


@dataclass(frozen=True, slots=True)
class SeenCall:
    """A call as rules see it; `label` is the person's if there is one, `feeder` empty where nobody knows it."""

    refdes: str
    component: str
    label: str
    reason: CallReason
    outcome: Outcome | None = None
    expert: str = ""
    feeder: str = ""


@dataclass(frozen=True, slots=True)
class SeenBoard:
    """A decided board as rules see it."""

    id: int
    late: bool = False
    calls: Sequence[SeenCall] = ()


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a rule has found: `about` names rule and subject, `boards` are those that have it, the newest first."""

    about: str
    message: str
    boards: Sequence[int]


def alarms(name: str, rule: StopRule, boards: Sequence[SeenBoard], touched: int) -> list[Alarm]:
    """Return a rule's alarms over the newest boards for what `touched` has, so that none is raised again."""
    window = boards[: rule.window]
    keys = {board.id: _keys(rule, board) for board in window}
    together = Counter(key for counted in keys.values() for key in counted)
    total, found = together.total(), []
    for key in dict.fromkeys(keys.get(touched, ())):
        if not all(key):  # a call without a known feeder, or on a board that is no panel, is like no other
            continue
        having = [board.id for board in window if key in keys[board.id]]
        share = together[key] / total
        if len(having) >= rule.times and share >= (rule.share or 0.0):
            found.append(_alarm(name, rule, key, having, share))
    return found


def _keys(rule: StopRule, board: SeenBoard) -> list[tuple[str, ...]]:
    match rule.counts:
        case Countable.LATE_BOARDS:
            return [()] if board.late else []
        case Countable.UNSEEN_BOARDS:
            return [()] if any(call.reason in _UNSEEN for call in board.calls) else []
        case Countable.CONFIRMED:
            counted = (call for call in board.calls if call.outcome is Outcome.CONFIRMED)
        case Countable.CALLS:
            counted = (
                call
                for call in board.calls
                if call.reason is CallReason.EXPERT and call.outcome is not Outcome.FALSE_CALL
            )
    return [tuple(one.of(call) for one in rule.same) for call in counted]


def _alarm(name: str, rule: StopRule, key: Sequence[str], having: Sequence[int], share: float) -> Alarm:
    said = [f"{one} {value}" for one, value in zip(rule.same, key, strict=True)]
    what = ", ".join(said) if said else rule.counts.value
    number = len(having)
    where = f"{counted(number, 'board')} in a row" if rule.window == rule.times else f"{number} of {rule.window} boards"
    word = "confirmed, " if rule.counts is Countable.CONFIRMED else ""
    much = f", {100 * share:.0f} % of all calls" if rule.share is not None else ""
    message = f"stop rule '{name}': {what} ({word}on {where}{much})" if said else f"stop rule '{name}': {where} {what}"
    return Alarm(f"{name}: {what}", message, having)
