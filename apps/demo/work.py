"""The jobs of the build, each a function that a worker process of one thread runs from start to end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.queues import Queue
from pathlib import Path

import cv2
import torch
from safetensors.torch import save_file

from apps.demo.lessons import BODY, data_of, expose, label_of, shots
from apps.demo.production import BoardPlace, shoot, write_truth
from apps.demo.recipe import fingerprint, recipe
from coe.board import photo_labels, rules
from coe.core import Expert
from coe.learn import learning
from coe.store import bodies, kinds
from coe.store.kinds import TrainingPlan
from coe.store.store import Store
from coe.store.tensor_files import load_tensors

BOARD = "demo"


@dataclass(frozen=True, slots=True)
class Report:
    """A worker's report on its job: `done` of `total` steps are done."""

    job: str
    done: int
    total: int
    note: str = ""


_REPORTS: list[Queue[Report]] = []


def start(reports: Queue[Report]) -> None:
    """Prepare a worker process: one thread, and a way to report."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    _REPORTS[:] = [reports]


def _say(report: Report) -> None:
    for reports in _REPORTS:
        reports.put(report)


def photograph_lot(places: list[BoardPlace], folder: Path, mark: str) -> None:
    """Render the boards to be inspected; `mark` is written once all images are complete."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    serials = sorted({place.serial for place in places})
    for done, serial in enumerate(serials):
        _say(Report("boards", done, len(serials), serial))
        shoot([place for place in places if place.serial == serial], folder)
    write_truth(places, folder)
    mark_file(folder).write_text(mark + "\n", encoding="ascii")
    _say(Report("boards", len(serials), len(serials), f"{len(places)} images"))


def mark_file(folder: Path) -> Path:
    """Return the file that holds the mark of a folder of images."""
    return folder.with_name(folder.name + ".mark")


def source_of(name: str, seed: int, quick: bool) -> str:
    """Return `source` for the manifest of an expert."""
    expert = BODY if name == BODY.id else rules.load(BOARD).experts[name]
    mark = fingerprint(expert, seed, quick)
    return f"apps.demo.build seed {seed}{' quick' if quick else ''}, recipe {mark}"


def train_expert(name: str, folder: Path, store: Path, seed: int, quick: bool, source: str) -> dict[str, float]:
    """Render an expert's training data, train it and put it into the store; return its held-out measures.

    `source` is for its manifest, fixed before the work begins, as source files may change meanwhile. The trainer's
    output goes to `<folder>/<name>/training.log`.
    """
    board, plan = rules.load(BOARD), recipe(name, quick)
    if name == BODY.id:
        expert, served = BODY, list(board.components)
    else:
        expert = board.experts[name]
        served = list(photo_labels.served(board.components, name))
    kind = kinds.resolve(expert.kind)
    detects = kind.task == "detect"
    place, shelf = folder / name, Store(store)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    _say(Report(name, 0, plan.epochs, "rendering"))
    data = place / "data"
    expose(expert, detects, shots(expert, detects, served, plan.amount, seed), data)
    init = bodies.whole_file(shelf, f"{BOARD}/{plan.init}", place) if plan.init in board.experts else None
    if plan.init == BODY.id:
        init = place / "start.safetensors"
        save_file(head_of(load_tensors(body_file(folder, seed, quick)), expert, BODY.labels), init)
    training = TrainingPlan(
        data=data_of(expert, detects, data),
        work=place / "work",
        epochs=plan.epochs,
        batch=plan.batch,
        learning_rate=plan.learning_rate,
        seed=seed,
        threads=1,
        init=init,
        freeze=plan.freeze,
    )
    measure = "map50" if detects else "accuracy"
    with (place / "training.log").open("w", encoding="utf-8") as log, _quiet(log.fileno()):
        trained = kind.train(
            expert,
            training,
            lambda epoch, epochs, now: _say(Report(name, epoch, epochs, f"{measure} {now.get(measure, 0.0):.3f}")),
        )
    if name == BODY.id:
        save_file(trained.state, body_file(folder, seed, quick))
    else:
        learning.put(shelf, expert, replace(trained, frozen=plan.freeze), None, source)
    shutil.rmtree(place, ignore_errors=True)
    return trained.metrics


def body_file(folder: Path, seed: int, quick: bool) -> Path:
    """Return the file of the weights from which the classifiers start."""
    return folder / f"body-{fingerprint(BODY, seed, quick)}.safetensors"


def head_of(state: dict[str, torch.Tensor], expert: Expert, labels: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Keep only the rows of an expert's labels in a common head with these `labels`."""
    rows = [labels.index(label_of(label, labels)) for label in expert.labels]
    return {name: value[rows].contiguous() if name.startswith("fc.") else value for name, value in state.items()}


@contextlib.contextmanager
def _quiet(log: int) -> Iterator[None]:
    """Send all output to a file: the trainer's progress bars would break ours."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, stream in zip(kept, (1, 2), strict=True):
            os.dup2(number, stream)
            os.close(number)
