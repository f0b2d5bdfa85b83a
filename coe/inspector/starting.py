"""Starts what a line runs on: the engine of this machine, or several boxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from coe.inspector.line_options import LineOptions
from coe.inspector.opening import Assembly, assemble
from coe.runtime.engine import Engine
from coe.runtime.line_engine import LineEngine
from coe.scheduler.controller import Controller
from coe.scheduler.demand import Demand
from coe.scheduler.events import Trace


@dataclass(frozen=True, slots=True)
class Started:
    """What a line runs on, with threads that run; `budget_bytes` is what all devices may take.

    `changer` is the engine if it can go on with other boards. `trace` grows as the line runs, with `keep_trace`.
    """

    assembly: Assembly
    engine: LineEngine[Any, Any]
    budget_bytes: int
    changer: Engine | None = None
    demand: Demand | None = None
    trace: Trace = field(default_factory=list)


def start(options: LineOptions) -> Started:
    """Start what a line runs on; raises ConfigError, RulesError or StoreError."""
    if options.cluster is None:
        return start_here(options)
    # By name: several boxes are an annex, which a line on one machine never imports.
    return cast(Started, import_module("coe.cluster.cluster_line").start(options))


def start_here(options: LineOptions) -> Started:
    """Start the engine of this machine; raises ConfigError, RulesError or StoreError before any thread is started."""
    assembly = assemble(options)
    decider = (options.experiment.make_decider or Controller)(
        router=assembly.rules.router,
        graph=assembly.rules.graph,
        costs=assembly.costs.following(),
        plan=options.strategy.pooled(assembly.plan),
        strategy=options.strategy,
        max_wait_s=options.max_wait_s,
        parts={board.key: board.read.parts for board in assembly.boards},
    )
    engine = Engine(
        decider,
        assembly.devices,
        assembly.rules.experts,
        assembly.kinds,
        disk=assembly.disk(),
        decoding=assembly.decoding(),
        watchers=options.watchers,
        keep_trace=options.experiment.keep_trace,
    )
    return Started(
        assembly, engine, assembly.budget_bytes, engine, decider.demand, [] if engine.trace is None else engine.trace
    )
