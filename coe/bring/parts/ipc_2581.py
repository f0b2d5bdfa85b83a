"""IPC-2581, the open standard of the data of a board: its components, with the values and what its BOM leaves out.

A component lies where its package is picked up. Its angle, and the offset of that point, are turned before they are
mirrored, as the pads in files of Allegro are.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from cmath import rect
from dataclasses import dataclass, field
from math import radians
from pathlib import Path

from coe.bring.parts import cad_files
from coe.bring.parts.cad_files import CadPart, numbers_in, only_board, table_of
from coe.bring.parts.text_table import Table
from coe.bring.parts.vocabulary import UNIT_WORDS
from coe.errors import ConfigError
from coe.helpers.visible import visible

_OF_KICAD = re.compile(r"^(?:CMP|PKG|REF):|^(?:CMP|PKG)_")
"""What KiCad 8 and 9 write before names, in files of revision C and B."""
_SHAPES = ("LayerFeature", "Set", "PadStackDef", "PhyNetGroup", "LogicalNet")
"""Most of a file, and nothing of it is needed."""


@dataclass(slots=True)
class _Ipc2581:
    """What is needed of a file: its elements by name. `steps` holds the components of each step, its boards."""

    unit: str = ""
    sides: dict[str, str] = field(default_factory=dict)
    middles: dict[str, xml.Element] = field(default_factory=dict)
    listed: dict[str, dict[str, tuple[xml.Element, xml.Element]]] = field(default_factory=dict)
    steps: dict[str, list[xml.Element]] = field(default_factory=dict)
    panels: set[str] = field(default_factory=set)


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the components of the one board in a file; raises ConfigError."""
    board = _read(path, raw)
    step, notes = only_board(path, "IPC-2581 file", filter(board.steps.get, board.steps), board.panels)
    unit = UNIT_WORDS.get(board.unit.casefold())
    if unit is None:
        raise ConfigError(f"{path}: the unit of this IPC-2581 file is '{visible(board.unit)}'; export it in mm or inch")
    parts: list[CadPart] = []
    for component in board.steps[step]:
        with numbers_in(path, f"the component '{visible(component.get('refDes', ''))}'"):
            parts.append(_part(component, board))
    return table_of(parts, notes, unit)


def _read(path: Path, raw: bytes) -> _Ipc2581:
    board, parts, is_panel = _Ipc2581(), list[xml.Element](), False
    for element in cad_files.elements(path, raw, "an IPC-2581 file"):
        element.tag = kind = element.tag.rpartition("}")[2]
        name = element.get("name", "")
        if kind == "CadHeader":
            board.unit = element.get("units", "")
        elif kind == "Layer":
            board.sides[name] = element.get("side", "").casefold()
        elif kind == "Package" and (point := element.find("PickupPoint")) is not None:
            board.middles[name] = point
        elif kind == "BomItem":
            for one in element.iter("RefDes"):
                said = board.listed.setdefault(one.get("name", ""), {})
                said.setdefault(one.get("populate", ""), (one, element))
        elif kind == "Component":
            parts.append(element)
        elif kind == "StepRepeat":
            is_panel = True
        elif kind == "Step":
            board.steps[name] = parts
            board.panels |= {name} if is_panel else set()
            parts, is_panel = [], False
        if kind in (*_SHAPES, "Package"):
            element.clear()
    return board


def _part(part: xml.Element, board: _Ipc2581) -> CadPart:
    """Return a component; raises ValueError if its place or its angle is no number."""
    name, turned, location = part.get("refDes", ""), part.find("Xform"), part.find("Location")
    if location is None:
        raise ValueError
    turn, mirror = (0.0, "") if turned is None else (float(turned.get("rotation") or 0), turned.get("mirror", ""))
    is_mirrored = mirror.casefold() in ("true", "1")
    point = board.middles.get(part.get("packageRef", ""))
    places = (["0", "0"] if one is None else [one.get("x", ""), one.get("y", "")] for one in (location, point))
    place, middle = (complex(float(x), float(y)) for x, y in places)
    offset = rect(1, radians(turn)) * middle
    at = place + (-offset.conjugate() if is_mirrored else offset)
    side = board.sides.get(part.get("layerRef", ""), "")
    side = side if side in ("top", "bottom") else ("bottom" if is_mirrored else "top")  # within a board that folds
    listed = board.listed.get(name, {})
    said = [(one.get("name", ""), one.get("value", "")) for one in part.iter("NonstandardAttribute")]
    texts = (text for _, item in listed.values() for text in item.iter("Textual"))
    said += [(one.get("textualCharacteristicName", ""), one.get("textualCharacteristicValue", "")) for one in texts]
    value = next((text for label, text in said if label.casefold() == "value" and text), part.get("part", ""))
    package = next((one.get("packageRef", "") for one, _ in listed.values()), "") or part.get("packageRef", "")
    # Two BOMs, as of two variants, may say yes and no, which is asked about.
    said.append(("populate", " / ".join(filter(None, listed))))
    name, value, package = (_OF_KICAD.sub("", text) for text in (name, value, package))
    return CadPart(name, value, package, at, turn, side, said)
