"""A box keeps to the times of the head, although its clock began at another moment and parcels may be slow."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coe.cluster.box import BoxWorker
from coe.cluster.decisions.stage_rules import StageRequest
from coe.cluster.messages import CarriedImage, Parcel, RunStage
from coe.core import Request, Result
from coe.pictures.image_source import ImageSource
from coe.testing import rules_from

RULES = rules_from(
    """
board: box
experts: {a: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}}
components: {A: {count: 1, inspect: a}}
"""
)


class Engine:
    """An engine whose clock is set, and that keeps what it gets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.got: list[Request] = []

    def now(self) -> float:
        return self.now_s

    def submit(self, request: Request, source: object) -> Future[Result]:
        self.got.append(request)
        return Future()


def test_a_parcel_that_was_long_on_its_way_postpones_no_due_time() -> None:
    """A box that was stopped for 20 s must not believe that its images came, and are due, 20 s later."""
    image = CarriedImage(ImageSource.of(np.zeros((8, 8, 3), np.uint8), "BGR"), "A")
    assembly: Any = SimpleNamespace(rules=RULES, boards=())
    box, engine = BoxWorker("box1", assembly, lambda shared: [image for _ in shared]), Engine()
    box._engine = engine  # type: ignore[assignment]
    for number, (sent_s, engine.now_s) in enumerate([(10.0, 110.5), (20.0, 120.0), (30.0, 150.0)]):
        stage = StageRequest(number, "a", due_s=sent_s + 5, submitted_s=sent_s - 1)
        box.take(Parcel(number, sent_s, (RunStage(stage, number, object()),)))
    # The head's 20 s are 120 s here, because no parcel can come before it was sent.
    assert [request.due_s for request in engine.got] == pytest.approx([115.5, 125.0, 135.0])
    assert [request.submitted_s for request in engine.got] == pytest.approx([109.5, 119.0, 129.0])
