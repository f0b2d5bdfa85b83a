"""Files of CAD programs: placement files and bills of materials, each read by the dialect that its user names.

Angles are degrees, counterclockwise. Coordinates become mm; the frame stays that of the file. What a file does not say,
its unit or its side, is asked for and never guessed. Dialects are plug-ins (docs/plugins.md); ours are in `coe.cad`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from coe.errors import ConfigError
from coe.helpers import plugins
from coe.placement.bom_join import Bom, BomPart
from coe.placement.panel_split import on_boards
from coe.placement.placement_file import FileForm, Placement, PlacementFile, Units, expect_answered
from coe.tables import text_table

_GROUP = "coe.dialects"
_TABLES = frozenset(
    {"kicad", "altium", "easyeda", "diptrace", "librepcb", "fusion360", "allegro", "proteus", "pcb-rnd", "openpnp"}
)
"""Programs whose tables are `generic`; recipes and command lines name them."""
_AS_IT_IS = FileForm()


class CadDialect(ABC):
    """Reads what a CAD program writes: an entry point of `coe.dialects` gives one."""

    @abstractmethod
    def placements(self, path: Path, raw: bytes, name: str, unit: Units | None, form: FileForm) -> PlacementFile:
        """Return a placement file by its bytes, in `unit` if the file states none; its errors call the dialect `name`.

        Raises ConfigError, with `path` and line, for what cannot be read; see `read_placements`.
        """

    @abstractmethod
    def bom(self, path: Path, raw: bytes) -> dict[str, BomPart]:
        """Return what the bytes of a BOM say, by reference designator; raises ConfigError as `read_bom` does."""


def _resolve(name: str) -> CadDialect:
    dialect = plugins.load(
        "generic" if name in _TABLES else name, None, group=_GROUP, noun="dialect of placement files"
    )
    if not isinstance(dialect, CadDialect):
        raise ConfigError(f"'{name}' is not a dialect of placement files, but {type(dialect).__name__}")
    return dialect


class _Dialects(Mapping[str, CadDialect]):
    """The dialects of installed packages by name, ours among them; they are looked for when one asks."""

    def __getitem__(self, name: str) -> CadDialect:
        if name not in {*self}:
            raise KeyError(name)
        return _resolve(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*_TABLES, *plugins.names(_GROUP)}))

    def __len__(self) -> int:
        return len({*self})  # a list would ask for its length first


DIALECTS: Mapping[str, CadDialect] = _Dialects()


def read_placements(
    path: Path, dialect: str = "generic", units: str = "", form: FileForm = _AS_IT_IS
) -> tuple[Placement, ...]:
    """Read a placement file: all its parts, of both sides, in the order of the file.

    `dialect` is the name of an entry point of `coe.dialects`, such as eagle, of a program whose tables are `generic`,
    such as kicad, or the dotted path of a `Dialect`; `units` is mm, um, mil or inch, or "" for the unit that the file
    states; `form` is what a recipe says of the file. Raises ConfigError, with file and line, for an unknown dialect or
    unit, a file that cannot be read, that states another unit or none, coordinates that are no numbers, and a part
    without a side.
    """
    return read_file(path, dialect, units, form).placements


def read_file(
    path: Path,
    dialect: str = "generic",
    units: str = "",
    form: FileForm = _AS_IT_IS,
    bom: Mapping[str, BomPart] | None = None,
) -> PlacementFile:
    """Read a placement file, with what a person should confirm; as `read_placements` else, and see `parse_file`."""
    if (path / "steps").is_dir():
        raise ConfigError(f"{path}: it is a folder of ODB++; pack it as a .zip, and give that")
    return parse_file(path, text_table.content(path, "the placement file"), dialect, units, form, bom)


def parse_placements(
    path: Path, raw: bytes, dialect: str, units: str = "", form: FileForm = _AS_IT_IS
) -> tuple[Placement, ...]:
    """Return the placements in a file's bytes; raises ConfigError as `read_placements` does, which names `path`."""
    return parse_file(path, raw, dialect, units, form).placements


def parse_file(
    path: Path,
    raw: bytes,
    dialect: str,
    units: str = "",
    form: FileForm = _AS_IT_IS,
    bom: Mapping[str, BomPart] | None = None,
) -> PlacementFile:
    """Return a placement file by its bytes; raises ConfigError as `read_placements` does, which names `path`.

    It also does for parts of which the file leaves open whether they are fitted, and a `bom` that is joined later, too.
    """
    if units and units not in set(Units):
        raise ConfigError(f"'{units}' is not a unit of placement files; give mm, um, mil or inch")
    file = _answered(_resolve(dialect).placements(path, raw, dialect, Units(units) if units else None, form), form)
    answered = {*(bom or ())} - {*(bom.asked if isinstance(bom, Bom) else ())}
    of_board = on_boards(file.asked, file.placements)
    answered.update(name for part in of_board.keys() & answered for name in of_board[part])
    expect_answered(row for refdes, row in file.asked.items() if refdes not in answered)
    return file


def _answered(file: PlacementFile, form: FileForm) -> PlacementFile:
    """Return a placement file in which a person has said of words whether they leave parts out."""
    said = {refdes: form.says_fitted(question.word) for refdes, question in file.asked.items()}
    out = {refdes for refdes, is_fitted in said.items() if is_fitted is False}
    return replace(
        file,
        placements=tuple(place for place in file.placements if place.refdes not in out),
        not_placed=(*file.not_placed, *sorted(out)),
        said=file.said | {refdes for refdes, is_fitted in said.items() if is_fitted},
        asked={refdes: question for refdes, question in file.asked.items() if said[refdes] is None},
    )


def read_bom(
    path: Path, dialect: str = "generic", form: FileForm = _AS_IT_IS, *, asks: bool = True
) -> dict[str, BomPart]:
    """Read a BOM, as CSV, text or a spreadsheet; return what it says, by reference designator.

    Raises ConfigError, with file and line, for a file without a column of designators, for a part that stands twice
    with other words, and if it `asks`, for parts of which it leaves open whether they are fitted; else `join` asks.
    """
    return parse_bom(path, text_table.content(path, "the BOM"), dialect, form, asks=asks)


def parse_bom(
    path: Path, raw: bytes, dialect: str = "generic", form: FileForm = _AS_IT_IS, *, asks: bool = True
) -> dict[str, BomPart]:
    """Return what the bytes of a BOM say; raises ConfigError as `read_bom` does, which names `path`."""
    bom = _resolve(dialect).bom(path, raw)
    if isinstance(bom, Bom):
        said = {refdes: form.says_fitted(question.word) for refdes, question in bom.asked.items()}
        bom.asked = {refdes: question for refdes, question in bom.asked.items() if said[refdes] is None}
        bom.update(
            {
                name: replace(bom[name], is_fitted=False)
                for name, is_fitted in said.items()
                if is_fitted is False and name in bom
            }
        )
        expect_answered(bom.asked.values() if asks else ())
    return bom
