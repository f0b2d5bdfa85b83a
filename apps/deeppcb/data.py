"""The DeepPCB lists and annotations as data. Only this file knows how the data set names its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from apps import data_set
from apps.data_set import DataMissing

LABELS = ("open", "short", "mousebite", "spur", "copper", "pin-hole")
"""In the order of the data set's class ids 1 to 6."""
DRAWN_INTO = frozenset({"44000020"})
"""Keys of tested pictures into which the authors of the data set drew annotations: frames and words hide the board."""


@dataclass(frozen=True, slots=True)
class Defect:
    """One annotated defect: `label` an index into LABELS, `xyxy` whole pixels of the tested image."""

    label: int
    xyxy: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Pair:
    """One tested image with its defects, and the defect-free template aligned to it; both 640 x 640."""

    key: str
    group: str
    tested: Path
    template: Path
    note: Path
    defects: tuple[Defect, ...]


def find(data: Path | None = None) -> Path:
    """Return the data set's folder (`apps.data_set.find`); raises DataMissing if there is no data set."""
    return data_set.find(data, "deeppcb", "PCBData", "splits")


def read(folder: Path, split: str) -> list[Pair]:
    """Return the pairs of a split, `trainval` or `test`, in the order of its list.

    Raises DataMissing if the list or an annotation cannot be read.
    """
    pairs = []
    for image, note in _rows(folder / "splits" / f"{split}.txt", 2):
        stem = folder / "PCBData" / image.removesuffix(".jpg")
        pairs.append(
            Pair(
                key=stem.name,
                group=image.split("/", 1)[0],
                tested=stem.with_name(f"{stem.name}_test.jpg"),
                template=stem.with_name(f"{stem.name}_temp.jpg"),
                note=folder / "PCBData" / note,
                defects=tuple(defects(folder / "PCBData" / note)),
            )
        )
    return pairs


def defects(path: Path) -> Iterable[Defect]:
    """Yield the defects of an annotation file; each line is x1 y1 x2 y2 class, in whole pixels, with classes from 1.

    Raises DataMissing if it cannot be read.
    """
    for words in _rows(path, 5):
        if not all(word.isdecimal() for word in words) or not 1 <= int(words[4]) <= len(LABELS):
            raise DataMissing(f"'{path}': '{' '.join(words)}' is not 'x1 y1 x2 y2 class'; download the data set again")
        x1, y1, x2, y2, label = map(int, words)
        yield Defect(label - 1, (x1, y1, x2, y2))


def _rows(path: Path, count: int) -> Iterator[list[str]]:
    """Yield the words of each line that is not empty; raises DataMissing unless they are so many."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataMissing(f"'{path}' cannot be read ({error}); download the data set again") from error
    for line in lines:
        words = line.replace(",", " ").split()
        if words and len(words) != count:
            raise DataMissing(f"'{path}': expected {count} words, found '{line}'; download the data set again")
        if words:
            yield words


def split_held_out(pairs: list[Pair], every: int) -> tuple[list[Pair], list[Pair]]:
    """Split the pairs into training pairs and held-out pairs: every `every`-th pair of each group is held out."""
    counts: dict[str, int] = {}
    train, held = [], []
    for pair in pairs:
        counts[pair.group] = counts.get(pair.group, 0) + 1
        (held if counts[pair.group] % every == 0 else train).append(pair)
    return train, held
