"""`coe-board parts`: `parts.csv` from a placement file and a bill of materials."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from coe.board import parts_list
from coe.cli.common import Exit, err, out
from coe.cli.options import Options, argument, option
from coe.errors import ConfigError, did_you_mean, list_few
from coe.helpers.files import replacing, write_atomically, writing
from coe.helpers.spelling import fits

if TYPE_CHECKING:
    from coe.bring.parts.answers import Answers
    from coe.bring.parts.converting import Converted


_RECIPE = "recipe.yaml"


class Bringing(Options):
    """How a placement file of another program is read."""

    units: str | None = option("Unit of the placement file: mm, um, mil or inch. Default: from the file.")
    bom: Path | None = option(
        "Bill of materials with designators: adds values and packages, and tells which parts are not fitted.",
        metavar="FILE",
    )
    columns: str | None = option(
        "Names of columns that are not recognised: refdes=Bauteil,x=Ost,y=Nord; also rotation, side, value, package, "
        "component, fitted, left_out. Without a header: all fields in order, e.g. refdes,x,y,rotation.",
        metavar="LIST",
    )
    bom_columns: str | None = option(
        "The same for the BOM: refdes=Position; also value, package, fitted, left_out.", metavar="LIST"
    )
    not_fitted: list[str] | None = option(
        "Word that marks a part as not fitted, e.g. N.C. or NC/*. Repeatable.", metavar="WORD"
    )
    leave_out: list[str] | None = option("Part not to inspect, e.g. J4 or TP*. Repeatable.", metavar="NAME")
    bottom_x: str | None = option(
        "Side from which x of bottom parts is seen: top (through the board) or bottom. Default: leave bottom parts out."
    )
    bottom_angle: str | None = option(
        "bottom: angles of bottom parts are counterclockwise, seen from the bottom. Seen from the top: top if 0 is "
        "mirrored left to right, top-180 if top to bottom (as in KiCad)."
    )
    answers: Path | None = option(
        "answers.yaml of an earlier export. Default: the one beside parts.csv, if any.", metavar="FILE"
    )
    yes: bool = option("Accept the placement file as read, without asking.", False)

    def answered(self, folder: Path) -> Answers:
        """Return what a person has said, in the file of answers and in options; raises ConfigError."""
        from coe.bring.parts import answers

        if (self.bottom_x is None) != (self.bottom_angle is None):
            raise ConfigError("give --bottom-x and --bottom-angle together, or neither")
        path = self.answers or folder / answers.NAME
        said = answers.read(path) if self.answers or path.is_file() else answers.Answers()
        more: dict[str, Any] = {} if self.units is None else {"unit": self.units}
        if self.columns is not None and "=" not in self.columns:
            more["order"] = [field.strip() for field in self.columns.split(",")]
        elif self.columns is not None:
            more["columns"] = {**said.columns, **answers.columns_of(self.columns)}
        if self.bom_columns is not None:
            more["bom_columns"] = {**said.bom_columns, **answers.columns_of(self.bom_columns)}
        for key, words in (("not_fitted", self.not_fitted), ("not_inspected", self.leave_out)):
            if words:
                more[key] = tuple(dict.fromkeys((*getattr(said, key), *words)))
        if self.bottom_x is not None:
            more["bottom"] = {"x": self.bottom_x, "angle": self.bottom_angle}
        return said.with_more(more)

    def converted(self, file: Path, said: Answers, *, unit: str = "mm") -> Converted:
        """Read a placement file and the BOM, say how they read, and ask whether that is right; raises ConfigError."""
        from coe.bring.parts.converting import convert

        converted = convert(file, self.bom, said)
        names = [place.refdes for place in converted.file.placements]
        if unknown := [word for word in self.leave_out or () if not any(fits(word, name) for name in names)]:
            raise ConfigError(f"--leave-out: the board has no part '{unknown[0]}'{did_you_mean(unknown[0], names)}")
        _tell(converted, file, self.bom, unit)
        return converted

    def confirm(self, file: Path) -> None:
        """Ask whether a file is read as it is meant; raises ConfigError unless it is."""
        if self.yes:
            return
        options = "--units, --columns or --answers"
        if not sys.stdin.isatty():
            raise ConfigError(f"is {file.name} read correctly? Then give --yes; otherwise correct it with {options}")
        if not typer.confirm("Is that right?", err=True):
            raise ConfigError(f"{file.name}: correct the reading with {options}, or edit the file")


class Parts(Bringing):
    """Make parts.csv, which runs read, from a file of a CAD program.

    The command shows how it reads the columns, and asks whether that is right. answers.yaml keeps your answers. For a
    new export, repeat the command: it also shows which parts were added, removed and moved.

    Example: coe-board parts pnp.csv --bom bom.csv --to line7
    """

    file: Path | None = argument(
        "Placement (pick-and-place) file, table or board file. Without it, parts.csv lists the parts of --bom "
        "without places, for pictures of single parts."
    )
    to: Path = option("Folder for parts.csv and answers.yaml.", Path("."), metavar="FOLDER")
    images: Path | None = option(
        "Pictures of whole boards. Before it asks, the command draws the crops of the folder's recipe.yaml on them.",
        metavar="FOLDER",
    )

    def run(self) -> Exit:
        from coe.bring.parts.converting import changes, list_of

        place = self.to / parts_list.NAME
        if any(path is not None and path.resolve() == place.resolve() for path in (self.file, self.bom)):
            raise ConfigError(f"{place} would be overwritten by its own result; give another folder with --to")
        if self.file is None:
            if self.bom is None:
                raise ConfigError("give the placement file, or --bom for a list of parts without places")
            text, notes = list_of(self.bom, self.answered(self.to))
            for note in notes:
                err.print(note)
            self.confirm(self.bom)
            _write(place, f"# {source(self.bom, None)}\n{text}")
            return Exit.OK
        converted = self.converted(self.file, self.answered(self.to))
        if place.exists():
            told = changes(parts_list.read_places(place), converted.parts)
            for line in told or ["no part was added, removed or moved"]:
                err.print(f"{place}: {line}")
        if self.images is not None:
            self._draw(converted, self.images)
        self.confirm(self.file)
        put(converted, self.to, source(self.file, self.bom))
        return Exit.OK

    def _draw(self, converted: Converted, images: Path) -> None:
        """Draw into pictures what will be cut out, and say how the board lies in them; raises ConfigError."""
        from coe.bring.board.first_board import overlay_of, read_pictures
        from coe.placement import lay_out, read_recipe

        recipe = self.to / _RECIPE
        if not recipe.is_file():
            raise ConfigError(
                f"--images: there is no {recipe}, which says how large parts are; `coe-board new` writes one, and "
                "draws the overlays itself"
            )
        known = read_recipe(recipe)
        strange = {part.component for part in converted.parts} - {"", *known.components}
        if strange:
            err.print(f"not drawn, because {recipe} does not give their size: {list_few(sorted(strange), 20)}")
        layout = lay_out(known, [part for part in converted.parts if part.component not in strange])
        for picture, pixels in read_pictures(images).items():
            drawn, place = overlay_of(pixels, layout), self.to / f"overlay-{picture.stem}.png"
            with writing(place), replacing(place) as file:
                file.write(drawn.file)
            out.print(f"written: {place}: {drawn.said}")


def put(converted: Converted, folder: Path, made_of: str) -> None:
    """Write parts.csv and the answers; raises ConfigError."""
    from coe.bring.parts.answers import NAME

    _write(folder / parts_list.NAME, converted.text(made_of))
    _write(folder / NAME, converted.answers.text())


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, [text])
    out.print(f"written: {path}")


def source(file: Path, bom: Path | None) -> str:
    """Return of which files parts.csv is made, and when."""
    names = file.name if bom is None else f"{file.name} and {bom.name}"
    return f"made by coe-board parts from {names}, {datetime.now().astimezone():%Y-%m-%d %H:%M}"


def _tell(converted: Converted, path: Path, bom: Path | None, unit: str) -> None:
    """Say how the files read: which column is what, which unit, and which parts are left out."""
    file, answers = converted.file, converted.answers
    columns = ", ".join(f"{field} is '{name}'" for field, name in file.columns.items())
    if "rotation" not in file.columns:
        columns += f", rotation is {answers.rotation or 0:g} degrees for all"
    if "side" not in file.columns:
        told = "by the file's name, or an M before an angle"
        columns += f", side is {told if answers.side is None else f'{answers.side} for all'}"
    x, y = ([getattr(place, axis) for place in file.placements] for axis in ("x_mm", "y_mm"))
    if unit == "pixels":
        y = [-value for value in y]
    sides = Counter(place.side for place in file.placements)
    err.print(
        f"{path.name}: {len(x)} parts ({', '.join(f'{count} {side}' for side, count in sides.items())}) in "
        f"{unit if unit == 'pixels' else file.stated or file.units}, x {min(x):g} to {max(x):g} {unit}, "
        f"y {min(y):g} to {max(y):g} {unit}; {columns}"
        + (f"; not read: {', '.join(file.unused)}" if file.unused else "")
    )
    for note in converted.notes:
        err.print(note)
    lists = [(f"not fitted, by {path.name}", file.not_placed)]
    if bom is not None and (joined := converted.joined) is not None:
        lists += [
            (f"not fitted, by {bom.name}", joined.not_fitted),
            ("only in the placement file", joined.only_placed),
            (f"only in {bom.name}", joined.only_listed),
        ]
    lists.append(("not inspected", tuple(part.refdes for part in converted.parts if not part.component)))
    for what, refdes in lists:
        if refdes:
            err.print(f"{what}: {list_few(refdes, 20)}")
