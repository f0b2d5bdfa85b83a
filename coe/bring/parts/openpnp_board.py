"""OpenPnP's board.xml: placements with their sides and units; fiducials and what is switched off are told apart."""

from __future__ import annotations

import re
from pathlib import Path

from coe.bring.parts import outside_files
from coe.bring.parts.text_table import Table, TextLine
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_START = re.compile(rb"^\s*(?:\xef\xbb\xbf)?\s*<(\?xml|openpnp)")
_NAMES = ("Designator", "Footprint", "X", "Y", "Rotation", "Side", "Unit", "Type", "Fitted")


def is_board(raw: bytes) -> bool:
    """Tell whether bytes are those of XML, of which OpenPnP's is the one that is read as a list of placements."""
    return _START.match(raw) is not None


def board_table(path: Path, raw: bytes) -> Table:
    """Return the names of columns, and a line for each placement of a board; raises ConfigError."""
    root = outside_files.xml_of(path, raw, "a board of OpenPnP")
    values = [value for element in root.iter() for value in element.attrib.values() if value.endswith(".board.xml")]
    if values and root.tag in ("openpnp-panel", "openpnp-job"):
        names, what = list_few(map(visible, dict.fromkeys(values))), root.tag.removeprefix("openpnp-")
        raise ConfigError(f"{path}: it is a {what} of OpenPnP, whose parts are in {names}; give this file")
    table = [TextLine.of_cells(0, _NAMES)]
    for number, element in enumerate(root.iter("placement"), 1):
        location, refdes = element.find("location"), element.get("id", "")
        if location is None:
            raise ConfigError(f"{path}: placement '{refdes}' has no location; export it again")
        kind = element.get("type", "").casefold()
        is_placed = element.get("enabled", "true").casefold() != "false" and kind != "ignore"
        cells = [refdes, element.get("part-id", ""), *(location.get(axis, "") for axis in ("x", "y"))]
        cells += [location.get("rotation", "0"), element.get("side", "Top"), location.get("units", ""), kind]
        table.append(TextLine.of_cells(number, [*cells, "" if is_placed else "no"]))
    if len(table) == 1:
        raise ConfigError(
            f"{path}: there is no placement of OpenPnP in this XML, whose root is '{visible(root.tag):.40}'; export "
            "the board again, or of another program a placement file as CSV"
        )
    return Table(table)
