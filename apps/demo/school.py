"""Lessons and trainings of the demo board's experts in one process, for the trials that compare them."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

from apps.demo.lessons import BODY, Shot, data_of, expose, shots
from apps.demo.recipe import recipe
from apps.demo.render import COMPONENTS
from apps.demo.work import head_of
from coe.board import rules
from coe.core import Expert
from coe.store import kinds
from coe.store.kinds import TrainingPlan

BATCH, RATE = 16, 1.5e-3
"""The one model learns in the steps and at the rate of the collaboration's common body."""

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Learned:
    """An expert's weights, and the seconds of processor time that its training took."""

    state: Weights
    seconds: float


class School:
    """Renders pictures and trains on them, in one folder, from one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self._board = rules.load("demo")

    def served(self, name: str, types: Iterable[str]) -> list[str]:
        """Return those component types that an expert of the board inspects."""
        if name == BODY.id:
            return list(types)
        parts = self._board.components
        return [one for one in types if any(step.expert == name for step in parts[one].root.walk())]

    def experts(self, types: Sequence[str]) -> list[str]:
        """Return the experts that inspect any of these types, the common body first, each after its `init`."""
        return [BODY.id, *(name for name in self._board.experts if self.served(name, types))]

    def expert(self, name: str) -> Expert:
        """Return an expert of the board, or the body."""
        return BODY if name == BODY.id else self._board.experts[name]

    def shots(self, name: str, types: Sequence[str]) -> list[Shot]:
        """List the pictures from which an expert learns these types."""
        expert = self.expert(name)
        detects = kinds.resolve(expert.kind).task == "detect"
        return shots(expert, detects, self.served(name, types), recipe(name).amount, self.seed)

    def learn(
        self, name: str, types: Sequence[str], before: Mapping[str, Learned], *, whole_at: float | None = None
    ) -> Learned:
        """Train an expert of the board on these types by its recipe; `before` holds those that are trained.

        At the learning rate `whole_at`, if that is given, and then with no layer frozen.
        """
        expert, plan = self.expert(name), recipe(name)
        detects = kinds.resolve(expert.kind).task == "detect"
        place = self._emptied("lessons")
        expose(expert, detects, self.shots(name, types), place / "data")
        init = None
        if plan.init in before:
            start = before[plan.init].state
            init = place / "start.safetensors"
            save_file(head_of(start, expert, BODY.labels) if plan.init == BODY.id else start, init)
        training = TrainingPlan(
            data=data_of(expert, detects, place / "data"),
            work=place / "work",
            epochs=plan.epochs,
            batch=plan.batch,
            learning_rate=plan.learning_rate if whole_at is None else whole_at,
            seed=self.seed,
            threads=1,
            init=init,
            freeze=plan.freeze if init and whole_at is None else (),
        )
        return self._timed(expert, training)

    def collaboration(self, types: Sequence[str]) -> dict[str, Learned]:
        """Train all experts that these types need."""
        learned: dict[str, Learned] = {}
        for name in self.experts(types):
            learned[name] = self.learn(name, types, learned)
            print(f"{name}: {learned[name].seconds:.0f} s", flush=True)
        return learned

    def pictures(self, types: Sequence[str]) -> Path:
        """Render every picture that the collaboration learns these types from, labelled for the one model."""
        folder = self._emptied("all")
        for name in self.experts(types):
            expert = self.expert(name)
            # Rendered as for a classifier: a picture for each shot, and its defect as the label.
            listed = [
                Shot(shot.component, shot.defect, shot.defect or "ok", shot.split, shot.seed)
                for shot in self.shots(name, types)
            ]
            expose(expert, False, listed, folder / name)
            for image in (folder / name).rglob("*.png"):
                component = next(one for one in types if image.name.startswith(f"{one}-"))
                if image.stem.endswith("-turned") and "reversed" in COMPONENTS[component].defects:
                    continue  # upside down, a polar part is reversed
                target = folder / "data" / image.parent.parent.name / image.parent.name / f"{name}-{image.name}"
                target.parent.mkdir(parents=True, exist_ok=True)
                image.rename(target)
        return folder / "data"

    def one_model(self, expert: Expert, data: Path, seconds: float, start: Weights | None = None) -> Learned:
        """Train one model on `data` for so many seconds of processor time, in whole epochs, at least one."""
        place = self._emptied("one")
        init = place / "start.safetensors" if start is not None else None
        if init is not None and start is not None:
            save_file(start, init)

        def plan(epochs: int) -> TrainingPlan:
            return TrainingPlan(data, place / "work", epochs, BATCH, RATE, seed=self.seed, threads=1, init=init)

        an_epoch = self._timed(expert, plan(1)).seconds
        return self._timed(expert, plan(max(1, int(seconds / an_epoch))))

    def _timed(self, expert: Expert, plan: TrainingPlan) -> Learned:
        began = time.process_time()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            trained = kinds.resolve(expert.kind).train(expert, plan, lambda *_: None)
        return Learned(trained.state, time.process_time() - began)

    def _emptied(self, name: str) -> Path:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir(parents=True)
        return self.folder / name
