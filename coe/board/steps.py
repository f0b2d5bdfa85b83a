"""The places in the rules: which expert looks, what follows from each of its labels, and where components begin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from coe.core import Shown, Verdict

_REFDES = frozenset({"d", "vd", "cr", "led", "u", "ic", "q", "vt"})
"""Letters of reference designators (IEEE 315) of diodes, LEDs, ICs and transistors."""
_PACKAGES = re.compile(
    r"leds?|[a-z]*diodes?|schottky|zener|transistors?|mosfets?|opto[a-z]*|photocoupler|ics?|cpu|mcu|eeprom"
    r"|t?sot|sod|sm[abc]|do|to|sc|d2?pak"  # packages of diodes and transistors
    r"|[a-z]{0,4}(so|soic|sop|soj|qfp|qfn|dfn|bga|lga|csp|dip|plcc)n?"  # packages of ICs, as TSSOP, UFQFPN
    r"|cp|ce|ct|cpol|elko|elec|elcap|electrolytic|tant|tantal|tantalum|polarised|polarized"  # polarised capacitors
)
"""Words of packages and of names of components."""


def polarity_is_known(component: str, refdes: str = "") -> bool:
    """Tell whether a part has a polarity by the table, from the name of its component, or its reference designator.

    A name is taken in runs of letters, in any case: `CP_Elec_4x5.3` holds `cp` and `elec`. Its first run may be the
    letters of a reference designator, as in `D-LED` and `U7`.
    """
    words = re.findall(r"[a-z]+", component.lower())
    letters = re.match(r"[a-z]*", refdes.rpartition("/")[2].lower())
    return (
        (letters is not None and letters[0] in _REFDES)
        or bool(words[:1] and words[0] in _REFDES)
        or any(map(_PACKAGES.fullmatch, words))
    )


GIVEN = "given"
"""The word in the rules for a reference that comes with each picture."""
DECIDING = (Shown.MISSING, Shown.TURNED)
"""What no part may be that is OK, unless the board file accepts it: other items of an exam change no verdict."""


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """A place in the rules: an expert, the least score that counts, and the outcome of each label.

    A label scored under `min_score`, or under its own score in `min_scores`, goes to REVIEW. `shares` is the expected
    share of each label. `stops` is that of the expert for the component, once its weights are known.
    """

    expert: str
    min_score: float
    # Not in the repr, which would repeat a shared step for every path that leads to it.
    outcomes: Mapping[str, Outcome] = field(repr=False)
    shares: Mapping[str, float] = field(default_factory=dict, repr=False)
    min_scores: Mapping[str, float] = field(default_factory=dict, repr=False)
    stops: Mapping[Shown, bool] = field(default_factory=dict, repr=False)

    def believes(self, label: str, score: float) -> bool:
        """Tell whether a label's score is high enough; a score that is not a number never is."""
        return score >= self.least(label)

    def least(self, label: str) -> float:
        """Return the least score with which a label counts."""
        return max(self.min_score, self.min_scores.get(label, 0.0))

    @property
    def rejects(self) -> bool:
        """Whether a label of its expert speaks against a part; one that only chooses what follows stops nothing."""
        return any(outcome in (Verdict.NG, Verdict.REVIEW) for outcome in self.outcomes.values())

    def next_steps(self) -> list[Step]:
        """Return the steps that may follow directly, each once."""
        steps = [step for outcome in self.outcomes.values() if isinstance(outcome, tuple) for step in outcome]
        return list(dict.fromkeys(steps))

    def walk(self) -> Iterator[Step]:
        """Yield this step and all that may follow, each once: predecessors first, then in the order of the rules."""
        order: list[Step] = []
        seen: set[Step] = set()

        def visit(step: Step) -> None:
            if step not in seen:
                seen.add(step)
                for following in reversed(step.next_steps()):
                    visit(following)
                order.append(step)

        visit(self)
        return reversed(order)

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield the edges expert -> expert that this step and its followers imply."""
        for step in self.walk():
            for following in step.next_steps():
                yield step.expert, following.expert


Outcome = Verdict | tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Consequence:
    """The consequence of a finding: a certain verdict (None if there is none yet), and steps that must pass too.

    At least one of the two is there.
    """

    verdict: Verdict | None
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """What an expert lets pass, by its exam, and no other expert on the way to OK stops."""

    item: Shown
    expert: str


@dataclass(frozen=True, slots=True)
class Component:
    """A component type: its count on a board, and the step with which its inspection begins.

    `references` are the ids in the store of what its pictures are compared with, several if good parts look in several
    ways; if it `is_given`, each picture brings its own. With `stop_at_ng` an image that is NG needs no further finding.

    `polarity` is what the board file says, None if it does not. It `accepts` that such parts pass.
    """

    name: str
    count: float
    root: Step
    references: tuple[str, ...] = ()
    is_given: bool = False
    stop_at_ng: bool = False
    polarity: bool | None = None
    accepts: frozenset[Shown] = frozenset()

    def has_polarity(self, refdes: str = "") -> bool:
        """Tell whether a part that is turned by 180 degrees is a defect: as the board file says, else by its names."""
        return polarity_is_known(self.name, refdes) if self.polarity is None else self.polarity

    def gaps(self, experts: Collection[str], refdes: str = "") -> tuple[Gap, ...]:
        """Return what would pass if these experts alone have looked at a part; accepted gaps too."""
        steps = [step for step in self.root.walk() if step.expert in experts and step.stops]
        gaps = []
        for item in DECIDING if steps else ():
            blind = [step.expert for step in steps if step.stops.get(item) is False]
            matters = item is not Shown.TURNED or self.has_polarity(refdes)
            if blind and matters and not any(step.stops.get(item) and step.rejects for step in steps):
                gaps.append(Gap(item, blind[0]))
        return tuple(gaps)

    def steps_of(self, expert: str) -> list[Step]:
        """Return the steps in which an expert looks at this component."""
        return [step for step in self.root.walk() if step.expert == expert]


@dataclass(frozen=True, slots=True)
class Escalation:
    """When an expert looks again in full precision: at a margin under `below`, expected for `share` of its findings.

    A score so near to the least that counts is in doubt as well.
    """

    below: float
    share: float


def labels_of(components: Iterable[Component]) -> frozenset[str]:
    """Return all labels that the experts of components may say."""
    return frozenset(label for one in components for step in one.root.walk() for label in step.outcomes)
