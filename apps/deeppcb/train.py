"""Train the experts of the `deeppcb` board and put them into the store.

Made for two CPU cores: the detector trains on small tiles and not on whole images, and the classifier of each board
type starts from a classifier of all types. Held-out pairs come from the training list; the test list is not used.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from apps.deeppcb import data as deeppcb
from apps.deeppcb import patch_train, tiles
from coe.board import rules
from coe.core import Expert
from coe.errors import CoeError, ConfigError
from coe.store import bodies, kinds
from coe.store.kinds import Trained, TrainingPlan
from coe.store.store import Store
from experts.yolov5 import YoloV5

DETECTOR = "pcb-defects"
ANY = "board-any"
HELD_OUT_EVERY = {DETECTOR: 20, ANY: 10}

# A mirrored board is a valid board; all images have the same two grey levels and the same scale.
DETECTOR_AUGMENT = {
    "flipud": 0.5,
    "fliplr": 0.5,
    "translate": 0.0,
    "scale": 0.0,
    "hsv_h": 0.0,
    "hsv_s": 0.0,
    "hsv_v": 0.0,
}


def train_detector(
    expert: Expert, pairs: list[deeppcb.Pair], plan: TrainingPlan, *, size: int, minutes: float
) -> Trained:
    """Train the shared detector on tiles of `size` pixels; it runs on whole images afterwards.

    With `minutes` the training ends after that time, with the learning rate at its lowest, after any number of epochs.
    `plan.data` is set here.
    """
    training, held = deeppcb.split_held_out(pairs, HELD_OUT_EVERY[DETECTOR])
    folder = plan.work / f"tiles-{size}"
    cut = tiles.cut({"train": training, "val": held}, folder, size=size, templates=0.15, seed=plan.seed)
    small = replace(expert, input_size=size)
    settings = {**DETECTOR_AUGMENT, "time": minutes / 60} if minutes else DETECTOR_AUGMENT
    return YoloV5("n", augment=settings).train(small, replace(plan, data=cut), _say(expert.id))


def train_classifier(expert: Expert, pairs: list[deeppcb.Pair], plan: TrainingPlan) -> Trained:
    """Train a classifier on the pairs of its board types; `plan.data` is set here."""
    training, held = deeppcb.split_held_out(pairs, HELD_OUT_EVERY[ANY])
    listed = patch_train.write_list(plan.work / f"{expert.id}.csv", {"train": training, "val": held})
    return kinds.resolve(expert.kind, ["apps.deeppcb"]).train(expert, replace(plan, data=listed), _say(expert.id))


def tune(experts: Mapping[str, Expert], pairs: list[deeppcb.Pair], plan: TrainingPlan, store: Store) -> None:
    """Tune a classifier for each board type with images, from `plan.init`, the classifier of all types."""
    for group in sorted({pair.group for pair in pairs}):
        expert = experts[group.replace("group", "board-")]
        trained = train_classifier(expert, [pair for pair in pairs if pair.group == group], plan)
        _keep(store, expert, trained, f"apps.deeppcb.train, {ANY} tuned on {group}")


def _say(name: str) -> kinds.Progress:
    started = time.monotonic()

    def progress(done: int, of: int, measures: dict[str, float]) -> None:
        words = "  ".join(f"{key} {value:.4f}" for key, value in measures.items())
        typer.echo(f"{name}: epoch {done}/{of}, {time.monotonic() - started:.0f} s  {words}")

    return progress


def _keep(store: Store, expert: Expert, trained: Trained, source: str) -> None:
    manifest = store.put(
        expert.weights,
        kind=expert.kind,
        labels=expert.labels,
        input_size=expert.input_size,
        state=trained.state,
        metrics=trained.metrics,
        learned=trained.learned,
        unproven=trained.unproven,
        source=source,
    )
    measured = "  ".join(f"{key} {value:.4f}" for key, value in trained.metrics.items())
    typer.echo(f"{manifest.id}: {manifest.bytes / 1e6:.1f} MB  {measured}")


def main(  # noqa: PLR0913
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for tiles and checkpoints.")] = Path("build/deeppcb"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    only: Annotated[str, typer.Option(help="Train only 'detector' or only 'classifiers'.")] = "",
    epochs: Annotated[int, typer.Option(help="Epochs of the detector.")] = 8,
    tile: Annotated[int, typer.Option(help="Side of the detector's tiles in pixels, a multiple of 32.")] = 192,
    batch: Annotated[int, typer.Option(help="Tiles in a step of the detector.")] = 16,
    rate: Annotated[float, typer.Option(help="Learning rate of the detector.")] = 0.002,
    init: Annotated[Path | None, typer.Option(help="Weights (.safetensors) from which the detector starts.")] = None,
    minutes: Annotated[
        float, typer.Option(help="End the detector's training after so many minutes; 0: after --epochs.")
    ] = 0.0,
    classifier_epochs: Annotated[int, typer.Option(help="Epochs of the common classifier, 25 steps each.")] = 48,
    tune_epochs: Annotated[int, typer.Option(help="Epochs of each type's classifier, 25 steps each.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of computation; 0 for all cores.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
) -> None:
    """Train the DeepPCB detector and the classifiers, and put them into the store."""
    try:
        if only not in ("", "detector", "classifiers"):
            raise ConfigError(f"--only is 'detector' or 'classifiers', not '{only}'")
        pairs = deeppcb.read(deeppcb.find(data), "trainval")
        experts, target = rules.load("deeppcb").experts, Store(store)
        plan = TrainingPlan(
            data=Path(), work=out, epochs=epochs, batch=batch, learning_rate=rate, seed=seed, threads=threads, init=init
        )
        out.mkdir(parents=True, exist_ok=True)
        if only != "classifiers":
            trained = train_detector(experts[DETECTOR], pairs, plan, size=tile, minutes=minutes)
            _keep(target, experts[DETECTOR], trained, f"apps.deeppcb.train, {tile} pixel tiles")
        if only != "detector":
            plan = replace(plan, epochs=classifier_epochs, batch=32, learning_rate=2e-3, init=None)
            trained = train_classifier(experts[ANY], pairs, plan)
            _keep(target, experts[ANY], trained, "apps.deeppcb.train, all board types")
            plan = replace(
                plan, epochs=tune_epochs, learning_rate=3e-4, init=bodies.whole_file(target, experts[ANY].weights, out)
            )
            tune(experts, pairs, plan, target)
    except (deeppcb.DataMissing, CoeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    typer.run(main)
