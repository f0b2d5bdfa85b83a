"""Eagle's board file: the places of its parts, as Eagle's own `mountsmd.ulp` has them.

The place of a part is the middle of its pads: of those on its surface, if it has any.
"""

from __future__ import annotations

import xml.etree.ElementTree as xml
from cmath import rect
from math import radians
from pathlib import Path

from coe.bring.parts import cad_files
from coe.bring.parts.cad_files import CadPart, left_unread, numbers_in, table_of
from coe.bring.parts.text_table import Table
from coe.helpers.visible import visible


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the parts that have a pad or a hole; raises ConfigError."""
    root = cad_files.xml_of(path, raw, "a board of Eagle")
    packages = {
        (library.get("name"), library.get("urn"), package.get("name")): package
        for library in root.iterfind(".//board/libraries/library")
        for package in library.iterfind("packages/package")
    }
    current = next((one.get("name") for one in root.iter("variantdef") if one.get("current") == "yes"), None)
    parts, without = list[CadPart](), list[str]()
    for element in root.iterfind(".//board/elements/element"):
        name, turn = element.get("name", ""), element.get("rot", "R0")
        package = packages.get((element.get("library"), element.get("library_urn"), element.get("package")))
        if package is None or not any(package.find(kind) is not None for kind in ("smd", "pad", "hole")):
            without.append(name)
            continue
        with numbers_in(path, f"the part '{visible(name)}'"):
            degrees = float(turn.lstrip("SM").removeprefix("R"))
            place = complex(*(float(element.get(axis, "")) for axis in "xy"))
            turned = rect(1, radians(degrees)) * _middle(package)
        is_bottom = "M" in turn
        variants = [one for one in element.iterfind("variant") if one.get("name") == current]
        parts.append(
            CadPart(
                name,
                next((one.get("value", "") for one in variants if one.get("value")), element.get("value", "")),
                element.get("package", ""),
                place + (-turned.conjugate() if is_bottom else turned),
                degrees,
                "bottom" if is_bottom else "top",
                [(one.get("name", ""), one.get("value", "")) for one in element.iterfind("attribute")],
                any(one.get("populate") == "no" for one in (element, *variants)),
            )
        )
    return table_of(parts, left_unread(without, "because they have neither a pad nor a hole"))


def _middle(package: xml.Element) -> complex:
    """Return the middle of the pads of a package, from its origin; of its surface only, if pads lie there."""
    pads = package.findall("smd") or package.findall("pad")
    xs, ys = ([float(pad.get(axis, "0")) for pad in pads] or [0.0] for axis in "xy")
    return complex(min(xs) + max(xs), min(ys) + max(ys)) / 2
