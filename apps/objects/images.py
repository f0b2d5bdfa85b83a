"""Write the table of test photos that `coe-inspect` reads; no photo is copied."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from apps.objects.data import DataMissing, Photo, find, read

LINK = "data"
"""A link beside the table that leads to the data set: a table may only name images under its own folder."""


def write(folder: Path, photos: list[Photo], out: Path) -> Path:
    """Write `out/images.csv` and return its path. The serial is type, truth and file name of the photo."""
    out.mkdir(parents=True, exist_ok=True)
    link = out / LINK
    if link.is_symlink():
        link.unlink()
    link.symlink_to(folder.resolve(), target_is_directory=True)
    table = out / "images.csv"
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "component", "serial", "refdes"))
        for photo in photos:
            serial = f"{photo.component}-{photo.label}-{photo.inside.stem}"
            writer.writerow((Path(LINK, photo.inside).as_posix(), photo.component, serial, photo.component))
    return table


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="Folder with the photos; else $COE_DATA, ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for images.csv.")] = Path("build/objects/test"),
    part: Annotated[str, typer.Option(help="test or train")] = "test",
) -> None:
    """Write the table of photos for `coe-inspect --board objects --images <out>/images.csv`."""
    try:
        folder = find(data)
    except DataMissing as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    photos = read(folder, part)
    table = write(folder, photos, out)
    bad = sum(photo.label == "anomaly" for photo in photos)
    typer.echo(f"{table}: {len(photos)} photos, {bad} of them anomalies")


if __name__ == "__main__":
    typer.run(main)
