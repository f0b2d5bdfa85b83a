"""The words of the framework as data: frozen, slotted, free of torch, clocks and files."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from coe.errors import ImageError
from coe.helpers.allowed_text import Reading
from coe.helpers.arithmetic import finite
from coe.helpers.preprocessing import Outputs, Preprocessing


class Verdict(StrEnum):
    """The judgement of a component or a board. The members stand in the order of their severity.

    Example:
        >>> print(max(Verdict.OK, Verdict.NG, Verdict.REVIEW, key=lambda verdict: verdict.severity))
        NG
    """

    OK = "OK"
    REVIEW = "REVIEW"
    NG = "NG"

    @property
    def severity(self) -> int:
        """0 for OK, 1 for REVIEW, 2 for NG."""
        return _SEVERITIES[self]


_SEVERITIES = {verdict: severity for severity, verdict in enumerate(Verdict)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the most severe verdict; OK if there is none."""
    return max(verdicts, key=_SEVERITIES.__getitem__, default=Verdict.OK)


FULL = "fp32"
"""Full precision: the variant whose findings count whatever their margin."""


def again_id(expert: str) -> str:
    """Return the id under which an expert looks again in full precision, after a doubtful finding of a lesser variant.

    No expert of a board file can have this id, because names there contain no '@'. Do not parse the id: to learn which
    expert looked again, make the second ids of all experts of the board, and compare.
    """
    return f"{expert}@{FULL}"


NOTHING = "none"
"""The label of a detector's finding when it sees nothing above its threshold."""


class Shown(StrEnum):
    """What an expert is shown in its exam; none of it may pass."""

    MISSING = "missing"
    """A piece of the part's surroundings lies over the part."""
    TURNED = "turned"
    """A good part, turned by 180 degrees."""
    NEIGHBOUR = "neighbour"
    """Another part of the same board in the window."""
    UNTAUGHT = "untaught"
    """Bad pictures of one label, judged by an expert that learned without this label."""


@dataclass(frozen=True, slots=True)
class GoodLimits:
    """How far a picture of a good part lies from its reference at most.

    `largest` is the largest difference that lasts, in grey levels; `misfit` is what the correlation with the reference
    lacks of 1. `pictures` is the number of good parts that say so. They hold for the reference of this checksum, "" for
    any.
    """

    largest: float
    misfit: float
    pictures: int
    reference: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError for limits over which no picture could lie."""
        if not (0 < self.largest < math.inf and 0 <= self.misfit < math.inf):
            raise ValueError(f"limits of {self.largest} grey levels and a misfit of {self.misfit} are not limits")


@dataclass(frozen=True, slots=True)
class Expert:
    """One trained model with its own weights, as the rules name it.

    `weights` is the expert's place in the store, `input_size` the longer side of its input in pixels. `reject` holds
    the labels that speak against a part: they lead to NG or REVIEW in some step of the rules. `variant` is the
    precision of the weights.

    `temperature` makes its scores honest, and boxes of a label of `ignore_under` with a lower, honest score do not
    count; see `coe.board.scores`.

    `preprocessing` and `outputs` come from its manifest; None: the manifest does not say, and the kind's own count.
    `reads` is there for experts that read a text or a code. `alternates` is the number of references in whose frames it
    learned, or of looks of good parts that it learned without one. `stops` says of items of its exam whether it lets
    none pass (True) or is blind to them (False), by component, "" for those without an own entry; an item that the exam
    does not tell is left out. `limits` are those of
    an expert that compares, by the id of the reference, "" for references that come with pictures; without any, nobody
    has measured good parts. `caution` is that of all its findings.
    """

    id: str
    kind: str
    labels: tuple[str, ...]
    input_size: int
    weights: str
    reject: frozenset[str] = frozenset()
    variant: str = FULL
    temperature: float = 1.0
    ignore_under: Mapping[str, float] = field(default_factory=dict, hash=False)
    preprocessing: Preprocessing | None = None
    outputs: Outputs | None = None
    reads: Reading | None = None
    alternates: int = 1
    stops: Mapping[str, Mapping[Shown, bool]] = field(default_factory=dict, hash=False)
    limits: Mapping[str, GoodLimits] = field(default_factory=dict, hash=False)
    caution: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """One object that a detector saw. `xyxy` are pixels of the original image, with the origin at the top left.

    Example:
        >>> Box("bridge", 0.9, (10.0, 4.0, 22.5, 18.0)).to_dict()
        {'label': 'bridge', 'score': 0.9, 'xyxy': [10.0, 4.0, 22.5, 18.0]}
    """

    label: str
    score: float
    xyxy: tuple[float, float, float, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the box as values of JSON."""
        return {"label": self.label, "score": finite(self.score, 6), "xyxy": [finite(x, 2) for x in self.xyxy]}


@dataclass(frozen=True, slots=True)
class Heat:
    """Where an expert sees something, over the whole image: `rows` x `columns` of `values`, 0 to 255, row by row."""

    rows: int
    columns: int
    values: bytes

    def __post_init__(self) -> None:
        """Raise ValueError if there is not one value for each place."""
        if min(self.rows, self.columns) < 1 or len(self.values) != self.rows * self.columns:
            raise ValueError(f"a heat map of {self.rows} x {self.columns} places has {len(self.values)} values")

    def to_dict(self) -> dict[str, Any]:
        """Return the map as values of JSON; its values in base64."""
        return {"rows": self.rows, "columns": self.columns, "values": base64.b64encode(self.values).decode()}


@dataclass(frozen=True, slots=True)
class Likeness:
    """What a good part shows that is nearest to where an image deviates most: a square of `side` pixels.

    `pixels` are its bytes in RGB, row by row; `box` is x1, y1, x2, y2 in the image, the square that it stands beside,
    which may reach out of the image.
    """

    side: int
    pixels: bytes
    box: tuple[float, float, float, float]

    def __post_init__(self) -> None:
        """Raise ValueError if there are not three bytes for each pixel."""
        if self.side < 1 or len(self.pixels) != 3 * self.side**2:
            raise ValueError(f"a picture of {self.side} x {self.side} pixels has {len(self.pixels)} bytes")

    def to_dict(self) -> dict[str, Any]:
        """Return it as values of JSON; its pixels in base64."""
        pixels = base64.b64encode(self.pixels).decode()
        return {"side": self.side, "pixels": pixels, "box": [round(value, 1) for value in self.box]}


@dataclass(frozen=True, slots=True)
class Finding:
    """One expert's answer about one image; `boxes` is empty for a classifier.

    A detector says every label for which it has a box; `label` and `score` are those of its deciding box. `margin`,
    from 0 to 1, is the distance to another answer: for a classifier the lead of the likeliest label over the next, for
    a detector the least change of its scores that would add or remove a label. It is 0 if the kind does not tell.

    `doubt` says why a person must look at the image whatever the scores are, as when it does not fit its reference; it
    is empty without such a doubt. A finding in doubt never leads to OK. `heat` is there if the kind makes heat maps and
    saw something, `likeness` if it can also show what good parts look like there. `read` is what an expert read, and
    `allowed` the patterns that it was compared with. `reference` is the id of the alternate that was taken, where a
    component names several references. `caution` says what may pass whatever the pixels are, as small defects of an
    expert that was taught with few pixels; it changes no verdict.

    Example:
        >>> box = Box("bridge", 0.9, (10.0, 4.0, 22.5, 18.0))
        >>> Finding("joint", "fp32", "bridge", 0.9, boxes=(box,)).best_scores()
        {'bridge': 0.9}
    """

    expert: str
    variant: str
    label: str
    score: float
    boxes: tuple[Box, ...] = ()
    margin: float = 0.0
    doubt: str = ""
    heat: Heat | None = field(default=None, repr=False)
    likeness: Likeness | None = field(default=None, repr=False)
    read: str | None = None
    allowed: tuple[str, ...] = ()
    reference: str = ""
    caution: str = ""

    @property
    def reading(self) -> str:
        """What was read and what was allowed, in words; empty for an expert that does not read."""
        if self.read is None:
            return ""
        said = f"reads '{self.read}'" if self.read else "reads nothing"
        return f"{said}; allowed: {', '.join(self.allowed)}" if self.allowed else said

    @property
    def labels(self) -> frozenset[str]:
        """The label of the finding, and the labels of all its boxes."""
        return frozenset((self.label, *(box.label for box in self.boxes)))

    def best_scores(self) -> dict[str, float]:
        """Return the best score of each label of the finding and its boxes."""
        scores = {self.label: self.score}
        for box in self.boxes:
            if box.label != self.label:  # the finding's score is that of the best box with its label
                scores[box.label] = max(scores.get(box.label, box.score), box.score)
        return scores

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as values of JSON; what is empty is left out, as `doubt`, `heat`, `read`."""
        return {
            "expert": self.expert,
            "variant": self.variant,
            "label": self.label,
            "score": finite(self.score, 6),
            **({"doubt": self.doubt} if self.doubt else {}),
            **({"heat": self.heat.to_dict()} if self.heat else {}),
            **({"likeness": self.likeness.to_dict()} if self.likeness else {}),
            **({"read": self.read, "allowed": list(self.allowed)} if self.read is not None else {}),
            **({"reference": self.reference} if self.reference else {}),
            **({"caution": self.caution} if self.caution else {}),
            "boxes": [box.to_dict() for box in self.boxes],
        }


@dataclass(frozen=True, slots=True)
class SecondLook:
    """A doubtful finding, and the finding of the same expert in full precision that replaces it."""

    first: Finding
    second: Finding

    @property
    def changed(self) -> bool:
        """Whether the second finding has other labels than the first."""
        return self.first.labels != self.second.labels


def second_looks(findings: Iterable[Finding]) -> list[SecondLook]:
    """Return each pair of a first and a second finding of one image, in the order of the first findings."""
    by_expert = {finding.expert: finding for finding in findings}
    return [
        SecondLook(finding, by_expert[again_id(expert)])
        for expert, finding in by_expert.items()
        if again_id(expert) in by_expert
    ]


def decided(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    """Return the deciding finding of each expert of the rules for one image: the second finding if there is one.

    The keys of `findings` are the ids under which the experts looked; `again_id` makes those of second looks.
    """
    second_ids = {again_id(expert) for expert in findings}
    return {
        expert: findings.get(again_id(expert), finding)
        for expert, finding in findings.items()
        if expert not in second_ids
    }


def deciding(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings of one image without those that a second finding replaces."""
    findings = tuple(findings)
    replaced = {look.first.expert for look in second_looks(findings)}
    return tuple(finding for finding in findings if finding.expert not in replaced)


def rule_of(board_key: str, component: str) -> str:
    """Return the name under which the router of a line has a component's rules; do not parse it.

    No component of another board has it: names in board files contain no '/', and no two boards share a key.
    """
    return f"{board_key}/{component}" if board_key else component


@dataclass(frozen=True, slots=True)
class Request:
    """One image to be judged. The pixels stay with the engine; decisions never need them.

    `due_s` is the time at which the result is due, on the clock of the line; infinity means that it is never due.
    `submitted_s` is the time of the call that handed the image in, on the same clock; None means the time of its
    arrival, as in the simulator. Comparisons ignore `submitted_s`, so that the requests of two runs are equal.

    `board` is the name of its board, "" where nobody says it. Two boards may use one name for different components, and
    two versions of a board too: `board_key` tells them apart.

    Example:
        >>> Request(7, "R0402-10K", image="SN1/R7.png", serial="SN1", refdes="R7").name
        'SN1/R7.png'
    """

    id: int
    component: str
    image: str = ""
    serial: str = ""
    refdes: str = ""
    due_s: float = math.inf
    submitted_s: float | None = field(default=None, compare=False)
    board: str = ""
    board_key: str = ""
    """The line's name for this version of the board's rules; "" if the line was opened for one board alone."""

    @property
    def name(self) -> str:
        """What sentences call the image: its name, or its number on the line."""
        return self.image or f"image {self.id}"

    @property
    def rule(self) -> str:
        """The name under which the router has the rules of its component."""
        return rule_of(self.board_key, self.component)

    def since_s(self, now: float) -> float:
        """Return the time from which its latency counts: when it was handed in, or `now`, the time of its arrival."""
        return now if self.submitted_s is None else self.submitted_s


class Stage(NamedTuple):
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
    """Why an image has no verdict, for programs; people read `Failure.reason`.

    Example:
        >>> FailureKind("damaged").is_of_picture
        True
    """

    IMAGE = "image"
    """The picture cannot be found, read, decoded or prepared, and no kind below says it more closely."""
    UNSUPPORTED = "unsupported"
    """The picture may be whole, and is in a format, or in a form of it, that is not read."""
    DAMAGED = "damaged"
    """A part of the picture is missing, or its bytes do not add up to one."""
    LATE = "late"
    """The picture's file was not read in time: its disk or share does not answer."""
    RULES = "rules"
    """The rules do not say how to inspect it: the board lacks its component, or no rule covers an expert's label."""
    LOAD = "load"
    """An expert that the image needs cannot be loaded."""
    RUN = "run"
    """An expert that the image needs failed on it."""
    DEVICE = "device"
    """Every device that could finish the image is lost."""
    STOPPED = "stopped"
    """The line was stopped before the image had its result."""
    LINE = "line"
    """The line cannot go on, or did not accept the image."""
    SKIPPED = "skipped"
    """The image belongs to a unit of a panel that is marked as bad, or was named as bad."""

    @classmethod
    def of(cls, error: BaseException, otherwise: FailureKind) -> FailureKind:
        """Return what kind an ImageError says, which a user's kind may have raised; `otherwise` for other errors."""
        if not isinstance(error, ImageError):
            return otherwise
        return next((kind for kind in cls if kind.value == error.failure), cls.IMAGE)

    @property
    def is_of_picture(self) -> bool:
        """Whether the picture itself is at fault, or could not be read."""
        return self in (FailureKind.IMAGE, FailureKind.UNSUPPORTED, FailureKind.DAMAGED, FailureKind.LATE)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an image has no verdict: the kind for programs, and the reason as a sentence for people.

    Example:
        >>> Failure(FailureKind.DAMAGED, "R7.png ends too early; copy it again").kind
        <FailureKind.DAMAGED: 'damaged'>
    """

    kind: FailureKind
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The reply to a request; each request gets exactly one. Either `verdict` or `failure` is set, never both.

    `latency_s` counts from the time when the request was handed in. `late` results came after the request was due.
    `accepted` names what the board file accepts to pass, without which an OK would be REVIEW.

    Example:
        >>> with Inspector("demo") as line:
        ...     result = line.submit("R7.png", "R0402-10K").result()
        >>> print(result.verdict, result.error, [finding.label for finding in result.findings])
        OK None ['ok']
    """

    request: Request
    verdict: Verdict | None
    findings: tuple[Finding, ...]
    latency_s: float
    failure: Failure | None = None
    late: bool = False
    accepted: tuple[Shown, ...] = ()

    @property
    def error(self) -> str | None:
        """The sentence that says why there is no verdict; None if there is a verdict."""
        return self.failure.reason if self.failure is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as values of JSON, as a line of `results.jsonl` has them; numbers that are none are None.

        json.dumps(result.to_dict(), allow_nan=False)
        """
        request = self.request
        return {
            "image": request.image,
            **({"board": request.board} if request.board else {}),
            "serial": request.serial,
            "component": request.component,
            "refdes": request.refdes,
            "verdict": self.verdict.value if self.verdict else None,
            **({"accepted": [item.value for item in self.accepted]} if self.accepted else {}),
            "findings": [finding.to_dict() for finding in self.findings],
            "latency_s": finite(self.latency_s, 6),
            "late": self.late,
            "error": self.error,
            "failure": self.failure.kind.value if self.failure else None,
        }

    def _repr_html_(self) -> str:
        """Return the result as a table, for a notebook; `coe.draw` shows it in its image."""
        rows = [
            (f.expert, f.label, "" if finite(f.score, 3) is None else f"{f.score:.3f}", len(f.boxes) or "", f.doubt)
            for f in deciding(self.findings)
        ]
        titles = ("expert", "label", "score", "boxes", "doubt") if rows else ()
        part = self.request.refdes or self.request.component
        head = " ".join(filter(None, (self.request.serial, part, self.verdict or f"no verdict: {self.error}")))
        table = "".join(
            f"<tr>{''.join(f'<{tag}>{html.escape(str(cell))}</{tag}>' for cell in row)}</tr>"
            for tag, row in [("th", titles), *(("td", row) for row in rows)]
            if row
        )
        return f"<table><caption>{html.escape(head)}</caption>{table}</table>"

    @classmethod
    def refused(cls, request: Request, failure: Failure, now: float) -> Result:
        """Return the reply to a request that no expert has judged."""
        return cls(request, None, (), max(0.0, now - request.since_s(now)), failure, now > request.due_s)
