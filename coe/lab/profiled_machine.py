"""A box for the simulator as `coe-profile` measured it: a board's costs, and the memory and executors it chose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coe.board.rules import Rules
from coe.core import Expert
from coe.errors import ConfigError
from coe.inspector import profile
from coe.inspector.memory_split import inbox_bytes
from coe.inspector.profile import BoardProfile
from coe.lab.machine import Configuration, SimulatedMachine
from coe.profiler.configurations import PAPER_SHARE
from coe.scheduler.costs import Cost, CostTable

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
                f"{self.name} has no cost of kind '{expert.kind}' on {device} with {self.threads[device]} thread(s), "
                f"which expert '{expert.id}' needs; run coe-profile again"
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
