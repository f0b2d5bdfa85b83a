"""OpenPnP's board.xml: placements with their sides and units; fiducials and what is switched off are told apart."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

from coe.bring.parts import safe_xml
from coe.bring.parts.placement_rows import PlacementRow
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible


@dataclass(frozen=True, slots=True)
class OpenPnpPlace:
    """A placement of a board: its cells by field and the word for its unit.

    `is_fiducial` marks what shows the machine how a board lies, `is_placed` what the machine places at all.
    """

    row: PlacementRow
    unit: str
    is_fiducial: bool
    is_placed: bool


def places_of(path: Path, raw: bytes) -> list[OpenPnpPlace]:
    """Return the placements of a board in the bytes of `path`; raises ConfigError if it cannot be read."""
    root = safe_xml.parse(path, raw, "a board of OpenPnP")
    values = [value for element in root.iter() for value in element.attrib.values() if value.endswith(".board.xml")]
    if values and root.tag in ("openpnp-panel", "openpnp-job"):
        names, what = list_few(map(visible, dict.fromkeys(values))), root.tag.removeprefix("openpnp-")
        raise ConfigError(f"{path}: it is a {what} of OpenPnP, whose parts are in {names}; give this file")
    places = [_place(path, number, element) for number, element in enumerate(root.iter("placement"), 1)]
    if not places:
        raise ConfigError(
            f"{path}: there is no placement of OpenPnP in this XML, whose root is '{visible(root.tag):.40}'; export "
            "the board again, or of another program a placement file as CSV"
        )
    return places


def _place(path: Path, number: int, element: xml.Element) -> OpenPnpPlace:
    location, refdes = element.find("location"), element.get("id", "")
    if location is None:
        raise ConfigError(f"{path}: placement '{refdes}' has no location; export it again")
    cells = {"refdes": refdes, "package": element.get("part-id", ""), "side": element.get("side", "Top")}
    cells |= {"x": location.get("x", ""), "y": location.get("y", ""), "rotation": location.get("rotation", "0")}
    kind = element.get("type", "").casefold()
    is_placed = element.get("enabled", "true").casefold() != "false" and kind != "ignore"
    return OpenPnpPlace(PlacementRow(number, cells), location.get("units", ""), kind == "fiducial", is_placed)
