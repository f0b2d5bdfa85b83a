"""A box for the simulator: the costs of a board's experts on it, and the split of its memory for a strategy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL, Expert
from coe.errors import ConfigError, did_you_mean
from coe.inspector.memory_split import TooSmall, workspace_bytes
from coe.lab import preset
from coe.lab.preset import BlobCostPreset, CostPreset, Preset, SourcedFigure
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import CacheSpec, ExecutorSpec, Plan, PoolSpec, executor_id
from coe.scheduler.strategies import Strategy


@dataclass(frozen=True, slots=True)
class Configuration:
    """The executors of each device, and the share of its memory for experts (without a share: what batches leave).

    With `copies` host memory without executors keeps copies for the devices.
    """

    executors: Mapping[str, int]
    expert_share: Mapping[str, float]
    copies: bool = False


class SimulatedMachine:
    """A box made of a device preset: `memory_of` each device, and the bytes of all `memories` that are not reserved."""

    def __init__(self, name: str) -> None:
        self.preset: Preset = preset.load(name)
        self.memory_of = {device: spec.memory for device, spec in self.preset.devices.items()}
        self.memories = {id: spec.size.value - spec.reserved.value for id, spec in self.preset.memories.items()}
        self.name = name if name in preset.names() else name.rpartition("/")[2]
        self.scaling = {device: tuple(spec.scaling.value) for device, spec in self.preset.devices.items()}

    def __repr__(self) -> str:
        return f"<SimulatedMachine {self.name}, {', '.join(self.memory_of)}>"

    def costs(self, board: Rules) -> CostTable:
        """Return the costs of a board's experts; raises ConfigError, naming the kind, if the preset lacks one.

        The time and the activations of an image grow with the area of the input.
        """
        experts = board.experts.values()
        return CostTable({(d, e.id): self._cost(d, e) for d in self.preset.devices for e in experts})

    def _cost(self, device: str, expert: Expert) -> Cost:
        spec, kind = self.preset.devices[device], self.preset.kinds.get(expert.kind)
        if kind is None or expert.kind not in spec.kinds:
            raise ConfigError(
                f"preset '{self.name}' has no cost of kind '{expert.kind}' on device '{device}', which expert "
                f"'{expert.id}' needs; known: {', '.join(sorted(spec.kinds))}"
            )
        cost = self._of_figures(spec.kinds[expert.kind], expert, kind.weights.value, spec.lane)
        return replace(cost, load_s=cost.load_s + kind.open_ms.value / 1e3)

    def _of_figures(self, figures: CostPreset, expert: Expert, size: int, lane: SourcedFigure[int] | None) -> Cost:
        copy_s = size / (math.inf if lane is None else lane.value)
        area = (expert.input_size / self.preset.kinds[expert.kind].input.value) ** 2
        return Cost(
            per_image_s=figures.per_image_ms.value / 1e3 * area,
            base_s=figures.base_ms.value / 1e3,
            load_s=size / self.preset.disk.value + copy_s,
            weights_bytes=size,
            activation_bytes=int(figures.activation.value * area),
            max_batch=figures.max_batch.value,
            copy_s=copy_s,
        )

    def blob_costs(self, board: Rules, devices: Collection[str]) -> dict[tuple[str, str, str], Cost]:
        """Return the costs of a board's experts as blobs on some devices, by device, expert and variant.

        Raises ConfigError, naming the kind, if the preset lacks its blobs.
        """
        return {
            (device, expert.id, variant): self._blob_cost(device, expert, variant)
            for device in devices
            for expert in board.experts.values()
            for variant in self._variants(device, expert)
        }

    def _variants(self, device: str, expert: Expert) -> Mapping[str, BlobCostPreset]:
        variants = self.preset.devices[device].blobs.get(expert.kind, {})
        if FULL not in variants:
            raise ConfigError(
                f"preset '{self.name}' has no costs of prepared variants of kind '{expert.kind}' on device '{device}', "
                f"which expert '{expert.id}' needs; add them under devices.{device}.blobs, or leave --precision out"
            )
        return variants

    def _blob_cost(self, device: str, expert: Expert, variant: str) -> Cost:
        spec, kind = self.preset.devices[device], self.preset.kinds[expert.kind]
        figures = spec.blobs[expert.kind][variant]
        cost = self._of_figures(figures, expert, kind.blobs[variant].value, spec.blob_lane)
        return replace(cost, workspace_bytes=figures.active.value)

    def usable_bytes(self, configuration: Configuration) -> int:
        """Return the memory of a configuration's devices without what is reserved; shared memory counts once."""
        return sum(self.memories[id] for id in {self.memory_of[device] for device in configuration.executors})

    def configuration(self, name: str, board: str) -> Configuration:
        """Return a configuration by name, the variant for this board if the preset has it; raises ConfigError."""
        known = self.preset.configurations
        # Presets of earlier versions have the paper's default as "casual".
        names = [name, "casual"] if name == "paper-default" else [name]
        found = (known.get(place) for each in names for place in (f"{each}/{board}", each))
        configuration = next((part for part in found if part is not None), None)
        if configuration is None:
            raise ConfigError(f"preset '{self.name}' has no configuration '{name}'{did_you_mean(name, known)}")
        copies = configuration.copies is not None and configuration.copies.value
        return Configuration(configuration.executors.value, configuration.shares(), copies)

    def plan(self, board: Rules, costs: CostTable, strategy: Strategy, configuration: Configuration) -> Plan:
        """Split the memories into equal pools, one for each executor, as the paper does (section 4.1).

        With a `cached` strategy only the first device runs experts, and the host's memory, if it is separate, caches
        them. With `copies` in the configuration it keeps copies for every other strategy, too. A `single` strategy has
        one executor. Raises TooSmall if an expert does not fit, and ConfigError for a device that the preset does not
        have.
        """
        if unknown := [device for device in configuration.executors if device not in self.memory_of]:
            hint = did_you_mean(unknown[0], self.memory_of)
            raise ConfigError(f"preset '{self.name}' has no device '{unknown[0]}'{hint}")
        first = next(iter(self.memory_of))
        numbers = dict(configuration.executors)
        if strategy.cached:
            numbers = {first: sum(numbers.values())}
        if strategy.single:
            numbers = {next(iter(numbers)): 1}
        sharing = Counter[str]()
        for device, number in numbers.items():
            sharing[self.memory_of[device]] += number
        pools, executors = [], []
        for device, number in numbers.items():
            memory = self.memory_of[device]
            capacity = self.memories[memory] // sharing[memory]
            share = configuration.expert_share.get(device)
            wanted = None if share is None else int(capacity * (1 - share))
            try:
                workspace = workspace_bytes(device, capacity, board.experts, costs, wanted)
            except TooSmall as small:
                raise self._too_small(device, sharing[memory], capacity, small) from None
            for index in range(number):
                id = executor_id(device, index)
                pools.append(PoolSpec(id, device, capacity, workspace))
                executors.append(ExecutorSpec(id, device, id))
        idle = [memory for memory in self.memories if memory not in sharing]
        cache = None
        if idle and (strategy.cached or configuration.copies):
            cache = CacheSpec(self.memories[idle[0]], demotes=not strategy.cached)
        return Plan(tuple(pools), tuple(executors), cache)

    def _too_small(self, device: str, sharers: int, capacity: int, small: TooSmall) -> TooSmall:
        memory, least = self.memory_of[device], small.least_bytes * sharers
        # Rounded up, so that exactly this memory is enough.
        advice = f"let memory '{memory}' have at least {-(-least // (1 << 20))}MiB in addition to what is reserved"
        return TooSmall(
            f"preset '{self.name}', device '{device}': a pool of {format_bytes(capacity)}, one of {sharers} in memory "
            f"'{memory}', {small}; {advice}" + (", or take fewer executors" if sharers > 1 else ""),
            least,
        )
