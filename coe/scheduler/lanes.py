"""The way of experts into the pools: one disk reader for all devices, and a copy lane for each device that has one.

The engine and the simulator ask this class what to carry next, so the order is the same in both. It has no thread and
no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from itertools import count

from coe.scheduler.costs import Tier
from coe.scheduler.events import Fill, Load

READER = None
"""The disk reader as a place; every other place is a device, and means its copy lane."""


class Lanes:
    """One load or fill at a time at each place: the urgent first, then first come, first served.

    `devices` holds the device of each pool, `lanes` the devices with a copy lane. There, an expert from disk passes the
    reader and then the lane, and an expert from host memory the lane alone. On other devices every load passes the
    reader alone, as a fill does for all devices.
    """

    def __init__(self, devices: Mapping[str, str], lanes: Collection[str]) -> None:
        self.places: tuple[str | None, ...] = (READER, *sorted(lanes))
        self._devices = devices
        self._waiting: dict[str | None, list[tuple[int, int, Load | Fill]]] = {place: [] for place in self.places}
        self._busy: dict[str | None, Load | Fill] = {}
        # By expert that is read or waits to be read: loads for which that read makes the copy in host memory.
        self._awaits_read: dict[str, list[Load]] = {}
        self._turn = count()

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values())) + sum(map(len, self._awaits_read.values()))
        return f"<Lanes {len(self._busy)} of {len(self.places)} busy, {waiting} waiting>"

    def put(self, command: Load | Fill) -> None:
        """Add a load or a fill."""
        if isinstance(command, Fill):
            self._awaits_read.setdefault(command.expert, [])
            self._queue(READER, command)
        elif not self.passes_lane(command):
            self._queue(READER, command)
        elif command.source is Tier.DISK:
            self._awaits_read.setdefault(command.expert, [])
            self._queue(READER, command)
        elif command.expert in self._awaits_read:
            self._awaits_read[command.expert].append(command)
        else:
            self._queue(self._devices[command.pool], command)

    def begin(self, place: str | None) -> Load | Fill | None:
        """Begin the next load or fill at a place and return it; None if the place is busy or nothing waits there."""
        if place in self._busy or not self._waiting[place]:
            return None
        self._busy[place] = heapq.heappop(self._waiting[place])[2]
        return self._busy[place]

    def end(self, place: str | None, *, failed: bool = False) -> bool:
        """Free a place; return whether its load or fill is over, rather than on its way to a copy lane."""
        command = self._busy.pop(place)
        if isinstance(command, Load):
            if place is not READER or not self.passes_lane(command):
                return True
            if not failed:
                self._queue(self._devices[command.pool], command)
        for load in self._awaits_read.pop(command.expert, []):
            self._queue(READER if failed else self._devices[load.pool], load)
        return failed or isinstance(command, Fill)

    def passes_lane(self, load: Load) -> bool:
        """Return whether the last place of a load is a copy lane."""
        return self._devices[load.pool] in self._waiting

    def waits(self, device: str) -> bool:
        """Return whether a load of a device waits anywhere."""
        loads = [load for queue in self._waiting.values() for _, _, load in queue if isinstance(load, Load)]
        loads += [load for queue in self._awaits_read.values() for load in queue]
        return any(self._devices[load.pool] == device for load in loads)

    def _queue(self, place: str | None, command: Load | Fill) -> None:
        heapq.heappush(self._waiting[place], (command.why.urgency, next(self._turn), command))
