"""Placement files and bills of materials, read as a person says: what they leave open is asked for, never guessed.

Angles are degrees, counterclockwise. Coordinates become mm; the frame stays that of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coe.bring.parts import bom as bom_list
from coe.bring.parts import placements, text_table
from coe.bring.parts.answers import AS_IT_IS, Answers
from coe.bring.parts.bom import Bom, BomPart
from coe.bring.parts.placement_file import PlacementFile, expect_answered
from coe.errors import ConfigError
from coe.placement.panel_split import on_boards


def read_file(path: Path, answers: Answers = AS_IT_IS, bom: Mapping[str, BomPart] | None = None) -> PlacementFile:
    """Read a placement file: all its parts, of both sides, in the order of the file, and what a person should confirm.

    Raises ConfigError, with file and line, for a file that cannot be read, that states another unit or none,
    coordinates that are no numbers, a part without a side, and parts of which the file leaves open whether they are
    fitted, and a `bom` that is joined later, too.
    """
    if (path / "steps").is_dir():
        raise ConfigError(f"{path}: it is a folder of ODB++; pack it as a .zip, and give that")
    return parse_file(path, text_table.content(path, "the placement file"), answers, bom)


def parse_file(
    path: Path, raw: bytes, answers: Answers = AS_IT_IS, bom: Mapping[str, BomPart] | None = None
) -> PlacementFile:
    """Return a placement file by its bytes; raises ConfigError as `read_file` does, which names `path`."""
    file = placements.parse(path, raw, answers)
    said = {refdes: answers.says_fitted(question.word) for refdes, question in file.asked.items()}
    out = {refdes for refdes, is_fitted in said.items() if is_fitted is False}
    file = replace(
        file,
        placements=tuple(place for place in file.placements if place.refdes not in out),
        not_placed=(*file.not_placed, *sorted(out)),
        said=file.said | {refdes for refdes, is_fitted in said.items() if is_fitted},
        asked={refdes: question for refdes, question in file.asked.items() if said[refdes] is None},
    )
    known = {*(bom or ())} - {*(bom.asked if isinstance(bom, Bom) else ())}
    of_board = on_boards(file.asked, file.placements)
    known.update(name for part in of_board.keys() & known for name in of_board[part])
    expect_answered(row for refdes, row in file.asked.items() if refdes not in known)
    return file


def read_bom(path: Path, answers: Answers = AS_IT_IS, *, asks: bool = True) -> Bom:
    """Read a BOM, as CSV, text or a spreadsheet; return what it says, by reference designator.

    Raises ConfigError, with file and line, for a file without a column of designators, for a part that stands twice
    with other words, and if it `asks`, for parts of which it leaves open whether they are fitted; else `join` asks.
    """
    return parse_bom(path, text_table.content(path, "the BOM"), answers, asks=asks)


def parse_bom(path: Path, raw: bytes, answers: Answers = AS_IT_IS, *, asks: bool = True) -> Bom:
    """Return what the bytes of a BOM say; raises ConfigError as `read_bom` does, which names `path`."""
    bom = bom_list.parse(path, raw)
    said = {refdes: answers.says_fitted(question.word) for refdes, question in bom.asked.items()}
    bom.asked = {refdes: question for refdes, question in bom.asked.items() if said[refdes] is None}
    out = [name for name, is_fitted in said.items() if is_fitted is False and name in bom]
    bom.update({name: replace(bom[name], is_fitted=False) for name in out})
    expect_answered(bom.asked.values() if asks else ())
    return bom
