"""Measures the costs of a kind on a device, by one expert that stands for its kind (paper section 4.5).

Batches are timed in rounds that go through the sizes upwards and downwards in turn, so that a slow moment of the
machine hits all sizes.
"""

from __future__ import annotations

import gc
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from coe.config import counted
from coe.core import FULL, Expert
from coe.errors import ConfigError, ImageError
from coe.helpers import regular
from coe.helpers.system import give_memory_back
from coe.inspector import line_devices
from coe.inspector.profile import BatchTime, KindProfile, Precision
from coe.pictures.array_images import AS_FILLED
from coe.pictures.decoding import decode
from coe.runtime.cost_fit import batch_memory, fit, plateau, spread, typical
from coe.runtime.trial import Trial, whole_pages
from coe.store.kinds import Kind, ModuleKind
from coe.store.skeletons import random_weights
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.variants.calibration_images import generated
from coe.variants.calibration_images import spread as spread_over

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LOADS = _DECODINGS = 3
_MOST_IMAGES = 16
_LOOK = 8
"""All sizes up to this one run: the first times alone may be disturbed, and do not end the climb."""
_LEAST = 3
"""At least this many sizes run, however long they take."""
_ROUNDS = 5
_SMALL_SPREAD = 0.05
_CLIMB = 0.6
"""The part of the time limit in which all sizes must have run for the first time."""
_BATCHES = 0.9
"""The part of the time limit that batches take; the rest is for loads and images."""


class CannotMeasure(ConfigError):
    """An expert cannot be measured in this way; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device, the threads of an executor, and the variant in which experts run there."""

    device: str
    threads: int
    precision: Precision = "fp32"

    @property
    def backend(self) -> Literal["torch", "onnxruntime"]:
        """The library in which the engine runs the variant."""
        return "onnxruntime" if self.precision == "int8" else "torch"

    def step(self, kind: str) -> str:
        """Return the name of the step for the progress bar."""
        if self.device == "cuda":
            return f"{kind} on the GPU"
        way = "" if self.precision == FULL else f", {self.backend} {self.precision}"
        return f"{kind}, {counted(self.threads, 'thread')}{way}"


@dataclass(frozen=True, slots=True)
class MeasuredExpert:
    """An expert with its weights, and where and how it runs.

    A GPU is used within `device_bytes`; None means a part of the memory that is free.
    """

    expert: Expert
    kind: Kind
    store: Store
    target: Target
    device_bytes: int | None = None


@dataclass(slots=True)
class TimeLimit:
    """How much of the time limit has passed, and whether the measurement shall stop."""

    limit_s: float
    tick: Callable[[float], None]
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.perf_counter)

    def passed(self) -> float:
        """Return the part of the time limit that has passed."""
        return (time.perf_counter() - self.began) / max(self.limit_s, 1e-9)

    def step(self) -> None:
        """Report progress between two batches; raises CancelledError if `stop` is set."""
        if self.stop.is_set():
            raise CancelledError
        self.tick(min(0.99, self.passed()))


def measure(
    subject: MeasuredExpert,
    *,
    sizes: Sequence[int] = SIZES,
    images: Sequence[Path] = (),
    limit_s: float = 30.0,
    say: Callable[[str], None] = lambda sentence: None,
    tick: Callable[[float], None] = lambda done: None,
) -> KindProfile:
    """Measure an expert on a target for about `limit_s` seconds once it is ready to run.

    Nothing else may run in the process. An expert without weights in the store is measured with random ones, which
    are never stored. `sizes` are run until the average latency has plateaued or the time is up; `images` are sample
    images; without any, some are generated. `say` gets facts that a reader of the figures must know, `tick` the part
    that is done (0 to 1); both are called on another thread.

    Raises CannotMeasure for a variant in which the expert is not prepared, StoreError for damaged weights, ConfigError
    for an unknown device. An interrupt, also an exception from `tick`, passes through between two batches.
    """
    limit = TimeLimit(limit_s, tick)

    def work() -> KindProfile:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coe-profile-")))
            store = with_weights(subject.expert, subject.kind, subject.store, folder, say)
            stack.callback(give_memory_back)
            stack.callback(gc.collect)
            ready = replace(subject, store=store)
            trial = stack.enter_context(_trial(ready))
            return _measured(ready, trial, sizes, images, limit, say)

    # As in coe.runtime.processor: the OpenMP team of the measurement must not slow the engine down later.
    with ThreadPoolExecutor(1, thread_name_prefix="coe-measure") as worker:
        future = worker.submit(work)
        try:
            return future.result()
        except BaseException:
            limit.stop.set()
            raise


def _measured(
    subject: MeasuredExpert,
    trial: Trial,
    sizes: Sequence[int],
    images: Sequence[Path],
    limit: TimeLimit,
    say: Callable[[str], None],
) -> KindProfile:
    kind, target = subject.kind, subject.target
    limit.began = time.perf_counter()
    held, repeats = climb(trial, sorted({n for n in sizes if n <= kind.max_batch} or {1}), limit)
    rounds(trial, repeats, limit)
    times = {n: typical(each) for n, each in repeats.items()}
    bound = batch_memory(held, trial.least_image_bytes())
    load_s, cold = _load_s(trial, kind, say)
    decode_s, preprocess_s = _before_s(kind, subject.expert, images, say)
    limit.tick(1.0)
    return KindProfile(
        kind=subject.expert.kind,
        input_size=subject.expert.input_size,
        device=target.device,
        threads=target.threads,
        backend=target.backend,
        precision=target.precision,
        batches=tuple(
            BatchTime(images=n, median_s=times[n], spread=spread(repeats[n]), bytes=held[n]) for n in sorted(times)
        ),
        line=fit(times),
        max_batch=min(kind.max_batch, plateau(times)),
        weights_bytes=whole_pages(trial.weights_bytes),
        activation_bytes=bound.activation_bytes,
        workspace_bytes=bound.workspace_bytes,
        load_s=load_s,
        load_cold=cold,
        copy_s=trial.copy_s(),
        decode_s=decode_s,
        preprocess_s=preprocess_s,
    )


def climb(trial: Trial, sizes: Sequence[int], limit: TimeLimit) -> tuple[dict[int, int], dict[int, list[float]]]:
    """Run each size once until larger ones bring nothing; return the bytes that batches hold and the times, by size."""
    held: dict[int, int] = {}
    repeats: dict[int, list[float]] = {}
    for n, following in zip(sizes, [*sizes[1:], None], strict=True):
        limit.step()
        held[n] = trial.batch_bytes(n)
        limit.step()
        repeats[n] = [trial.batch_s(n)]
        if n >= _LOOK and n >= 2 * plateau({size: times[0] for size, times in repeats.items()}):
            break
        following_s = 3 * repeats[n][0] * (following or 0) / n  # the next size runs three times
        if len(held) >= _LEAST and limit.passed() + following_s / limit.limit_s > _CLIMB:
            break
    return held, repeats


def rounds(trial: Trial, repeats: dict[int, list[float]], limit: TimeLimit) -> None:
    """Time all sizes again and again, until the times of each lie close together or the time is up."""
    done = 0
    while done < _ROUNDS or max(spread(each) for each in repeats.values()) > _SMALL_SPREAD:
        done += 1
        for n in sorted(repeats, reverse=bool(done % 2)):
            if limit.passed() > _BATCHES:
                return
            limit.step()
            repeats[n].append(trial.batch_s(n))


def _load_s(trial: Trial, kind: Kind, say: Callable[[str], None]) -> tuple[float, bool]:
    """Return the seconds of a load, and whether it was read from the disk itself."""
    warm = [trial.load_s() or 0.0 for _ in range(_LOADS)]
    cold = [load_s for _ in range(_LOADS) if (load_s := trial.load_s(cold=True)) is not None]
    if cold:
        say(f"{kind.name}: a load takes {typical(cold):.3g} s from disk, {typical(warm):.3g} s from the system's cache")
        return typical(cold), True
    say(
        f"{kind.name}: a load takes {typical(warm):.3g} s, timed with the file in the system's cache, because the "
        "system does not drop it from the cache; from disk a load may take longer"
    )
    return typical(warm), False


def with_weights(expert: Expert, kind: Kind, store: Store, folder: Path, say: Callable[[str], None]) -> Store:
    """Return a store that has the expert's weights: the given store, or a new store in `folder` with random weights."""
    if regular.may_exist(store.folder(expert.weights) / MANIFEST):
        store.check(expert.weights)
        return store
    if not isinstance(kind, ModuleKind):
        raise CannotMeasure(
            f"expert '{expert.id}' has no weights, and random weights cannot be made for kind '{kind.name}'"
        )
    say(f"'{expert.weights}' is not in the store; {kind.name} is measured with random weights")
    state = random_weights(kind, expert, 0)
    random_store = Store(folder / "store")
    random_store.put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state)
    return random_store


@contextmanager
def _trial(subject: MeasuredExpert) -> Iterator[Trial]:
    """Give a trial of an expert, as the engine runs it."""
    expert, target = subject.expert, subject.target
    device = line_devices.make(
        {target.device: 1},
        subject.store,
        {expert.kind: subject.kind},
        {target.device: target.threads},
        gpu=line_devices.GpuSettings(subject.device_bytes),
    )[target.device]
    if target.precision != FULL and target.precision not in subject.store.manifest(expert.weights).variants:
        raise CannotMeasure(
            f"'{expert.weights}' is not prepared in {target.precision}, so its kind is not measured in it"
        )
    with device.trial(replace(expert, variant=target.precision)) as trial:
        yield trial


def _before_s(kind: Kind, expert: Expert, images: Sequence[Path], say: Callable[[str], None]) -> tuple[float, float]:
    """Return how long an image takes to decode and to preprocess on one thread, in seconds, by at most 16 images.

    They are spread over the given ones; an image that cannot be decoded is left out. Zeros if the kind takes none.
    """
    chosen = spread_over(images, _MOST_IMAGES)
    took = _took_s(kind, expert, chosen)
    if chosen and not took:
        say("none of the sample images can be decoded; generated ones are used")
    decode_s, preprocess_s = np.mean(took or _took_s(kind, expert, generated()) or [(0.0, 0.0)], axis=0)
    return float(decode_s), float(preprocess_s)


def _took_s(kind: Kind, expert: Expert, images: Sequence[Path | bytes]) -> list[tuple[float, float]]:
    took = []
    for image in images:
        decodings, preprocessings = [], []
        try:
            for _ in range(_DECODINGS):
                began = time.perf_counter()
                pixels = decode(image, bits=AS_FILLED)
                decoded = time.perf_counter()
                kind.preprocess(pixels, expert)
                decodings.append(decoded - began)
                preprocessings.append(time.perf_counter() - decoded)
        except ImageError:
            continue
        took.append((typical(decodings), typical(preprocessings)))
    return took
