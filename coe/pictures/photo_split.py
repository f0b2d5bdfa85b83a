"""Which photographs are to learn from, to verify with, and to test on: `split.csv` beside the folders of components.

Pictures of one part stay together, and what the file says of a picture stays, however many pictures are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from coe.errors import ConfigError, readable
from coe.helpers.spelling import composed
from coe.pictures.image_table import read_rows

SPLIT = "split.csv"
COLUMNS = ("path", "group", "for")
SHOWN = 5


class Purpose(StrEnum):
    """What a picture is for."""

    LEARN = "learn"
    VERIFY = "verify"
    TEST = "test"


class HasPath(Protocol):
    """What has the path of a picture."""

    @property
    def path(self) -> Path:
        """The path of the picture."""


@dataclass(frozen=True, slots=True)
class SplitRow:
    """The group of a picture, which stays together, and what its pictures are for."""

    group: str
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of a file `split.csv` in the folder `root`, by the path of the picture in it, with slashes, in NFC."""

    root: Path
    rows: Mapping[str, SplitRow]

    @classmethod
    def beside(cls, folder: Path) -> Split | None:
        """Return the split of a folder of photographs, or of one component beside others; None if there is none.

        Raises ConfigError for a file that makes no sense.
        """
        here = folder.resolve()
        root = next((place for place in (here, here.parent) if (place / SPLIT).is_file()), None)
        return None if root is None else cls(root, _rows(root / SPLIT))

    def name_of(self, path: Path) -> str:
        """Return how the file names a picture."""
        place = path.parent.resolve() / path.name
        return composed(
            place.relative_to(self.root).as_posix() if place.is_relative_to(self.root) else place.as_posix()
        )


def learned_among(folder: Path, pictures: Sequence[HasPath]) -> tuple[str, ...]:
    """Return a warning if pictures that are inspected are such that experts learned from; else nothing."""
    try:
        split = Split.beside(folder) if folder.is_dir() else None
    except ConfigError:  # of another program
        return ()
    purposes = [] if split is None else [split.rows.get(split.name_of(one.path)) for one in pictures]
    learned = sum(row is not None and row.purpose is Purpose.LEARN for row in purposes)
    if split is None or not learned:
        return ()
    return (
        f"{learned} of the {len(pictures)} pictures are to learn from, as {split.root / SPLIT} says: how good experts "
        "are, this run does not tell; `coe-experts evaluate` does",
    )


def _rows(table: Path) -> dict[str, SplitRow]:
    rows: dict[str, SplitRow] = {}
    purposes: dict[str, tuple[Purpose, int]] = {}
    with readable(table):
        for row in read_rows(table, COLUMNS, f"the first line must be {','.join(COLUMNS)}"):
            name, group, purpose = (row.cells.get(column, "") for column in COLUMNS)
            where = f"{table}:{row.number}"
            if purpose not in list(Purpose):
                raise ConfigError(f"{where}: '{purpose}' is not known; write {', '.join(Purpose)}")
            if composed(name) in rows:
                raise ConfigError(f"{where}: '{name}' stands twice")
            first, line = purposes.setdefault(group, (Purpose(purpose), row.number))
            if first is not Purpose(purpose):
                raise ConfigError(f"{where}: group '{group}' is to {purpose} here, and to {first} in line {line}")
            rows[composed(name)] = SplitRow(group, Purpose(purpose))
    return rows
