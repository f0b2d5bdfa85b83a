"""What memory the devices of this machine have for a board, and hold of it, before a line is opened."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import Expert
from coe.inspector import assembly
from coe.inspector.memory import Memory
from coe.runtime.cuda.driver import Usage
from coe.store import kinds
from coe.store.store import Store

_CROWDED = 0.5
"""A GPU of whose memory less is free than this share is not at its best."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A device as it was found with its executors; see `coe.inspector.memory.Memory`."""

    memory_bytes: int | None
    host_bytes: int
    held_bytes: int

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return what was found; it was for these experts and executors."""
        return self.held_bytes


class Memories:
    """Looks at devices as a line would make them, once for each number of executors.

    A GPU has `device_bytes` and `host_bytes`, a part of what is free if None. Nothing else may use it meanwhile.
    """

    def __init__(
        self,
        board: Rules,
        store: Store,
        device_bytes: int | None,
        host_bytes: int | None,
        *,
        allow_kinds: Sequence[str] = (),
    ) -> None:
        self._experts, self._store = list(board.experts.values()), store
        self._kinds = {kind: kinds.resolve(kind, allow_kinds) for kind in {expert.kind for expert in self._experts}}
        self._device_bytes, self._host_bytes = device_bytes, host_bytes
        self._seen: dict[tuple[str, int], Seen] = {}

    def __call__(self, executors: Mapping[str, int]) -> Mapping[str, Memory]:
        """Return devices with so many executors; raises ConfigError where these do not fit."""
        return {device: self.look(device, number) for device, number in executors.items()}

    def look(self, device: str, executors: int) -> Seen:
        """Return one of them."""
        if (device, executors) not in self._seen:
            made = assembly.devices(
                {device: executors},
                self._store,
                self._kinds,
                {},
                device_bytes=self._device_bytes,
                host_bytes=self._host_bytes,
            )[device]
            held = made.fixed_bytes(self._experts, executors)
            self._seen[device, executors] = Seen(made.memory_bytes, made.host_bytes, held)
            # What it looked at a GPU with must be gone before the next one looks.
            del made
            gc.collect()
        return self._seen[device, executors]


def warn_if_crowded(usage: Usage, say: Callable[[str], None]) -> None:
    """Say so where others hold a large part of a GPU: what is measured then is not what it can do."""
    if usage.free < _CROWDED * usage.total:
        say(
            f"warning: only {format_bytes(usage.free)} of the GPU's {format_bytes(usage.total)} are free; it is "
            "calibrated with these, so end what holds the rest and run coe-profile again if it is not there to stay"
        )
