"""The two object types as data. Only this file knows how the data set names its files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from apps import data_set

TYPES = ("alien", "cookie")


@dataclass(frozen=True, slots=True)
class Photo:
    """One photo: its path inside the data set, its part and component, and its label, `normal` or `anomaly`."""

    inside: Path
    part: str
    component: str
    label: str


def find(data: Path | None = None) -> Path:
    """Return the data set's folder (`apps.data_set.find`); raises DataMissing if there is no data set."""
    return data_set.find(data, "lookout-objects", "labels.csv", f"train/{TYPES[0]}")


def read(folder: Path, part: str) -> list[Photo]:
    """Return the photos of a part, `train` or `test`, in the order of `labels.csv`."""
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [Photo(Path(row["file"]), part, row["object_type"], row["class"]) for row in rows if row["part"] == part]
