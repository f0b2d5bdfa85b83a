"""The dialects of CAD programs and placement machines: what an entry point of `coe.dialects` names."""

from __future__ import annotations

from pathlib import Path

from coe.board.parts_file import Side
from coe.cad import bom, placements
from coe.cad.vocabulary import COLUMNS, SIDES, Vocabulary
from coe.placement.bom_join import BomPart
from coe.placement.cad_files import CadDialect
from coe.placement.placement_file import FileForm, PlacementFile, Units


class Dialect(Vocabulary, CadDialect):
    """What a CAD program writes, by the names that it uses; see `Vocabulary` for the arguments.

    Example:
        Dialect({"refdes": ("part",), "x": ("right",), "y": ("up",), "rotation": ("turn",), "side": ("face",)},
                sides={"front": Side.TOP, "rear": Side.BOTTOM})
    """

    def placements(self, path: Path, raw: bytes, name: str, unit: Units | None, form: FileForm) -> PlacementFile:
        """Return a placement file by its bytes."""
        return placements.parse(path, raw, name, self, unit, form)

    def bom(self, path: Path, raw: bytes) -> dict[str, BomPart]:
        """Return what the bytes of a BOM say; all programs share its names."""
        return bom.parse(path, raw)


_EAGLE = {".mnt": Side.TOP, ".mnb": Side.BOTTOM}
TABLE = Dialect(COLUMNS, sides=SIDES, endings=_EAGLE)
"""A table with a header, of any of these programs."""
EAGLE = Dialect(
    dict.fromkeys(("refdes", "x", "y", "rotation", "value", "package"), ()), sides=SIDES, endings=_EAGLE, header=False
)
"""`mountsmd.ulp`: lines "name x y angle value package" without a header, in a .mnt (top) and a .mnb (bottom)."""
