"""The angles of a placement file: degrees, counterclockwise, unless words or numbers of the file speak against it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from coe.cad.placement_header import PlacementHeader
from coe.errors import ConfigError
from coe.placement.placement_file import FileForm
from coe.tables.text_table import TextLine, further_lines

_WIDEST = 720.0
"""Most angles are no wider, unless machines count hundredths of a degree (Fuji, Panasonic), tenths or thousandths."""
_NEARLY = 0.007
"""By so much of an eighth turn angles in radians may be rounded, as 1.57."""
_QUARTERS = {*range(-3, 4)}
_CLOCKWISE = re.compile(r"(counter\W+|anti\W+)?\bclockwise|\bim uhrzeigersinn", re.IGNORECASE)


class Turn(NamedTuple):
    """An angle: as it is written, its number, and the word for its unit, which may be empty."""

    text: str
    value: float
    unit: str


class PlacementAngles:
    """What the angles of one file count."""

    def __init__(self, path: Path, form: FileForm) -> None:
        self._path, self._form = path, form

    def expect_counterclockwise(self, header: PlacementHeader, above: Sequence[TextLine]) -> None:
        """Raise ConfigError for a column of other units, or of angles that grow clockwise where nobody has said so."""
        name = header.names[header.columns["rotation"]]
        if re.search(r"[(\[]\s*(rad|0?[.,]0*1|1/10+)", name, re.IGNORECASE):
            raise self._error([header.number], f"the column '{name}' is not in degrees; export it in degrees")
        is_clockwise = re.search(r"[(\[]\s*(cw|clockwise)\b", name, re.IGNORECASE)
        said = (
            [header.number]
            if is_clockwise
            else [line.number for line in above if any(not found[1] for found in _CLOCKWISE.finditer(line.text))]
        )
        if said and not self._form.clockwise:
            raise self._error(
                said[:1],
                f"the angles of the column '{name}' grow clockwise; say `clockwise: true` under placement_file of the "
                "recipe (--form, before there is one), or take that word out",
            )

    def expect_degrees(self, column: str, turns: Mapping[int, Turn]) -> None:
        """Raise ConfigError for angles, by line, that are parts of a degree, radians or quarter turns, unless said."""
        values = {number: turn.value for number, turn in turns.items()}
        turned = [number for number, value in values.items() if value]
        over = [number for number in turned if abs(values[number]) > 360]
        is_said = self._form.angles is not None
        says_so = "say `angles: degrees` under placement_file of the recipe (--form, before there is one)"
        # Some few parts may be turned several times.
        are_wide = 2 * sum(abs(value) > _WIDEST for value in values.values()) > len(turned)
        if are_wide or (not is_said and turned and turned == over):
            what = f"the rotation is {values[over[0]]:g}, as in parts of a degree; export it in degrees"
            raise self._error(over, f"{what}{'' if are_wide else f', or {says_so}'}")
        eighths = [values[number] / math.radians(45) for number in turned]
        like = [round(one) for one in eighths if round(one) and abs(one - round(one)) < _NEARLY]
        within = max(map(abs, eighths), default=9) < 8 + _NEARLY  # some may be odd, as 30 degrees
        if not is_said and within and 2 * len(like) > len(eighths) and any(one % 2 == 0 for one in like):
            what = f"the rotation is {values[turned[0]]:g}, as in radians; export it in degrees"
            raise self._error(turned, f"{what}, or {says_so}")
        far = [number for number in turned if abs(values[number]) > max(_QUARTERS)]
        if self._form.angles == "quarters" and far:
            what = f"the rotation is {values[far[0]]:g}: no quarter turn"
            raise self._error(far, f"{what}; take `angles: quarters` out")
        # KiCad writes 1.00; one part alone may be turned by so few degrees.
        finely = len(turned) == 1 and any(re.search(r"[.,]\d\d", turn.text) for turn in turns.values())
        has_unit = re.search(r"deg|[\u00b0\u00ba]", column, re.IGNORECASE) or any(turn.unit for turn in turns.values())
        if not (is_said or finely or has_unit) and turned and {*values.values()} <= _QUARTERS:
            raise self._error(
                turned[:1],
                "no rotation is more than 3, as in quarter turns; export them in degrees, or say `angles: quarters` "
                "(or `angles: degrees`, if they are) under placement_file of the recipe (--form, before there is one)",
            )

    def _error(self, lines: Sequence[int], message: str) -> ConfigError:
        return ConfigError(f"{self._path}:{lines[0]}: {message}{further_lines(lines)}")
