"""What watches a line and changes nothing: which experts lie in memory now, and which boards will be late."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from coe.scheduler.events import Command, Event, Evicted, Late, Loaded, Lost

if TYPE_CHECKING:
    from coe.inspector.line import Line


class Residents:
    """A watcher of one line after the other: it keeps the pools in which each expert is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[str, set[str]] = {}
        self._lost: set[str] = set()

    def begin(self) -> None:
        """Forget what another line held."""
        with self._lock:
            self._pools, self._lost = {}, set()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note what came and went; runs on the thread that decides."""
        with self._lock:
            if isinstance(event, Loaded):
                self._pools.setdefault(event.expert, set()).add(event.pool)
            elif isinstance(event, Evicted):
                self._pools.get(event.expert, set()).discard(event.pool)
            elif isinstance(event, Lost) and event.device:
                self._lost.add(event.device)

    def facts(self, line: Line) -> dict[str, Any]:
        """Return each expert of a line as JSON, by its name in the board files; experts of one name are added up.

        `bytes` are those of its weights in memory, `devices` where it is resident, `rules` and `estimated` the
        probability that an image needs it, by the rules and by the images that came (None if nobody estimates it).
        """
        with self._lock:
            pools = {expert: set(where) for expert, where in self._pools.items()}
            lost = set(self._lost)
        device_of = {pool.id: pool.device for pool in line.plan.pools}
        drift = {one.expert: one for one in line.drift()}
        listed: dict[str, dict[str, Any]] = {}
        for expert in line.rules.experts:
            devices = sorted({device_of[pool] for pool in pools.get(expert, ()) if pool in device_of} - lost)
            use = drift.get(expert)
            size = line.costs((devices or line.costs.devices())[0], expert).weights_bytes
            name = line.rules.router.names.get(expert, expert)
            before = listed.get(name, {"bytes": 0, "devices": [], "rules": None, "estimated": None})
            listed[name] = {
                "bytes": before["bytes"] + size,
                "devices": sorted({*before["devices"], *devices}),
                "rules": round(use.rules, 6) if use else before["rules"],
                "estimated": round(use.estimated, 6) if use else before["estimated"],
            }
        return listed


class LateBoards:
    """A watcher: it collects the boards that the scheduler is certain to miss, by their serials, which are our ids."""

    def __init__(self) -> None:
        self._serials: queue.SimpleQueue[str] = queue.SimpleQueue()

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Note the boards that the commands name; runs on the thread that decides, and waits for nothing."""
        for command in commands:
            if isinstance(command, Late):
                self._serials.put(command.board)

    def fetch(self) -> set[int]:
        """Return the boards since the last call, by their ids."""
        ids = set()
        while not self._serials.empty():
            ids.add(int(self._serials.get()))
        return ids
