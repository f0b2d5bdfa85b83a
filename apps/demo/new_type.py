"""A new component type from a few good parts: `python -m apps.demo.new_type`, on the demo board's types.

Each type is learned by an expert of kind `good` whose frozen layers come from a classifier of the other types: one
classifier learns every second type, another learns the rest, and each gives its layers to experts of types that it has
never seen. `--layers random` shows what is left without such a classifier.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from safetensors.torch import save_file

from apps.demo.lessons import BODY, data_of, expose, shots
from apps.demo.pcb import Style, board_style
from apps.demo.production import save
from apps.demo.recipe import recipe
from apps.demo.render import COMPONENTS, photograph
from apps.good_only import LABEL, NewType, Part, inspect, table
from apps.good_only import board as learned
from coe.board import rules
from coe.calibrate import edit, verified
from coe.calibrate.answers import BoardExperts
from coe.calibrate.edit import RulesEntry
from coe.calibrate.result import calibrate
from coe.calibrate.thresholds import Goal, WantedRate
from coe.cli.console import Console
from coe.store import kinds
from coe.store.kinds import TrainingPlan
from coe.store.store import Store

FOLDER = Path("build/new-type")
_GOOD, _TEST, _BAD = 1, 2, 3
_EPOCHS = 8


def body(half: int, folder: Path, seed: int) -> Path:
    """Train a classifier on every second component type, from number `half` on; return its weights."""
    path = folder / f"body-{half}.safetensors"
    if path.is_file():
        return path
    shutil.rmtree(folder / "lessons", ignore_errors=True)
    types = list(COMPONENTS)[half::2]
    plan = recipe(BODY.id)
    expose(BODY, False, shots(BODY, False, types, plan.amount, seed), folder / "lessons")
    training = TrainingPlan(
        data=data_of(BODY, False, folder / "lessons"),
        work=folder,
        epochs=_EPOCHS,
        batch=plan.batch,
        learning_rate=plan.learning_rate,
        seed=seed,
        threads=1,
    )
    trained = kinds.resolve(BODY.kind).train(BODY, training, lambda *_: None)
    save_file(trained.state, path)
    return path


def style_of(rng: np.random.Generator, product: int | None) -> Style:
    """Return the look of a board: of any product, or of one, whose boards differ in their exposure alone."""
    style = board_style(rng)
    if product is None:
        return style
    return replace(board_style(np.random.default_rng([product, 5])), exposure=style.exposure)


def shot(component: str, defect: str | None, seed: tuple[int, ...], product: int | None) -> np.ndarray:  # type: ignore[type-arg]
    """Photograph a part."""
    rng = np.random.default_rng(seed)
    return photograph(component, defect, rng, style=style_of(rng, product)).image


def parts(seed: int, each: int, product: int | None) -> Iterator[Part]:
    """Yield good and bad parts to inspect, as many of each for every type; defects take turns."""
    for number, (name, kind) in enumerate(COMPONENTS.items()):
        for index in range(each):
            yield Part(name, "", shot(name, None, (seed, _TEST, number, index), product))
            defect = kind.defects[index % len(kind.defects)]
            yield Part(name, defect, shot(name, defect, (seed, _BAD, number, index), product))


def calibrated(path: Path, shown: Iterable[Part], escapes: float) -> None:
    """Set the thresholds of a board's experts for a wanted rate of escapes, from verified parts, as a user does."""
    folder = path.parent / "verified"
    for number, part in enumerate(shown):
        file = folder / part.component / (LABEL if part.defect else "none") / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        save(file, part.pixels)
    board = rules.load(path)
    asked, entries = BoardExperts(board, Store(path.parent / "store")), {}
    pictures = verified.find(folder, board.experts)
    for id in board.experts:
        answers = asked.answers(id, [picture for picture in pictures if picture.expert == id])
        outcome = calibrate(answers, WantedRate(Goal.ESCAPES, escapes), unproven=True)
        entries[id] = RulesEntry(outcome.entries, outcome.comment("the day of the trial"))
    path.write_text(edit.edited(path, path.read_text(encoding="utf-8"), entries), encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Learn each type from a few good parts, and measure."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.new_type", description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where classifiers and experts go (%(default)s)")
    parser.add_argument("--good", type=int, default=10, help="good parts to learn each type from (%(default)s)")
    parser.add_argument("--each", type=int, default=50, help="good and bad parts to inspect of each type (%(default)s)")
    parser.add_argument("--seed", type=int, default=9701, help="seed of the parts (%(default)s)")
    parser.add_argument("--input", type=int, default=128, help="input of the experts in pixels (%(default)s)")
    parser.add_argument("--false-calls", type=float, default=0.05, help="the rate that is wanted (%(default)s)")
    parser.add_argument(
        "--layers", choices=("other-types", "random"), default="other-types", help="what sees (%(default)s)"
    )
    parser.add_argument("--verified", type=int, default=0, help="verified good and bad parts of each (%(default)s)")
    parser.add_argument("--escapes", type=float, default=0.1, help="wanted with verified parts (%(default)s)")
    parser.add_argument("--product", type=int, help="parts of one product, by its number; default: of any product")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    types = []
    for number, name in enumerate(COMPONENTS):
        good = [shot(name, None, (options.seed, _GOOD, number, i), options.product) for i in range(options.good)]
        init = body(1 - number % 2, options.folder, 1) if options.layers == "other-types" else None
        types.append(NewType(name, good, init))
    trial = options.folder / "trial"
    shutil.rmtree(trial, ignore_errors=True)
    path = learned(types, trial, input_size=options.input, false_calls=options.false_calls)
    title = f"{options.good} good parts of each type, {options.layers} layers, wanted {options.false_calls:.0%}"
    console = Console(width=120)
    console.print(table(title, inspect(path, parts(options.seed, options.each, options.product))))
    if options.verified:
        calibrated(path, parts(options.seed + 1, options.verified, options.product), options.escapes)
        title += f"; then {options.verified} verified, wanted escapes {options.escapes:.0%}"
        console.print(table(title, inspect(path, parts(options.seed, options.each, options.product))))


if __name__ == "__main__":
    main()
