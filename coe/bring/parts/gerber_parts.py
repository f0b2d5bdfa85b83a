"""A Gerber file of components (X3): each lies where the aperture ComponentMain is flashed.

x and y are those of the file, in its unit; angles grow counterclockwise as seen from the top, also on the bottom side.
"""

from __future__ import annotations

import re
from pathlib import Path

from coe.bring.parts.cad_files import CadPart, numbers_in, table_of
from coe.bring.parts.text_table import Table
from coe.bring.parts.vocabulary import Units
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


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the components; raises ConfigError if side, digits behind the point or unit are missing."""
    text = raw.decode("utf-8-sig", "replace")
    found = {example: command.search(text) for example, command in _NEEDED.items()}
    side, digits, unit = (match[1] if match else "" for match in found.values())
    if missing := [f"'%{example}*%'" for example, match in found.items() if not match]:
        raise ConfigError(
            f"{path}: this Gerber file of components has no line such as {list_few(missing)}; export it again"
        )
    parts: list[CadPart] = []
    main = aperture = ""
    place, said = ["0", "0"], dict[str, str]()
    for number, line in enumerate(text.splitlines(), 1):
        for command in _COMMAND.findall(line):
            if command == "TA.AperFunction,ComponentMain":
                main = "next"
            elif main == "next" and (match := re.match(r"ADD(\d+)", command)):
                main = f"D{match[1]}"
            elif re.fullmatch(r"D\d\d+", command):
                aperture = command
            elif command.startswith("TO.C"):
                name, _, value = command.removeprefix("TO.").partition(",")
                value = _ESCAPED.sub(lambda sign: chr(int(sign[1], 16)), value.strip('"'))
                said = {**({} if name == "C" else said), name: value}
            elif match := _FLASH.fullmatch(command):
                place = [match[axis] or place[axis - 1] for axis in (1, 2)]
                if match[3] == "3" and aperture == main:
                    refdes, value, package = (said.get(name, "") for name in ("C", "CVal", "CFtp"))
                    with numbers_in(path, f"the component '{refdes}'"):
                        at = complex(*(int(along) / 10 ** int(digits) for along in place))
                        turn_deg = float(said.get("CRot", ""))
                    parts.append(CadPart(refdes, value, package, at, turn_deg, side, line=number))
    return table_of(parts, unit=Units.INCH if unit == "IN" else Units.MM)
