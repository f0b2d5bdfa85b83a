"""One classifier for both types of object, in a store of its own: for docs/results/collaboration.md.

    python -m apps.objects.one_model
    python -m apps.objects.evaluate --store build/objects/one/store

It learns from the photos of both types, as many epochs as the two classifiers of `apps.objects.train`, so for the same
time. Its photos are varied as little as those of the figures: turned as far as a cookie may be, a figure is an anomaly.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from apps.objects.data import TYPES, DataMissing, find
from apps.objects.train import AUGMENT, BATCH, EPOCHS, HELD_OUT, RATE, linked
from coe.board import rules
from coe.errors import CoeError
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from experts.resnet import ResNet


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for photos and store.")] = Path("build/objects/one"),
    threads: Annotated[int, typer.Option(help="Threads of computation; 0 for all cores.")] = 0,
) -> None:
    """Train one classifier on both types; every expert of the board is then this one."""
    try:
        folder, experts = find(data), rules.load("objects").experts
        for name in TYPES:
            linked(folder, name, out / "photos")
        first, *others = (experts[name] for name in TYPES)
        plan = TrainingPlan(
            data=out / "photos",
            work=out,
            epochs=EPOCHS,
            batch=BATCH,
            learning_rate=RATE,
            threads=threads,
            held_out=HELD_OUT,
        )
        began = time.process_time()
        trained = ResNet(18, augment=AUGMENT["alien"]).train(first, plan, lambda *_: None)
        took = time.process_time() - began
        store = Store(out / "store")
        store.put(
            first.weights,
            kind=first.kind,
            labels=first.labels,
            input_size=first.input_size,
            state=trained.state,
            metrics=trained.metrics,
            learned=trained.learned,
            unproven=trained.unproven,
            source=f"apps.objects.one_model, {EPOCHS} epochs",
        )
        for other in others:
            store.link(other.weights, first.weights, labels=other.labels)
    except (DataMissing, CoeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    measured = "  ".join(f"{key} {value:.4f}" for key, value in trained.metrics.items())
    typer.echo(f"one model: {took:.0f} s of processor time  {measured}")


if __name__ == "__main__":
    typer.run(main)
