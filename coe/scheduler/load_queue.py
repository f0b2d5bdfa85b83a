"""The way of experts into the pools: one disk reader for all devices, and a copy lane for each device that has one.

The engine and the simulator ask this class what to carry next, so the order is the same in both. It has no thread and
no clock.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count

from coe.scheduler.costs import Tier
from coe.scheduler.events import Fill, Load

READER = None
"""The disk reader as a place; every other place is a device, and means its copy lane."""
STAGED = 2
"""How many experts of a device lie in host memory on their way from disk: one is read while another is copied."""

_Row = list[tuple[int, int, Load | Fill]]


class LoadQueue:
    """One load or fill at a time at each place: the urgent first, then first come, first served.

    `devices` holds the device of each pool, `lanes` the devices with a copy lane. There, an expert from disk passes the
    reader and then the lane, and an expert from host memory the lane alone. On other devices every load passes the
    reader alone, as a fill does for all devices. The reader is at most `STAGED` experts of a device ahead of its lane,
    because host memory has no room for more.
    """

    def __init__(self, devices: Mapping[str, str], lanes: Collection[str]) -> None:
        self.places: tuple[str | None, ...] = (READER, *sorted(lanes))
        self._devices = devices
        self._at_lane: dict[str, _Row] = {device: [] for device in lanes}
        # By device; those of fills stand under READER.
        self._to_read: dict[str | None, _Row] = {device: [] for device in (READER, *devices.values())}
        self._busy: dict[str | None, Load | Fill] = {}
        self._staged: Counter[str] = Counter()
        # By what is read or waits to be read: loads for which that read makes the copy in host memory.
        self._awaits_read: dict[str, list[Load]] = {}
        self._turn = count()

    def __repr__(self) -> str:
        waiting = sum(map(len, self._rows())) + sum(map(len, self._awaits_read.values()))
        return f"<LoadQueue {len(self._busy)} of {len(self.places)} busy, {waiting} waiting>"

    def put(self, command: Load | Fill) -> None:
        """Add a load or a fill."""
        copy = command.expert
        if isinstance(command, Load) and command.source is Tier.HOST and copy in self._awaits_read:
            self._awaits_read[copy].append(command)
            return
        if isinstance(command, Fill) or (command.source is Tier.DISK and self.passes_lane(command)):
            self._awaits_read.setdefault(copy, [])
        if isinstance(command, Fill):
            row = self._to_read[READER]
        elif command.source is Tier.HOST and self.passes_lane(command):
            row = self._at_lane[self._devices[command.pool]]
        else:
            row = self._to_read[self._devices[command.pool]]
        self._queue(row, command, command.why.urgency)

    def begin(self, place: str | None) -> Load | Fill | None:
        """Begin the next load or fill at a place and return it; None if none can begin there."""
        if place in self._busy:
            return None
        if place is READER:
            rows = [row for device, row in self._to_read.items() if row and self._staged[device or ""] < STAGED]
        else:
            rows = [self._at_lane[place]] if self._at_lane[place] else []
        if not rows:
            return None
        command = self._busy[place] = heapq.heappop(min(rows, key=lambda row: row[0]))[2]
        if place is READER and isinstance(command, Load) and self.passes_lane(command):
            self._staged[self._devices[command.pool]] += 1
        return command

    def end(self, place: str | None, *, failed: bool = False) -> bool:
        """Free a place; return whether its load or fill is over, rather than on its way to a copy lane.

        If it `failed` to make a copy in host memory, loads that waited for that copy read the disk instead.
        """
        command = self._busy.pop(place)
        if isinstance(command, Load):
            if not self.passes_lane(command):
                return True
            device = self._devices[command.pool]
            if command.source is Tier.DISK and (failed or place is not READER):
                self._staged[device] -= 1
            if place is not READER:
                return True
            if not failed:
                # Urgent: until it is copied, it takes the host memory that the next read needs.
                self._queue(self._at_lane[device], command, 0)
        for load in self._awaits_read.pop(command.expert, []):
            self.put(replace(load, source=Tier.DISK) if failed else load)
        return failed or isinstance(command, Fill)

    def passes_lane(self, load: Load) -> bool:
        """Return whether the last place of a load is a copy lane."""
        return self._devices[load.pool] in self._at_lane

    def waits(self, device: str) -> bool:
        """Return whether a load of a device waits anywhere."""
        loads = [load for row in self._rows() for _, _, load in row if isinstance(load, Load)]
        loads += [load for queue in self._awaits_read.values() for load in queue]
        return any(self._devices[load.pool] == device for load in loads)

    def _rows(self) -> list[_Row]:
        return [*self._at_lane.values(), *self._to_read.values()]

    def _queue(self, row: _Row, command: Load | Fill, urgency: int) -> None:
        heapq.heappush(row, (urgency, next(self._turn), command))
