"""Chooses executors and the split of memory for a board (paper sections 4.4, 4.5), by runs in virtual time.

The costs are those that were measured on this machine; what is chosen is then confirmed on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from coe import config
from coe.assembly import profiled_cost
from coe.benchmark.configurations import CASUAL
from coe.benchmark.simulated import ENTRIES, run_plan
from coe.config import format_bytes
from coe.costs import CostTable
from coe.errors import ConfigError
from coe.plan import Plan, inbox_bytes, joined, plan, workspace_bytes
from coe.profile import Chosen, ExecutorsPoint, KindProfile, WindowPoint
from coe.profiler.search import search_executors, search_memory
from coe.rules import Rules
from coe.sim.workload import Workload

SMALL = 0.25
"""A largest useful batch that takes no more than this share of a pool is set aside, and nothing is searched."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and the samples by which it was found: of memory, and of executors."""

    chosen: Chosen
    windows: tuple[WindowPoint, ...] = ()
    points: tuple[ExecutorsPoint, ...] = ()


@dataclass(slots=True)
class Tuner:
    """Searches for one board under one budget.

    `kinds_at(threads)` gives the measured kinds for executors of so many threads, `scaling_at(threads)` how fast 1, 2,
    ... of them are together. `sample` is what is simulated, all at once, unless `on_machine` runs something on the
    machine: given executors, threads and bytes of a pool for batches it returns images a second. `faithful` draws the
    number of experts in the last window, as the paper does.
    """

    board: Rules
    file_bytes: Mapping[str, int]
    memory_bytes: int
    cores: int
    kinds_at: Callable[[int], Mapping[str, KindProfile]]
    scaling_at: Callable[[int], tuple[float, ...]]
    sample: Workload
    faithful: Random | None = None
    on_machine: Callable[[int, int, int], float] | None = None
    _best: dict[int, Choice] = field(default_factory=dict)

    def choose(self) -> list[Choice]:
        """Return the best configuration, then the best of each other number of executors that was tried.

        Raises ConfigError if not even one executor fits.
        """
        found = search_executors(lambda numbers: self._speed_of(numbers["cpu"]), ["cpu"], {"cpu": self.cores})
        number = found.chosen["cpu"]
        points = tuple(
            ExecutorsPoint(
                executors=point.executors,
                threads={"cpu": self._threads(point.executors["cpu"])},
                images_per_s=point.images_per_s,
                measured=self.on_machine is not None,
            )
            for point in found.points
        )
        ranked = sorted(self._best.values(), key=lambda choice: choice.chosen.executors["cpu"] != number)
        return [
            replace(
                choice,
                points=points,
                chosen=choice.chosen.model_copy(update={"reasons": (found.reason, *choice.chosen.reasons)}),
            )
            for choice in ranked
        ]

    def costs(self, threads: int) -> CostTable:
        """Return what the board's experts cost an executor of so many threads.

        Images are decoded and prepared on the cores that executors use, so an image counts that much more here.
        """
        kinds = self.kinds_at(threads)
        costs = {}
        for expert in self.board.experts.values():
            kind = kinds[expert.kind]
            cost = profiled_cost(kind, expert, self.file_bytes[expert.id])
            more_s = (kind.decode_s + kind.preprocess_s) / threads
            costs["cpu", expert.id] = replace(cost, per_image_s=cost.per_image_s + more_s)
        return CostTable(costs)

    def _threads(self, number: int) -> int:
        return max(1, self.cores // number)

    def _speed_of(self, number: int) -> float | None:
        """Return the throughput of so many executors with the best split of memory; None if an expert does not fit."""
        try:
            self._best[number] = self._split(number)
        except ConfigError:
            if number == 1:
                raise
            return None
        return self._best[number].chosen.images_per_s

    def _split(self, number: int) -> Choice:
        threads = self._threads(number)
        costs, experts = self.costs(threads), list(self.board.experts)
        pool_bytes = self._pool_bytes(number)
        # Finds out whether the largest expert fits at all.
        self._plan(number, costs, None)
        useful = workspace_bytes("cpu", pool_bytes, experts, costs, max(self._useful(costs), 1))
        casual = self._run(number, threads, costs, int(pool_bytes * CASUAL))
        mean_bytes = sum(costs("cpu", expert).weights_bytes for expert in experts) / len(experts)

        def choice(workspace: int, speed: float, reason: str, windows: tuple[WindowPoint, ...] = ()) -> Choice:
            made = Chosen(
                executors={"cpu": number},
                threads={"cpu": threads},
                workspace_bytes={"cpu": workspace},
                loaded_experts=int(number * (pool_bytes - workspace) / mean_bytes),
                images_per_s=speed,
                casual_images_per_s=casual,
                reasons=(reason,),
            )
            return Choice(made, windows)

        if self._useful(costs) <= SMALL * pool_bytes and self.faithful is None:
            reason = (
                f"the largest useful batch takes {format_bytes(useful)} of a pool of {format_bytes(pool_bytes)}: it is "
                "set aside, and experts have the rest (paper section 4.4, limited computing power)"
            )
            return choice(useful, self._run(number, threads, costs, useful), reason)
        found = search_memory(
            lambda loaded: self._loaded(number, threads, costs, loaded * mean_bytes),
            max(1, min(len(experts), int(number * pool_bytes / mean_bytes))),
            faithful=self.faithful,
        )
        workspace = pool_bytes - int(found.chosen * mean_bytes / number)
        speed = max(point.images_per_s for point in found.points if found.chosen == point.upper)
        windows = tuple(point.model_copy(update={"measured": self.on_machine is not None}) for point in found.points)
        return choice(workspace, speed, found.reason, windows)

    def _pool_bytes(self, number: int) -> int:
        return (self.memory_bytes - inbox_bytes(self.memory_bytes)) // number

    def _plan(self, number: int, costs: CostTable, workspace: int | None) -> Plan:
        wanted = {} if workspace is None else {"cpu": workspace}
        return plan({"cpu": number}, self.memory_bytes, self.board.experts, costs, wanted, with_images=True)

    def _useful(self, costs: CostTable) -> int:
        own = [costs("cpu", expert) for expert in self.board.experts]
        return max(cost.batch_bytes(cost.max_batch) for cost in own)

    def _loaded(self, number: int, threads: int, costs: CostTable, weights_bytes: float) -> float | None:
        """Return the throughput with so many bytes for experts; None if that leaves too little for one image."""
        pool_bytes = self._pool_bytes(number)
        wanted = pool_bytes - int(weights_bytes / number)
        if wanted < 1 or workspace_bytes("cpu", pool_bytes, list(self.board.experts), costs, wanted) != wanted:
            return None
        return self._run(number, threads, costs, wanted)

    def _run(self, number: int, threads: int, costs: CostTable, workspace: int) -> float:
        if self.on_machine is not None:
            return self.on_machine(number, threads, workspace)
        made = self._plan(number, costs, workspace)
        scaling = {"cpu": self.scaling_at(threads)}
        entry = ENTRIES[config.STRATEGY]
        made = joined(made) if entry.strategy.shared else made
        return run_plan(self.sample, costs, made, entry, scaling, device="this machine", bounded=False).images_per_s
