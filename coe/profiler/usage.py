"""How likely an image needs each expert: by the rules, and by the routing of sample images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from coe.board.rules import Rules
from coe.core import Failure, FailureKind, Finding, Request
from coe.errors import RulesError
from coe.inspector.profile import UsageRow
from coe.scheduler.cases import Cases

_NO_FINDING = Failure(FailureKind.RUN, "no finding")
LEVEL = 0.05
"""The accepted probability that `differences` names any expert by chance alone."""


@dataclass(frozen=True, slots=True)
class UsageDifference:
    """An expert that images need more or less often than the rules say; `p_value` is that of the binomial test."""

    expert: str
    by_rules: float
    by_images: float
    p_value: float


def usage(
    board: Rules,
    findings_by_image: Iterable[tuple[str, Mapping[str, Finding]]] | None,
    scores: Mapping[str, float] | None = None,
) -> tuple[UsageRow, ...]:
    """Return the usage of a board's experts, the most probable by the rules first; ties by name.

    `findings_by_image` holds for each inspected sample image its component, and its findings by expert. An image needs
    the experts that the routing asks for, whether they could answer or not; other findings do not count. Without images
    `by_images` is None. `scores` are memory scores by expert. Rows with `differences` are marked. Raises RulesError for
    a component that the board does not have.
    """
    needed, images = Counter[str](), 0
    for component, findings in findings_by_image or ():
        images += 1
        needed.update(_needed(board, component, findings))
    probability = board.graph.probability
    rows = tuple(
        UsageRow(
            expert=expert,
            # Sums of shares may pass 1 by the last digit.
            by_rules=min(1.0, probability(expert)),
            by_images=needed[expert] / images if images else None,
            memory_score=(scores or {}).get(expert, 1.0),
        )
        for expert in board.graph.by_probability
    )
    differing = {difference.expert for difference in differences(rows, images)}
    return tuple(row.model_copy(update={"differs": row.expert in differing}) for row in rows)


def _needed(board: Rules, component: str, findings: Mapping[str, Finding]) -> set[str]:
    """Return the experts that the routing of an image asks for, as in a run."""
    board.router.first(component)
    cases = Cases(board.router)
    advance = cases.open(Request(0, component), 0.0)
    coming, needed = list(advance.stages), set[str]()
    while coming:
        stage = coming.pop()
        needed.add(stage.expert)
        finding = findings.get(stage.expert)
        advance = cases.found(stage, finding, 0.0) if finding else cases.failed(stage, _NO_FINDING, 0.0)
        coming += advance.stages
    return needed


def differences(rows: Sequence[UsageRow], images: int) -> tuple[UsageDifference, ...]:
    """Return the experts whose two usages differ by more than chance explains, the most certain first.

    The test is the exact two-sided binomial test: if the rules are right, the number of `images` that need an expert is
    binomial, and p is twice the smaller tail. By Holm's method the probability to name any expert wrongly is at most
    `LEVEL`, however many experts there are. Images of one panel resemble each other, so a small sample from few panels
    differs by chance more often than this test assumes.
    """
    tested = []
    for row in rows:
        if row.by_images is not None and images > 0:
            p_value = binomial_p(round(row.by_images * images), images, row.by_rules)
            tested.append(UsageDifference(row.expert, row.by_rules, row.by_images, p_value))
    tested.sort(key=lambda difference: (difference.p_value, difference.expert))
    for rank, difference in enumerate(tested):
        if difference.p_value > LEVEL / (len(tested) - rank):
            return tuple(tested[:rank])
    return tuple(tested)


def binomial_p(successes: int, trials: int, probability: float) -> float:
    """Return the p-value of a number of successes: twice the smaller tail of the binomial distribution, at most 1."""
    from scipy.special import bdtr, bdtrc  # slow to import

    return min(1.0, 2 * float(min(bdtr(successes, trials, probability), bdtrc(successes - 1, trials, probability))))


def cdf(rows: Sequence[UsageRow], *, by_images: bool = False) -> list[float]:
    """Return the shares of all usage of the most used expert, of the two most used, ..., up to 1 (figure 11).

    Raises RulesError where no expert is used at all.
    """
    shares = sorted(((row.by_images or 0.0) if by_images else row.by_rules for row in rows), reverse=True)
    total = math.fsum(shares)
    if not total:
        raise RulesError("no expert of the board is ever used; look at the counts of its components")
    return [min(1.0, part / total) for part in accumulate(shares)]
