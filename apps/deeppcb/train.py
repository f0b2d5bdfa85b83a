"""Train the expert of the `deeppcb-golden` board on pairs of a picture and its template, and put it into the store.

Every tenth pair of each board type of the training list is held out; the test list is not used. Each training pair is
seen as it is, and again, once or several times, with more defects drawn into its picture.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer

from apps.data_set import run, say_epochs
from apps.deeppcb import data as deeppcb
from apps.deeppcb import pairs as pair_set
from apps.deeppcb.data import Pair
from apps.deeppcb.drawn import drawn
from coe.board import rules
from coe.errors import ConfigError
from coe.learn import learning
from coe.store import kinds
from coe.store.kinds import TrainingPlan
from coe.store.store import Store

BOARD_FILE, BOARD, EXPERT = "deeppcb_golden", "deeppcb-golden", "pcb-golden"
HELD_OUT_EVERY = 10
BATCH = 32
"""Crops in a step of training."""


def balanced(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Repeat the pairs of board types that have few, up to `most` times, towards as many as the most frequent type has.

    A board type with few pairs is as important to its line as any other.
    """
    counts = Counter(pair.group for pair in pairs)
    largest = max(counts.values())
    return [pair for pair in pairs for _ in range(min(most, max(1, round(largest / counts[pair.group]))))]


def with_drawn(pairs: Sequence[Pair], repeat: int, wanted: int, out: Path, seed: int) -> list[Pair]:
    """Return the pairs, and those of `balanced` with `wanted` more defects drawn into each picture, in folder `out`."""
    if not wanted:
        return balanced(pairs, repeat)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    chance, copies = np.random.default_rng(seed), list(pairs)
    for number, pair in enumerate(balanced(pairs, repeat)):
        picture, defects = drawn(pair, wanted, chance)
        path = out / f"{number}.jpg"
        if not cv2.imwrite(str(path), picture):
            raise ConfigError(f"'{path}' cannot be written; check the free space and the permissions of its folder")
        copies.append(replace(pair, tested=path, defects=defects))
    return copies


def main(  # noqa: PLR0913
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the data set of pairs.")] = Path("build/deeppcb"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the crops with a defect.")] = 11,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.002,
    init: Annotated[Path | None, typer.Option(help="Weights to start from, as weights.safetensors.")] = None,
    threads: Annotated[int, typer.Option(help="Threads of the CPU; 0 uses all cores.")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Most copies of a pair of a rare board type.")] = 4,
    draw: Annotated[
        int, typer.Option(min=0, help="Defects to draw into each copy; 0 draws none. The original pairs are used, too.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Seed of all random choices.")] = 0,
) -> None:
    """Train the DeepPCB expert that compares with templates, and put it into the store."""
    listed = deeppcb.read(deeppcb.find(data), "trainval")
    training, held = deeppcb.split_held_out(listed, HELD_OUT_EVERY)
    seen = with_drawn(training, repeat, draw, out / "drawn", seed)
    described = pair_set.lay_out({"train": seen, "val": held}, out / "pairs")
    plan = TrainingPlan(described, out, epochs, BATCH, rate, seed=seed, threads=threads, init=init)
    expert = rules.load(BOARD_FILE).experts[EXPERT]
    trained = kinds.resolve(expert.kind).train(expert, plan, say_epochs(EXPERT))
    for remark in trained.remarks:
        typer.echo(remark)
    manifest = learning.put(Store(store), expert, trained, None, f"apps.deeppcb.train, {epochs} epochs")
    typer.echo(f"{manifest.id}: {manifest.bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    run(main)
