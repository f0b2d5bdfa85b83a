"""Workloads as files: a JSON line about the workload, then a line for each arrival.

    {"coe_trace": 1, "task": "A1", "order": "iid", "board": "board_a", "counts": null}
    {"at_s": 0.004, "component": "R0402-1K", "serial": "S0001", "refdes": "R7",
     "findings": {"R0402-1K": {"label": "ok", "score": 0.98}}}

`counts` is null if the counts of the board file hold; a line leaves out empty values. A finding's boxes and the variant
of its expert are not kept, because no decision depends on them. A score that is not a number is null.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coe.board import rules
from coe.board.rules import Rules
from coe.core import Finding, Request, again_id, decided
from coe.errors import ConfigError, RulesError
from coe.lab.workloads.trace_reader import MARK, VERSION, labels, read
from coe.lab.workloads.workload import TASKS, Workload, task
from coe.scheduler.events import Arrived, Command, Event, Reply

__all__ = ["TraceFile", "read", "workload", "write"]

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def workload(name: str | Path, *, order: str = "iid", tail: str = "board", seed: int = 0) -> Workload:
    """Return a task by its name, or the workload of a trace file.

    A trace states all arrivals, so `order`, `tail` and `seed` are for tasks only. Raises ConfigError.
    """
    if str(name) in TASKS:
        return task(str(name), order=order, tail=tail, seed=seed)
    if not os.path.exists(name):
        raise ConfigError(f"'{name}' is neither a task ({', '.join(TASKS)}) nor an existing trace file")
    return read(Path(name))


def write(path: Path, work: Workload) -> None:
    """Write a workload; an existing file is replaced. Raises ConfigError."""
    lines = (_line(a.at_s, a.request, decided(work.recorded.get(a.request.id, {}))) for a in work.arrivals)
    try:
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(_header(work.task, work.order, work.board))
            file.writelines(lines)
    except OSError as error:
        raise _unwritable(path, error) from error


class TraceFile:
    """A watcher that writes arrivals and their findings as a trace that a simulator can replay.

    A line is written once its request and all requests that arrived before it have their replies; only the lines that
    wait are kept in memory. Times count from the first arrival. The trace leaves out what a replay could not use:
    refused requests, findings that an error prevented, and labels that the rules do not know. An existing file is
    replaced. A full disk must not stop the inspection: recording ends, and `close` raises ConfigError.
    """

    def __init__(self, path: Path, board: Rules, *, task: str = "recorded", order: str = "recorded") -> None:
        self.path = path
        self._board, self._labels = board, labels(board)
        # A second finding replaces the first under the expert's id: a replay need not know variants.
        experts = [expert for expert in self._labels if expert not in board.router.second_looks]
        self._expert_of = {id: expert for expert in experts for id in (expert, again_id(expert))}
        self._began_s: float | None = None
        self._order: deque[_Pending] = deque()
        self._open: dict[int, _Pending] = {}
        self._error: OSError | None = None
        try:
            self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
            self._file.write(_header(task, order, board))
        except OSError as error:
            raise _unwritable(path, error) from error

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Take note of an arrival, and write the lines that are complete now; do nothing after `close`."""
        if self._file.closed:
            return
        if isinstance(event, Arrived) and event.request.component in self._board.components:
            self._began_s = now if self._began_s is None else self._began_s
            pending = self._open[event.request.id] = _Pending(event.request, now - self._began_s)
            self._order.append(pending)
        for command in commands:
            if isinstance(command, Reply) and command.result.request.id in self._open:
                self._open.pop(command.result.request.id).reply(self._usable(command.result.findings))
        while self._order and self._order[0].line:
            self._write(self._order.popleft().line)

    def close(self) -> None:
        """Write requests without a reply as lines without findings, and end the file; a second call does nothing."""
        while self._order:
            pending = self._order.popleft()
            pending.reply({})
            self._write(pending.line)
        self._open.clear()
        try:
            self._file.close()
        except OSError as error:
            self._error = self._error or error
        failed, self._error = self._error, None
        if failed is not None:
            raise _unwritable(self.path, failed) from failed

    def __enter__(self) -> TraceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TraceFile {self.path}, {len(self._order)} lines wait>"

    def _usable(self, findings: Iterable[Finding]) -> dict[str, Finding]:
        """Return by expert the findings that a replay can use: those with experts and labels that the rules know."""
        known = ((self._expert_of[f.expert], f) for f in findings if f.expert in self._expert_of)
        return {expert: finding for expert, finding in known if finding.label in self._labels[expert]}

    def _write(self, line: str) -> None:
        if self._error is None:
            try:
                self._file.write(line)
            except OSError as error:
                self._error = error


@dataclass(slots=True, eq=False)
class _Pending:
    """A request that arrived; `line` is empty until its reply."""

    request: Request
    at_s: float
    line: str = ""

    def reply(self, findings: Mapping[str, Finding]) -> None:
        self.line = self.line or _line(self.at_s, self.request, findings)


def _header(task: str, order: str, board: Rules) -> str:
    counts: dict[str, float] | None = {name: component.count for name, component in board.components.items()}
    try:
        if counts == {name: component.count for name, component in rules.load(board.board).components.items()}:
            counts = None
    except RulesError:  # the board is not found by its name
        pass
    return _json({MARK: VERSION, "task": task, "order": order, "board": board.board, "counts": counts})


def _line(at_s: float, request: Request, findings: Mapping[str, Finding]) -> str:
    rows = {
        expert: {"label": finding.label, "score": finding.score if math.isfinite(finding.score) else None}
        for expert, finding in findings.items()
    }
    optional = {"serial": request.serial, "refdes": request.refdes, "image": request.image, "findings": rows}
    return _json(
        {"at_s": at_s, "component": request.component, **{key: value for key, value in optional.items() if value}}
    )


def _json(row: Mapping[str, object]) -> str:
    return _ENCODER.encode(row) + "\n"


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror}; make room or give another place for the trace")
