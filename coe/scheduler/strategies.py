"""Named bundles of policies. The paper's systems (section 5.1) and its ablation (section 5.3) are a line each.

A bundle that cannot work is refused where it is made: policies say what they need of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from coe import values
from coe.errors import ConfigError, did_you_mean
from coe.scheduler import policies
from coe.scheduler.plan import Plan, joined
from coe.scheduler.policies.base import Arrange, Assign, Eviction, Need, Policy, Prefetch, Select, Split


@dataclass(frozen=True, slots=True)
class Strategy:
    """One policy of each family: the name of its file, or a class of your own.

    With `single` only the first executor works, with the whole budget. With `cached` nothing runs in the memory of the
    host where that is another than the device's: it is a cache between disk and device. Raises ConfigError for a policy
    that does not exist, for a class that is no policy, and for a policy that needs what the others do not give.
    """

    name: str
    assign: str | type[Assign] = "makespan"
    arrange: str | type[Arrange] = "group"
    select: str | type[Select] = "head"
    split: str | type[Split] = "profiled"
    eviction: str | type[Eviction] = "dependency"
    prefetch: str | type[Prefetch] = "next-group"
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
        """Whether all executors take from one backlog, and those of a device have one pool."""
        return self._has(Need.SHARED_BACKLOG)

    @property
    def hurries(self) -> bool:
        """Whether what has waited for long, or is due, goes first."""
        return self._has(Need.DUE_FIRST)

    def pooled(self, plan: Plan) -> Plan:
        """Return the plan with the pools that this strategy works with: those of a device are one if it is `shared`."""
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
    """Raise ConfigError for bounds that are no time, or that a strategy would not look at; None is no bound."""
    for name, bound_s, words in (
        ("max_wait_s", max_wait_s, "an image can wait at most"),
        ("within_s", within_s, "a result can be there within"),
    ):
        if bound_s is None:
            continue
        values.seconds(name, bound_s, meaning=words)
        if not chosen.hurries:
            names = ", ".join(name for name, known in STRATEGIES.items() if known.hurries)
            raise ConfigError(
                f"strategy '{chosen.name}' looks at neither ages nor due times, so {bound_s:g} s would mean nothing; "
                f"leave it out, or use {names}"
            )


@dataclass(frozen=True, slots=True)
class Times:
    """How long an image may be under way before it goes first, and within what its result is due; None is no bound."""

    max_wait_s: float | None = None
    within_s: float | None = None

    def heeded_by(self, chosen: Strategy) -> Times:
        """Return what of this a strategy looks at: all or nothing."""
        return self if chosen.hurries else Times()


ANY_TIME = Times()
