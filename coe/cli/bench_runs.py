"""The runs that `coe-bench run` compares: the same pictures on lines that differ in strategy and precision alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coe.cli.bench_ways import USUAL, has_gpu, make_devices, strategy_of
from coe.scheduler.strategies import ANY_TIME, Times
from coe.scheduler.strategies import strategy as named_strategy

if TYPE_CHECKING:
    from coe.bench.engine import MeasuredRun
    from coe.inspector.inspector import Picture
    from coe.inspector.line_config import LineConfig
    from coe.inspector.measuring import LineCosts
    from coe.inspector.profile import Profile


@dataclass(frozen=True, slots=True)
class Comparison:
    """What all runs have in common; `line_config` is that of a run but for its strategy, precision and costs.

    `settled` holds the profiles of those names that stand for a configuration.
    """

    line_config: LineConfig
    pictures: Sequence[Picture]
    task: str
    order: str
    settled: Mapping[str, Profile] = field(default_factory=dict)
    images_per_s: float | None = None
    times: Times = ANY_TIME
    _costs: dict[tuple[str, int, bool], LineCosts] = field(default_factory=dict)

    def measure(self, name: str, precision: str, *, tick: Callable[[], None] = lambda: None) -> MeasuredRun:
        """Run what a name stands for, in a precision.

        Strategies are compared on one cost table: it is measured once for as many executors and their way to run.
        """
        from coe.bench import engine
        from coe.bench.rows import Heading

        profile, strategy = self.settled.get(name), named_strategy(strategy_of(name))
        asked = self.line_config.asked
        workers = sum((asked.executors or {}).values())
        same_costs = (precision, 1 if strategy.single else workers, name.endswith(USUAL))
        if profile is not None:
            asked = replace(asked, executors=None, profile=profile)
        if not has_gpu(profile):
            asked = replace(asked, device_bytes=None, host_bytes=None)
        line_config = replace(
            self.line_config,
            asked=asked,
            strategy=strategy,
            precision=precision,
            costs=None if profile else self._costs.get(same_costs),
            make_devices=make_devices(name),
        )
        measured = engine.measured_run(
            line_config,
            self.pictures,
            # A configuration, and the usual way, stand under their own names.
            heading=Heading(self.task, self.order, name),
            images_per_s=self.images_per_s,
            times=self.times,
            tick=tick,
        )
        if profile is None:
            self._costs[same_costs] = measured.costs
        return measured
