"""`coe-board parts`: `parts.csv` from a placement file and a bill of materials."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coe.board import parts_file
from coe.cli.common import Exit, err, out
from coe.cli.options import argument, option
from coe.cli.placing import ReadAs
from coe.errors import ConfigError, list_few
from coe.helpers.files import write_atomically

if TYPE_CHECKING:
    from coe.bring.parts.answers import Answers
    from coe.bring.parts.converting import Converted


class Bringing(ReadAs):
    """How a placement file of another program is read."""

    columns: str | None = option(
        "Which column is what, where a name is not known: refdes=Bauteil,x=Ost,y=Nord; also rotation, side, value, "
        "package, component, fitted and left_out.",
        metavar="FIELD=NAME,...",
    )
    not_fitted: list[str] | None = option(
        "A word that says of a part that it is not fitted, as N.C. or NC/*. May be repeated.", metavar="WORD"
    )
    answers: Path | None = option(
        "What was said of an earlier export: also sides, fitted, decimal, angles, clockwise, y, offset, rotation, "
        "packages (docs/placements.md). Default: answers.yaml in the folder of parts.csv, if it is there.",
        metavar="FILE",
    )

    def answered(self, folder: Path) -> Answers:
        """Return what a person has said, in the file of answers and in options; raises ConfigError."""
        from coe.bring.parts import answers

        path = self.answers or folder / answers.NAME
        said = answers.read(path) if self.answers or path.is_file() else answers.Answers()
        more: dict[str, Any] = {} if self.units is None else {"unit": self.units}
        if self.columns is not None:
            more["columns"] = {**said.columns, **answers.columns_of(self.columns)}
        if self.not_fitted:
            more["not_fitted"] = tuple(dict.fromkeys((*said.not_fitted, *self.not_fitted)))
        if bottom := self.bottom():
            more["bottom"] = answers.BottomSide(x=bottom.x, angle=bottom.angle)
        return answers.with_more(said, more)


class Parts(Bringing):
    """Make parts.csv, which runs and recipes read, from what a CAD program wrote; answers.yaml keeps what you said.

    It says which column is what and asks whether that is right. For a new export the same command shows which parts
    came, went and moved.

    Example: coe-board parts pnp.csv --bom bom.csv --to line7
    """

    file: Path = argument("The placement (pick-and-place) file, a table, or a board file.", ...)
    to: Path = option("Folder for parts.csv and answers.yaml.", Path("."), metavar="FOLDER")

    def run(self) -> Exit:
        from coe.bring.parts import converting
        from coe.bring.parts.answers import NAME

        converted = converting.convert(self.file, self.bom, self.answered(self.to), self.dialect or "generic")
        tell(converted, self.file, self.bom)
        place = self.to / parts_file.NAME
        if place.exists():
            told = converting.changes(parts_file.read(place), converted.parts)
            for line in told or ["no part came, went or moved"]:
                err.print(f"{place}: {line}")
        confirm(self.file, yes=self.yes)
        self.to.mkdir(parents=True, exist_ok=True)
        write_atomically(place, [converting.text_of(converted.parts, source(self.file, self.bom))])
        write_atomically(self.to / NAME, [converted.answers.text])
        inspected = sum(bool(part.component) for part in converted.parts)
        out.print(f"written: {place}: {inspected} parts, and {len(converted.parts) - inspected} that are not inspected")
        out.print(f"written: {self.to / NAME}")
        return Exit.OK


def source(file: Path, bom: Path | None) -> str:
    """Return of which files parts.csv is made, and when."""
    names = file.name if bom is None else f"{file.name} and {bom.name}"
    return f"coe-board parts made this of {names}, {datetime.now().astimezone():%Y-%m-%d %H:%M}"


def tell(converted: Converted, path: Path, bom: Path | None) -> None:
    """Say how the files read: which column is what, which unit, and which parts are left out."""
    file, answers = converted.file, converted.answers
    columns = ", ".join(f"{field} is '{name}'" for field, name in file.columns.items())
    if "rotation" not in file.columns:
        columns += f", rotation is {answers.rotation or 0:g} degrees for all"
    if "side" not in file.columns:
        told = "as the name of the file, or an M before an angle, tells"
        columns += f", side is {told if answers.side is None else f'{answers.side} for all'}"
    x, y = ([getattr(place, axis) for place in file.placements] for axis in ("x_mm", "y_mm"))
    sides = Counter(place.side for place in file.placements)
    err.print(
        f"{path.name}: {len(x)} parts ({', '.join(f'{count} {side}' for side, count in sides.items())}) in "
        f"{file.stated or file.units}, x {min(x):g} to {max(x):g} mm, y {min(y):g} to {max(y):g} mm; {columns}"
        + (f"; not read: {', '.join(file.unused)}" if file.unused else "")
    )
    for note in converted.notes:
        err.print(note)
    lists = [(f"not fitted, as {path.name} says", file.not_placed)]
    if bom is not None and (joined := converted.joined) is not None:
        lists += [
            (f"not fitted, as {bom.name} says", joined.not_fitted),
            ("only in the placement file", joined.only_placed),
            (f"only in {bom.name}", joined.only_listed),
        ]
    lists.append(("not inspected", tuple(part.refdes for part in converted.parts if not part.component)))
    for what, refdes in lists:
        if refdes:
            err.print(f"{what}: {list_few(refdes, 20)}")


def confirm(path: Path, *, yes: bool) -> None:
    """Ask whether a file is read as it is meant; raises ConfigError unless it is."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(
            f"is this how {path.name} is meant? Then give --yes; else say --units, --columns or --answers"
        )
    if not typer.confirm("Is that right?", err=True):
        raise ConfigError(f"{path.name}: say what is wrong with --units, --columns or --answers, or correct the file")
