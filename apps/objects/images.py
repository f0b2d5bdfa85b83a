"""Write the table of test photos that `coe-inspect` reads; no photo is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps.data_set import run, write_table
from apps.objects.data import Photo, find, read


def write(folder: Path, photos: list[Photo], out: Path) -> Path:
    """Write `out/images.csv` and return its path. The serial is type, truth and file name of the photo."""
    return write_table(
        folder,
        out,
        (
            (photo.inside, photo.component, f"{photo.component}-{photo.label}-{photo.inside.stem}", photo.component)
            for photo in photos
        ),
    )


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for images.csv.")] = Path("build/objects/test"),
    part: Annotated[str, typer.Option(help="test or train")] = "test",
) -> None:
    """Write the table of photos for `coe-inspect --board objects --images <out>/images.csv`."""
    folder = find(data)
    photos = read(folder, part)
    table = write(folder, photos, out)
    bad = sum(photo.label == "anomaly" for photo in photos)
    typer.echo(f"{table}: {len(photos)} photos, {bad} of them anomalies")


if __name__ == "__main__":
    run(main)
