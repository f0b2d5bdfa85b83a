"""The words of the framework as data: frozen, slotted, free of torch, clocks and files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Verdict(StrEnum):
    """What is said of a component or a board; the order is the order of severity."""

    OK = "OK"
    REVIEW = "REVIEW"
    NG = "NG"

    @property
    def severity(self) -> int:
        """0 for OK, 1 for REVIEW, 2 for NG."""
        return list(Verdict).index(self)


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the most severe verdict; OK if there is none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.OK)


def added(numbers: Iterable[float]) -> float:
    """Add numbers up, with one rounding; inf if that is too much.

    Not `sum`, which rounds otherwise from Python 3.12 on: a tie that falls otherwise is another run.
    """
    try:
        return math.fsum(numbers)
    except OverflowError:
        return math.inf


FULL = "fp32"
"""The variant that is believed whatever its margin: full precision."""


def again_id(expert: str) -> str:
    """Return the id under which an expert looks again in full precision, where its lesser variant was in doubt.

    No expert of a board file can have it: '@' is no letter of a name there. The id is never taken apart: whoever has
    to know which expert looked again makes the ids of second looks from those of the board, and compares.
    """
    return f"{expert}@{FULL}"


NOTHING = "none"
"""The label of a detector's finding when it sees nothing above its threshold."""


@dataclass(frozen=True, slots=True)
class Expert:
    """One trained model with its own weights, as the rules name it.

    `weights` is the expert's place in the store, `input_size` the side of its square input in pixels, `reject`
    the labels that speak against a part: those that lead to NG or REVIEW in some step of the rules. `variant` is the
    precision of its weights.
    """

    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int
    weights: str
    reject: frozenset[str] = frozenset()
    variant: str = FULL


@dataclass(frozen=True, slots=True)
class Box:
    """One thing that a detector saw: `xyxy` are pixels of the original image, origin top left."""

    label: str
    score: float
    xyxy: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one expert says of one image; `boxes` is empty for a classifier.

    A detector says every label that it has a box of; `label` and `score` are those of the box that speaks for it.
    `margin` says how far it was from saying something else, 0 to 1: a classifier's lead of the likeliest label over the
    next, the least change of a detector's scores by which a label would come or go. 0 where a kind does not tell.
    """

    expert: str
    variant: str
    label: str
    score: float
    boxes: tuple[Box, ...] = ()
    margin: float = 0.0

    @property
    def labels(self) -> frozenset[str]:
        """All that it says: its own label and those of its boxes."""
        return frozenset((self.label, *(box.label for box in self.boxes)))


@dataclass(frozen=True, slots=True)
class SecondLook:
    """A doubtful finding, and the one of the same expert in full precision that decides in its place."""

    first: Finding
    second: Finding

    @property
    def changed(self) -> bool:
        """Whether the second look said something else."""
        return self.first.labels != self.second.labels


def second_looks(findings: Iterable[Finding]) -> list[SecondLook]:
    """Return the findings of one image that were made again, in their order."""
    by_expert = {finding.expert: finding for finding in findings}
    return [
        SecondLook(finding, by_expert[again_id(expert)])
        for expert, finding in by_expert.items()
        if again_id(expert) in by_expert
    ]


def decided(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return by expert of the rules what was decided of one image: where an expert looked again, the second finding.

    `findings` are by the id under which an expert looked, as `again_id` makes it for second looks.
    """
    second_ids = {again_id(expert) for expert in findings}
    return {
        expert: findings.get(again_id(expert), finding)
        for expert, finding in findings.items()
        if expert not in second_ids
    }


def deciding(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of one image without those that were made again."""
    findings = tuple(findings)
    made_again = {look.first.expert for look in second_looks(findings)}
    return tuple(finding for finding in findings if finding.expert not in made_again)


@dataclass(frozen=True, slots=True)
class Request:
    """One image to be judged. The pixels stay with the engine; decisions never need them.

    `due_s` is when its result is due, on the clock of the line that it is for; infinity: whenever. `submitted_s` is
    when it was handed in, on the same clock; None where that is when it arrives, as in the simulator. It says nothing
    of which image this is, so that requests of two runs compare equal.
    """

    id: int
    component: str
    image: str = ""
    serial: str = ""
    refdes: str = ""
    due_s: float = math.inf
    submitted_s: float | None = field(default=None, compare=False)

    def since_s(self, now: float) -> float:
        """Return when its time began: when it was handed in, or now, when it arrives."""
        return now if self.submitted_s is None else self.submitted_s


@dataclass(frozen=True, slots=True)
class Stage:
    """One expert's turn on one request."""

    request_id: int
    expert: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Stages of one expert that run together on one executor."""

    expert: str
    stages: tuple[Stage, ...]

    def __len__(self) -> int:
        return len(self.stages)


class FailureKind(StrEnum):
    """Why an image has no verdict, for programs: `Failure.reason` is for people alone."""

    IMAGE = "image"
    """The picture cannot be found, read, decoded or prepared."""
    RULES = "rules"
    """Nothing says how to inspect it: the board has no such component, or no rule for what an expert said."""
    LOAD = "load"
    """An expert that the image needs cannot be loaded."""
    RUN = "run"
    """An expert that the image needs failed on it."""
    DEVICE = "device"
    """Every device that could go on with the image is lost."""
    STOPPED = "stopped"
    """The line was stopped before."""
    LINE = "line"
    """The line cannot go on, or did not take the image."""
    UNKNOWN = "unknown"
    """A file of results from before there were kinds does not say."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an image has no verdict: the kind for programs, and the reason as a sentence for people."""

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The one reply that every request gets. `verdict` is None exactly when `failure` says why.

    `latency_s` counts from when the request was handed in. `late` says that it came after the request was due.
    """

    request: Request
    verdict: Verdict | None
    findings: tuple[Finding, ...]
    latency_s: float
    failure: Failure | None = None
    late: bool = False

    @property
    def error(self) -> str | None:
        """The sentence that says why there is no verdict; None where there is one."""
        return self.failure.reason if self.failure is not None else None

    @classmethod
    def refused(cls, request: Request, failure: Failure, now: float) -> Result:
        """Return the reply to a request of which no expert says anything."""
        return cls(request, None, (), max(0.0, now - request.since_s(now)), failure, now > request.due_s)
