"""OpenPnP's board.xml: placements with their sides and units; fiducials and what is switched off are told apart."""

from __future__ import annotations

from pathlib import Path

from coe.bring.parts import cad_files
from coe.bring.parts.text_table import Table, TextLine
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_NAMES = ("Designator", "Footprint", "X", "Y", "Rotation", "Side", "Unit", "Type", "Fitted")


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the placements of a board; raises ConfigError."""
    root = cad_files.xml_of(path, raw, "a board of OpenPnP")
    values = [value for element in root.iter() for value in element.attrib.values() if value.endswith(".board.xml")]
    if values and root.tag in ("openpnp-panel", "openpnp-job"):
        names, what = list_few(map(visible, dict.fromkeys(values))), root.tag.removeprefix("openpnp-")
        raise ConfigError(f"{path}: it is a {what} of OpenPnP, whose parts are in {names}; give this file")
    table = [TextLine.of_cells(0, _NAMES)]
    for number, element in enumerate(root.iter("placement"), 1):
        location, kind = element.find("location"), element.get("type", "").casefold()
        at = {} if location is None else location.attrib
        is_placed = element.get("enabled", "true").casefold() != "false" and kind != "ignore"
        cells = [element.get("id", ""), element.get("part-id", ""), at.get("x", ""), at.get("y", "")]
        cells += [at.get("rotation", "0"), element.get("side", "Top"), at.get("units", ""), kind]
        cells.append("" if is_placed else "no")
        table.append(TextLine.of_cells(number, cells))
    return Table(table)
