"""What a person says of a placement file that it does not say itself: its columns, sides, signs and directions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from coe import strict_yaml
from coe.placement.placement_file import Side
from coe.strict_model import StrictModel, of_yaml

Shift = Annotated[float, Field(ge=-10_000, le=10_000, allow_inf_nan=False)]
FieldName = Literal["refdes", "x", "y", "rotation", "side", "value", "package", "component", "fitted", "left_out"]


class FileForm(StrictModel):
    """How a placement file is read, where a dialect alone reads it wrong; each key may be left out.

    `columns` names the column of a field, `sides` the words for the sides. `decimal` says what stands before the
    fraction of a number. `clockwise`: angles grow clockwise. `y` down: y grows downwards. `offset` in mm is added to x
    and y after that. `side` and `rotation` (degrees) are those of all parts of a file that has no such column.
    """

    columns: dict[FieldName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    sides: dict[str, Side] = Field(default_factory=dict)
    decimal: Literal["comma", "point"] | None = None
    clockwise: bool = False
    y: Literal["up", "down"] = "up"
    offset: tuple[Shift, Shift] = (0.0, 0.0)
    side: Side | None = None
    rotation: Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)] | None = None


def read_form(path: Path) -> FileForm:
    """Read a file of the keys that `placement_file` of a recipe has; raises RulesError with file and line."""
    raw = strict_yaml.content(path, "form of placement files")
    return of_yaml(
        strict_yaml.parse(path, raw, "columns, sides, decimal, clockwise, y, offset, side or rotation"), FileForm
    )
