"""Lists in brackets, as KiCad writes its files: `(at 10 20 90)` is `["at", "10", "20", "90"]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from coe.errors import ConfigError

FOOTPRINTS = ("module", "footprint")
"""What KiCad calls the lists of its parts, before version 6 and since."""
_READ = {"setup", "layers", "gr_line", "gr_rect", "gr_arc", "gr_circle", "gr_poly", "gr_curve", *FOOTPRINTS}
Node: TypeAlias = "list[Node | str]"
Numbered: TypeAlias = "tuple[int, Node]"
"""A list, and the number of its line."""
_TOKEN = re.compile(r'^[ \t]*#.*$|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<word>[()]|[^\s()"]+)', re.MULTILINE)
_BRACKET = re.compile(r'^[ \t]*#.*$|"(?:[^"\\]|\\.)*"|[()]', re.MULTILINE)
"""Both pass over remarks, which converters write."""
_NAME = re.compile(r'\(\s*([^\s()"]+)')


def read_board(path: Path, raw: bytes) -> list[Numbered]:
    """Return the lists of a board file of KiCad that tell its parts, its layers and its edge.

    The others are passed over unread, as most of a file is copper. Raises ConfigError for a file that is cut short.
    """
    text, lists = raw.decode("utf-8-sig", "replace"), list[Numbered]()
    depth = begin = before = 0
    line = 1
    for match in _BRACKET.finditer(text):
        if match[0] == "(":
            depth += 1
            begin = match.start() if depth == 2 else begin
        elif match[0] == ")":
            depth -= 1
            name = _NAME.match(text, begin) if depth == 1 else None
            if name and name[1] in _READ:
                line, before = line + text.count("\n", before, begin), begin
                lists.append((line, _nested(text[begin : match.end()])))
    if depth:
        raise ConfigError(f"{path}: the file ends before its brackets are closed; save it again")
    return lists


def _nested(text: str) -> Node:
    """Return a list with the lists in it."""
    open_lists: list[Node] = [[]]
    for match in _TOKEN.finditer(text):
        word, quoted = match["word"], match["text"]
        if word == "(":
            inner: Node = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
        elif word == ")":
            closed = open_lists.pop()
        elif word is not None or quoted is not None:
            open_lists[-1].append(re.sub(r"\\(.)", r"\1", quoted) if word is None else word)
    return closed


def words_of(node: Node, name: str) -> Iterator[list[str]]:
    """Yield the words of each list in `node` that has this name: behind the name, and without the lists in it."""
    for inner in node:
        if isinstance(inner, list) and inner[:1] == [name]:
            yield [word for word in inner[1:] if isinstance(word, str)]
