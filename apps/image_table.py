"""A table of images in another folder, for `coe-inspect --images <out>/images.csv`; no image is copied."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from coe.board.images import TABLE

LINK = "data"
"""A link to the data set in the table's folder: a table may only name images under its own folder."""


def write_table(folder: Path, out: Path, rows: Iterable[tuple[Path, str, str, str]]) -> Path:
    """Write `out/images.csv` from (path inside `folder`, component, serial, refdes) and return the table's path."""
    out.mkdir(parents=True, exist_ok=True)
    link = out / LINK
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder.resolve(), target_is_directory=True)
    with (out / TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "component", "serial", "refdes"))
        writer.writerows((Path(LINK, inside).as_posix(), *rest) for inside, *rest in rows)
    return out / TABLE
