"""Write the table of test images that `coe-inspect` reads; no image is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps.deeppcb.data import DataMissing, Pair, find, read
from apps.image_table import write_table


def write(folder: Path, pairs: list[Pair], out: Path) -> Path:
    """Write `out/images.csv`: each tested image (defective) and its template (good); returns the table's path.

    The serial is the image's key with `-bad` or `-good`, so that the truth can be read off a report.
    """
    return write_table(
        folder,
        out,
        (
            (image.relative_to(folder), pair.group, f"{pair.key}-{truth}", pair.group)
            for pair in pairs
            for image, truth in ((pair.tested, "bad"), (pair.template, "good"))
        ),
    )


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for images.csv.")] = Path("build/deeppcb/test"),
    split: Annotated[str, typer.Option(help="test or trainval")] = "test",
) -> None:
    """Write the table of DeepPCB images.

    For `coe-inspect --board deeppcb --allow-kind apps.deeppcb --images <out>/images.csv`.
    """
    try:
        folder = find(data)
    except DataMissing as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    pairs = read(folder, split)
    table = write(folder, pairs, out)
    typer.echo(f"{table}: {2 * len(pairs)} images, {len(pairs)} of them defective")


if __name__ == "__main__":
    typer.run(main)
