"""The two object types as data. Only this file knows how the data set names its files."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

TYPES = ("alien", "cookie")


class DataMissing(Exception):
    """The images are not in the folder that was searched; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Photo:
    """One photo: its path inside the data set, its part and component, and its label, `normal` or `anomaly`."""

    inside: Path
    part: str
    component: str
    label: str


def find(data: Path | None = None) -> Path:
    """Return the data set's folder: the first given of `data`, $COE_DATA and ../shared/data, or its `lookout-objects`.

    Raises DataMissing if there is no data set.
    """
    root = data or Path(os.environ.get("COE_DATA") or "../shared/data")
    for folder in (root, root / "lookout-objects"):
        if (folder / "labels.csv").is_file() and (folder / "train" / TYPES[0]).is_dir():
            return folder
    raise DataMissing(f"no photos under '{root}'; name the folder that holds 'lookout-objects' with --data or COE_DATA")


def read(folder: Path, part: str) -> list[Photo]:
    """Return the photos of a part, `train` or `test`, in the order of `labels.csv`."""
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return [Photo(Path(row["file"]), part, row["object_type"], row["class"]) for row in rows if row["part"] == part]
