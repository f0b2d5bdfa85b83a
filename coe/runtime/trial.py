"""One expert made ready to be measured on a device: the one way in which batches are timed and what they hold is seen.

What a batch holds is read off the process: one measuring at a time (`coe.runtime.measured`), and what other lines of
the process take meanwhile is told apart as far as can be (`coe.runtime.activations.plausible_bytes`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from coe.runtime.activations import peak_bytes, peak_growth_bytes, plausible_bytes
from coe.runtime.fit import fit, memory, plateau, typical
from coe.scheduler.costs import Cost
from coe.store.kinds import Image, Session
from coe.system import forget_file, give_memory_back, heap_taken

_QUICK_S = 0.6
"""How long a batch size is timed at a start, in seconds."""
_QUICK_BATCH = 4
"""A quick look at two sizes tells too little to let batches be smaller than this."""
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Trial:
    """An expert that runs, and how it is loaded.

    `answer` takes images (n, 3, S, S) uint8 of `input_size` and returns what the kind's `postprocess` takes; `load`
    brings the weights from `file` to where they can run, once more beside those that do; `opened_s` is how long it took
    to make the trial, if that was such a load.
    `base_bytes` is what the process held before the first batch, if the runtime keeps the memory of one for the next.
    """

    answer: Callable[[Image], Any]
    input_size: int
    weights_bytes: int
    file: Path
    load: Callable[[], object]
    base_bytes: int | None = None
    opened_s: float = 0.0

    def run(self, images: int) -> Any:
        """Run a batch of black images."""
        return self.answer(np.zeros((images, 3, self.input_size, self.input_size), np.uint8))

    def batch_s(self, images: int) -> float:
        """Time one batch, in seconds. The first of a size also sets things up: run it once before."""
        black = np.zeros((images, 3, self.input_size, self.input_size), np.uint8)
        began = time.perf_counter()
        self.answer(black)
        # A coarse clock may show nothing; times are divided by.
        return max(1e-9, time.perf_counter() - began)

    def least_image_bytes(self) -> int:
        """Return what an image holds at least: its pixels as numbers, and the tensors that torch's operators make."""
        return max(12 * self.input_size**2, peak_bytes(lambda: self.run(1)))

    def batch_bytes(self, images: int) -> int:
        """Return what a batch holds at its peak, beside the weights; it is run twice.

        The tensors of torch's operators are counted, and what they need beside is seen in the process, which grows. Ask
        for sizes in rising order: of a runtime that keeps memory, a smaller batch after a larger one shows nothing.
        """
        counted = peak_bytes(lambda: self.run(images))
        if self.base_bytes is not None:
            kept = _resident_bytes() - self.base_bytes
            grown = kept + (peak_growth_bytes(lambda: self.run(images)) or 0)
        else:
            grown = plausible_bytes(counted, lambda: self._growth_bytes(images))
        return max(images * 12 * self.input_size**2, counted, grown)

    def _growth_bytes(self, images: int) -> int:
        with heap_taken():
            return peak_growth_bytes(lambda: self.run(images)) or 0

    def copy_s(self) -> float:
        """Return the seconds of a copy from host memory to the device: 0 where these are one."""
        return 0.0

    def load_s(self, *, cold: bool = False) -> float | None:
        """Time a load, in seconds; with `cold` from the disk itself, None where the system keeps the file in memory."""
        if cold and not forget_file(self.file):
            return None
        began = time.perf_counter()
        self.load()
        return time.perf_counter() - began


def warmed(
    answer: Callable[[Image], Any],
    input_size: int,
    weights_bytes: int,
    file: Path,
    load: Callable[[], object],
) -> Trial:
    """Make a trial of a network of torch's. An image runs first: what that sets up once is no part of a batch."""
    peak_bytes(lambda: answer(np.zeros((1, 3, input_size, input_size), np.uint8)))
    return Trial(answer, input_size, weights_bytes, file, load)


def opened(load: Callable[[], Session], input_size: int, file: Path) -> Trial:
    """Make a trial of a file by opening it with a runtime of its own, whose memory shows in the process only."""
    process = psutil.Process()
    before, began = process.memory_full_info().uss, time.perf_counter()
    session = load()
    opened_s = time.perf_counter() - began
    taken = process.memory_full_info().uss - before
    weights_bytes = max(file.stat().st_size, taken)
    return Trial(session.run, input_size, weights_bytes, file, load, _resident_bytes(), opened_s)


def _resident_bytes() -> int:
    give_memory_back()
    return int(psutil.Process().memory_info().rss)


def quick_cost(trial: Trial, most: int) -> Cost:
    """Measure what an expert costs in a second or two: one image and one larger batch; batches have `most` at most."""
    times: dict[int, float] = {}
    held: dict[int, int] = {}

    def look(images: int) -> None:
        held[images] = trial.batch_bytes(images)
        repeats: list[float] = []
        while not repeats or (sum(repeats) < _QUICK_S and len(repeats) < 9):
            repeats.append(trial.batch_s(images))
        times[images] = typical(repeats)

    look(1)
    if (larger := min(most, max(2, min(16, int(_QUICK_S / times[1]))))) > 1:
        look(larger)
    line = fit(times)
    bound = memory(held, trial.least_image_bytes())
    on_line = {n: line.per_image_s * n + line.base_s for n in (1, 2, 4, 8, 16, 32, 64)}
    return Cost(
        per_image_s=line.per_image_s,
        base_s=line.base_s,
        load_s=trial.opened_s or trial.load_s() or 0.0,
        weights_bytes=whole_pages(trial.weights_bytes),
        activation_bytes=bound.activation_bytes,
        max_batch=min(most, max(_QUICK_BATCH, plateau(on_line))),
        workspace_bytes=bound.workspace_bytes,
        copy_s=trial.copy_s(),
    )


def whole_pages(size: int) -> int:
    """Return bytes rounded up to whole pages of memory."""
    return math.ceil(size / _PAGE) * _PAGE
