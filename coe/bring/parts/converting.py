"""Placement files and bills of materials, read as a person says, and made `parts.csv`: a row for each part.

What files leave open is asked for, never guessed. Coordinates become mm, angles degrees, counterclockwise.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.parts_list import COLUMNS, BoardPart, Side
from coe.bring.parts import placements, text_table
from coe.bring.parts.answers import Answers
from coe.bring.parts.bom import Bom, BomJoin, join, read_bom
from coe.bring.parts.naming import Names
from coe.bring.parts.placements import Placement, PlacementFile
from coe.bring.parts.vocabulary import expect_answered
from coe.errors import ConfigError, list_few
from coe.placement.panel_split import on_boards


def read_file(path: Path, answers: Answers, bom: Bom | None) -> PlacementFile:
    """Read a placement file: all its parts, of both sides, in the order of the file, and what a person should confirm.

    Raises ConfigError, with file and line, for a file that cannot be read, that states another unit or none,
    coordinates that are no numbers, a part without a side, and parts of which the file leaves open whether they are
    fitted, and a `bom` that is joined later, too.
    """
    if (path / "steps").is_dir():
        raise ConfigError(f"{path}: this is an ODB++ folder; pack it as a .zip, and give that")
    file = placements.parse(path, text_table.content(path, "the placement file"), answers)
    known = set[str]() if bom is None else bom.keys() - bom.asked.keys()
    of_board = on_boards(file.asked, file.placements)
    known.update(name for part in of_board.keys() & known for name in of_board[part])
    expect_answered(row for refdes, row in file.asked.items() if refdes not in known)
    return file


_MOVED_MM, _MOST_TOLD = 0.001, 12


@dataclass(frozen=True, slots=True)
class Converted:
    """A placement file as it was read and joined with the BOM, if there is one, and what becomes of it.

    `places` are the parts that are fitted, and the marks, each with its component, "" if it is not inspected, in the
    frame of `parts.csv`; those of the bottom side are as the file has them if nobody knows how that describes them.
    `answers` name each package. `notes` are sentences that a person should read.
    """

    file: PlacementFile
    joined: BomJoin | None
    places: tuple[Placement, ...]
    answers: Answers
    notes: tuple[str, ...]

    @property
    def parts(self) -> tuple[Placement, ...]:
        """The rows of `parts.csv`."""
        sides = (Side.TOP,) if self.answers.bottom is None else (*Side,)
        return tuple(place for place in self.places if place.refdes and place.side in sides)

    @property
    def not_fitted(self) -> tuple[str, ...]:
        """The parts that the files leave out."""
        return (*self.file.not_placed, *(self.joined.not_fitted if self.joined else ()))

    def text(self, made_of: str) -> str:
        """Return `parts.csv`, whose first line says what it is `made_of`; raises ConfigError if it has no part."""
        if not self.parts:
            raise ConfigError(
                "all parts are on the bottom side: state how the file describes it with --bottom-x and --bottom-angle"
            )
        rows: list[Sequence[str]] = [COLUMNS]
        for part in self.parts:
            numbers = (f"{round(one, 6) + 0.0:.10g}" for one in (part.x_mm, part.y_mm, part.rotation_deg))  # no -0
            rows.append((part.refdes, *numbers, part.side, part.component))
        remarks = [made_of, *([f"not fitted: {', '.join(self.not_fitted)}"] if self.not_fitted else [])]
        return "".join(f"# {' '.join(remark.split())}\n" for remark in remarks) + _table(rows)


def convert(path: Path, bom: Path | None, answers: Answers) -> Converted:
    """Read a placement file, and a BOM if one is given, as `answers` say.

    Raises ConfigError with file and line for what cannot be read, and for what only a person can tell.
    """
    listed = None if bom is None else read_bom(bom, answers, asks=False)
    file = read_file(path, answers, listed)
    joined = None if listed is None else join(file.placements, listed, said=file.said, not_placed=file.not_placed)
    notes = [f"{path.name}: {note}" for note in file.notes]
    if bom and listed is not None and joined is not None:
        if len(joined.only_placed) == len(file.placements):
            raise ConfigError(
                f"{bom}: none of its parts ({list_few(listed)}) is in {path.name}; give the column of the "
                "designators, --bom-columns refdes=NAME, or leave the BOM out"
            )
        notes += [listed.read_as, *(f"{bom.name}: {note}" for note in joined.notes)]
    places = [_from_top(place, answers) for place in (file.placements if joined is None else joined.placements)]
    below = [place.refdes for place in places if place.side is Side.BOTTOM]
    if below and answers.bottom is None:
        notes.append(
            f"{len(below)} parts of the bottom side are left out ({list_few(below)}): if they are inspected, state "
            "how the file describes them with --bottom-x and --bottom-angle"
        )
    if nameless := [str(place.line) for place in places if not place.refdes]:
        notes.append(f"{len(nameless)} places without a designator are left out (line {list_few(nameless)})")
    names = Names(answers, places)
    named = tuple(replace(place, component=names.component(place) if place.refdes else "") for place in places)
    return Converted(file, joined, named, answers.model_copy(update={"packages": tuple(names.packages)}), tuple(notes))


def _from_top(place: Placement, answers: Answers) -> Placement:
    """Return a place in the frame of parts.csv: x as seen from the top, the angle as the camera sees the side."""
    if place.side is Side.TOP or (bottom := answers.bottom) is None:
        return place
    return replace(place, x_mm=bottom.x_from_top(place.x_mm), rotation_deg=bottom.angle_seen(place.rotation_deg))


def _table(rows: Iterable[Sequence[str]]) -> str:
    written = io.StringIO()
    plain = csv.writer(written, lineterminator="\n")
    quoted = csv.writer(written, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        (quoted if row[0].startswith("#") else plain).writerow(row)  # else it would be a remark
    return written.getvalue()


def list_of(path: Path, answers: Answers) -> tuple[str, tuple[str, ...]]:
    """Return the rows of `parts.csv` for a BOM alone, without places, and notes; raises ConfigError."""
    bom = read_bom(path, answers)
    fitted = [
        Placement(refdes, 0, 0, 0, Side.TOP, package=part.package, value=part.value)
        for refdes, part in bom.items()
        if part.is_fitted
    ]
    names = Names(answers, fitted)
    rows = [(part.refdes, name) for part in fitted if (name := names.component(part))]
    if not rows:
        raise ConfigError(f"{path}: no part in it is inspected; see not_inspected in answers.yaml, and fitted parts")
    return _table((("refdes", "component"), *rows)), (bom.read_as, *bom.notes)


def changes(before: Sequence[BoardPart], after: Sequence[BoardPart]) -> list[str]:
    """Return in sentences which parts came, went, moved, or are other components than before."""
    old, new = _by_name(before), _by_name(after)
    same = [(old[key], new[key]) for key in old if key in new]
    found = {
        "came": [f"{one.refdes} ({one.component or 'none'})" for key, one in new.items() if key not in old],
        "went": [part.refdes for key, part in old.items() if key not in new],
        "moved": [f"{b.refdes} ({_place(a)} to {_place(b)})" for a, b in same if _is_moved(a, b)],
        "other component": [
            f"{b.refdes} ({a.component or 'none'} to {b.component or 'none'})"
            for a, b in same
            if a.component != b.component
        ],
    }
    return [f"{what} ({len(names)}): {list_few(names, _MOST_TOLD)}" for what, names in found.items() if names]


def _by_name(parts: Sequence[BoardPart]) -> Mapping[tuple[str, int], BoardPart]:
    """Return parts by name; on a panel a name may stand once for each board."""
    counts, found = Counter[str](), dict[tuple[str, int], BoardPart]()
    for part in parts:
        counts[part.refdes] += 1
        found[part.refdes, counts[part.refdes]] = part
    return found


def _place(part: BoardPart) -> str:
    return f"{part.x_mm:.3f} {part.y_mm:.3f} mm, {part.rotation_deg:g} degrees, {part.side}"


def _is_moved(before: BoardPart, after: BoardPart) -> bool:
    turned = abs((after.rotation_deg - before.rotation_deg + 180) % 360 - 180)
    apart = max(abs(after.x_mm - before.x_mm), abs(after.y_mm - before.y_mm))
    return apart > _MOVED_MM or turned > _MOVED_MM or before.side is not after.side
