"""KiCad's board file: the places of its footprints, as KiCad's own placement file has them.

x grows to the right and y up, from the drill and place origin, as in the outline that is read from such a file.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from coe.bring.parts.board_names import CadPart, left_unread, numbers_in, table_of
from coe.bring.parts.s_expression import FOOTPRINTS, Node, read_board, words_of
from coe.bring.parts.text_table import Table

_START = re.compile(rb"\s*(?:\xef\xbb\xbf)?\s*\(kicad_pcb\b")
_COPPER = {"signal", "power", "mixed", "jumper"}
_NOT_PLACED = {"exclude_from_pos_files", "virtual"}
_MARK = re.compile("fiducial|mounting.?hole", re.IGNORECASE)
"""Footprints that no machine places, and that show where a board lies."""


def is_board(raw: bytes) -> bool:
    """Tell whether bytes are those of a board of KiCad."""
    return _START.match(raw) is not None


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
    return replace(table_of(parts, left_unread(without, "as KiCad has them in no placement file")), drawn=lists)


def _fields(node: Node) -> dict[str, str]:
    """Return the texts of a footprint by their names; those of KiCad 7 and earlier are `fp_text reference R1`."""
    texts = [words for words in words_of(node, "fp_text") if words[:1] in (["reference"], ["value"])]
    named = [*words_of(node, "property"), *([words[0].capitalize(), *words[1:]] for words in texts)]
    return {words[0]: words[1] for words in named if len(words) > 1}
