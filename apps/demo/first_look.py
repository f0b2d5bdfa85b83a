"""Make a first look at the demo board: `python -m apps.demo.first_look`, a minute and a half of CPU time at most.

There are fewer boards than in the demo, and small classifiers (`apps.demo.small`), which learn from the same pictures.
First a network learns all types; each expert starts from its weights. What an earlier call made is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from safetensors.torch import save_file

from apps.demo.lessons import BODY, label_of
from apps.demo.pcb import board_style
from apps.demo.production import lot, save, truth_file
from apps.demo.recipe import renderer
from apps.demo.render import COMPONENTS, photograph
from apps.demo.work import head_of, mark_file, photograph_lot
from coe.board import photo_labels, rules
from coe.core import Expert
from coe.errors import StoreError
from coe.learn import learning
from coe.store import kinds
from coe.store.kinds import TrainingPlan
from coe.store.store import Store

BOARD, ALLOWED = "first_look", ("apps.demo",)
IMAGES = Path("build/first-look/images")
BOARDS = 3
NUMBERS = {None: 10, "cracked": 8, "damaged": 8, "reversed": 8, "bridged": 0, "lifted": 0}
"""The number of pictures by defect for each component type; other defects have `FEW`. Solder is not inspected."""
FEW = 4
MORE_GOOD = {"R0402-10K": 26, "R0805-4R7": 18}
"""The number of good pictures for parts whose printed code looks like a crack."""
TURNS = "-turned"


@dataclass(frozen=True, slots=True)
class Lesson:
    """How an expert learns: epochs, learning rate, and whether each picture is also used upside down (`turned`)."""

    epochs: int
    learning_rate: float
    turned: bool = True


COMMON = Lesson(13, 3e-3)
OF_A_BODY = {"chip-resistor": Lesson(14, 1.5e-3)}
OF_OTHER_BODIES = Lesson(3, 1e-3)
LESSONS = {"polarity": Lesson(16, 2e-3, turned=False)}
"""A picture upside down would show a right part as reversed."""


@dataclass(frozen=True, slots=True)
class LessonPicture:
    """A picture that experts learn from: a component, its defect (None: good), and its split, `train` or `val`."""

    path: Path
    component: str
    defect: str | None
    split: str


def build(images: Path, store: Store, *, seed: int = 1, say: Callable[[str], None] = print) -> int:
    """Render the boards to inspect and train what is missing; return how many experts were trained."""
    mark = recipe(seed)
    photographed = mark_file(images).is_file() and mark_file(images).read_text(encoding="ascii") == f"{mark}\n"
    if not (photographed and truth_file(images).is_file()):
        photograph_lot(lot(BOARDS, seed), images, mark)
    board = rules.load(BOARD)
    if not missing(board, store, mark):
        return 0
    folder = images.parent / "training"
    shutil.rmtree(folder, ignore_errors=True)
    pictures = list(photographs(folder / "pictures", seed))
    say(f"first look: {len(pictures)} training pictures")
    kind = kinds.resolve(board.experts["polarity"].kind, ALLOWED)
    common = Expert("common", kind.name, BODY.labels, BODY.input_size, "")
    served = {name: set(photo_labels.served(board.components, name)) for name in board.experts}

    def learn(expert: Expert, lesson: Lesson, types: set[str], init: Path | None) -> kinds.Trained:
        data = data_set(expert, [picture for picture in pictures if picture.component in types], lesson, folder)
        plan = TrainingPlan(data, folder, lesson.epochs, 32, lesson.learning_rate, seed=seed, threads=1, init=init)
        trained = kind.train(expert, plan, lambda *_: None)
        say(f"first look: {expert.id} trained, judges {trained.metrics['accuracy']:.0%} of its held-out pictures right")
        return trained

    start = learn(common, COMMON, set(COMPONENTS), None).state
    for name, expert in board.experts.items():
        init = folder / "start.safetensors"
        shared = name in LESSONS
        state = {key: value for key, value in start.items() if not shared or key.startswith("trunk")}
        save_file(state if shared else head_of(state, expert, common.labels), init)
        trained = learn(expert, LESSONS.get(name) or OF_A_BODY.get(name, OF_OTHER_BODIES), served[name], init)
        learning.put(store, expert, trained, None, mark)
    shutil.rmtree(folder, ignore_errors=True)
    return len(board.experts)


def recipe(seed: int) -> str:
    """Return a text that identifies pictures and experts: by renderer, network, lessons and seed."""
    sources = [Path(__file__).with_name(name).read_bytes() for name in ("small.py", "first_look.py")]
    return f"first look {renderer()} {hashlib.sha256(b''.join(sources)).hexdigest()[:16]} seed {seed}"


def missing(board: rules.Rules, store: Store, mark: str) -> bool:
    """Tell whether an expert of the first look is not in the store, or was made by another recipe."""
    try:
        return any(store.manifest(expert.weights).source != mark for expert in board.experts.values())
    except StoreError:
        return True


def photographs(folder: Path, seed: int) -> Iterator[LessonPicture]:
    """Render the pictures that experts learn from, and one more of each component and defect, which is held out."""
    folder.mkdir(parents=True)
    for component, kind in COMPONENTS.items():
        for defect in (None, *kind.defects):
            number = NUMBERS.get(defect, FEW) if defect else MORE_GOOD.get(component, NUMBERS[None])
            if not number:
                continue
            words = zlib.crc32(f"{component}/{defect}".encode())
            for index in range(number + 1):
                rng = np.random.default_rng([seed, words, index])
                picture = photograph(component, defect, rng, style=board_style(rng, even=True)).image
                path = folder / f"{component}-{defect or 'ok'}-{index:03d}.png"
                save(path, picture)
                # Upside down a part shows the same defects, so a second picture costs no rendering.
                if index < number:
                    save(path.with_stem(path.stem + TURNS), np.ascontiguousarray(picture[::-1, ::-1]))
                yield LessonPicture(path, component, defect, "train" if index < number else "val")


def data_set(expert: Expert, pictures: list[LessonPicture], lesson: Lesson, folder: Path) -> Path:
    """Copy the pictures of an expert into a labelled folder; return the folder.

    An expert behind a classifier of bodies never sees a bad body; to the classifier itself, other defects are good.
    """
    place = folder / expert.id
    behind = expert.id in LESSONS
    for picture in pictures:
        label = label_of(picture.defect, expert.labels)
        if behind and label == "ok" and picture.defect in ("missing", "cracked", "damaged", "shifted", "rotated"):
            continue
        to = place / picture.split / label / picture.path.name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(picture.path, to)
        if lesson.turned and picture.split == "train":
            shutil.copyfile(picture.path.with_stem(picture.path.stem + TURNS), to.with_stem(to.stem + TURNS))
    return place


def main(arguments: list[str] | None = None) -> None:
    """Render the boards and train the experts."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.first_look", description=__doc__)
    parser.add_argument("--images", type=Path, default=IMAGES, help="where the boards' images go (%(default)s)")
    parser.add_argument("--store", type=Path, help="the expert store (default: $COE_STORE, or ./store)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)  # operators this small wait longer for each other than they calculate
    trained = build(options.images, Store(options.store), seed=options.seed)
    took, cpu = time.perf_counter() - begun, sum(os.times()[:4])
    print(f"first look ready: {trained} experts trained, {took:.0f} s, {cpu:.0f} s of CPU time")


if __name__ == "__main__":
    main()
