"""The XML from which KiCad makes bills of materials: components with their values and fields, and no places."""

from __future__ import annotations

from pathlib import Path

from coe.bring.parts import outside_files
from coe.bring.parts.text_table import Table, TextLine


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the components with their fields, any of which may say that one is not fitted."""
    rows: list[list[str]] = []
    for part in outside_files.xml_of(path, raw, "a BOM").iter("comp"):
        properties = {element.get("name"): element.get("value", "") for element in part.iter("property")}
        left_out = "yes" if properties.pop("dnp", None) is not None else ""
        package = part.findtext("footprint", "").rpartition(":")[2]
        fields = [*properties.values(), *(element.text or "" for element in part.iter("field"))]
        rows.append([part.get("ref", ""), part.findtext("value", ""), package, left_out, *fields])
    names = ["Designator", "Value", "Footprint", "DNP"]
    names += [f"Field {number}" for number in range(1, max(map(len, rows), default=0) - len(names) + 1)]
    return Table([TextLine.of_cells(number, cells) for number, cells in enumerate([names, *rows])])
