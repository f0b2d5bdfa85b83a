"""The dialects of placement files: what each CAD program writes.

Sources: files that KiCad, Altium Designer and EasyEDA export, and those of Eagle's `mountsmd.ulp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


_WINDOWS = "cp1252"
"""What programs for Windows write if they write no UTF-8, say in a value with a micro sign."""
DIALECTS: dict[str, Dialect] = {
    # Ref, Val, Package, PosX, PosY, Rot, Side: a .csv, or a .pos with "# Ref" before the names and "## Unit = mm".
    "kicad": Dialect(
        {
            "refdes": ("ref",),
            "value": ("val",),
            "package": ("package",),
            "x": ("posx",),
            "y": ("posy",),
            "rotation": ("rot",),
            "side": ("side",),
        },
        sides={"top": Side.TOP, "bottom": Side.BOTTOM},
        remark=True,
    ),
    # Designator, Comment, Layer, Footprint, Center-X(mm), Center-Y(mm), Rotation; "Mid X" in older versions.
    "altium": Dialect(
        {
            "refdes": ("designator",),
            "value": ("comment",),
            "package": ("footprint",),
            "x": ("center-x", "mid x"),
            "y": ("center-y", "mid y"),
            "rotation": ("rotation",),
            "side": ("layer",),
        },
        sides={"toplayer": Side.TOP, "bottomlayer": Side.BOTTOM, "t": Side.TOP, "b": Side.BOTTOM},
        fallback=_WINDOWS,
    ),
    # Designator, Footprint, Mid X, Mid Y, ..., Layer, Rotation, Comment: UTF-16 with tabs, or CSV; "12.7mm" in cells.
    "easyeda": Dialect(
        {
            "refdes": ("designator",),
            "value": ("comment", "device"),
            "package": ("footprint", "package"),
            "x": ("mid x",),
            "y": ("mid y",),
            "rotation": ("rotation",),
            "side": ("layer",),
        },
        sides={"t": Side.TOP, "b": Side.BOTTOM, "top": Side.TOP, "bottom": Side.BOTTOM},
    ),
    # mountsmd.ulp: lines "name x y angle value package" without a header, in a .mnt (top) and a .mnb (bottom).
    "eagle": Dialect(
        {"refdes": (), "x": (), "y": (), "rotation": (), "value": (), "package": ()},
        needs=("refdes", "x", "y", "rotation", "value", "package"),
        endings={".mnt": Side.TOP, ".mnb": Side.BOTTOM},
        header=False,
        fallback=_WINDOWS,
    ),
    "generic": Dialect(
        {
            "refdes": ("refdes",),
            "value": ("value",),
            "package": ("package",),
            "component": ("component",),
            "x": ("x",),
            "y": ("y",),
            "rotation": ("rotation",),
            "side": ("side",),
        },
        sides={"top": Side.TOP, "bottom": Side.BOTTOM},
    ),
}
"""The dialects by name."""

UNIT_WORDS = {
    **dict.fromkeys(("mm", "millimeter", "millimeters"), Units.MM),
    **dict.fromkeys(("mil", "mils", "thou"), Units.MIL),
    **dict.fromkeys(("in", "inch", "inches"), Units.INCH),
}
"""The words that files have for units."""
