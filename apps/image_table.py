"""A table of images in another folder, for `coe-inspect --images <out>/images.csv`; no image is copied."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from coe.pictures.finding import TABLE

LINK = "data"
"""A link to the data set in the table's folder: a table may only name images under its own folder."""


COLUMNS = ("path", "component", "serial", "refdes", "reference")
_LINKED = (0, 4)


def write_table(folder: Path, out: Path, rows: Iterable[tuple[Path | str, ...]]) -> Path:
    """Write `out/images.csv` and return its path.

    A row is (path inside `folder`, component, serial, refdes), and the path of a reference for images that bring one.
    """
    out.mkdir(parents=True, exist_ok=True)
    link = out / LINK
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder.resolve(), target_is_directory=True)
    with (out / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(
            [Path(LINK, cell).as_posix() if place in _LINKED else cell for place, cell in enumerate(row)]
            for row in rows
        )
    return out / TABLE
