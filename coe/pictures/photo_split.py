"""Which photographs are to learn from, to verify with, and to test on: `split.csv` beside the folders of components.

Pictures of one part stay together, and what the file says of a picture stays, however many pictures are added.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from coe.errors import ConfigError
from coe.files import write_atomically
from coe.pictures.found_image import natural
from coe.pictures.image_table import read_rows
from coe.pictures.photographs import GOOD, Photograph, letters
from coe.spelling import composed

SPLIT = "split.csv"
_COLUMNS = ("path", "group", "for")
_SHOWN = 5


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
        ...


P = TypeVar("P", bound=HasPath)


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

    def write(self) -> None:
        """Write the file as a whole; raises NotWritten."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(
            (name, self.rows[name].group, self.rows[name].purpose) for name in sorted(self.rows, key=natural)
        )
        write_atomically(self.root / SPLIT, [text.getvalue()])


def of_purpose(folder: Path, pictures: Sequence[P], purpose: Purpose) -> list[P]:
    """Return the pictures of a folder of photographs that are for a purpose; all of them without a split.

    Raises ConfigError for pictures that the split does not name, and if none is for it.
    """
    split = Split.beside(folder)
    if split is None:
        return list(pictures)
    names = [split.name_of(picture.path) for picture in pictures]
    if new := [name for name in names if name not in split.rows]:
        more = f" and {len(new) - _SHOWN} more" if len(new) > _SHOWN else ""
        raise ConfigError(
            f"{split.root / SPLIT} does not say what {', '.join(new[:_SHOWN])}{more} "
            f"{'is' if len(new) == 1 else 'are'} for; run `coe-experts split {split.root}`, which leaves the others as "
            "they are"
        )
    chosen = [one for one, name in zip(pictures, names, strict=True) if split.rows[name].purpose is purpose]
    if pictures and not chosen:
        raise ConfigError(f"{split.root / SPLIT}: none of these {len(pictures)} pictures is to {purpose}")
    return chosen


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


def extended(
    root: Path, photographs: Sequence[Photograph], shares: Mapping[Purpose, float], *, pattern: str = "", seed: int = 0
) -> Split:
    """Return the split of a folder with all its photographs; what it said of them before stays.

    New groups go, in an order by the seed, to the purpose that lacks most of its share among the pictures of their
    component and label. The group of a picture is its component and its name up to `__`, or what the first group of
    the regular expression `pattern` finds in its path. Files of the same bytes are one group.

    Raises ConfigError for a pattern that makes no sense, or that finds nothing in a path, for files of the same bytes
    of which one is good and another is not, and for a folder with the split of the folder around it.
    """
    before = Split.beside(root)
    if before is not None and before.root != root.resolve():
        raise ConfigError(f"{before.root / SPLIT} says what its pictures are for; split {before.root}")
    known = {} if before is None else before.rows
    groups = _groups(photographs, known, pattern)
    counts: dict[tuple[str, str], Counter[Purpose]] = {}
    purposes = {row.group: row.purpose for row in known.values()}
    members: dict[str, list[Photograph]] = {}
    for one, group in zip(photographs, groups, strict=True):
        members.setdefault(group, []).append(one)
    old = [group for group in members if group in purposes]
    new = sorted((group for group in members if group not in purposes), key=lambda group: _chance(seed, group))
    for group in chain(old, new):
        strata = Counter((one.component, one.label) for one in members[group])
        if group not in purposes:
            purposes[group] = max(shares, key=lambda purpose: _lacking(purpose, shares[purpose], strata, counts))
        for stratum, number in strata.items():
            counts.setdefault(stratum, Counter())[purposes[group]] += number
    rows = {
        composed(one.name): SplitRow(group, purposes[group]) for one, group in zip(photographs, groups, strict=True)
    }
    return Split(root.resolve(), rows)


def _lacking(
    purpose: Purpose,
    share: float,
    strata: Mapping[tuple[str, str], int],
    counts: Mapping[tuple[str, str], Mapping[Purpose, int]],
) -> float:
    """Return how many pictures a purpose lacks of its share, if these were given to nobody yet."""
    lacking = 0.0
    for stratum, number in strata.items():
        had = counts.get(stratum, {})
        lacking += share * (sum(had.values()) + number) - had.get(purpose, 0)
    return lacking if share else float("-inf")


def _groups(photographs: Sequence[Photograph], known: Mapping[str, SplitRow], pattern: str) -> list[str]:
    """Return the group of each photograph: that of a picture of the same bytes, else its own."""
    try:
        search = re.compile(pattern).search if pattern else None
    except re.error as error:
        raise ConfigError(f"'{pattern}' is no regular expression: {error}") from error
    by_content: dict[str, str] = {}
    says: dict[tuple[str, str], Photograph] = {}
    faults = []
    order = sorted(range(len(photographs)), key=lambda place: composed(photographs[place].name) not in known)
    found = {}
    for place in order:
        one = photographs[place]
        name = composed(one.name)
        group = known[name].group if name in known else _own_group(one, search and search(name), pattern)
        digest = _digest(one.path)
        found[place] = by_content.setdefault(digest, group)
        other = says.setdefault((digest, one.component), one)
        if one.label and other.label and (letters(one.label) in GOOD) != (letters(other.label) in GOOD):
            faults.append(" and ".join(sorted((one.name, other.name), key=natural)))
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ConfigError(f"the same picture is good and is not: {'; '.join(faults[:_SHOWN])}{more}; take one out")
    return [found[place] for place in range(len(photographs))]


def _own_group(one: Photograph, matched: re.Match[str] | None, pattern: str) -> str:
    if not pattern:
        return f"{one.component}/{composed(one.path.stem).partition('__')[0]}".lstrip("/")
    if matched is None or not (text := matched.group(min(1, matched.re.groups))):
        raise ConfigError(f"the pattern '{pattern}' finds no group in '{one.name}'")
    return text


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error


def _chance(seed: int, group: str) -> str:
    return hashlib.sha256(f"{seed} {group}".encode()).hexdigest()


def _rows(table: Path) -> dict[str, SplitRow]:
    rows: dict[str, SplitRow] = {}
    purposes: dict[str, tuple[Purpose, int]] = {}
    try:
        for row in read_rows(table, _COLUMNS, f"the first line must be {','.join(_COLUMNS)}"):
            name, group, purpose = (row.cells.get(column, "") for column in _COLUMNS)
            where = f"{table}:{row.number}"
            if purpose not in list(Purpose):
                raise ConfigError(f"{where}: '{purpose}' is not known; write {', '.join(Purpose)}")
            if composed(name) in rows:
                raise ConfigError(f"{where}: '{name}' stands twice")
            first, line = purposes.setdefault(group, (Purpose(purpose), row.number))
            if first is not Purpose(purpose):
                raise ConfigError(f"{where}: group '{group}' is to {purpose} here, and to {first} in line {line}")
            rows[composed(name)] = SplitRow(group, Purpose(purpose))
    except OSError as error:
        raise ConfigError(f"{table} cannot be read: {error.strerror or error}") from error
    return rows
