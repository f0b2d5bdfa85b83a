"""Dividing photographs by `split.csv`, and making that file: each is to learn from, to verify with, or to test on.

Pictures of one part stay together, and what the file says of a picture stays, however many pictures are added.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

from coe.errors import ConfigError, list_few
from coe.helpers import regular
from coe.helpers.files import write_atomically
from coe.helpers.spelling import composed
from coe.pictures.found_image import natural
from coe.pictures.label_folders import GOOD, letters
from coe.pictures.photo_split import COLUMNS, SHOWN, SPLIT, HasPath, Purpose, Split, SplitRow
from coe.pictures.photographs import Photograph

P = TypeVar("P", bound=HasPath)


def write(split: Split) -> None:
    """Write the file as a whole; raises NotWritten."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(
        (name, split.rows[name].group, split.rows[name].purpose) for name in sorted(split.rows, key=natural)
    )
    write_atomically(split.root / SPLIT, [text.getvalue()])


def of_purpose(folder: Path, pictures: Sequence[P], purpose: Purpose) -> list[P]:
    """Return the pictures of a folder of photographs that are for a purpose; all of them without a split.

    Raises ConfigError for pictures that the split does not name, and if none is for it.
    """
    split = Split.beside(folder)
    if split is None:
        return list(pictures)
    names = [split.name_of(picture.path) for picture in pictures]
    if new := [name for name in names if name not in split.rows]:
        raise ConfigError(
            f"{split.root / SPLIT} does not say what {list_few(new, SHOWN)} "
            f"{'is' if len(new) == 1 else 'are'} for; run `coe-experts split {split.root}`, which leaves the others as "
            "they are"
        )
    chosen = [one for one, name in zip(pictures, names, strict=True) if split.rows[name].purpose is purpose]
    if pictures and not chosen:
        raise ConfigError(f"{split.root / SPLIT}: none of these {len(pictures)} pictures is to {purpose}")
    return chosen


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
    new = [group for group in members if group not in purposes]
    by_chance = sorted(new, key=lambda group: hashlib.sha256(f"{seed} {group}".encode()).hexdigest())
    for group in chain(old, by_chance):
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
        digest = regular.sha256(one.path)
        found[place] = by_content.setdefault(digest, group)
        other = says.setdefault((digest, one.component), one)
        if one.label and other.label and (letters(one.label) in GOOD) != (letters(other.label) in GOOD):
            faults.append(" and ".join(sorted((one.name, other.name), key=natural)))
    if faults:
        raise ConfigError(f"the same picture is good and is not: {list_few(faults, SHOWN, '; ')}; take one out")
    return [found[place] for place in range(len(photographs))]


def _own_group(one: Photograph, matched: re.Match[str] | None, pattern: str) -> str:
    if not pattern:
        return f"{one.component}/{composed(one.path.stem).partition('__')[0]}".lstrip("/")
    if matched is None or not (text := matched.group(min(1, matched.re.groups))):
        raise ConfigError(f"the pattern '{pattern}' finds no group in '{one.name}'")
    return text
