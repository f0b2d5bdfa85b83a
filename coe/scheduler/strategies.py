"""Named bundles of policies. The paper's systems (section 5.1) and its ablation (section 5.3) take one line each.

A bundle that cannot work is refused when it is made: each policy states what it needs from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coe import values
from coe.board.parts_list import PlacedPart
from coe.errors import ConfigError, did_you_mean
from coe.scheduler import policies
from coe.scheduler.plan import Plan, joined
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Need, Policy, Precision, Prefetch, Select, Split


@dataclass(frozen=True, slots=True)
class Strategy:
    """One policy of each family: the name of its file, or a class of your own.

    With `single` only the first executor works, with the whole budget. With `cached` host memory that is separate from
    the device's runs no experts: it is a cache between disk and device. Raises ConfigError for an unknown policy, for
    a class that is no policy, and for a policy whose needs the others do not meet.
    """

    name: str
    assign: str | type[Assign] = "makespan"
    arrange: str | type[Arrange] = "group"
    select: str | type[Select] = "head"
    split: str | type[Split] = "profiled"
    eviction: str | type[Eviction] = "dependency"
    prefetch: str | type[Prefetch] = "next-group"
    precision: str | type[Precision] = "stated"
    single: bool = False
    cached: bool = False

    def __post_init__(self) -> None:
        for family in policies.FAMILIES:
            policy: str | type[Policy] = getattr(self, family)
            needs = policies.class_of(family, policy).needs
            if missing := [need for need in Need if need in needs and not self._has(need)]:
                name = policy if isinstance(policy, str) else policy.__name__
                wanted = ", and ".join(f"{need}, as with {_givers(need)}" for need in missing)
                raise ConfigError(f"strategy '{self.name}' cannot work: {family} policy '{name}' needs {wanted}")

    @property
    def shared(self) -> bool:
        """Whether all executors take from one backlog, and the executors of a device share one pool."""
        return self._has(Need.SHARED_BACKLOG)

    @property
    def hurries(self) -> bool:
        """Whether stages that have waited for long, or are due, go first."""
        return self._has(Need.DUE_FIRST)

    @property
    def varies(self) -> bool:
        """Whether two loads of an expert may bring it in different variants."""
        precision = policies.class_of("precision", self.precision)
        return issubclass(precision, Precision) and precision.varies

    @property
    def foresees(self) -> bool:
        """Whether experts are loaded before their images come, by a parts list or the boards before."""
        return self._has(Need.FORESIGHT)

    def pooled(self, plan: Plan) -> Plan:
        """Return the plan with the pools that this strategy needs: one pool for each device if it is `shared`."""
        return joined(plan) if self.shared else plan

    def _has(self, need: Need) -> bool:
        return any(need in policies.class_of(family, getattr(self, family)).gives for family in policies.FAMILIES)


def _givers(need: Need) -> str:
    return " or ".join(
        f"{family} policy '{name}'"
        for family in policies.FAMILIES
        for name in policies.names(family)
        if need in policies.named(family, name).gives
    )


_SAMBA = Strategy(
    "samba", assign="round-robin", arrange="append", eviction="lru", prefetch="none", single=True, cached=True
)
_ALL = (
    Strategy("coserve"),
    Strategy("coserve-em-ra", assign="round-robin"),
    Strategy("coserve-em", assign="round-robin", arrange="append"),
    Strategy("coserve-none", assign="round-robin", arrange="append", eviction="fifo"),
    _SAMBA,
    replace(_SAMBA, name="samba-fifo", eviction="fifo"),
    replace(_SAMBA, name="samba-parallel", single=False),
    Strategy(
        "line",
        assign="shared",
        arrange="together",
        select="ready",
        eviction="next-use",
        prefetch="gain",
    ),
    # Techniques of other systems on coserve's base (docs/results.md).
    Strategy("hobbit", eviction="weighted", prefetch="along-path", precision="on-miss"),
    Strategy("duoserve", arrange="phased", prefetch="affinity"),
    Strategy("expertflow", select="by-path", eviction="predicted", prefetch="predicted"),
    Strategy("emoe", select="slack", eviction="plan", prefetch="plan"),
)
STRATEGIES = {strategy.name: strategy for strategy in _ALL}


def strategy(name: str | Strategy) -> Strategy:
    """Return a strategy by name, or a strategy as it is; raises ConfigError, listing what there is."""
    if isinstance(name, Strategy):
        return name
    if values.text("strategy", name) not in STRATEGIES:
        raise ConfigError(f"there is no strategy '{name}'{did_you_mean(name, STRATEGIES)}")
    return STRATEGIES[name]


def check_hurry(chosen: Strategy, *, max_wait_s: float | None = None, within_s: float | None = None) -> None:
    """Raise ConfigError for a bound that is not a time, or that the strategy would ignore; None means no bound."""
    for name, bound_s, words in (
        ("max_wait_s", max_wait_s, "an image can wait at most"),
        ("within_s", within_s, "a result can be there within"),
    ):
        if bound_s is None:
            continue
        values.seconds(name, bound_s, meaning=words)
        if not chosen.hurries:
            names = ", ".join(strategy.name for strategy in _ALL if strategy.hurries)
            raise ConfigError(
                f"strategy '{chosen.name}' looks at neither ages nor due times, so {bound_s:g} s would mean nothing; "
                f"leave it out, or use {names}"
            )


def check_parts(chosen: Strategy, parts: Mapping[str, Sequence[PlacedPart]]) -> None:
    """Raise ConfigError for parts lists, by board, that the strategy would ignore."""
    if any(parts.values()) and not chosen.foresees:
        names = ", ".join(strategy.name for strategy in _ALL if strategy.foresees)
        raise ConfigError(
            f"strategy '{chosen.name}' does not look ahead, so a parts list would mean nothing; leave it out, or use "
            f"{names}"
        )


@dataclass(frozen=True, slots=True)
class Times:
    """The longest time before an image is due, and the time within which its result is due; None means no bound."""

    max_wait_s: float | None = None
    within_s: float | None = None

    def heeded_by(self, chosen: Strategy) -> Times:
        """Return these bounds if the strategy looks at them, else no bounds."""
        return self if chosen.hurries else Times()


ANY_TIME = Times()
