"""A watcher that keeps a timetable of a run, for chrome://tracing and Perfetto (Trace Event Format, JSON object).

One process of the trace is the line (replies, waiting requests, the disk), and each device is another: a thread for
each executor, copy lane and pool, and counters for each pool. Slices of a thread never overlap: viewers drop those.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from coe.errors import ConfigError
from coe.scheduler.events import (
    Arrived,
    Command,
    Event,
    Evict,
    Finished,
    Load,
    Loaded,
    LoadFailed,
    Rejected,
    Reply,
    Run,
    RunFailed,
)
from coe.scheduler.executor import Executor
from coe.scheduler.pool import ModelPool

LINE = "line"
_MIB = 1 << 20


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


@dataclass(slots=True)
class _TraceEvent:
    """An event of the trace; `fields` are the fields that only its phase has."""

    phase: str
    name: str
    pid: int
    tid: int
    at_us: int
    args: dict[str, Any]
    fields: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        head = {"ph": self.phase, "name": self.name, "pid": self.pid, "tid": self.tid, "ts": self.at_us}
        return head | self.fields | {"args": self.args}


@dataclass(slots=True)
class _Track:
    """A thread of the trace, and the end of its last slice."""

    pid: int
    tid: int
    name: str
    end_us: int = 0

    def slice(self, category: str, name: str, begin_us: int, end_us: int, args: dict[str, Any]) -> _TraceEvent:
        """Make a slice that begins no sooner than the last slice ends."""
        begin_us = max(begin_us, self.end_us)
        self.end_us = max(begin_us, end_us)
        return _TraceEvent(
            "X", name, self.pid, self.tid, begin_us, args, {"cat": category, "dur": self.end_us - begin_us}
        )

    def instant(self, category: str, name: str, at_us: int, args: dict[str, Any]) -> _TraceEvent:
        return _TraceEvent("i", name, self.pid, self.tid, at_us, args, {"cat": category, "s": "t"})


class ChromeTrace:
    """Keeps all events in memory until `write`; memory grows with the run.

    A batch is a slice on its executor, from `Run` for as long as it took. A load is a slice on its pool, from `Load`
    to `Loaded`. It begins no sooner than the pool's load before it ends, even where the two overlap, one on the disk
    and one on the lane; `waited_ms` is the time before that. `span` tells the work of disk and lanes. The counter
    "waiting" holds the requests that have arrived and have no reply yet. Of several changes within a microsecond,
    counters show the last.
    """

    def __init__(self, executors: Mapping[str, Executor], pools: Mapping[str, ModelPool]) -> None:
        self._pools = pools
        self._tids = count(101)
        devices = dict.fromkeys([e.device for e in executors.values()] + [p.device for p in pools.values()])
        self._pids: dict[str | None, int] = {None: 1} | {device: pid for pid, device in enumerate(devices, 2)}
        self._tracks: dict[tuple[int, str], _Track] = {}
        self._executors = {id: self._track(e.device, f"executor {id}") for id, e in executors.items()}
        self._loads = {id: self._track(pool.device, f"pool {id}") for id, pool in pools.items()}
        self._events: list[_TraceEvent] = []
        self._running: dict[str, deque[tuple[int, Run]]] = {id: deque() for id in executors}
        self._loading: dict[tuple[str, str], tuple[int, Load]] = {}
        self._counters: dict[tuple[int, str], _TraceEvent] = {}
        self._waiting = self._replies = 0

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Take in one step of the run; call this before anything else changes the pools."""
        at = _us(now)
        match event:
            case Arrived() | Rejected():
                self._waiting += 1
            case Finished():
                self._ended(event.executor, at, event.took_s)
            case RunFailed():
                self._ended(event.executor, at, 0.0, failed=event.reason)
            case Loaded():
                self._came(event.pool, event.expert, at)
            case LoadFailed():
                self._came(event.pool, event.expert, at, failed=event.reason)
        for command in commands:
            match command:
                case Run():
                    self._running[command.executor].append((at, command))
                case Load():
                    self._loading[command.pool, command.expert] = (at, command)
                case Evict():
                    track, expert = self._loads[command.pool], command.expert
                    self._events.append(track.instant("evict", f"evict {expert}", at, {"expert": expert}))
                case Reply():
                    self._replies += 1
                    self._waiting -= 1
        self._count(1, "waiting", "requests", self._waiting, at)
        self._count(1, "replies", "images", self._replies, at)
        for pool in self._pools.values():
            pid = self._pids[pool.device]
            self._count(pid, f"{pool.id} reserved", "MiB", round(pool.reserved_bytes / _MIB, 3), at)
            self._count(pid, f"{pool.id} resident", "experts", len(pool), at)

    def span(self, device: str | None, what: str, begin_s: float, end_s: float) -> None:
        """Take in that a device's copy lane (None: the disk) begins work that will end at `end_s`."""
        if device in self._pids:
            track = self._track(device, "disk" if device is None else "copy lane")
        else:
            track = self._track(None, f"copy {device}")
        self._events.append(track.slice("lane", what, _us(begin_s), _us(end_s), {}))

    def write(self, path: Path) -> None:
        """Write the trace; raises ConfigError if the file cannot be written."""
        if not os.path.isdir(path.parent):
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}; make it or name another")
        try:
            with path.open("w", encoding="utf-8") as file:
                file.write('{"displayTimeUnit": "ms", "traceEvents": [')
                for index, entry in enumerate(self._entries()):
                    file.write((",\n" if index else "\n") + json.dumps(entry))
                file.write("\n]}\n")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}; name another file") from None

    def _entries(self) -> Iterator[dict[str, Any]]:
        """Yield the names of processes and threads, then all events, by time."""
        for device, pid in self._pids.items():
            yield from _named("process", pid, 0, LINE if device is None else f"device {device}", pid)
        for track in sorted(self._tracks.values(), key=lambda track: (track.pid, track.tid)):
            yield from _named("thread", track.pid, track.tid, track.name, track.tid)
        for event in sorted(self._events + self._not_ended(), key=lambda event: event.at_us):
            yield event.to_json()

    def _not_ended(self) -> list[_TraceEvent]:
        """Return batches and loads under way as instants at their beginnings: writing must not end their slices."""
        batches = [
            self._executors[id].instant("batch", f"{run.batch.expert}, not ended", at_us, _batch_args(run))
            for id, runs in self._running.items()
            for at_us, run in runs
        ]
        return batches + [
            self._loads[load.pool].instant("load", f"{load.expert}, not ended", at_us, _load_args(load))
            for at_us, load in self._loading.values()
        ]

    # Slices and counters

    def _ended(self, executor: str, at_us: int, took_s: float, **more: Any) -> None:
        if self._running[executor]:
            began_us, run = self._running[executor].popleft()
            began_us = max(began_us, self._executors[executor].end_us)
            if took_s > 0:
                # Before it began, the batch waited for its images.
                began_us = max(began_us, at_us - _us(took_s))
            args = _batch_args(run) | more
            self._events.append(self._executors[executor].slice("batch", run.batch.expert, began_us, at_us, args))

    def _came(self, pool: str, expert: str, at_us: int, **more: Any) -> None:
        if (pool, expert) in self._loading:
            issued_us, load = self._loading.pop((pool, expert))
            track = self._loads[pool]
            args = _load_args(load) | {"waited_ms": max(0, track.end_us - issued_us) / 1000} | more
            self._events.append(track.slice("load", expert, issued_us, at_us, args))

    def _count(self, pid: int, name: str, unit: str, value: float, at_us: int) -> None:
        last = self._counters.get((pid, name))
        if last is not None and last.args[unit] == value:
            return
        if last is not None and last.at_us == at_us:
            last.args[unit] = value
            return
        event = _TraceEvent("C", name, pid, 0, at_us, {unit: value})
        self._counters[pid, name] = event
        self._events.append(event)

    def _track(self, device: str | None, name: str) -> _Track:
        pid = self._pids[device]
        if (pid, name) not in self._tracks:
            self._tracks[pid, name] = _Track(pid, next(self._tids), name)
        return self._tracks[pid, name]


def _batch_args(run: Run) -> dict[str, Any]:
    return {"images": len(run.batch), "requests": [stage.request_id for stage in run.batch.stages]}


def _load_args(load: Load) -> dict[str, Any]:
    return {"why": load.why.value, "source": load.source.value}


def _named(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    head = {"ph": "M", "pid": pid, "tid": tid}
    yield head | {"name": f"{what}_name", "args": {"name": name}}
    yield head | {"name": f"{what}_sort_index", "args": {"sort_index": order}}
