"""A line that runs no network, for tests of what `coe-inspect` does around one: it decodes each picture and says OK."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from PIL import Image

from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import CoeError
from coe.pictures.decoding import decode
from coe.results.metrics import Recorder
from coe.store.store import Store

BOARD = """
board: idle
experts:
  body: {kind: resnet18, labels: [ok, bad], input: 48}
  joint: {kind: resnet18, labels: [ok, bad], input: 48, then: {ok: OK, bad: NG}}
components:
  A: {count: 5, inspect: body, then: {ok: joint, bad: NG}}
  B: {count: 3, inspect: joint}
"""
PICTURES = 6


def make(folder, chance=0):
    """Put a board file, a store with weights of four bytes, and six pictures of two boards into a folder."""
    import torch

    (folder / "idle.yaml").write_text(BOARD, encoding="utf-8")
    for name in ("body", "joint"):
        state = {"w": torch.full((1,), float(chance))}
        Store(folder / "store").put(f"idle/{name}", kind="resnet18", labels=("ok", "bad"), input_size=48, state=state)
    for index in range(PICTURES):
        path = folder / "images" / f"SN{index % 2}" / f"R{index}__{'AB'[index % 2]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(path)


class IdleLine:
    """Stands for `coe.inspector.line.Line`; `between` is called between a picture's experts."""

    budget_bytes = 1000
    verdict = Verdict.OK
    devices: tuple[str, ...] = ("cpu",)
    opened = 0
    between: Callable[[Path], None] | None = None

    def __init__(self, line_options):
        type(self).opened += 1
        self.plan = SimpleNamespace(executors=[SimpleNamespace(device=device) for device in self.devices])
        self._stopped = False
        self._answered = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Nothing runs."""

    def stop(self):
        self._stopped = True

    def drift(self):
        return []

    def metrics(self):
        empty = Recorder({}).metrics()
        return SimpleNamespace(
            images_per_s=1.0,
            hit_ratio=0.5,
            stages=2 * self._answered,
            switches=self._answered,
            peak_reserved_bytes=100 + self._answered,
            wall_s=0.5 * self._answered,
            pace=1.0,
            late=empty.late,
        )

    def stream(self, pictures):
        for number, picture in enumerate(pictures):
            self._answered += 1
            request = Request(number, picture.component, picture.name, picture.serial, picture.refdes)
            source = picture.image
            try:
                decode(source)
                if self.between is not None:
                    type(self).between(source.path)
                decode(source)
            except CoeError as error:
                yield Result(request, None, (), 0.1, Failure(FailureKind.IMAGE, str(error)))
            else:
                yield Result(request, self.verdict, (Finding("body", "fp32", "ok", 0.9),), 0.1)
            if self._stopped:
                return
