"""What stands in a board file: its keys and the types of their values; `coe.board.rules` gives them their meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coe import config
from coe.board.steps import GIVEN
from coe.core import NOTHING
from coe.helpers.allowed_text import Reading
from coe.helpers.spelling import composed
from coe.helpers.strict_model import Name, Share, StrictModel

Temperature = Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)]


MOST_LABELS, LONGEST_LABEL = 1000, 100


def _listed(names: object) -> object:
    """Return a single name as a list of one: an error then names the place and the name that is wrong."""
    return (names,) if isinstance(names, str) else names


References = Annotated[tuple[Name, ...], BeforeValidator(_listed)]
Accepted = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Judging(StrictModel):
    """The keys with which a step judges its expert's findings; the expert's entry may give defaults for them."""

    min_score: Share | None = None
    min_scores: dict[str, Share] | None = None
    shares: dict[str, Share] | None = None
    then: dict[str, Any] | None = None


class StepSpec(Judging):
    """A place where an expert inspects."""

    inspect: str


class ComponentSpec(StepSpec):
    """A component type: its first step, its count on a board, and the name of its reference, several, or `given`.

    `polarity` says whether a turned part is a defect, `accepts` what may pass although no expert stops it.
    """

    count: Annotated[float, Field(ge=0, le=config.MAX_COMPONENTS, allow_inf_nan=False)] = 1.0
    reference: References | None = None
    polarity: bool | None = None
    accepts: Accepted = ()


class ExpertSpec(Judging):
    """An expert, and the defaults of every step that inspects with it."""

    kind: str
    labels: Annotated[list[str], Field(min_length=1, max_length=MOST_LABELS)]
    input: Annotated[int, Field(ge=config.MIN_INPUT, le=config.MAX_INPUT)]
    reject: tuple[str, ...] = ()
    weights: str | None = None
    temperature: Temperature = 1.0
    ignore_under: dict[str, Share] = Field(default_factory=dict)
    reads: Reading | None = None

    def stated_scores(self) -> StatedScores:
        """Return what the entry states of the expert's scores."""
        return StatedScores(
            temperature=self.temperature, min_scores=self.min_scores or {}, ignore_under=self.ignore_under
        )


class StatedScores(StrictModel):
    """What a file states of an expert's scores."""

    temperature: Temperature = 1.0
    min_scores: dict[str, Share] = Field(default_factory=dict)
    ignore_under: dict[str, Share] = Field(default_factory=dict)


class BoardSpec(StrictModel):
    """A board file. With `stop_at_ng` an image that is NG is not looked at any further.

    `bits` says how many low bits of 16-bit samples count in its pictures.
    """

    board: Name
    bits: Annotated[int, Field(ge=config.MIN_SAMPLE_BITS, le=config.MAX_SAMPLE_BITS)] | None = None
    stop_at_ng: bool = False
    experts: Annotated[dict[Name, ExpertSpec], Field(min_length=1)]
    components: Annotated[dict[Name, ComponentSpec], Field(min_length=1)]


def label_fault(labels: Sequence[object]) -> str | None:
    """Return what is wrong with the labels of an expert, as the end of a sentence; None if nothing is."""
    if len(labels) > MOST_LABELS:
        return f"{len(labels):,} labels are more than {MOST_LABELS:,}"
    for index, label in enumerate(labels):
        if not isinstance(label, str):
            return f"a label must be text, not {label!r:.40}"
        if not label.strip():
            return "a label is empty"
        if label != label.strip():
            return f"label {label!r:.60} begins or ends with a space"
        if len(label) > LONGEST_LABEL:
            return f"label '{label[:40]}...' has {len(label):,} characters, more than {LONGEST_LABEL}"
        if not label.isprintable():
            return f"label {label!r:.60} has characters that cannot be shown"
        if label == NOTHING:
            return f"'{NOTHING}' is reserved for a detector that sees nothing"
        if composed(label) in map(composed, map(str, labels[:index])):
            return f"label '{label}' occurs twice"
    return None


def references_fault(names: Sequence[str] | None) -> str:
    """Return what is wrong with the names of a component's references, as the end of a sentence; "" if nothing is."""
    if names is None:
        return ""
    if not names:
        return "its list of references is empty; name a reference, or leave `reference:` out"
    if GIVEN in names:
        return f"`{GIVEN}` stands alone: a picture brings its one reference; remove it from the list"
    if twice := sorted({name for name in names if names.count(name) > 1}):
        return f"its list of references names {', '.join(twice)} twice; write each name once"
    return ""
