"""Component layers of Gerber X3, as KiCad writes them for assemblers: places, angles and values as attributes.

Source: The Gerber Layer Format Specification, revision 2022.02 (Ucamco), sections 4.2, 5.4 and 5.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from coe.bring.parts.text_table import TextLine
from coe.errors import ConfigError, list_few

_COMMAND = re.compile(r"([^*%]+)\*")
_NEEDED = {
    "TF.FileFunction,Component,L1,Top": re.compile(r"TF\.FileFunction,Component,L\d+,(Top|Bot)\b"),
    "FSLAX46Y46": re.compile(r"FSLAX\d(\d)Y\d\1"),
    "MOMM": re.compile(r"MO(MM|IN)\b"),
}
"""An example of each command that says side, digits behind the point, and unit."""
_FLASH = re.compile(r"(?:X([+-]?\d+))?(?:Y([+-]?\d+))?D0?([123])")
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})")
_ATTRIBUTES = ("C", "CVal", "CFtp", "CRot")


def is_component_layer(lines: Sequence[TextLine]) -> bool:
    """Tell whether lines are those of a Gerber file with components."""
    return any(mark in line.text for line in lines[:100] for mark in ("FileFunction,Component", ",ComponentMain*"))


def component_table(path: Path, lines: Sequence[TextLine]) -> Iterator[TextLine]:
    """Yield the names of columns, and a line for each component: where the aperture ComponentMain is flashed.

    x and y are those of the file, in its unit, and angles grow counterclockwise as seen from the top, also below.
    Raises ConfigError for a file that lacks its side, its digits behind the point, or its unit.
    """
    found_in = {
        one: next(filter(None, (command.search(line.text) for line in lines)), None) for one, command in _NEEDED.items()
    }
    side, digits, unit = (found[1] if found else "" for found in found_in.values())
    if missing := [f"'%{one}*%'" for one, found in found_in.items() if not found]:
        raise ConfigError(
            f"{path}: this Gerber file of components lacks a line as {list_few(missing)}; export it again"
        )
    names = ("Designator", "Value", "Footprint", "Rotation", f"X ({unit})", f"Y ({unit})", "Side")
    yield TextLine.of_cells(0, names)
    main = aperture = ""
    place, said = ["0", "0"], dict[str, str]()
    for line in lines:
        for command in _COMMAND.findall(line.text):
            if command == "TA.AperFunction,ComponentMain":
                main = "next"
            elif main == "next" and (found := re.match(r"ADD(\d+)", command)):
                main = f"D{found[1]}"
            elif re.fullmatch(r"D\d\d+", command):
                aperture = command
            elif command.startswith("TO.C"):
                name, _, value = command.removeprefix("TO.").partition(",")
                value = _ESCAPED.sub(lambda sign: chr(int(sign[1], 16)), value.strip('"'))
                said = {**({} if name == "C" else said), name: value}
            elif found := _FLASH.fullmatch(command):
                place = [found[axis] or place[axis - 1] for axis in (1, 2)]
                if found[3] == "3" and aperture == main:
                    cells = [said.get(name, "") for name in _ATTRIBUTES]
                    cells += [f"{int(along) / 10 ** int(digits):.6f}" for along in place]
                    yield TextLine.of_cells(line.number, (*cells, side))
