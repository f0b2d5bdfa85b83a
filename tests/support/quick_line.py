"""A line of the tiny board on a device that does not calculate, for fast tests of the API."""

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from coe import Inspector
from coe.core import FULL, Expert, Finding
from coe.inspector.asked_boards import Boards
from coe.inspector.precision import LineCosts, VariantChoice
from coe.runtime.device import Device
from coe.scheduler.costs import Cost
from coe.store.kinds import ExpertInput
from coe.testing import Experiment

EXPERTS = ("body-a", "body-b", "body-c", "joint")
COSTS = LineCosts(
    {("cpu", expert, FULL): Cost(1e-3, 1e-3, 1e-3, 1_000_000, 1_000) for expert in EXPERTS},
    VariantChoice(dict.fromkeys(EXPERTS, FULL), {}),
)
LIGHT, DARK = (np.full((50, 50, 3), grey, np.uint8) for grey in (200, 20))
"""Pictures that component C passes and rejects."""


class QuickDevice(Device):
    """Finds an expert's first label on a light picture, its second on a dark one; waits at `gate` before each batch.

    `troubles` maps a method's name to exceptions that it raises, one at each call; a callable is called instead.
    """

    threads = 1
    memory_bytes: int | None = None
    host_bytes = 0
    has_lane = False
    holds_bodies = False
    depth = 1

    def __init__(self, **troubles: Sequence[BaseException | Callable[[], None]]) -> None:
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self.troubles = {name: list(queue) for name, queue in troubles.items()}
        self.batches: list[tuple[str, int]] = []

    def _meet(self, where: str) -> None:
        if self.troubles.get(where):
            trouble = self.troubles[where].pop(0)
            if isinstance(trouble, BaseException):
                raise trouble
            trouble()

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        self._meet("prepare")

    def admit(self, experts: Iterable[Expert], executors: int) -> None:
        self._meet("admit")

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        return 0

    def enter(self, executor: str) -> None:
        self._meet("enter")

    def read(self, pool: str, expert: Expert, *, body: bool = False) -> None:
        self._meet("read")

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False, body: bool = False) -> None:
        self._meet("load")

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False, body: str | None = None) -> None:
        self._meet("evict")

    def fill(self, expert: Expert) -> None:
        self._meet("fill")

    def forget(self, expert: str) -> None:
        self._meet("forget")

    def trim(self) -> None:
        self._meet("trim")

    def leave(self) -> None:
        self._meet("leave")

    def close(self) -> None:
        self._meet("close")

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> list[Finding]:
        self.reached.set()
        assert self.gate.wait(60)
        self._meet("run")
        self.batches.append((expert.id, len(images)))
        light = [bool(image.pixels.mean() > 100) for image in images]
        return [Finding(expert.id, "fp32", expert.labels[0 if good else 1], 0.9, margin=0.9) for good in light]


def quick(tiny: tuple[Boards, Path], device: QuickDevice | None = None, **options: object) -> Inspector:
    """Open a line of the tiny board, or of other boards with its experts, on a quick device."""
    board, store = tiny
    devices = {"cpu": device or QuickDevice()}
    changes = {"costs": COSTS, "make_devices": lambda *a, **k: devices}
    changes |= {name: options.pop(name) for name in ("keep_trace", "make_decider") if name in options}
    options = {"memory": "100MB", "profile": None, "experiment": Experiment(**changes)} | options
    return Inspector(board, store=store, **options)
