"""A line of the tiny board on a device that does not calculate, for fast tests of the API."""

import threading
from contextlib import contextmanager

import numpy as np

from coe import Inspector
from coe.core import FULL, Finding
from coe.inspector.precision import LineCosts, VariantChoice
from coe.runtime.device import Device
from coe.scheduler.costs import Cost
from coe.testing import Experiment

EXPERTS = ("body-a", "body-b", "body-c", "joint")
COSTS = LineCosts(
    {("cpu", expert, FULL): Cost(1e-3, 1e-3, 1e-3, 1_000_000, 1_000) for expert in EXPERTS},
    VariantChoice(dict.fromkeys(EXPERTS, FULL), {}),
)
LIGHT, DARK = (np.full((50, 50, 3), grey, np.uint8) for grey in (200, 20))
"""Pictures that component C passes and rejects."""


def meeting(name):
    return lambda self, *_, **__: self._meet(name)


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

    def __init__(self, **troubles):
        self.gate, self.reached = threading.Event(), threading.Event()
        self.gate.set()
        self.troubles = {name: list(queue) for name, queue in troubles.items()}
        self.batches = []

    def _meet(self, where):
        if self.troubles.get(where):
            trouble = self.troubles[where].pop(0)
            if isinstance(trouble, BaseException):
                raise trouble
            trouble()

    prepare, admit, enter, read, load, evict, fill, forget, trim, leave, close = map(
        meeting, ("prepare", "admit", "enter", "read", "load", "evict", "fill", "forget", "trim", "leave", "close")
    )

    def fixed_bytes(self, experts, executors):
        return 0

    def run(self, executor, pool, expert, images):
        self.reached.set()
        assert self.gate.wait(60)
        self._meet("run")
        self.batches.append((expert.id, len(images)))
        light = [bool(image.pixels.mean() > 100) for image in images]
        return [Finding(expert.id, "fp32", expert.labels[0 if good else 1], 0.9, margin=0.9) for good in light]


def quick(tiny, device=None, **options):
    """Open a line of the tiny board, or of other boards with its experts, on a quick device."""
    board, store = tiny
    devices = {"cpu": device or QuickDevice()}
    changes = {"costs": COSTS, "make_devices": lambda *a, **k: devices}
    changes |= {name: options.pop(name) for name in ("keep_trace", "make_decider") if name in options}
    options = {"memory": "100MB", "profile": None, "experiment": Experiment(**changes)} | options
    return Inspector(board, store=store, **options)


@contextmanager
def held(tiny, **options):
    """Give a line whose device waits at its gate, and the device."""
    device = QuickDevice()
    device.gate.clear()
    with quick(tiny, device, **options) as line:
        yield line, device
