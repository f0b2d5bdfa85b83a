"""KiCad's board file: the places of its footprints, as KiCad's own placement file has them; its XML for BOMs.

Its lists in brackets are lists here: `(at 10 20 90)` is `["at", "10", "20", "90"]`.

x grows to the right and y up, from the drill and place origin, as in the outline that is read from such a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coe.bring.parts import cad_files
from coe.bring.parts.cad_files import CadPart, left_unread, numbers_in, table_of
from coe.bring.parts.text_table import Node, Numbered, Table, TextLine
from coe.errors import ConfigError

FOOTPRINTS = ("module", "footprint")
"""What KiCad calls the lists of its parts, before version 6 and since."""
_READ = {"setup", "layers", "gr_line", "gr_rect", "gr_arc", "gr_circle", "gr_poly", "gr_curve", *FOOTPRINTS}
_TOKEN = re.compile(r'^[ \t]*#.*$|"(?P<text>(?:[^"\\]|\\.)*)"|(?P<word>[()]|[^\s()"]+)', re.MULTILINE)
_BRACKET = re.compile(r'^[ \t]*#.*$|"(?:[^"\\]|\\.)*"|[()]', re.MULTILINE)
"""Both pass over remarks, which converters write."""
_NAME = re.compile(r'\(\s*([^\s()"]+)')
_COPPER = {"signal", "power", "mixed", "jumper"}
_NOT_PLACED = {"exclude_from_pos_files", "virtual"}
_MARK = re.compile("fiducial|mounting.?hole", re.IGNORECASE)
"""Footprints that no machine places, and that show where a board lies."""


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the footprints that are for placement files, or a mark of the board; raises ConfigError."""
    lists = read_board(path, raw)
    origin = next((words for _, node in lists for words in words_of(node, "aux_axis_origin")), ["0", "0"])
    # A person may have named the copper layers; the front is the first of them, the back the last.
    layers = [inner for _, node in lists if node[0] == "layers" for inner in node if isinstance(inner, list)]
    copper = [str(layer[1]) for layer in layers if _COPPER.intersection(map(str, layer[2:]))]
    sides = {**dict.fromkeys(copper[-1:], "bottom"), **dict.fromkeys(copper[:1], "top")}
    parts, without = list[CadPart](), list[str]()
    for number, node in lists:
        if node[0] not in FOOTPRINTS:
            continue
        fields, package = _fields(node), next((str(word) for word in node[1:2]), "")
        refdes, value = fields.get("Reference", ""), fields.get("Value", "")
        attributes = {word for words in words_of(node, "attr") for word in words}
        if attributes & _NOT_PLACED and not _MARK.search(package):
            without.append(refdes)
            continue
        with numbers_in(path, f"the footprint in line {number}"):
            x, y, *turn = map(float, next(words_of(node, "at"), [])[:3])
            at = complex(x - float(origin[0]), float(origin[1]) - y)
        layer = next((words[0] for words in words_of(node, "layer") if words), "")
        side, package = sides.get(layer, layer), package.rpartition(":")[2]
        is_out = "dnp" in attributes or fields.get("dnp") == ""  # a property of KiCad 7 says so by its name alone
        turn_deg = turn[0] if turn else 0.0
        parts.append(CadPart(refdes, value, package, at, turn_deg, side, fields.items(), is_out, number))
    return replace(
        table_of(parts, left_unread(without, "because KiCad leaves them out of placement files")), drawn=lists
    )


def _fields(node: Node) -> dict[str, str]:
    """Return the texts of a footprint by their names; those of KiCad 7 and earlier are `fp_text reference R1`."""
    texts = [words for words in words_of(node, "fp_text") if words[:1] in (["reference"], ["value"])]
    named = [*words_of(node, "property"), *([words[0].capitalize(), *words[1:]] for words in texts)]
    return {words[0]: words[1] for words in named if len(words) > 1}


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


def bom_table(path: Path, raw: bytes) -> Table:
    """Return the table of the components in the XML for BOMs; any of their fields may say that one is not fitted."""
    rows: list[list[str]] = []
    for part in cad_files.xml_of(path, raw, "a BOM").iter("comp"):
        properties = {element.get("name"): element.get("value", "") for element in part.iter("property")}
        left_out = "yes" if properties.pop("dnp", None) is not None else ""
        package = part.findtext("footprint", "").rpartition(":")[2]
        fields = [*properties.values(), *(element.text or "" for element in part.iter("field"))]
        rows.append([part.get("ref", ""), part.findtext("value", ""), package, left_out, *fields])
    names = ["Designator", "Value", "Footprint", "DNP"]
    names += [f"Field {number}" for number in range(1, max(map(len, rows), default=0) - len(names) + 1)]
    return Table([TextLine.of_cells(number, cells) for number, cells in enumerate([names, *rows])])
