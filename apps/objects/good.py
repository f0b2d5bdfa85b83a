"""The figure of the object types from good photos alone: `python -m apps.objects.good`, with kind `good`.

A cookie has no fixed shape, so no cookie can be aligned with another; it is left out.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Annotated

import typer

from apps.good_only import NewType, Part, board, inspect, table
from apps.objects.data import DataMissing, find, read
from coe.board.decoding import decode
from coe.cli.console import Console

NAME = "alien"


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the experts.")] = Path("build/objects-good"),
    good: Annotated[int, typer.Option(help="Good photos to learn from.")] = 10,
    draws: Annotated[int, typer.Option(help="How often other good photos are drawn.")] = 5,
    init: Annotated[Path | None, typer.Option(help="Weights of a resnet18 that sees; default: random layers.")] = None,
    input_size: Annotated[int, typer.Option("--input", help="Input of the expert in pixels.")] = 128,
    false_calls: Annotated[float, typer.Option(help="The rate that is wanted.")] = 0.05,
) -> None:
    """Learn from a few good photos of the training part; inspect all other photos of both parts."""
    console = Console(width=110)
    try:
        folder = find(data)
    except DataMissing as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    tallies = {}
    for draw in range(draws):
        photos = [photo for part in ("train", "test") for photo in read(folder, part) if photo.component == NAME]
        normal = [photo for photo in photos if photo.part == "train" and photo.label == "normal"]
        chosen = random.Random(draw).sample(normal, good)
        trial = out / f"draw-{draw}"
        shutil.rmtree(trial, ignore_errors=True)
        new = NewType(NAME, [decode(folder / photo.inside) for photo in chosen], init)
        path = board([new], trial, input_size=input_size, false_calls=false_calls)
        others = (
            Part(NAME, "" if photo.label == "normal" else photo.label, decode(folder / photo.inside))
            for photo in photos
            if photo not in chosen
        )
        tallies[f"draw {draw + 1}"] = inspect(path, others)[NAME]
    console.print(table(f"{NAME}: {good} good photos, wanted {false_calls:.0%}", tallies))


if __name__ == "__main__":
    typer.run(main)
