"""A configuration of this machine, before it is one: what it costs, how its memory is divided, how fast it is.

Throughputs come from runs in virtual time with the costs that were measured, or from runs on the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from coe import config
from coe.bench.simulated import ENTRIES, PlannedBox, run_plan
from coe.board.rules import Rules
from coe.inspector.measuring import profiled_cost
from coe.inspector.memory import Memory, planned
from coe.inspector.profile import Chosen, KindProfile
from coe.inspector.settings import Settings
from coe.scheduler.costs import CostTable
from coe.scheduler.plan import Plan, joined, workspace_bytes
from coe.sim.workload import Workload

Numbers = Mapping[str, int]
"""Something by device: executors, threads of each, or bytes of a pool for batches."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a search is about: a board under a memory budget, and what is known of the machine.

    `kinds_at(device, threads)` gives the kinds as measured for executors of so many threads, `scaling_at` how fast 1,
    2, ... of them are together; the CPU was measured with each of `threads`. `memories(executors)` tells what memory
    devices have and hold. `sample` is what is simulated, all at once, unless `on_machine` runs a configuration on the
    machine and returns images a second.
    """

    board: Rules
    file_bytes: Mapping[str, int]
    memory_bytes: int
    cores: int
    threads: Collection[int]
    kinds_at: Callable[[str, int], Mapping[str, KindProfile]]
    scaling_at: Callable[[str, int], tuple[float, ...]]
    memories: Callable[[Numbers], Mapping[str, Memory]]
    sample: Workload
    on_machine: Callable[[Chosen], float] | None = None


@dataclass(frozen=True)
class Setup:
    """So many executors of each device, and what can be found out about them.

    A GPU's executors keep a core busy each; those of the CPU share the others. A GPU sets aside what batches take
    before its pools are filled, so that only the memory of the CPU's is split.
    """

    basis: Basis
    executors: Numbers

    @property
    def fits(self) -> bool:
        """Tell whether there are cores for all executors."""
        return sum(self.executors.values()) <= self.basis.cores

    @cached_property
    def threads(self) -> dict[str, int]:
        """Threads of each executor of the CPU: as many as the cores allow, of those that were measured."""
        if "cpu" not in self.executors:
            return {}
        cores = self.basis.cores - self.executors.get("cuda", 0)
        most = max(1, cores // self.executors["cpu"])
        return {"cpu": max(threads for threads in self.basis.threads if threads <= most)}

    @cached_property
    def costs(self) -> CostTable:
        """What the board's experts cost.

        Images are decoded and prepared on the cores. An executor of the CPU has them from its own, so that an image
        takes so much longer; a GPU waits for images only if they come slower than it runs them.
        """
        found = {}
        for device, number in self.executors.items():
            threads = self.threads.get(device, 1)
            kinds, scaling = self.basis.kinds_at(device, threads), self._scaling(device)
            together = scaling[min(number, len(scaling)) - 1] if scaling else number
            for expert in self.basis.board.experts.values():
                kind = kinds[expert.kind]
                cost = profiled_cost(kind, expert, self.basis.file_bytes[expert.id])
                before_s = kind.decode_s + kind.preprocess_s
                if device == "cpu":
                    per_image_s = cost.per_image_s + before_s / threads
                else:
                    per_image_s = max(cost.per_image_s, together * before_s / self.basis.cores)
                found[device, expert.id] = replace(cost, per_image_s=per_image_s)
        return CostTable(found)

    @property
    def pool_bytes(self) -> int:
        """Bytes of a pool of the CPU; raises ConfigError if an expert does not fit."""
        return next(pool.capacity_bytes for pool in self.plan({}).pools if pool.device == "cpu")

    @property
    def useful_bytes(self) -> int:
        """What the largest useful batch takes on the CPU."""
        own = [self.costs("cpu", expert) for expert in self.basis.board.experts]
        return max(cost.batch_bytes(cost.max_batch) for cost in own)

    def plan(self, workspaces: Numbers) -> Plan:
        """Divide memory as a line would; raises ConfigError, naming the least budget, if an expert does not fit."""
        basis = self.basis
        return planned(
            Settings(basis.memory_bytes, self.executors, self.threads, workspaces),
            basis.memories(self.executors),
            basis.board.experts,
            self.costs,
            with_images=True,
            demotes=not ENTRIES[config.STRATEGY].strategy.cached,
        )

    def run(self, workspaces: dict[str, int]) -> float:
        """Run the sample with so many bytes of each pool for batches; return images a second."""
        if self.basis.on_machine is not None:
            return self.basis.on_machine(self.chosen(workspaces))
        entry, made = ENTRIES[config.STRATEGY], self.plan(workspaces)
        made = joined(made) if entry.strategy.shared else made
        scaling = {device: self._scaling(device) for device in self.executors}
        box = PlannedBox("this machine", self.costs, made, scaling)
        return run_plan(self.basis.sample, entry, box, bounded=False).images_per_s

    def loaded(self, weights_bytes: float) -> float | None:
        """Run it with so many bytes of the CPU's pools for experts; None if that leaves too little for one image."""
        pool_bytes, number = self.pool_bytes, self.executors["cpu"]
        wanted, experts = pool_bytes - int(weights_bytes / number), list(self.basis.board.experts)
        if wanted < 1 or workspace_bytes("cpu", pool_bytes, experts, self.costs, wanted) != wanted:
            return None
        return self.run({"cpu": wanted})

    def chosen(self, workspaces: dict[str, int], speed: float = 0.0, casual: float = 0.0, *reasons: str) -> Chosen:
        """Return this as a configuration, with what was found out about it."""
        sizes = list(self.basis.file_bytes.values())
        room = sum(pool.capacity_bytes - pool.workspace_bytes for pool in self.plan(workspaces).pools)
        return Chosen(
            executors=dict(self.executors),
            threads=self.threads,
            workspace_bytes=workspaces,
            loaded_experts=int(room * len(sizes) / sum(sizes)),
            images_per_s=speed,
            casual_images_per_s=casual,
            reasons=reasons,
        )

    def _scaling(self, device: str) -> tuple[float, ...]:
        return self.basis.scaling_at(device, self.threads.get(device, 1))
