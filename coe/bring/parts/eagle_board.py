"""Eagle's board file: the places of its parts, as Eagle's own `mountsmd.ulp` has them.

The place of a part is the middle of its pads: of those on its surface, if it has any.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from cmath import rect
from math import radians
from pathlib import Path

from coe.bring.parts import outside_files
from coe.bring.parts.board_names import BOARD_NAMES, fitting_cells, left_unread
from coe.bring.parts.text_table import Table, TextLine
from coe.errors import ConfigError

_START = re.compile(rb"\s*(?:\xef\xbb\xbf)?<\?xml[^>]*>\s*<!DOCTYPE eagle\b")
_TURN = re.compile(r"[SM]*R(\d+(?:\.\d+)?)")


def is_board(raw: bytes) -> bool:
    """Tell whether bytes are those of a board of Eagle 6 or later."""
    return _START.match(raw) is not None and b"<board>" in raw


def board_table(path: Path, raw: bytes) -> Table:
    """Return the names of columns, and a line for each part that has a pad or a hole; raises ConfigError."""
    root = outside_files.xml_of(path, raw, "a board of Eagle")
    packages = {
        (library.get("name"), library.get("urn"), package.get("name")): package
        for library in root.iterfind(".//board/libraries/library")
        for package in library.iterfind("packages/package")
    }
    current = next((one.get("name") for one in root.iter("variantdef") if one.get("current") == "yes"), None)
    table, without = [TextLine.of_cells(0, BOARD_NAMES)], list[str]()
    for number, element in enumerate(root.iterfind(".//board/elements/element"), 1):
        name = element.get("name", "")
        package = packages.get((element.get("library"), element.get("library_urn"), element.get("package")))
        if package is None or not any(package.find(kind) is not None for kind in ("smd", "pad", "hole")):
            without.append(name)
            continue
        turn = _TURN.fullmatch(element.get("rot", "R0"))
        try:
            degrees, x, y = float(turn[1] if turn else ""), float(element.get("x", "")), float(element.get("y", ""))
            middle = _middle(package)
        except ValueError:
            raise ConfigError(f"{path}: the part '{name}' has no place; save the board again") from None
        is_bottom = "M" in element.get("rot", "")
        turned = rect(1, radians(degrees)) * middle
        at = x + (-turned.real if is_bottom else turned.real), y + turned.imag
        variants = [one for one in element.iterfind("variant") if one.get("name") == current]
        is_out = any(one.get("populate") == "no" for one in (element, *variants))
        fields = ((one.get("name", ""), one.get("value", "")) for one in element.iterfind("attribute"))
        value = next((one.get("value", "") for one in variants if one.get("value")), element.get("value", ""))
        cells = [name, value, element.get("package", ""), *(f"{along:.6f}" for along in at), f"{degrees:g}"]
        cells += ["bottom" if is_bottom else "top", *fitting_cells(fields, is_out=is_out)]
        table.append(TextLine.of_cells(number, cells))
    return Table(table, left_unread(without, "as they have neither a pad nor a hole"))


def _middle(package: xml.Element) -> complex:
    """Return the middle of the pads of a package, from its origin; of its surface only, if pads lie there."""
    pads = package.findall("smd") or package.findall("pad")
    xs, ys = ([float(pad.get(axis, "0")) for pad in pads] for axis in "xy")
    return complex((min(xs) + max(xs)) / 2, (min(ys) + max(ys)) / 2) if pads else 0j
