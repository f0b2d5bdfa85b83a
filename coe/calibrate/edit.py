"""Writing entries of experts into a board file. Law: every line that is not meant stays as it was, to the byte.

An entry's value is replaced where it stands, or added at the end of the expert's mapping, in the style of the mapping:
flow (`{kind: ..., ...}`) or block. The comment stands in the line above the expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coe.calibrate.result import Value
from coe.errors import ConfigError

MARK = "# calibrated: "
"""Begins the comment above an expert; the next calibration replaces a comment that begins so."""
KEYS = ("temperature", "min_scores", "ignore_under")


@dataclass(frozen=True, slots=True)
class Entry:
    """What an expert's entry shall say: its values by key, and the comment above it."""

    values: Mapping[str, Value]
    comment: str


@dataclass(frozen=True, slots=True)
class _Change:
    """The text between two places of the file is replaced."""

    start: int
    end: int
    text: str


def edited(path: Path, text: str, entries: Mapping[str, Entry]) -> str:
    """Return the text of a board file with entries of experts, by name.

    Keys of an earlier calibration that are no longer among the values are left out. Raises ConfigError for an expert
    that the file does not have.
    """
    experts = _mapping(yaml.compose(text, Loader=yaml.SafeLoader), "experts")
    changes: list[_Change] = []
    for name, entry in entries.items():
        pairs = {key.value: (key, value) for key, value in experts.value} if experts is not None else {}
        if name not in pairs:
            raise ConfigError(f"{path.name}: no expert '{name}' to calibrate")
        key, node = pairs[name]
        changes += _of_expert(text, node, entry.values)
        changes.append(_comment(text, key, entry.comment))
    for change in sorted(changes, key=lambda change: -change.start):
        text = text[: change.start] + change.text + text[change.end :]
    return text


def _mapping(root: Any, key: str) -> Any:
    return next((value for name, value in root.value if name.value == key), None)


def _of_expert(text: str, node: Any, values: Mapping[str, Value]) -> list[_Change]:
    """Return the changes in an expert's mapping, which has at least the keys kind, labels and input."""
    places = {key.value: place for place, (key, _) in enumerate(node.value)}
    changes = [
        _Change(value.start_mark.index, value.end_mark.index, _written(values[key.value]))
        for key, value in node.value
        if key.value in values
    ]
    changes += [_removed(text, node, place) for key, place in places.items() if key in KEYS and key not in values]
    new = [f"{key}: {_written(value)}" for key, value in values.items() if key not in places]
    if new:
        end = node.value[-1][1].end_mark.index
        first = node.value[0][0].start_mark
        if node.flow_style:
            joint = ", "
        else:
            joint = _newline(text) + " " * first.column
            end = len(text[:end].rstrip())  # a block ends where the next begins
        changes.append(_Change(end, end, "".join(joint + line for line in new)))
    return changes


def _removed(text: str, node: Any, place: int) -> _Change:
    """Return the change that takes a key away that is not the first of its mapping, with what stands before it."""
    before = node.value[place - 1][1].end_mark.index
    end = node.value[place][1].end_mark.index
    if not node.flow_style:
        before, end = len(text[:before].rstrip()), len(text[:end].rstrip())
    return _Change(before, end, "")


def _comment(text: str, key: Any, comment: str) -> _Change:
    """Return the change that puts a comment above the line of an expert, in the place of an earlier one."""
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    indent = " " * key.start_mark.column
    before = text.rfind("\n", 0, max(0, start - 1)) + 1
    earlier = start if not text[before:start].lstrip().startswith(MARK) else before
    return _Change(earlier, start, f"{indent}{MARK}{comment}{_newline(text)}")


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _written(value: Value) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_word(key)}: {_number(number)}" for key, number in value.items()) + "}"
    return _number(value)


def _number(value: float) -> str:
    """Write a number in full, never as 1e-07, and without zeros at its end."""
    return f"{value:.7f}".rstrip("0").rstrip(".")


def _word(label: str) -> str:
    """Quote a label that YAML would not read as one word."""
    return yaml.safe_dump({label: 0}, default_flow_style=True, width=1000).strip()[1:].partition(": 0")[0]
