"""Writing entries of experts into a board file. Law: every line that is not meant stays as it was, to the byte.

An entry's value is replaced where it stands, or added at the end of the expert's mapping, in the style of the mapping:
flow (`{kind: ..., ...}`) or block. The comment stands in the line above the expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coe import strict_yaml
from coe.calibrate.result import Value
from coe.errors import ConfigError, RulesError

MARK = "# calibrated: "
"""Begins the comment above an expert; the next calibration replaces a comment that begins so."""
_BYTE_ORDER_MARK = "\ufeff"
KEYS = ("temperature", "min_scores", "ignore_under")


@dataclass(frozen=True, slots=True)
class RulesEntry:
    """What an expert's entry shall say: its values by key, and the comment above it."""

    values: Mapping[str, Value]
    comment: str


@dataclass(frozen=True, slots=True)
class _Change:
    """The text between two places of the file is replaced."""

    start: int
    end: int
    text: str


def edited(path: Path, text: str, entries: Mapping[str, RulesEntry]) -> str:
    """Return the text of a board file with entries of experts, by name.

    Keys of an earlier calibration that are no longer among the values are left out. Raises ConfigError for an expert
    that the file does not have, and for an entry in a style of YAML in which it cannot be changed.
    """
    body = text.removeprefix(_BYTE_ORDER_MARK)
    experts = _mapping(strict_yaml.nodes(body), "experts")
    changes: list[_Change] = []
    comments: dict[int, list[str]] = {}
    for name, entry in entries.items():
        pairs = {key.value: (key, value) for key, value in experts.value} if experts is not None else {}
        if name not in pairs:
            raise ConfigError(f"{path.name}: no expert '{name}' to calibrate")
        key, node = pairs[name]
        changes += _of_expert(body, node, entry.values)
        line = body.rfind("\n", 0, key.start_mark.index) + 1
        indent = " " * (len(body[line:]) - len(body[line:].lstrip(" ")))
        comments.setdefault(line, []).append(indent + MARK + entry.comment + _newline(text))
    changes += [_commented(body, line, above) for line, above in comments.items()]
    changed = body
    for change in sorted(changes, key=lambda change: -change.start):
        changed = changed[: change.start] + change.text + changed[change.end :]
    _prove(path, body, changed, entries)
    return text[: len(text) - len(body)] + changed


def _prove(path: Path, before: str, after: str, entries: Mapping[str, RulesEntry]) -> None:
    """Raise ConfigError unless a changed text says what the text before said, but for the entries."""
    wanted = strict_yaml.parse(path, before.encode()).data
    for name, entry in entries.items():
        expert = wanted["experts"][name] = {k: v for k, v in wanted["experts"][name].items() if k not in KEYS}
        for key, value in entry.values.items():
            expert[key] = (
                {label: _number(number) for label, number in value.items()}
                if isinstance(value, Mapping)
                else _number(value)
            )
    try:
        holds = strict_yaml.parse(path, after.encode()).data == wanted
    except RulesError:
        holds = False
    if not holds:
        names = ", ".join(f"'{name}'" for name in entries)
        raise ConfigError(
            f"{path.name}: the entries of {names} cannot be changed without a change of others; write each key of an "
            "expert in a separate line that ends with a line feed, and its value behind it"
        )


def _mapping(root: Any, key: str) -> Any:
    return next((value for name, value in root.value if name.value == key), None)


def _of_expert(text: str, node: Any, values: Mapping[str, Value]) -> list[_Change]:
    """Return the changes in an expert's mapping, which has at least the keys kind, labels and input."""
    places = {key.value: place for place, (key, _) in enumerate(node.value)}
    changes = [
        _Change(value.start_mark.index, _end(text, value), _written(values[key.value]))
        for key, value in node.value
        if key.value in values
    ]
    changes += [_removed(text, node, place) for key, place in places.items() if key in KEYS and key not in values]
    new = [f"{key}: {_written(value)}" for key, value in values.items() if key not in places]
    if new:
        if node.flow_style:
            joint, end = ", ", node.value[-1][1].end_mark.index
        else:
            joint = _newline(text) + " " * node.value[0][0].start_mark.column
            end = _line_end(text, node.value[-1][1])
        changes.append(_Change(end, end, "".join(joint + line for line in new)))
    return changes


def _line_end(text: str, node: Any) -> int:
    """Return the place after the last line of an entry in block style, where a comment behind it ends as well.

    A block ends, for YAML, where the next begins, behind comments that belong to that; so its last value is asked.
    """
    while node.value and not isinstance(node.value, str) and not node.flow_style:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    end = text.find("\n", node.end_mark.index)
    end = len(text) if end < 0 else end
    return end - 1 if text[end - 1 : end] == "\r" else end


def _removed(text: str, node: Any, place: int) -> _Change:
    """Return the change that takes a key away from a mapping that has others: in block style its lines."""
    key, value = node.value[place]
    if node.flow_style and not place:
        return _Change(key.start_mark.index, node.value[1][0].start_mark.index, "")
    if node.flow_style:
        return _Change(node.value[place - 1][1].end_mark.index, value.end_mark.index, "")
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    end = _line_end(text, value)
    return _Change(start, end + len(_newline(text)), "")


def _commented(text: str, line: int, above: Sequence[str]) -> _Change:
    """Return the change that puts comments above the line that begins at a place, instead of those of before."""
    start = line
    while start and text[(before := text.rfind("\n", 0, start - 1) + 1) : start].lstrip().startswith(MARK):
        start = before
    return _Change(start, line, "".join(above))


def _end(text: str, node: Any) -> int:
    """Return the place behind a value: a word, a flow, or a block."""
    is_block = not isinstance(node.value, str) and not node.flow_style
    return _line_end(text, node) if is_block else int(node.end_mark.index)


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
