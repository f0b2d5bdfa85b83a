"""One expert ready to be measured on a device: the only code that times batches and measures their memory.

The memory of a batch is measured as growth of the process: one measuring at a time (`MeasuredOnce`). Growth
that other lines of the process cause is excluded as far as possible (`plausible_bytes`).
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from coe.helpers.system import (
    forget_file,
    forget_peak,
    give_memory_back,
    heap_taken,
    peak_since_forgotten,
    waited_for_processor_s,
)
from coe.runtime.cost_fit import batch_memory, fit, plateau, typical
from coe.scheduler.costs import Cost
from coe.store.runnable_kinds import Image, Session

_SCRATCH, _SCRATCH_BYTES = 3, 4 << 20
"""A run takes at most 3 times the bytes that its operators hold, and 4 MiB. Measured: 1.2 to 2.1 times with ResNets
and YOLOv5s, up to 3.5 times where all of it is less than a megabyte."""
_LOOKS = 3
_SAME = 0.1
"""Two growths count as equal if they differ by a smaller share than this."""


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the bytes of every storage that an operator makes, and subtracts them when the storage dies."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler with the first operator, which takes over a second and 110 MB."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = {s.data_ptr() for s in (x.untyped_storage() for x in tree_iter((args, kwargs)) if torch.is_tensor(x))}
        for tensor in tree_iter(out):
            if torch.is_tensor(tensor):
                self._count(tensor.untyped_storage(), inputs)
        return out

    def _count(self, storage: torch.UntypedStorage, inputs: set[int]) -> None:
        pointer, size = storage.data_ptr(), storage.nbytes()
        if pointer in self._seen or pointer in inputs:
            return
        self._seen.add(pointer)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._died, pointer, size)

    def _died(self, pointer: int, size: int) -> None:
        self._seen.discard(pointer)
        self.live -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the peak of the bytes that the operators of `run` hold at a time, results included."""
    counter = _LiveBytes()
    with counter:
        run()
    return counter.peak


def peak_growth_bytes(run: Callable[[], object]) -> int | None:
    """Return by how many bytes the process grows at most while `run` works; None if the system does not tell.

    This sees what `peak_bytes` cannot: an operator's scratch memory and reordered copies of its operands. It also sees
    what other threads take meanwhile: see `plausible_bytes`.
    """
    give_memory_back()
    if not forget_peak():
        return None
    before = int(psutil.Process().memory_info().rss)
    run()
    return max(0, peak_since_forgotten() - before)


def plausible_bytes(counted: int, growth_bytes: Callable[[], int]) -> int:
    """Return a growth of the process that a run whose operators hold `counted` bytes can have caused.

    Other threads may have caused a larger growth. It is measured again, and believed only if it is the same each time:
    a kind that computes with another library than torch grows so.
    """
    most = _SCRATCH * counted + _SCRATCH_BYTES
    growths: list[int] = []
    while len(growths) < _LOOKS:
        growths.append(growth_bytes())
        if growths[-1] <= most:
            return growths[-1]
    least = min(growths)
    return least if max(growths) - least <= _SAME * least else most


QUICK_S = 0.6
"""How long a batch size is timed when a line starts, in seconds."""
_QUICK_BATCH = 4
"""A quick measuring of two sizes is too coarse to bound batches below this size."""
_PAGE = 4096
_MOST_RESULTS = 4096
"""How many results are remembered; a service that brings ever new experts must not grow for ever."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Trial:
    """An expert that runs, and a way to load it again.

    `answer` takes images (n, 3, S, S) uint8 of `input_size` and returns what the kind's `postprocess` takes. `load`
    brings a second copy of the weights from `file` to where they can run. `opened_s` is how long the trial's own load
    took, if it did one.
    `copy` brings a copy of the weights from host memory to the device, if that has memory of its own.
    `base_bytes` is what the process held before the first batch, if the runtime keeps memory from batch to batch.
    """

    answer: Callable[[Image], Any]
    input_size: int
    weights_bytes: int
    file: Path
    load: Callable[[], object]
    base_bytes: int | None = None
    opened_s: float = 0.0
    copy: Callable[[], object] | None = None

    def run(self, images: int) -> Any:
        """Run a batch of black images."""
        return self.answer(np.zeros((images, 3, self.input_size, self.input_size), np.uint8))

    def batch_s(self, images: int) -> float:
        """Time one batch, in seconds. The first batch of a size also does set-up work: run that size once before."""
        black = np.zeros((images, 3, self.input_size, self.input_size), np.uint8)
        _, took_s = _timed(lambda: self.answer(black))
        return took_s

    def least_image_bytes(self) -> int:
        """Return the least bytes that an image holds: its pixels as floats, or the tensors of torch's operators."""
        return max(12 * self.input_size**2, peak_bytes(lambda: self.run(1)))

    def batch_bytes(self, images: int) -> int:
        """Return the bytes that a batch holds at its peak, beside the weights; the batch runs twice.

        The tensors of torch's operators are counted; other memory shows as growth of the process. Measure sizes in
        rising order: if the runtime keeps memory, a smaller batch after a larger batch shows no growth.
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
        """Return the seconds of a copy from host memory to the device: 0 for a device that uses host memory."""
        return 0.0 if self.copy is None else _timed(self.copy)[1]

    def load_s(self, *, cold: bool = False) -> float | None:
        """Time a load, in seconds; with `cold`, from the disk itself: None if the system keeps the file in memory."""
        if cold and not forget_file(self.file):
            return None
        _, took_s = _timed(self.load)
        return took_s


def warmed(
    answer: Callable[[Image], Any], input_size: int, weights_bytes: int, file: Path, load: Callable[[], object]
) -> Trial:
    """Make a trial of a torch network. One image runs first, because set-up work is no part of a batch."""
    peak_bytes(lambda: answer(np.zeros((1, 3, input_size, input_size), np.uint8)))
    return Trial(answer, input_size, weights_bytes, file, load)


def opened(load: Callable[[], Session], input_size: int, file: Path) -> Trial:
    """Make a trial of a file that a session opens; the memory of its runtime shows only as growth of the process.

    The file is opened twice: the first time also loads the runtime itself, and what that keeps for all sessions. The
    first session stays meanwhile, because the second one would take its memory, and seem to need none.
    """
    first = load()
    before = _own_bytes()
    session, opened_s = _timed(load)
    # What opening needed for a moment is given back; it is no part of the session.
    weights_bytes = max(file.stat().st_size, _own_bytes() - before)
    del first
    return Trial(session.run, input_size, weights_bytes, file, load, _resident_bytes(), opened_s)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    """Do work, and return its result and the seconds that it took.

    Those in which other programs had this thread's processor do not count: they hit one variant of an expert and not
    the next, so that the slower variant seemed quicker. A line follows how long its batches take (`Pace`).
    """
    waited_s, began = waited_for_processor_s(), time.perf_counter()
    result = work()
    took_s = time.perf_counter() - began - (waited_for_processor_s() - waited_s)
    # A coarse clock may show 0; callers divide by this time.
    return result, max(1e-9, took_s)


def _own_bytes() -> int:
    give_memory_back()
    return int(psutil.Process().memory_full_info().uss)


def _resident_bytes() -> int:
    give_memory_back()
    return int(psutil.Process().memory_info().rss)


def quick_cost(trial: Trial, most: int) -> Cost:
    """Measure an expert's cost in a second or two: one image and one larger batch, of `most` images at most."""
    times: dict[int, float] = {}
    held: dict[int, int] = {}

    def look(images: int) -> None:
        held[images] = trial.batch_bytes(images)
        repeats: list[float] = []
        time_is_left = within(QUICK_S)  # by the clock: on a busy box a line starts no later
        while not repeats or (time_is_left() and len(repeats) < 9):
            repeats.append(trial.batch_s(images))
        times[images] = typical(repeats)

    look(1)
    if (larger := min(most, max(2, min(16, int(QUICK_S / times[1]))))) > 1:
        look(larger)
    line = fit(times)
    bound = batch_memory(held, trial.least_image_bytes())
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


def within(limit_s: float) -> Callable[[], bool]:
    """Return a function that tells whether `limit_s` seconds from now have not passed yet."""
    began = time.monotonic()
    return lambda: time.monotonic() - began < limit_s


def whole_pages(size: int) -> int:
    """Return bytes rounded up to whole pages of memory."""
    return math.ceil(size / _PAGE) * _PAGE


class MeasuredOnce(Generic[T]):
    """Remembered results, by a key of all that they depend on: lines of one board need only one measuring.

    One measuring runs at a time: memory is measured as growth of the process, so two would disturb each other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: dict[Hashable, T] = {}

    def __repr__(self) -> str:
        return f"<MeasuredOnce {len(self._results)} results>"

    def alone(self, measure: Callable[[], T]) -> T:
        """Call `measure` and return its result; no other measuring runs meanwhile."""
        with self._lock:
            return measure()

    def once(self, key: Hashable | None, measure: Callable[[], T]) -> T:
        """Return the result remembered under `key`, else measure it alone; a result without a key is not remembered.

        An error is raised and not remembered.
        """
        with self._lock:
            if key is None:
                return measure()
            if key not in self._results:
                while len(self._results) >= _MOST_RESULTS:
                    del self._results[next(iter(self._results))]
                self._results[key] = measure()
            return self._results[key]


def identity(path: Path) -> Hashable | None:
    """Return a key that no other file has, nor this file with earlier contents; None if it cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return path.absolute(), stat.st_ino, stat.st_mtime_ns, stat.st_size


HERE: MeasuredOnce[Cost] = MeasuredOnce()
"""The costs of this process, shared by all devices, because memory is measured by the process."""
