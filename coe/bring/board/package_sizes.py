"""How large a package is, by its name: by the numbers in it, or by a list of names, which users add to.

Names carry sizes in a few ways: chips in tenths of a mm (`1005Metric`, `CAPC1608X55N`) or in hundredths of an inch
(`R0402`), bodies in mm (`SOIC-8_3.9x4.9mm`), IPC-7351 in hundredths of a mm (`SOIC127P600X175-8N`: pitch, span over
the leads, height, pins), and EasyEDA in mm (`SOIC-8_L4.9-W3.9-P1.27-LS6.0-BL`). Rows of pins
(`2x14_P2.54mm`) tell how far a header of KiCad reaches from its pin 1, which is its place: a size reaches evenly to
both sides of a place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import Field

from coe.helpers import strict_yaml
from coe.helpers.strict_model import StrictModel, of_yaml

LIBRARY = "package_sizes.yaml"
"""The name of the file with sizes, of ours and of a user."""
_NEEDS = "a list `sizes` of entries {package: NAME, size: [width, height]}"

_PINNED = "SIP|Pin|Relay|Battery|Fuseholder|Choke|Transformer|Heatsink|MountingHole"
"""Families of KiCad whose place is a pin, or whose numbers are not those of the body."""
_MM, _MORE = r"\d+(?:\.\d+)?", r"\d?(?:\.\d+)?"
Length = Annotated[float, Field(gt=0, le=500, allow_inf_nan=False)]


class NamedSize(StrictModel):
    """The size in mm, with leads, of the packages that a name means; `*` stands for any signs."""

    package: str
    size: tuple[Length, Length]


class SizeLibrary(StrictModel):
    """The entries of a file of sizes; the first that fits counts."""

    sizes: tuple[NamedSize, ...]


@dataclass(frozen=True, slots=True)
class PackageSize:
    """Width and height in mm, with leads, at a rotation of 0, and what they come from, as words."""

    width_mm: float
    height_mm: float
    source: str


def size_of(package: str, library: Sequence[NamedSize] = ()) -> PackageSize | None:
    """Return the size of a package; None if its name tells none.

    `library` are entries that come before all else, as of `read_library`.

    Example: `size_of("R_0402_1005Metric")` is 1.0 x 0.5 mm.
    """
    name = re.sub("^[DQU]_", "", package.rpartition(":")[2].strip())  # a diode, a transistor, a circuit of KiCad
    # A name that tells even the span over the leads knows better than our list.
    own = () if re.search(rf"[_-]L{_MM}-W{_MM}.*-LS{_MM}", name) else _own()
    for entry in (*library, *own):
        if _fits(entry.package, name):
            return PackageSize(*entry.size, f"'{entry.package}' in {LIBRARY}")
    for pattern, make in _WAYS:
        if (match := re.search(pattern, name, re.IGNORECASE)) and (size := make(match)):
            return PackageSize(round(size[0], 2), round(size[1], 2), "its name")
    return None


def read_library(path: Path) -> tuple[NamedSize, ...]:
    """Read a file of sizes; raises RulesError with file and line if it cannot be used."""
    return of_yaml(
        strict_yaml.parse(path, strict_yaml.content(path, "list of package sizes"), _NEEDS), SizeLibrary
    ).sizes


_INCH_CHIPS = {
    **{"01005": (0.4, 0.2), "0201": (0.6, 0.3), "0402": (1.0, 0.5), "0603": (1.6, 0.8), "0805": (2.0, 1.25)},
    **{"1206": (3.2, 1.6), "1210": (3.2, 2.5), "1806": (4.5, 1.6), "1812": (4.5, 3.2), "2010": (5.0, 2.5)},
    **{"2220": (5.7, 5.0), "2512": (6.3, 3.2)},
}
_LEADS = (("h?msop|h?vssop", 2.1), ("tssop|htssop", 2.2), ("ssop|qsop", 2.7), ("soj", 1.0), ("so|soic|sop|hsop", 2.2))
"""By how many mm the leads of a family reach over the body, both sides together."""
_SLIMMEST = 3.0
_WIDE_MM = 7.0
"""Bodies as wide as this have longer leads."""


def _body(match: re.Match[str]) -> tuple[float, float]:
    """Return the size of `FAMILY-pins_WxL`: a body, and the leads of its family."""
    family, width, length = match[1].casefold(), float(match[2]), float(match[3])
    if re.fullmatch("[a-z]*qfp", family):
        return width + 2.2, length + 2.2
    leads = next((leads for names, leads in _LEADS if re.fullmatch(names, family)), 0.0)
    return width + (2.9 if leads and width >= _WIDE_MM else leads), length


def _bare(match: re.Match[str]) -> tuple[float, float] | None:
    """Return the size of `FAMILY-WxL` without a unit, if it has the shape of a body: 2x14 may be pins."""
    sides = sorted((float(match[2]), float(match[3])))
    return _body(match) if sides[1] <= _SLIMMEST * sides[0] else None


def _header(match: re.Match[str]) -> tuple[float, float]:
    """Return the size of KiCad's `PinHeader_ROWSxPINS_Ppitch`, around its pin 1.

    Pins that lie reach far to one side, and those of SMD have another place and pads: their names tell no size.
    """
    across, along = (float(match[at]) for at in (1, 2))
    return (2 * across - 1) * float(match[3]), (2 * along - 1) * float(match[3])


def _gullwing(match: re.Match[str]) -> tuple[float, float]:
    """Return the size of IPC's `SOIC127P600X175-8N`, whose body is as long as its pins need."""
    pitch, span, pins = float(match[2]) / 100, float(match[3]) / 100, int(match[4])
    a_side = 3 if match[1].upper().startswith("SOT") else (pins + 1) // 2
    return span, (a_side - 1) * pitch + 1.2


def _of_easyeda(match: re.Match[str]) -> tuple[float, float]:
    """Return the size of `SOIC-8_L4.9-W3.9-P1.27-LS6.0-BL`: body, pitch, span over leads, place of pin 1."""
    # Leads stand along the length: below and above, or left and right (T: pin 1 is at the top). Without a pitch
    # there are two, at the ends.
    length, width = float(match[2]), float(match[3])
    span = float(match[5] or 0)
    if "qfp" in match[1].casefold() and span:
        return length + span - width, span
    if not match[4]:
        return max(length, span), width
    across = max(width, span)
    return (across, length) if match[6] == "T" else (length, across)


_WAYS: tuple[tuple[str, Callable[[re.Match[str]], tuple[float, float] | None]], ...] = (
    (r"(?<!\d)(\d{2})(\d{2})Metric", lambda chip: (float(chip[1]) / 10, float(chip[2]) / 10)),
    (r"^CP_Elec_(\d+(?:\.\d+)?)x", lambda can: (float(can[1]) + 0.3, float(can[1]) + 0.3)),
    (r"^[A-Z]+\d+P(\d{3,4})X(\d{3,4})X\d+-", lambda flat: (float(flat[1]) / 100, float(flat[2]) / 100)),
    (r"^BGA.*_(\d{3,4})X(\d{3,4})X\d+", lambda grid: (float(grid[1]) / 100, float(grid[2]) / 100)),
    (r"^(SO[A-Z]*|TSSOP|SSOP|MSOP|VSSOP)(\d+)P(\d{3,4})X\d+-(\d+)", _gullwing),
    (
        r"^[A-Z]{3,6}(\d{2})(\d{2})X\d+(?:X\d+)?(?:[A-Z]{1,2}\d*)*$",
        lambda chip: (float(chip[1]) / 10, float(chip[2]) / 10),
    ),
    (rf"^(.*?)[_-]L({_MM})-W({_MM})(?:.*?-P({_MM}))?(?:.*?-LS({_MM}))?(?:.*?-([TB])[LR]\b)?", _of_easyeda),
    (rf"^(?!{_PINNED})([A-Za-z]+)[^x]*?[_-](\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)(?:x\d+(?:\.\d+)?)?mm", _body),
    (rf"^Pin(?:Header|Socket(?=_\d+x\d+_P2))_(\d)x(\d+)_P({_MM})mm(?!.*(?:Horizontal|SMD))", _header),
    (
        rf"^(?!.*(?:header|hdr|socket|conn|jst|pin|dip|transformer))([A-Za-z]*)(?:.*[_-])?(?<![\d.])([1-9]{_MORE})x([1-9]{_MORE})(?:x{_MM})?$",
        _bare,
    ),
    (rf"(?<!\d)(?<!\d\d-)({'|'.join(_INCH_CHIPS)})(?!\d)", lambda chip: _INCH_CHIPS[chip[1]]),
)
"""Patterns of names, the surest first, each with the size that its match tells."""


@cache
def _own() -> tuple[NamedSize, ...]:
    with resources.as_file(resources.files("coe.bring.board") / LIBRARY) as path:
        return read_library(path)


def _fits(word: str, name: str) -> bool:
    pieces = (re.escape(re.sub(r"[-_ .]", "", piece)) for piece in word.casefold().split("*"))
    return re.fullmatch(".*".join(pieces), re.sub(r"[-_ .]", "", name.casefold())) is not None
