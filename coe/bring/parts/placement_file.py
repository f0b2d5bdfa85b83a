"""What a placement file says, whatever program wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from coe.board.parts_list import BoardPart
from coe.bring.parts.s_expression import Numbered
from coe.bring.parts.text_table import further_lines
from coe.errors import ConfigError


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
class Placement(BoardPart):
    """A part as a placement file has it, in the frame of the file, or once it is converted in that of `parts.csv`.

    `refdes` is empty for a place without a designator. `package`, `value` and `component` are empty if the file has no
    such column. `is_fiducial` says that the file calls it a fiducial, which is no part.
    """

    package: str = ""
    value: str = ""
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
            f"write `not_fitted: [{word}]` or `fitted: [{word}]` in answers.yaml"
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
