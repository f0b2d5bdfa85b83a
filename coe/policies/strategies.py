"""Named bundles of policies. The paper's systems (section 5.1) and its ablation (section 5.3) are a line each."""

from __future__ import annotations

from dataclasses import dataclass

from coe.errors import ConfigError, did_you_mean


@dataclass(frozen=True, slots=True)
class Strategy:
    """One policy of each family, by name. With `single` only the first executor works, with the whole budget."""

    name: str
    assign: str = "makespan"
    arrange: str = "group"
    select: str = "head"
    split: str = "profiled"
    eviction: str = "dependency"
    prefetch: str = "next-group"
    single: bool = False


_ALL = (
    Strategy("coserve"),
    Strategy("coserve-em-ra", assign="round-robin"),
    Strategy("coserve-em", assign="round-robin", arrange="append"),
    Strategy("coserve-none", assign="round-robin", arrange="append", eviction="fifo"),
    Strategy("samba", assign="round-robin", arrange="append", eviction="lru", prefetch="none", single=True),
    Strategy("samba-fifo", assign="round-robin", arrange="append", eviction="fifo", prefetch="none", single=True),
    Strategy("samba-parallel", assign="round-robin", arrange="append", eviction="lru", prefetch="none"),
)
STRATEGIES = {strategy.name: strategy for strategy in _ALL}


def strategy(name: str) -> Strategy:
    """Return a strategy by name; raises ConfigError, listing what there is."""
    if name not in STRATEGIES:
        raise ConfigError(f"there is no strategy '{name}'{did_you_mean(name, STRATEGIES)}")
    return STRATEGIES[name]
