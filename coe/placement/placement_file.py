"""What a placement file says, whatever program wrote it, and what a person says of it that it does not say itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from coe.board.parts_file import Side
from coe.errors import ConfigError
from coe.helpers.spelling import fits
from coe.helpers.strict_model import StrictModel
from coe.tables.s_expression import Numbered
from coe.tables.text_table import further_lines

Shift = Annotated[float, Field(ge=-10_000, le=10_000, allow_inf_nan=False)]
FieldName = Literal["refdes", "x", "y", "rotation", "side", "value", "package", "component", "fitted", "left_out"]


class Units(StrEnum):
    """The unit of a file's coordinates."""

    MM = "mm"
    UM = "um"
    MIL = "mil"
    INCH = "inch"

    @property
    def mm(self) -> float:
        """The length of one unit in mm."""
        return {Units.MM: 1.0, Units.UM: 0.001, Units.MIL: 0.0254, Units.INCH: 25.4}[self]


@dataclass(frozen=True, slots=True)
class Placement:
    """A part as a placement file has it: mm and degrees (counterclockwise) in the frame of the file.

    `refdes` is empty for a place without a designator. `package`, `value` and `component` are empty if the file has no
    such column. `line` is its line in the file. `is_fiducial` says that the file calls it a fiducial, which is no part.
    """

    refdes: str
    x_mm: float
    y_mm: float
    rotation_deg: float
    side: Side
    package: str = ""
    value: str = ""
    component: str = ""
    line: int = 0
    is_fiducial: bool = False


class FittedQuestion(NamedTuple):
    """A row of which nobody knows whether its parts are fitted: its file and line, its word, and what is wrong."""

    path: Path
    line: int
    word: str
    fault: str


def expect_answered(asked: Iterable[FittedQuestion]) -> None:
    """Raise ConfigError that names all rows that do not say whether their parts are fitted, if there are any."""
    rows = [*dict.fromkeys(asked)]
    if rows:
        lines, word = [row.line for row in rows], json.dumps(rows[0].word, ensure_ascii=False)
        raise ConfigError(
            f"{rows[0].path}:{lines[0]}: {rows[0].fault}{further_lines(lines)}; to answer for all later files, too, "
            f"write `not_fitted: [{word}]` or `fitted: [{word}]` under placement_file of the recipe (--form, before "
            "there is one)"
        )


@dataclass(frozen=True, slots=True)
class PlacementFile:
    """A placement file as it was read: its parts of both sides in its order, and what a person should confirm.

    `units` is the unit of its coordinates, `stated` the sentence that says where the file states it ("" if it does
    not). `columns` holds the name of each field's column, `unused` those of columns that nothing is read from.
    `not_placed` are the designators of what the file itself leaves out; they are not among the placements.
    `notes` are sentences, as on hidden rows. `said` are parts that it says are fitted, `asked` those of which it leaves
    that open. `drawn` are the lists of a board file of KiCad, for its edge and the sizes of packages; `edge` are points
    on the edge of another board, in mm.
    """

    placements: tuple[Placement, ...]
    units: Units
    stated: str
    columns: Mapping[str, str]
    unused: tuple[str, ...]
    not_placed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    said: frozenset[str] = frozenset()
    asked: Mapping[str, FittedQuestion] = field(default_factory=dict)
    drawn: Sequence[Numbered] = field(default=(), repr=False)
    edge: Sequence[tuple[float, float]] = field(default=(), repr=False)


class FileForm(StrictModel):
    """How a placement file is read, where a dialect alone reads it wrong; each key may be left out.

    `columns` names the column of a field, `sides` the words for the sides; `fitted` and `not_fitted` are words that
    say so of a part, here and in a BOM, where nobody knows what they say (`*` stands for any signs). `decimal` says
    what stands before the fraction of a number. `angles` says what angles count, `clockwise` that they grow
    clockwise. `y` down: y grows downwards. `offset` in mm is added to x and y after that. `side` and `rotation`
    (degrees) are those of all parts of a file that has no such column.
    """

    columns: dict[FieldName, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    sides: dict[str, Side] = Field(default_factory=dict)
    fitted: tuple[str, ...] = ()
    not_fitted: tuple[str, ...] = ()
    decimal: Literal["comma", "point"] | None = None
    angles: Literal["degrees", "quarters"] | None = None
    clockwise: bool = False
    y: Literal["up", "down"] = "up"
    offset: tuple[Shift, Shift] = (0.0, 0.0)
    side: Side | None = None
    rotation: Annotated[float, Field(ge=-360, le=360, allow_inf_nan=False)] | None = None

    def says_fitted(self, word: str) -> bool | None:
        """Tell whether a word says that a part is fitted; None if a person has not said."""
        if any(fits(said.casefold(), word.casefold()) for said in self.not_fitted):
            return False
        return True if any(fits(said.casefold(), word.casefold()) for said in self.fitted) else None
