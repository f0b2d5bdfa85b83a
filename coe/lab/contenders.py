"""What `coe-bench sim` compares: strategies, `coserve` with the paper's default split, and ablations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from coe.errors import ConfigError, did_you_mean
from coe.lab.simulated import Contender
from coe.lab.simulated import contender as plain
from coe.lab.strategies.duoserve import DUOSERVE
from coe.lab.strategies.emoe import EMOE
from coe.lab.strategies.expertflow import EXPERTFLOW
from coe.lab.strategies.hobbit import HOBBIT
from coe.scheduler import strategies
from coe.scheduler.policies.coserve import COSERVE, Dependency, FirstGroup, GroupForATime, NextGroups
from coe.scheduler.strategies import Strategy

PAPER_DEFAULT = Contender("coserve-paper-default", COSERVE, "paper-default")
"""`coserve` with the paper's default configuration (section 5.2)."""


def _ablations() -> dict[str, Contender]:
    """Return strategies from which one technique is taken: coserve's policy stands in its place."""
    ablated: dict[str, Strategy] = {
        "hobbit-no-ahead": replace(HOBBIT, prefetch=NextGroups),
        "hobbit-no-weights": replace(HOBBIT, eviction=Dependency),
        "duoserve-no-phases": replace(DUOSERVE, arrange=GroupForATime),
        "duoserve-no-affinity": replace(DUOSERVE, prefetch=NextGroups),
        "expertflow-no-paths": replace(EXPERTFLOW, prefetch=NextGroups),
        "expertflow-no-correction": replace(EXPERTFLOW, eviction=Dependency),
        "expertflow-no-regrouping": replace(EXPERTFLOW, select=FirstGroup),
        "emoe-no-plan": replace(EMOE, eviction=Dependency, prefetch=NextGroups),
        "emoe-no-slack": replace(EMOE, select=FirstGroup),
    }
    return {name: Contender(name, replace(strategy, name=name), "best") for name, strategy in ablated.items()}


ABLATIONS = _ablations()
"""Contenders that show what one technique brings; "all" does not include them."""


@cache
def all_contenders() -> dict[str, Contender]:
    """Return every installed strategy and the paper's default configuration, by name; raises ConfigError."""
    return {name: contender(name) for name in sorted([*strategies.names(), PAPER_DEFAULT.name])}


def contender(name: str) -> Contender:
    """Return a contender or an ablation by name, or by the dotted path of its strategy; raises ConfigError.

    No other strategy is imported, so that a package that cannot be imported ends no run without its strategies.
    """
    name = PAPER_DEFAULT.name if name == "coserve-casual" else strategies.present_name(name)
    if name == PAPER_DEFAULT.name:
        return PAPER_DEFAULT
    if name in ABLATIONS:
        return ABLATIONS[name]
    plugged = strategies.names()
    if name in plugged or ":" in name:
        return plain(name)
    known = sorted([*plugged, PAPER_DEFAULT.name])
    hint = did_you_mean(name, [*known, *ABLATIONS]) or did_you_mean(name, known)
    raise ConfigError(f"there is no strategy '{name}'{hint} (or give package.module:NAME)")
