"""Write the table of test images and their templates that `coe-inspect` reads; no image is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps.data_set import run, write_table
from apps.deeppcb.data import Pair, find, read


def write(folder: Path, pairs: list[Pair], out: Path) -> Path:
    """Write `out/images.csv`: each tested image (all are defective) with its template; returns the table's path."""
    return write_table(
        folder,
        out,
        (
            (pair.tested.relative_to(folder), pair.group, pair.key, pair.group, pair.template.relative_to(folder))
            for pair in pairs
        ),
    )


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for images.csv.")] = Path("build/deeppcb/test"),
    split: Annotated[str, typer.Option(help="test or trainval")] = "test",
) -> None:
    """Write the table of DeepPCB images.

    For `coe-inspect --board deeppcb_golden --images <out>/images.csv`.
    """
    folder = find(data)
    pairs = read(folder, split)
    table = write(folder, pairs, out)
    typer.echo(f"{table}: {len(pairs)} images, all of them defective, each with its template")


if __name__ == "__main__":
    run(main)
