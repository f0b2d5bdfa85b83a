"""Component layers of Gerber X3, as KiCad writes them for assemblers: places, angles and values as attributes.

Source: The Gerber Layer Format Specification, revision 2022.02 (Ucamco), sections 4.2, 5.4 and 5.6.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from coe.text_table import TextLine

_FUNCTION = re.compile(r"TF\.FileFunction,Component,L\d+,(Top|Bot)\b")
_COMMAND = re.compile(r"([^*%]+)\*")
_FORMAT = re.compile(r"FSLAX\d(\d)Y\d\1")
_FLASH = re.compile(r"(?:X([+-]?\d+))?(?:Y([+-]?\d+))?D0?([123])")
_ESCAPED = re.compile(r"\\u([0-9A-Fa-f]{4})")
_ATTRIBUTES = ("C", "CVal", "CFtp", "CRot")


def is_component_layer(lines: Sequence[TextLine]) -> bool:
    """Tell whether lines are those of a Gerber file whose function is Component."""
    return any(_FUNCTION.search(line.text) for line in lines[:100])


def component_table(lines: Sequence[TextLine]) -> Iterator[TextLine]:
    """Yield the names of columns, and a line for each component: where the aperture ComponentMain is flashed.

    x and y are those of the file, in its unit, and angles grow counterclockwise as seen from the top, also below.
    """
    scale, side, main, aperture = 1.0, "", "", ""
    place, said = ["0", "0"], dict[str, str]()
    for line in lines:
        for command in _COMMAND.findall(line.text):
            if found := _FORMAT.match(command):
                scale = 10.0 ** -int(found[1])
            elif found := _FUNCTION.match(command):
                side = found[1]
            elif command in ("MOMM", "MOIN"):
                unit = "mm" if command == "MOMM" else "inch"
                yield TextLine(0, f"Designator;Value;Footprint;Rotation;X ({unit});Y ({unit});Side")
            elif command == "TA.AperFunction,ComponentMain":
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
                    cells = [said.get(name, "").replace('"', '""') for name in _ATTRIBUTES]
                    cells += [f"{int(along) * scale:.6f}" for along in place]
                    yield TextLine(line.number, ";".join(f'"{cell}"' for cell in (*cells, side)))
