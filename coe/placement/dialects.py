"""The dialects of placement files: what each CAD program writes. Those of users come by the same entry point.

Sources: files that KiCad, Altium Designer and EasyEDA export, and those of Eagle's `mountsmd.ulp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coe import plugins
from coe.errors import ConfigError


class Side(StrEnum):
    """A side of a board."""

    TOP = "top"
    BOTTOM = "bottom"


class Units(StrEnum):
    """The unit of a file's coordinates."""

    MM = "mm"
    MIL = "mil"
    INCH = "inch"

    @property
    def mm(self) -> float:
        """The length of one unit in mm."""
        return {Units.MM: 1.0, Units.MIL: 0.0254, Units.INCH: 25.4}[self]


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a CAD program writes.

    `columns` holds for each field the names of its column in any case; of the fields in `needs`, none may lack. Without
    `header` the columns stand in the order of `columns`. `sides` are its words for the sides; without a column of sides
    the name of the file ends as `endings` says. `remark` tells that header and units stand in remarks.
    """

    columns: Mapping[str, tuple[str, ...]]
    needs: tuple[str, ...] = ("refdes", "x", "y", "rotation", "side")
    sides: Mapping[str, Side] = field(default_factory=dict)
    endings: Mapping[str, Side] = field(default_factory=dict)
    header: bool = True
    remark: bool = False
    fallback: str | None = None


GROUP = "coe.dialects"
_WINDOWS = "cp1252"
"""What programs for Windows write if they write no UTF-8, say in a value with a micro sign."""
_WORDS = {"top": Side.TOP, "bottom": Side.BOTTOM}
_LETTERS = {"t": Side.TOP, "b": Side.BOTTOM}


def _columns(**names: str) -> dict[str, tuple[str, ...]]:
    return {field: tuple(of_field.split("|")) for field, of_field in names.items()}


KICAD = Dialect(
    _columns(refdes="ref", value="val", package="package", x="posx", y="posy", rotation="rot", side="side"),
    sides=_WORDS,
    remark=True,
)
"""Ref, Val, Package, PosX, PosY, Rot, Side: a .csv, or a .pos with "# Ref" before the names and "## Unit = mm"."""
_DESIGNATOR = {"refdes": "designator", "rotation": "rotation", "side": "layer"}
ALTIUM = Dialect(
    _columns(value="comment", package="footprint", x="center-x|mid x", y="center-y|mid y", **_DESIGNATOR),
    sides={"toplayer": Side.TOP, "bottomlayer": Side.BOTTOM, **_LETTERS},
    fallback=_WINDOWS,
)
"""Designator, Comment, Layer, Footprint, Center-X(mm), Center-Y(mm), Rotation; "Mid X" in older versions."""
EASYEDA = Dialect(
    _columns(value="comment|device", package="footprint|package", x="mid x", y="mid y", **_DESIGNATOR),
    sides={**_LETTERS, **_WORDS},
)
"""Designator, Footprint, Mid X, Mid Y, ..., Layer, Rotation, Comment: UTF-16 with tabs, or CSV; "12.7mm" in cells."""
EAGLE = Dialect(
    dict.fromkeys(("refdes", "x", "y", "rotation", "value", "package"), ()),
    needs=("refdes", "x", "y", "rotation", "value", "package"),
    endings={".mnt": Side.TOP, ".mnb": Side.BOTTOM},
    header=False,
    fallback=_WINDOWS,
)
"""`mountsmd.ulp`: lines "name x y angle value package" without a header, in a .mnt (top) and a .mnb (bottom)."""
GENERIC = Dialect(
    {name: (name,) for name in ("refdes", "value", "package", "component", "x", "y", "rotation", "side")}, sides=_WORDS
)


def resolve(name: str) -> Dialect:
    """Return the dialect that an entry point of `coe.dialects`, or a dotted path, names; raises ConfigError."""
    dialect = plugins.load(name, None, group=GROUP, noun="dialect of placement files")
    if not isinstance(dialect, Dialect):
        raise ConfigError(f"'{name}' is not a dialect of placement files, but {type(dialect).__name__}")
    return dialect


UNIT_WORDS = {
    **dict.fromkeys(("mm", "millimeter", "millimeters"), Units.MM),
    **dict.fromkeys(("mil", "mils", "thou"), Units.MIL),
    **dict.fromkeys(("in", "inch", "inches"), Units.INCH),
}
"""The words that files have for units."""
