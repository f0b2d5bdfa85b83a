"""Train the experts of the `objects` board, one classifier for each type, and put them into the store.

The data is small (82 and 63 photos to train on) and there are no weights to start from, so the photos are varied as
far as the labels allow: moved, turned and lit in other ways. Nothing is erased: a missing part is the anomaly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps.data_set import run, say_epochs
from apps.objects.data import TYPES, find, read
from coe.board import rules
from coe.errors import ConfigError
from coe.prepare import learning
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from experts.augment import Augment
from experts.resnet import ResNet

EPOCHS, BATCH, RATE = 45, 8, 5e-4
HELD_OUT = 0.2
"""The share of the training photos by which the best epoch is chosen."""
AUGMENT = {
    # All figures have the same orientation, so each change is small.
    "alien": Augment(shift=0.05, scale=0.08, rotate=12.0, gain=0.2, offset=0.1),
    "cookie": Augment(mirror_x=True, mirror_y=True, shift=0.08, scale=0.12, rotate=180.0, gain=0.25, offset=0.12),
}


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for files of the training.")] = Path("build/objects"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    only: Annotated[str, typer.Option(help="Train only this type, alien or cookie.")] = "",
    epochs: Annotated[int, typer.Option(help="Epochs of each classifier.")] = EPOCHS,
    threads: Annotated[int, typer.Option(help="Threads of computation; 0 for all cores.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
) -> None:
    """Train a classifier for each object type on the training part; the test part is not touched."""
    folder = find(data)
    experts = rules.load("objects").experts
    if only not in ("", *TYPES):
        raise ConfigError(f"--only is {' or '.join(TYPES)}, not '{only}'")
    for name in [only] if only else TYPES:
        expert = experts[name]
        plan = TrainingPlan(
            data=linked(folder, name, out / name / "photos"),
            work=out / name,
            epochs=epochs,
            batch=BATCH,
            learning_rate=RATE,
            seed=seed,
            threads=threads,
            held_out=HELD_OUT,
        )
        trained = ResNet(18, augment=AUGMENT[name]).train(expert, plan, say_epochs(name))
        manifest = learning.put(Store(store), expert, trained, None, f"apps.objects.train, {epochs} epochs")
        measured = "  ".join(f"{key} {value:.4f}" for key, value in trained.metrics.items())
        typer.echo(f"{manifest.id}: {manifest.bytes / 1e6:.1f} MB  {measured}")


def linked(folder: Path, name: str, out: Path) -> Path:
    """Make a labelled folder of links to the training photos of a type; nothing is copied."""
    for photo in read(folder, "train"):
        if photo.component == name:
            link = out / photo.label / photo.inside.name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to((folder / photo.inside).resolve())
    return out


if __name__ == "__main__":
    run(main)
