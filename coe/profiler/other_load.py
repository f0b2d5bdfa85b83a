"""How much of the machine others use while it is measured: processor time of the cores that is not ours."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

from coe.helpers.system import core_numbers, usable_cores

LOOK_S = 1.0
"""How long the machine is looked at before anything is measured."""
NOTICED = 0.05
"""The share of our cores that others may use: what a quiet system does by itself."""
_SHORTEST_S = 0.5
"""A shorter step says nothing: systems count processor time in steps of 10 ms."""
_SHOWN = 3

_NOT_BUSY = ("iowait", "guest", "guest_nice", "interrupt", "dpc")
"""What waits for a disk is idle; the others are within the time of user (Linux) and system (Windows)."""

ProcessKey = tuple[int, float]
"""The number of a process and when it began, as numbers are used again."""


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of processor time since the system began: of our cores together, of us, and of each other process."""

    at_s: float
    cores_s: float
    own_s: float
    others_s: Mapping[ProcessKey, tuple[str, float]]


@dataclass(frozen=True, slots=True)
class OtherLoad:
    """How many cores others kept busy, on average, and who did most of it: (name, process, cores)."""

    cores: float
    most: tuple[tuple[str, int, float], ...] = ()

    def words(self) -> str:
        """Return what others did, for a sentence."""
        named = ", ".join(f"{name} (process {pid}) {cores:.1f}" for name, pid, cores in self.most)
        return f"{self.cores:.1f} cores" + (f": {named}" if named else "")


QUIET = OtherLoad(0.0)


def between(before: ProcessorTimes, after: ProcessorTimes, seen: int) -> OtherLoad:
    """Return what others did on `seen` cores between two looks.

    A process that began or ended meanwhile counts, but is not named.
    """
    elapsed_s = after.at_s - before.at_s
    if elapsed_s <= 0:
        return QUIET
    used_s = (after.cores_s - before.cores_s) - (after.own_s - before.own_s)
    each = [
        (name, key[0], (total_s - before.others_s[key][1]) / elapsed_s)
        for key, (name, total_s) in after.others_s.items()
        if key in before.others_s
    ]
    most = sorted((one for one in each if one[2] >= NOTICED), key=lambda one: -one[2])[:_SHOWN]
    return OtherLoad(min(float(seen), max(0.0, used_s / elapsed_s)), tuple(most))


def disturbs(load: OtherLoad, usable: int, seen: int) -> bool:
    """Tell whether a load takes cores that are measured: `usable` of the `seen` cores are ours, others may be idle."""
    return load.cores - (seen - usable) > NOTICED * usable


def look() -> ProcessorTimes:
    """Read the times of this machine's cores and processes."""
    numbers, per_core = core_numbers(), psutil.cpu_times(percpu=True)
    cores = [per_core[number] for number in numbers if number < len(per_core)] or per_core
    busy = [sum(core) - core.idle - sum(getattr(core, name, 0.0) for name in _NOT_BUSY) for core in cores]
    own_s, others = 0.0, {}
    us = psutil.Process()
    ours = {os.getpid(), *(child.pid for child in us.children(recursive=True))}
    for process in psutil.process_iter(["pid", "name", "create_time", "cpu_times"]):
        info = process.info
        if (times := info["cpu_times"]) is None:
            continue
        if info["pid"] in ours:
            # With those of children that have ended.
            own_s += sum(times[:4]) if len(times) > 3 else sum(times[:2])
        else:
            others[info["pid"], info["create_time"]] = (info["name"] or "?", sum(times[:2]))
    return ProcessorTimes(time.monotonic(), sum(busy), own_s, others)


@dataclass(slots=True)
class LoadWatch:
    """Watches what others do, before measuring (`before`) and step by step (`step`, `end`)."""

    looked: Callable[[], ProcessorTimes] = look
    usable: int = field(default_factory=usable_cores)
    seen: int = field(default_factory=lambda: len(core_numbers()) or os.cpu_count() or 1)
    disturbed: dict[str, OtherLoad] = field(default_factory=dict)
    _what: str = ""
    _since: ProcessorTimes | None = None

    def before(self, wait: Callable[[float], None] = time.sleep) -> OtherLoad | None:
        """Return what others do now, if that disturbs."""
        began = self.looked()
        wait(LOOK_S)
        load = between(began, self.looked(), self.seen)
        return load if disturbs(load, self.usable, self.seen) else None

    def step(self, what: str) -> None:
        """Begin a step, which ends that before it; may be called again within the step."""
        if what != self._what:
            self.end()
            self._what, self._since = what, self.looked()

    def end(self) -> None:
        """End the last step: keep what others did in it, if that disturbed."""
        if self._since is not None:
            now = self.looked()
            load = between(self._since, now, self.seen)
            if now.at_s - self._since.at_s >= _SHORTEST_S and disturbs(load, self.usable, self.seen):
                self.disturbed[self._what] = load
        self._what, self._since = "", None
