"""A box for the simulator: the costs of a board's experts on it, and the split of its memory for a strategy.

It is made of a device preset, or of what `coe-profile` measured."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.rules import Rules
from coe.config import counted, format_bytes
from coe.core import FULL, Expert
from coe.errors import ConfigError, did_you_mean
from coe.inspector import profile
from coe.inspector.profile import BoardProfile
from coe.inspector.settings import TooSmall, inbox_bytes, workspace_bytes
from coe.lab import preset
from coe.lab.preset import BlobCostPreset, CostPreset, Preset, SourcedFigure
from coe.profiler.configurations import PAPER_SHARE
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

    def configuration(self, name: str, board: str) -> Configuration:
        """Return a configuration by name, the variant for this board if the preset has it; raises ConfigError."""
        known = self.preset.configurations
        configuration = known.get(f"{name}/{board}", known.get(name))
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
        advice = f"give memory '{memory}' at least {-(-least // (1 << 20))}MiB in addition to what is reserved"
        return TooSmall(
            f"preset '{self.name}', device '{device}': a pool of {format_bytes(capacity)}, one of {sharers} in memory "
            f"'{memory}', {small}; {advice}" + (", or use fewer executors" if sharers > 1 else ""),
            least,
        )


ENDING = ".json"


class ProfiledMachine(SimulatedMachine):
    """A box made of a profile, for one board of it, whose memory budget it has.

    Its configuration "best" is the one that was chosen; "paper-default" has as many executors, with a quarter of their
    memory for batches. An expert's weights are as large as those of its kind that were measured. Raises ConfigError for
    a profile that is damaged or does not know the board as it is.
    """

    def __init__(self, path: Path, board: Rules) -> None:
        self.profile = profile.load(path)
        found = self.profile.boards.get(board.board)
        if found is None:
            known = ", ".join(self.profile.boards) or "none"
            raise ConfigError(
                f"{path} has no board '{board.board}' (known: {known}); name one of these with --board, or run "
                f"coe-profile --board {board.path}"
            )
        if found.digest != board.digest:
            raise ConfigError(f"{board.path} has changed since {path} was made; run coe-profile --board {board.path}")
        self.board: BoardProfile = found
        self.name, self._body_share = path.name, 0.0
        chosen = found.chosen
        self.threads = {device: chosen.threads.get(device, 1) for device in chosen.executors}
        scaling = self.profile.scaling
        self.scaling = {device: scaling.get(device, {}).get(number, (1.0,)) for device, number in self.threads.items()}
        sizes = {"cuda": found.device_bytes, "copies": found.host_bytes}
        host = found.memory_bytes - inbox_bytes(found.memory_bytes)
        self.memories = {"host": host, **{id: size for id, size in sizes.items() if size}}
        self.memory_of = {device: device if device in self.memories else "host" for device in self.threads}

    def costs(self, board: Rules) -> CostTable:
        """Return the costs of a board's experts, as `coe-profile` works with them."""
        return CostTable({(d, e.id): self._cost(d, e) for d in self.threads for e in board.experts.values()})

    def _cost(self, device: str, expert: Expert) -> Cost:
        from coe.inspector.measuring import profiled_cost  # slow to import, as it imports torch
        from coe.profiler.tune import with_decoding

        kind = self.profile.kind(expert.kind, device, self.threads[device])
        if kind is None:
            raise ConfigError(
                f"{self.name} has no cost of kind '{expert.kind}' on {device} with "
                f"{counted(self.threads[device], 'thread')}, which expert '{expert.id}' needs; run coe-profile again"
            )
        number, scaling = self.board.chosen.executors[device], self.scaling[device]
        together = scaling[min(number, len(scaling)) - 1]
        return with_decoding(
            profiled_cost(kind, expert, kind.weights_bytes), kind, together, self.profile.machine.cores
        )

    def configuration(self, name: str, board: str) -> Configuration:
        """Return "best", as it was chosen, or "paper-default"; raises ConfigError."""
        executors, workspaces = self.board.chosen.executors, self.board.chosen.workspace_bytes
        memory = self.memory_of
        shares = {}
        for device in executors:
            number = sum(executors[other] for other in executors if memory[other] == memory[device])
            if device in workspaces or name == "paper-default":
                capacity = self.memories[memory[device]] // number
                shares[device] = 1 - (workspaces[device] / capacity if name == "best" else PAPER_SHARE)
        if name not in ("best", "paper-default"):
            raise ConfigError(f"profile '{self.name}' has no configuration '{name}'; known: best, paper-default")
        return Configuration(executors, shares, "copies" in self.memories)


def machine_named(name: str, boards: Sequence[Rules]) -> SimulatedMachine:
    """Return a box by the name of its preset, its file, or its profile, for some boards; raises ConfigError."""
    if not name.endswith(ENDING):
        return SimulatedMachine(name)
    by_name = {board.board: board for board in boards}
    if len(by_name) > 1:
        raise ConfigError(f"{name} has a configuration for each board; name one of {', '.join(by_name)} at a time")
    return ProfiledMachine(Path(name), *by_name.values())
