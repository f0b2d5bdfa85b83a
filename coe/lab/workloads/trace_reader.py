"""A trace file, read back into a workload. An error names file and line; nothing is guessed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coe.board import rules
from coe.board.rules import Rules
from coe.core import NOTHING, Finding, Request
from coe.errors import ConfigError, RulesError, did_you_mean
from coe.lab.workloads.workload import Workload, with_counts
from coe.sim.agenda import Arrival

MARK = "coe_trace"
"""The key that makes a line the header of a trace; its value is the version."""
VERSION = 1

_HEADER = frozenset({MARK, "task", "order", "board", "counts"})
_LINE = frozenset({"at_s", "component", "serial", "refdes", "image", "findings"})
_FINDING = frozenset({"label", "score"})
_LONGEST_LINE = 8 << 20
_LONGEST_MESSAGE = 500
_VARIANT = "fp32"


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
        self._check_keys(row, _HEADER, ("task", "order", "board"))
        task, order = self._text(row, "task"), self._text(row, "order")
        self._board = self._counted(self._find(self._text(row, "board"), board), row.get("counts"))
        self._labels = labels(self._board)
        arrivals: list[Arrival] = []
        recorded: dict[int, dict[str, Finding]] = {}
        last_s = 0.0
        for self._number, line in enumerate(lines, 2):
            if line.isspace():
                continue
            row = self._row(line)
            self._check_keys(row, _LINE, ("at_s", "component"))
            at_s = self._time(row["at_s"], last_s)
            if "findings" in row and (findings := self._findings(row["findings"])):
                recorded[len(arrivals)] = findings
            arrivals.append(Arrival(at_s, self._request(len(arrivals), row)))
            last_s = at_s
        if not arrivals:
            raise self._error("the trace has a header and no arrivals; record at least one")
        return Workload(task, order, self._board, tuple(arrivals), recorded)

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

    def _check_keys(self, row: dict[str, Any], known: frozenset[str], needed: tuple[str, ...]) -> None:
        if not row.keys() <= known:
            word = next(key for key in row if key not in known)
            raise self._error(f"'{word}' is not a key here{did_you_mean(word, known)}")
        for key in needed:
            if key not in row:
                raise self._error(f"'{key}' is missing; write it in")

    def _text(self, row: dict[str, Any], key: str) -> str:
        word = row.get(key, "")
        if not isinstance(word, str):
            raise self._error(f"'{key}' must be text, not {word!r}; put it in quotes")
        return word

    def _find(self, name: str, board: Rules | None) -> Rules:
        if board is not None and board.board != name:
            raise self._error(f"a trace of board '{name}', not of '{board.board}'; give that board or another trace")
        try:
            return board or rules.load(name)
        except RulesError as error:
            raise self._error(str(error)) from error

    def _counted(self, board: Rules, counts: object) -> Rules:
        if counts is None:
            return board
        if not isinstance(counts, dict):
            raise self._error("'counts' must be null or a number for each component")
        numbers: dict[str, float] = {}
        for name, count in counts.items():
            number = self._number_of(count)
            if number is None:
                raise self._error(f"the count of '{name}' must be a number of 0 or more, not {count!r}")
            numbers[name] = number
        try:
            return with_counts(board, numbers)
        except ConfigError as error:
            raise self._error(str(error)) from error

    def _time(self, value: object, last_s: float) -> float:
        at_s = self._number_of(value)
        if at_s is None or at_s < 0:
            raise self._error(f"'at_s' must be seconds of 0 or more, not {value!r}; mend or remove this line")
        if at_s < last_s:
            raise self._error(f"{at_s} s comes after {last_s} s; put the lines in order of time")
        return at_s

    def _request(self, number: int, row: dict[str, Any]) -> Request:
        name = self._text(row, "component")
        if name not in self._board.components:
            hint = did_you_mean(name, self._board.components)
            raise self._error(f"board {self._board.board} has no component '{name}'{hint}")
        # A million lines hold few different words, so equal words share one string.
        words = self._words
        serial, refdes = self._text(row, "serial"), self._text(row, "refdes")
        serial, refdes = words.setdefault(serial, serial), words.setdefault(refdes, refdes)
        return Request(number, words.setdefault(name, name), self._text(row, "image"), serial, refdes)

    def _findings(self, rows: object) -> dict[str, Finding]:
        if not isinstance(rows, dict):
            raise self._error('\'findings\' must be {"expert": {"label": ..., "score": ...}, ...}')
        words = self._words
        return {words.setdefault(expert, expert): self._finding(expert, row) for expert, row in rows.items()}

    def _finding(self, expert: str, row: object) -> Finding:
        labels = self._labels.get(expert)
        if labels is None:
            hint = did_you_mean(expert, self._labels)
            raise self._error(f"board {self._board.board} has no expert '{expert}'{hint}")
        if not isinstance(row, dict):
            raise self._error(f'the finding of \'{expert}\' must be {{"label": ..., "score": ...}}')
        self._check_keys(row, _FINDING, ("label", "score"))
        label, score, words = self._text(row, "label"), row["score"], self._words
        if label not in labels:
            raise self._error(f"'{label}' is not a label of '{expert}'{did_you_mean(label, labels)}")
        number = math.nan if score is None else self._number_of(score)
        if number is None:
            raise self._error(f"the score of '{expert}' must be a number or null, not {score!r}")
        return Finding(words.setdefault(expert, expert), _VARIANT, words.setdefault(label, label), number)

    @staticmethod
    def _number_of(value: object) -> float | None:
        """Return a finite number, or None for anything else."""
        if not isinstance(value, float | int) or isinstance(value, bool):
            return None
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None

    def _error(self, message: str) -> ConfigError:
        """Return an error on one line of bounded length, whatever words from the file stand in it."""
        plain = "".join(letter if letter.isprintable() else "?" for letter in message[: _LONGEST_MESSAGE + 1])
        plain = plain if len(plain) <= _LONGEST_MESSAGE else plain[:_LONGEST_MESSAGE] + "..."
        return ConfigError(f"{self._path}:{max(1, self._number)}: {plain}")
