"""Changes of single entries of a YAML file that people read: all else, comments too, stays as it is written.

A place is a path of keys and indices. What was to be decided there (a comment with TODO) is decided by the change.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from coe.board.drafting import TODO
from coe.helpers.strict_yaml import KeyPath

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DECIDED = re.compile(rf"[ \t]*#[^\n]*\b{TODO}\b[^\n]*")


def has(text: str, place: KeyPath) -> bool:
    """Tell whether a place is there."""
    return _find(text, place) is not None


def with_value(text: str, place: KeyPath, new: str) -> str:
    """Return the text with another value, written in one line; raises KeyError for a place that is not there."""
    node = _node(text, place)
    begin, end = node.start_mark.index, _end(node)
    after = text[end:]
    line, _, _ = after.partition("\n")
    return text[:begin] + new + _DECIDED.sub("", line, count=1) + after[len(line) :]


def without(text: str, place: KeyPath) -> str:
    """Return the text without an entry of a mapping."""
    parent, node = _node(text, place[:-1]), _node(text, place)
    assert isinstance(parent, yaml.MappingNode)
    if _is_flow(parent):
        return _without_flow(text, parent, place)
    first = next(name.start_mark.line for name, value in parent.value if name.value == place[-1])
    last = text.count("\n", 0, _end(node))
    lines = text.splitlines(keepends=True)
    return "".join(lines[:first] + lines[last + 1 :])


def _without_flow(text: str, parent: yaml.MappingNode, place: KeyPath) -> str:
    at = next(number for number, (name, _) in enumerate(parent.value) if name.value == place[-1])
    begin, end = parent.value[at][0].start_mark.index, parent.value[at][1].end_mark.index
    if at + 1 < len(parent.value):
        end = parent.value[at + 1][0].start_mark.index
    elif at:
        begin = parent.value[at - 1][1].end_mark.index
    return text[:begin] + text[end:]


def value(text: str, place: KeyPath) -> str:
    """Return the value at a place as it is written; raises KeyError for a place that is not there."""
    node = _node(text, place)
    return text[node.start_mark.index : _end(node)]


def with_entry(text: str, place: KeyPath, entry: str) -> str:
    """Return the text with one more line at the end of a block mapping; raises KeyError."""
    parent = _node(text, place)
    if _is_flow(parent) or not isinstance(parent, yaml.MappingNode) or not parent.value:
        raise KeyError(place)
    key, last = parent.value[-1]
    lines = text.splitlines(keepends=True)
    at = text.count("\n", 0, _end(last)) + 1
    indent = " " * key.start_mark.column
    if at and not lines[at - 1].endswith("\n"):
        lines[at - 1] += "\n"
    return "".join([*lines[:at], f"{indent}{entry}\n", *lines[at:]])


def with_key(text: str, place: KeyPath, new: str) -> str:
    """Return the text with one more key in a mapping that is not empty; raises KeyError for one that is not there."""
    parent = _node(text, place[:-1])
    if not _is_flow(parent):
        return with_entry(text, place[:-1], f"{place[-1]}: {new}")
    end = parent.end_mark.index - 1
    return f"{text[:end].rstrip()}, {place[-1]}: {new}{text[end:]}"


def _is_flow(node: yaml.Node) -> bool:
    return not isinstance(node, yaml.CollectionNode) or bool(node.flow_style)


def _node(text: str, place: KeyPath) -> yaml.Node:
    node = _find(text, place)
    if node is None:
        raise KeyError(place)
    return node


def _find(text: str, place: KeyPath) -> yaml.Node | None:
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    for part in place:
        if isinstance(node, yaml.MappingNode):
            node = next((value for name, value in node.value if name.value == part), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        else:
            return None
    return node


def _end(node: yaml.Node) -> int:
    """Return where a node ends; a block ends with its last part, and not before what follows it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def line(text: str, component: str) -> str:
    """Return the line of a component, with the comment behind it; raises KeyError."""
    return text.splitlines()[_node(text, ("components", component)).start_mark.line].strip()


def top(text: str, key: str) -> str:
    """Return the lines of an entry at the top of a file, with the comments behind it; empty if it is not there."""
    extent = _extent(text, key)
    return "" if extent is None else "".join(text.splitlines(keepends=True)[slice(*extent)])


def with_tops(text: str, entries: dict[str, str], *, after: str) -> str:
    """Return the text with other lines for entries at its top, as `top` gives them: empty ones go, new ones follow
    `after`."""
    for key, lines in entries.items():
        extent = _extent(text, key)
        if extent is None and lines:
            behind = _extent(text, after) or (0, 0)
            extent = behind[1], behind[1]
        if extent is not None:
            parts = text.splitlines(keepends=True)
            text = "".join([*parts[: extent[0]], lines, *parts[extent[1] :]])
        after = key if lines else after
    return text


def _extent(text: str, key: str) -> tuple[int, int] | None:
    top = _node(text, ())
    for name, value in top.value if isinstance(top, yaml.MappingNode) else ():
        if name.value == key:
            return name.start_mark.line, text.count("\n", 0, _end(value)) + 1
    return None
