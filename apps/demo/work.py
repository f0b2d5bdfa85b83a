"""The jobs of the build, each a function that a worker process of one thread runs from start to end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

import cv2
import torch
from safetensors.torch import save_file

from apps.demo.lessons import BODY, data_of, expose, label_of, shots
from apps.demo.production import Place, shoot, write_truth
from apps.demo.recipe import fingerprint, recipe
from coe.board import rules
from coe.core import Expert
from coe.store import kinds
from coe.store.kinds import TrainingPlan
from coe.store.store import Store, load_tensors

BOARD = "demo"


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker says of its job: so much of so much is done."""

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


def photograph_lot(places: list[Place], folder: Path, mark: str) -> None:
    """Render the boards to be inspected; `mark` is left beside them once all are there."""
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
    """Return where a folder of images keeps the mark of what made it."""
    return folder.with_name(folder.name + ".mark")


def source_of(name: str, seed: int, quick: bool) -> str:
    """Return what the manifest of an expert says of its making."""
    expert = BODY if name == BODY.id else rules.load(BOARD).experts[name]
    mark = fingerprint(expert, seed, quick)
    return f"apps.demo.build seed {seed}{' quick' if quick else ''}, recipe {mark}"


def train_expert(name: str, folder: Path, store: Path, seed: int, quick: bool, source: str) -> dict[str, float]:
    """Render what an expert learns from, train it and put it into the store; returns its held-out measures.

    `source` is for its manifest, fixed before the work begins: files may change while it lasts. What the trainer
    prints goes to `<folder>/<name>/training.log`.
    """
    board, own = rules.load(BOARD), recipe(name, quick)
    if name == BODY.id:
        expert, served = BODY, list(board.components)
    else:
        expert = board.experts[name]
        served = [c.name for c in board.components.values() if any(step.expert == name for step in c.root.walk())]
    kind = kinds.resolve(expert.kind)
    detects = kind.task == "detect"
    place, shelf = folder / name, Store(store)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    _say(Report(name, 0, own.epochs, "rendering"))
    data = place / "data"
    expose(expert, detects, shots(expert, detects, served, own.amount, seed), data)
    init = shelf.path(f"{BOARD}/{own.init}") if own.init in board.experts else None
    if own.init == BODY.id:
        init = place / "start.safetensors"
        save_file(own_head(load_tensors(body_file(folder, seed, quick)), expert, BODY.labels), init)
    plan = TrainingPlan(
        data=data_of(expert, detects, data),
        work=place / "work",
        epochs=own.epochs,
        batch=own.batch,
        learning_rate=own.learning_rate,
        seed=seed,
        threads=1,
        init=init,
        freeze=own.freeze,
    )
    measure = "map50" if detects else "accuracy"
    with (place / "training.log").open("w", encoding="utf-8") as log, _quiet(log.fileno()):
        trained = kind.train(
            expert,
            plan,
            lambda epoch, epochs, now: _say(Report(name, epoch, epochs, f"{measure} {now.get(measure, 0.0):.3f}")),
        )
    if name == BODY.id:
        save_file(trained.state, body_file(folder, seed, quick))
    else:
        shelf.put(
            expert.weights,
            kind=expert.kind,
            labels=trained.labels,
            input_size=expert.input_size,
            state=trained.state,
            metrics=trained.metrics,
            source=source,
        )
    shutil.rmtree(place, ignore_errors=True)
    return trained.metrics


def body_file(folder: Path, seed: int, quick: bool) -> Path:
    """Return where the weights lie from which the classifiers start."""
    return folder / f"body-{fingerprint(BODY, seed, quick)}.safetensors"


def own_head(state: dict[str, torch.Tensor], expert: Expert, known: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Keep of a common head of `known` labels the rows of an expert's, so that it starts with what they mean."""
    rows = [known.index(label_of(label, known)) for label in expert.labels]
    return {name: value[rows].contiguous() if name.startswith("fc.") else value for name, value in state.items()}


@contextlib.contextmanager
def _quiet(log: int) -> Iterator[None]:
    """Send what is printed to a file: progress bars of others would tear ours."""
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
