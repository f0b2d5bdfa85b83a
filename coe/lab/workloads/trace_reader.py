"""A trace file, read back into a workload. An error names file and line; nothing is guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, FiniteFloat

from coe.board import rules
from coe.board.rules import Rules
from coe.core import NOTHING, Finding, Request
from coe.errors import ConfigError, RulesError, did_you_mean
from coe.helpers.strict_model import StrictModel, of_json
from coe.lab.workloads.workload import Workload, with_counts
from coe.sim.agenda import Arrival

MARK = "coe_trace"
"""The key that makes a line the header of a trace; its value is the version."""
VERSION = 1

_LONGEST_LINE = 8 << 20
_LONGEST_MESSAGE = 500
_VARIANT = "fp32"
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Header(StrictModel, strict=True):
    coe_trace: int
    task: str
    order: str
    board: str
    counts: dict[str, _Number] | None = None


class _Found(StrictModel, strict=True):
    label: str
    score: FiniteFloat | None


class _Line(StrictModel, strict=True):
    at_s: _Number
    component: str
    serial: str = ""
    refdes: str = ""
    image: str = ""
    findings: dict[str, _Found] = Field(default_factory=dict)


M = TypeVar("M", bound=StrictModel)


def read(path: Path, board: Rules | None = None) -> Workload:
    """Read a workload; ids count the arrivals from 0. `board`, if given, must be the board of the trace.

    Without it the board is found by its name, as everywhere. Raises ConfigError with file and line.
    """
    try:
        with path.open("rb") as file:
            return _TraceReader(path).workload(iter(lambda: file.readline(_LONGEST_LINE), b""), board)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give a trace file or a task") from error


def labels(board: Rules) -> dict[str, frozenset[str]]:
    """Return by expert all labels that its finding may have."""
    return {name: frozenset({*expert.labels, NOTHING}) for name, expert in board.experts.items()}


class _TraceReader:
    """Turns lines into a workload; knows the number of the current line."""

    def __init__(self, path: Path) -> None:
        self._path, self._number = path, 0
        self._words: dict[str, str] = {}

    def workload(self, lines: Iterator[bytes], board: Rules | None) -> Workload:
        header = next(lines, None)
        if header is None:
            raise self._error("the file is empty; a trace has a header and a line for each arrival")
        self._number = 1
        row = self._row(header.removeprefix(b"\xef\xbb\xbf"))
        if MARK not in row:
            raise self._error(f'the header is missing; the first line of a trace is {{"{MARK}": {VERSION}, ...}}')
        if type(row[MARK]) is not int or row[MARK] != VERSION:
            raise self._error(
                f"a trace of version {row[MARK]!r}; this program reads version {VERSION}, so record it again"
            )
        head = self._checked(row, _Header)
        self._board = self._counted(self._find(head.board, board), head.counts or {})
        self._labels = labels(self._board)
        arrivals: list[Arrival] = []
        recorded: dict[int, dict[str, Finding]] = {}
        last_s = 0.0
        for self._number, text in enumerate(lines, 2):
            if text.isspace():
                continue
            line = self._checked(self._row(text), _Line)
            if line.at_s < last_s:
                raise self._error(f"{line.at_s} s comes after {last_s} s; put the lines in order of time")
            if line.findings:
                recorded[len(arrivals)] = {
                    self._same(expert): self._finding(expert, found) for expert, found in line.findings.items()
                }
            arrivals.append(Arrival(line.at_s, self._request(len(arrivals), line)))
            last_s = line.at_s
        if not arrivals:
            raise self._error("the trace has a header and no arrivals; record at least one")
        return Workload(head.task, head.order, self._board, tuple(arrivals), recorded)

    def _row(self, line: bytes) -> dict[str, Any]:
        if len(line) >= _LONGEST_LINE:
            raise self._error(f"a line of more than {_LONGEST_LINE >> 20} MiB; this is not a trace")
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise self._error(f"not JSON ({error}); mend or remove this line") from None
        if not isinstance(row, dict):
            raise self._error('not an entry of the form {"key": value, ...}; mend or remove this line')
        return row

    def _checked(self, row: dict[str, Any], model: type[M]) -> M:
        try:
            return of_json(row, model)
        except ConfigError as error:
            raise self._error(f"{error}; mend this line") from None

    def _find(self, name: str, board: Rules | None) -> Rules:
        if board is not None and board.board != name:
            raise self._error(f"a trace of board '{name}', not of '{board.board}'; give that board or another trace")
        try:
            return board or rules.load(name)
        except RulesError as error:
            raise self._error(str(error)) from error

    def _counted(self, board: Rules, counts: dict[str, float]) -> Rules:
        try:
            return with_counts(board, counts) if counts else board
        except ConfigError as error:
            raise self._error(str(error)) from error

    def _request(self, number: int, line: _Line) -> Request:
        if line.component not in self._board.components:
            hint = did_you_mean(line.component, self._board.components)
            raise self._error(f"board {self._board.board} has no component '{line.component}'{hint}")
        component, serial, refdes = map(self._same, (line.component, line.serial, line.refdes))
        return Request(number, component, line.image, serial, refdes)

    def _finding(self, expert: str, found: _Found) -> Finding:
        labels = self._labels.get(expert)
        if labels is None:
            hint = did_you_mean(expert, self._labels)
            raise self._error(f"board {self._board.board} has no expert '{expert}'{hint}")
        if found.label not in labels:
            raise self._error(f"'{found.label}' is not a label of '{expert}'{did_you_mean(found.label, labels)}")
        score = math.nan if found.score is None else found.score
        return Finding(self._same(expert), _VARIANT, self._same(found.label), score)

    def _same(self, word: str) -> str:
        """Return one string for equal words: a million lines hold few different ones."""
        return self._words.setdefault(word, word)

    def _error(self, message: str) -> ConfigError:
        """Return an error on one line of bounded length, whatever words from the file stand in it."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in message[: _LONGEST_MESSAGE + 1])
        plain = plain if len(plain) <= _LONGEST_MESSAGE else plain[:_LONGEST_MESSAGE] + "..."
        return ConfigError(f"{self._path}:{max(1, self._number)}: {plain}")
