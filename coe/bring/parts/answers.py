"""`answers.yaml`: what a person has said of a placement file, kept beside `parts.csv` for the next export."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from coe.board.parts_list import Side
from coe.bring.parts.vocabulary import Units
from coe.errors import ConfigError
from coe.helpers import strict_yaml
from coe.helpers.spelling import fits, look
from coe.helpers.strict_model import Name, StrictModel, of_yaml, validated

NAME = "answers.yaml"
"""What the file is called; it lies beside `parts.csv`."""
_HEAD = "# Answers about the placement file; coe-board parts reads them for each new export.\n"
Shift = Annotated[float, Field(ge=-10_000, le=10_000, allow_inf_nan=False)]
FieldName = Literal["refdes", "x", "y", "rotation", "side", "value", "package", "component", "fitted", "left_out"]
BomField = Literal["refdes", "value", "package", "fitted", "left_out"]
Heading = Annotated[str, Field(min_length=1)]


class BottomX(StrEnum):
    """From where the x of a part on the bottom side counts."""

    TOP = "top"
    """As seen from the top, through the board: the camera sees it mirrored."""
    BOTTOM = "bottom"
    """As seen from the bottom: mirrored already."""


class BottomAngle(StrEnum):
    """What the angle of a part on the bottom side means."""

    TOP = "top"
    """Counterclockwise as seen from the top; a part at 0 is mirrored left to right."""
    TOP_180 = "top-180"
    """Counterclockwise as seen from the top; a part at 0 is mirrored top to bottom, as in KiCad."""
    BOTTOM = "bottom"
    """Counterclockwise as seen from the bottom."""


class BottomSide(StrictModel):
    """How a placement file describes the bottom side: from where its x counts, and what its angles mean."""

    x: BottomX
    angle: BottomAngle

    def x_from_top(self, x_mm: float) -> float:
        """Return an x of the file as it is seen from the top, and back."""
        return x_mm if self.x is BottomX.TOP else -x_mm

    def angle_seen(self, angle_deg: float) -> float:
        """Return an angle of the file, from 0 to 360, as the camera sees it, and back."""
        seen = {BottomAngle.TOP: -angle_deg, BottomAngle.TOP_180: 180.0 - angle_deg, BottomAngle.BOTTOM: angle_deg}
        return seen[self.angle] % 360.0


class NamedParts(StrictModel):
    """Parts with this package, value and reference designator are of this component.

    Each may be left out, but not all. A `*` stands for any signs, as in `R_0402*`.
    """

    component: Name
    package: str | None = None
    value: str | None = None
    refdes: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> NamedParts:
        if self.words == (None, None, None):
            raise ValueError("an entry names a package, a value, a refdes, or several of them")
        return self

    def fits(self, package: str, value: str) -> bool:
        """Tell whether a part's package and value are meant, whichever signs of one look they are written with."""
        return all(word is None or fits(word, one) for word, one in ((self.package, package), (self.value, value)))

    @property
    def words(self) -> tuple[str | None, str | None, str | None]:
        """The package, the value and the reference designator as they are written."""
        return self.package, self.value, self.refdes


class Answers(StrictModel):
    """How a placement file is read where it is read wrong, and what its parts are called; each key may be left out.

    `unit` is that of its coordinates, if it states none. `columns` names the column of a field, `bom_columns`
    that of a BOM, `order` the fields of a file without a header. `sides` are words for the sides; `fitted` and
    `not_fitted` are words that say so of a part, here and in a BOM, where nobody knows what they say (`*` stands for
    any signs). `decimal` says what stands before the fraction of a number. `angles` says what angles count, `clockwise`
    that they grow clockwise. `y` down: y grows downwards. `offset` in mm is added to x and y after that. `side` and
    `rotation` (degrees) are those of all parts of a file that has no such column.

    Parts of the bottom side are left out unless `bottom` says how the file describes them. Of `packages` the first
    entry that fits a part names its component. `not_inspected` are designators of parts that no picture shows.
    """

    unit: Units | None = None
    columns: dict[FieldName, Heading] = Field(default_factory=dict)
    bom_columns: dict[BomField, Heading] = Field(default_factory=dict)
    order: tuple[FieldName, ...] = ()
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
    bottom: BottomSide | None = None
    packages: tuple[NamedParts, ...] = ()
    not_inspected: tuple[str, ...] = ()

    @field_validator("order")
    @classmethod
    def _has_places(cls, order: tuple[FieldName, ...]) -> tuple[FieldName, ...]:
        if order and not {"refdes", "x", "y"} <= {*order}:
            raise ValueError("it needs refdes, x and y")
        return order

    @model_validator(mode="after")
    def _is_clear(self) -> Answers:
        looks: dict[tuple[str | None, ...], NamedParts] = {}
        for entry in self.packages:
            before = looks.setdefault(tuple(word and look(word) for word in entry.words), entry)
            if before.words != entry.words and before.component != entry.component:
                raise ValueError(
                    f"{before.words!a} ({before.component}) and {entry.words!a} ({entry.component}) match the same "
                    "parts; remove one of the two entries"
                )
        return self

    def says_fitted(self, word: str) -> bool | None:
        """Tell whether a word says that a part is fitted; None if a person has not said."""
        if any(fits(said.casefold(), word.casefold()) for said in self.not_fitted):
            return False
        return True if any(fits(said.casefold(), word.casefold()) for said in self.fitted) else None

    def with_more(self, more: Mapping[str, Any]) -> Answers:
        """Return answers with those of a command line; raises ConfigError."""
        plain = {**self.model_dump(mode="json", exclude_defaults=True), **more}
        return validated(Answers, plain, lambda _, text: ConfigError(text))

    def text(self, todo: str = "") -> str:
        """Return the answers as YAML, one package in a line; `todo` is a remark on what is not inspected."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        lines = yaml.safe_dump(said, default_flow_style=None, allow_unicode=True, sort_keys=False, width=1 << 20)
        lines = re.sub("^not_inspected: .*", rf"\g<0>  # {todo}", lines, flags=re.MULTILINE) if todo else lines
        return _HEAD + (lines if said else "")


AS_IT_IS = Answers()


def read(path: Path, raw: bytes | None = None) -> Answers:
    """Read a file of answers, of whose bytes `raw` may be known; raises RulesError with file and line."""
    raw = strict_yaml.content(path, "file of answers") if raw is None else raw
    if not [line for line in raw.splitlines() if line.strip() and not line.startswith(b"#")]:
        return Answers()
    return of_yaml(strict_yaml.parse(path, raw, f"some of {', '.join(Answers.model_fields)}"), Answers)


def columns_of(words: str) -> dict[str, str]:
    """Return the names of columns that a person gives as refdes=Bauteil,x=Ost; raises ConfigError."""
    named = [word.partition("=") for word in words.split(",")]
    if wrong := next((field for field, sign, name in named if not (sign and name.strip())), None):
        raise ConfigError(f"'{wrong}': write FIELD=NAME for each column, such as refdes=Bauteil,x=Ost,y=Nord")
    return {field.strip(): name.strip() for field, _, name in named}
