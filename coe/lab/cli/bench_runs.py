"""The runs that `coe-bench run` compares: the same pictures, on lines that differ only in strategy and precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from coe import config
from coe.inspector.profile import Profile
from coe.lab.cli.bench_ways import EAGER, has_gpu, make_devices, strategy_of
from coe.lab.time_limits import ANY_TIME, Times
from coe.scheduler.strategies import strategy as named_strategy

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture
    from coe.inspector.line_options import LineOptions
    from coe.inspector.precision import LineCosts
    from coe.lab.measured_run import MeasuredRun
    from coe.profiler.remembered_device import RememberedOutputs


@dataclass(frozen=True, slots=True)
class BenchRuns:
    """What all runs have in common; each run sets its strategy, precision and costs in `line_options`.

    `configured` holds a profile for each name that stands for a configuration. With `remembered` the devices take no
    time (`coe.profiler.remembered_device`). Latencies are those of all images but the first `settling`.
    """

    line_options: LineOptions
    pictures: Sequence[Picture]
    task: str
    order: str
    configured: Mapping[str, Profile] = field(default_factory=dict)
    images_per_s: float | None = None
    times: Times = ANY_TIME
    remembered: RememberedOutputs | None = None
    settling: int = 0
    _costs: dict[tuple[str, int, bool], LineCosts] = field(default_factory=dict)

    def measure(self, name: str, precision: str, *, tick: Callable[[], None] = lambda: None) -> MeasuredRun:
        """Measure a run of a strategy or configuration by name, in a precision.

        Strategies share one cost table, measured once for a number of executors and a way to load.
        """
        if self.remembered is None:
            return self._measure(name, precision, tick)
        while True:
            known = len(self.remembered)
            measured = self._measure(name, precision, tick)
            # A run in which a network ran did not measure the host alone.
            if len(self.remembered) == known:
                return measured

    def _measure(self, name: str, precision: str, tick: Callable[[], None]) -> MeasuredRun:
        from coe.lab import measured_run as engine
        from coe.lab.rows import Heading
        from coe.profiler import remembered_device

        profile, strategy = self.configured.get(name), named_strategy(strategy_of(name))
        options = self.line_options
        workers = sum(config.parse_executors(options.executors or config.EXECUTORS).values())
        same_costs = (precision, 1 if strategy.single else workers, name.endswith(EAGER))
        if profile is not None:
            options = options.but(executors=None, profile=profile)
        if not has_gpu(profile):
            options = options.but(device_memory=None, host_memory=None)
        options = options.but(
            strategy=strategy,
            precision=precision,
            experiment=replace(
                options.experiment,
                costs=None if profile else self._costs.get(same_costs),
                make_devices=make_devices(name)
                if self.remembered is None
                else remembered_device.devices(self.remembered),
            ),
        )
        measured = engine.measured_run(
            options,
            self.pictures,
            # The row shows the user's name for the run, not the name of the strategy behind it.
            heading=Heading(self.task, self.order, name),
            images_per_s=self.images_per_s,
            times=self.times,
            settling=self.settling,
            tick=tick,
        )
        if profile is None:
            self._costs[same_costs] = measured.line_run.costs
        return measured
