"""Chooses executors and the split of memory for a board (paper sections 4.4, 4.5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from coe.config import counted, format_bytes
from coe.core import Request
from coe.errors import ConfigError
from coe.inspector.measuring import profiled_cost
from coe.inspector.profile import BoardProfile, Chosen, ExecutorsPoint, KindProfile, Profile, WindowPoint
from coe.inspector.settings import Settings, plan_pools, workspace_bytes
from coe.profiler.configurations import PAPER_SHARE
from coe.profiler.search import MemorySearch, search_executors, search_memory
from coe.profiler.site import LookedAt, ProfiledSite
from coe.results.metrics import Recorder
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import Plan
from coe.sim.agenda import Arrival
from coe.sim.oracle import SampledOracle
from coe.sim.simulator import Simulator, Speeds

Numbers = Mapping[str, int]
"""A number by device: executors, threads of each, or bytes of a pool for batches."""

SMALL = 0.25
"""If the largest useful batch takes no more than this share of a pool, it is set aside, and no search is needed."""


def with_decoding(cost: Cost, kind: KindProfile, together: float, cores: int) -> Cost:
    """Return a cost with the time that decoding and preprocessing take on the `cores`.

    On the CPU this takes time from the executors, so it is added to the time of an image; a GPU, whose executors are
    `together` so many times as fast as one, waits for images only if they come more slowly than it runs them.
    """
    before_s = kind.decode_s + kind.preprocess_s
    if kind.device == "cpu":
        return replace(cost, per_image_s=cost.per_image_s + before_s / kind.threads)
    return replace(cost, per_image_s=max(cost.per_image_s, together * before_s / cores))


@dataclass(frozen=True)
class Search:
    """A search for the best configuration of a site, by the costs in `profile`.

    The machine has `cores`; its CPU was measured with each of `threads`. Runs of `requests` images, all at once, are
    simulated, unless `on_machine` is given: it runs a configuration on the machine and returns images a second.
    `faithful` draws the number of experts from the last window, as the paper does.
    """

    site: ProfiledSite
    profile: Profile
    cores: int
    threads: Sequence[int]
    requests: int
    on_machine: Callable[[Chosen], float] | None = None
    faithful: Random | None = None

    @cached_property
    def file_bytes(self) -> dict[str, int]:
        """The bytes of each expert's own weights."""
        return self.site.file_bytes(self.profile)

    @cached_property
    def _gpu_splits(self) -> dict[int, GpuSplit]:
        return {}

    def choose(self, most: Numbers) -> list[BoardProfile]:
        """Try up to `most` executors of each device, in the order of `most`, each number with its best split of memory.

        Return the best configuration first, then the best for each other number of executors; each has the samples of
        the search. Raises ConfigError if not even one executor fits.
        """
        best: dict[tuple[tuple[str, int], ...], BoardProfile] = {}

        def speed_of(executors: dict[str, int]) -> float | None:
            """Return the throughput of `executors`; None if an expert does not fit."""
            setup = Setup(self, executors)
            try:
                choice = self._split(setup) if setup.fits else None
            except ConfigError:
                if executors == {"cpu": 1}:
                    raise
                return None
            if choice is None:
                return None
            best[tuple(executors.items())] = choice
            return choice.chosen.images_per_s

        search = search_executors(speed_of, list(most), most)
        measured = self.on_machine is not None
        points = tuple(self._shown(point, measured) for point in search.points)
        return [
            choice.model_copy(
                update={
                    "executors": points,
                    "chosen": choice.chosen.model_copy(update={"reasons": (search.reason, *choice.chosen.reasons)}),
                }
            )
            for choice in sorted(best.values(), key=lambda choice: choice.chosen.executors != search.chosen)
        ]

    def _shown(self, point: ExecutorsPoint, measured: bool) -> ExecutorsPoint:
        return point.model_copy(update={"threads": Setup(self, point.executors).threads, "measured": measured})

    def _split(self, setup: Setup) -> BoardProfile:
        """Return the best split of memory for so many executors: first of the GPU's, then of the host's."""
        gpu = self._split_gpu(setup.executors["cuda"]) if "cuda" in setup.executors else None
        if gpu is None:
            return self._split_host(setup)
        setup = replace(setup, batch_bytes=gpu.batch_bytes)
        if "cpu" not in setup.executors:
            default = Setup(self, setup.executors).run({})
            part = self.site.board_profile(setup.chosen({}, setup.run({}), default, gpu.reason))
        else:
            part = self._split_host(setup, gpu.reason)
        return part.model_copy(update={"windows": gpu.windows or part.windows})

    def _split_gpu(self, number: int) -> GpuSplit:
        """Return the best split of the GPU's memory for so many executors of it alone."""
        if number not in self._gpu_splits:
            self._gpu_splits[number] = self._searched_gpu(Setup(self, {"cuda": number}))
        return self._gpu_splits[number]

    def _searched_gpu(self, setup: Setup) -> GpuSplit:
        if not setup.is_limited and self.faithful is None:
            return GpuSplit(
                None,
                "the graphs of the largest useful batch take no more of the GPU's memory than is set aside for them, "
                "and experts have the rest (paper section 4.4, limited computing power)",
            )
        least = self.site.look("cuda", setup.executors["cuda"], 0).memory
        experts, mean_bytes = setup.experts, setup.mean_bytes
        free = (least.memory_bytes or 0) - least.fixed_bytes

        def speed_of(loaded: int) -> float | None:
            split = setup.beside(int(loaded * mean_bytes))
            return None if split is None else split.run({})

        search = search_memory(speed_of, max(1, min(len(experts), int(free / mean_bytes))), faithful=self.faithful)
        chosen = setup.beside(int(search.chosen * mean_bytes))
        assert chosen is not None, "a number of experts was chosen that does not fit"
        return GpuSplit(chosen.batch_bytes, f"on the GPU {search.reason}", self._measured(search))

    def _measured(self, search: MemorySearch) -> tuple[WindowPoint, ...]:
        measured = self.on_machine is not None
        return tuple(point.model_copy(update={"measured": measured}) for point in search.points)

    def _split_host(self, setup: Setup, *reasons: str) -> BoardProfile:
        """Return the best split of the memory of the CPU's executors."""
        pool_bytes, experts = setup.pool_bytes, list(self.site.board.experts)
        useful = workspace_bytes("cpu", pool_bytes, experts, setup.costs, max(setup.useful_bytes, 1))
        default = setup.run({"cpu": int(pool_bytes * PAPER_SHARE)})
        if setup.useful_bytes <= SMALL * pool_bytes and self.faithful is None:
            reason = (
                f"the largest useful batch takes {format_bytes(useful)} of a pool of {format_bytes(pool_bytes)}: it is "
                "reserved, and experts get the rest (paper section 4.4, limited computing power)"
            )
            speed = setup.run({"cpu": useful})
            return self.site.board_profile(setup.chosen({"cpu": useful}, speed, default, *reasons, reason))
        number = setup.executors["cpu"]
        mean_bytes = setup.mean_bytes
        search = search_memory(
            lambda loaded: setup.loaded(loaded * mean_bytes),
            max(1, min(len(experts), int(number * pool_bytes / mean_bytes))),
            faithful=self.faithful,
        )
        workspace = pool_bytes - int(search.chosen * mean_bytes / number)
        speed = max(point.images_per_s for point in search.points if search.chosen == point.upper)
        chosen = setup.chosen({"cpu": workspace}, speed, default, *reasons, search.reason)
        return self.site.board_profile(chosen).model_copy(update={"windows": self._measured(search)})


@dataclass(frozen=True, slots=True)
class GpuSplit:
    """What the graphs of each executor may hold of a GPU's memory (None: the usual part), why, and the samples."""

    batch_bytes: int | None
    reason: str
    windows: tuple[WindowPoint, ...] = ()


@dataclass(frozen=True)
class Setup:
    """A number of executors for each device, with its costs, memory and throughputs.

    Throughputs come from runs in virtual time with the measured costs, or from runs on the machine.

    Each executor of a GPU keeps a core busy; the executors of the CPU share the other cores. The graphs of each
    executor of a GPU may hold `batch_bytes` of its memory; None is the usual part.
    """

    search: Search
    executors: Numbers
    batch_bytes: int | None = None

    @property
    def fits(self) -> bool:
        """Tell whether there are cores for all executors."""
        return sum(self.executors.values()) <= self.search.cores

    @cached_property
    def threads(self) -> dict[str, int]:
        """Threads of each executor of the CPU: the largest measured number that the cores allow."""
        if "cpu" not in self.executors:
            return {}
        cores = self.search.cores - self.executors.get("cuda", 0)
        most = max(1, cores // self.executors["cpu"])
        return {"cpu": max(threads for threads in self.search.threads if threads <= most)}

    @cached_property
    def costs(self) -> CostTable:
        """The costs of the board's experts."""
        costs = {}
        for device, number in self.executors.items():
            threads = self.threads.get(device, 1)
            scaling = self._scaling(device)
            together = scaling[min(number, len(scaling)) - 1] if scaling else number
            for expert in self.search.site.board.experts.values():
                kind = self.search.profile.kind(expert.kind, device, threads)
                assert kind is not None, f"{expert.kind} was not measured on {device} with {counted(threads, 'thread')}"
                cost = profiled_cost(kind, expert, self.search.file_bytes[expert.id])
                if graphs := self._look(device).graphs.get(expert.id):
                    cost = replace(cost, max_batch=min(cost.max_batch, graphs.most))
                costs[device, expert.id] = with_decoding(cost, kind, together, self.search.cores)
        return CostTable(costs)

    @property
    def experts(self) -> list[str]:
        """The experts of the board."""
        return list(self.search.site.board.experts)

    @cached_property
    def mean_bytes(self) -> float:
        """The bytes of the expert of mean size, on the CPU if it has executors, as a line counts it."""
        device = "cpu" if "cpu" in self.executors else "cuda"
        return sum(self.costs(device, expert).weights_bytes for expert in self.experts) / len(self.experts)

    @property
    def is_limited(self) -> bool:
        """Whether the GPU's memory for batches bounds them below the largest useful batch of some kind."""
        kinds = {expert.id: expert.kind for expert in self.search.site.board.experts.values()}
        for expert, graphs in self._look("cuda").graphs.items():
            kind = self.search.profile.kind(kinds[expert], "cuda", 1)
            if kind is not None and graphs.most < kind.max_batch:
                return True
        return False

    def beside(self, weights_bytes: int) -> Setup | None:
        """Return this setup with the largest graphs that leave so much of the GPU's memory; None if none do."""
        number = self.executors["cuda"]
        least = self.search.site.look("cuda", number, 0).memory
        room = (least.memory_bytes or 0) - weights_bytes
        if least.fixed_bytes > room:
            return None
        batch_bytes = room // number
        while (look := self.search.site.look("cuda", number, batch_bytes)).memory.fixed_bytes > room:
            # The next smaller graphs: executors hold images and weights, too.
            batch_bytes = max(0, max(graphs.bytes for graphs in look.graphs.values()) - 1)
        return replace(self, batch_bytes=batch_bytes)

    @property
    def pool_bytes(self) -> int:
        """Bytes of a pool of the CPU; raises ConfigError if an expert does not fit."""
        return next(pool.capacity_bytes for pool in self.plan({}).pools if pool.device == "cpu")

    @property
    def useful_bytes(self) -> int:
        """Bytes of the largest useful batch on the CPU."""
        costs = [self.costs("cpu", expert) for expert in self.search.site.board.experts]
        return max(cost.batch_bytes(cost.max_batch) for cost in costs)

    def plan(self, workspaces: Numbers) -> Plan:
        """Divide memory as a line would; raises ConfigError, naming the least budget, if an expert does not fit."""
        return plan_pools(
            Settings(self.search.site.memory_bytes, self.executors, self.threads, workspaces),
            {device: self._look(device).memory for device in self.executors},
            self.search.site.board.experts,
            self.costs,
            with_images=True,
            demotes=not self.search.site.strategy.cached,
        )

    def run(self, workspaces: dict[str, int]) -> float:
        """Run the sample with `workspaces` bytes of each pool for batches; return images a second."""
        if self.search.on_machine is not None:
            return self.search.on_machine(self.chosen(workspaces))
        return self._simulated(self.plan(workspaces))

    def _simulated(self, plan: Plan) -> float:
        board, strategy = self.search.site.board, self.search.site.strategy
        controller = Controller(router=board.router, graph=board.graph, costs=self.costs, plan=plan, strategy=strategy)
        recorder = Recorder(controller.pools, board.router.second_looks)
        scaling = {device: self._scaling(device) for device in self.executors}
        simulator = Simulator(
            controller, SampledOracle(board), speeds=Speeds(scaling), watchers=[recorder], preloaded=True
        )
        simulator.start()
        counts = [component.count for component in board.components.values()]
        names = Random(0).choices(list(board.components), counts, k=self.search.requests)
        simulator.run(Arrival(0.0, Request(number, name)) for number, name in enumerate(names))
        controller.check(idle=True)
        return recorder.metrics().images_per_s

    def loaded(self, weights_bytes: float) -> float | None:
        """Run the sample with `weights_bytes` of the CPU's pools for experts; None if then not one image fits."""
        pool_bytes, number = self.pool_bytes, self.executors["cpu"]
        wanted, experts = pool_bytes - int(weights_bytes / number), list(self.search.site.board.experts)
        if wanted < 1 or workspace_bytes("cpu", pool_bytes, experts, self.costs, wanted) != wanted:
            return None
        return self.run({"cpu": wanted})

    def chosen(self, workspaces: dict[str, int], speed: float = 0.0, default: float = 0.0, *reasons: str) -> Chosen:
        """Return this setup as a configuration, with its throughputs and the reasons for it."""
        pools = self.plan(workspaces).pools
        room = sum(pool.capacity_bytes - pool.workspace_bytes for pool in pools)
        return Chosen(
            executors=dict(self.executors),
            threads=self.threads,
            workspace_bytes={**workspaces, **({} if self.batch_bytes is None else {"cuda": self.batch_bytes})},
            loaded_experts=int(room / self.mean_bytes),
            images_per_s=speed,
            casual_images_per_s=default,
            reasons=reasons,
        )

    def _look(self, device: str) -> LookedAt:
        batch_bytes = self.batch_bytes if device == "cuda" else None
        return self.search.site.look(device, self.executors[device], batch_bytes)

    def _scaling(self, device: str) -> tuple[float, ...]:
        return self.search.profile.scaling.get(device, {}).get(self.threads.get(device, 1), ())
