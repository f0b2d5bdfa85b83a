"""What experts of a kind cost on a device, measured on one of them, which stands for its kind (paper section 4.5)."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from coe import regular
from coe.core import Expert
from coe.inspector import assembly
from coe.inspector.profile import BatchTime, KindProfile
from coe.prepare.agreement import compare, findings
from coe.profiler import backends
from coe.profiler.backends import CannotMeasure
from coe.profiler.batches import Pace, climb, rounds
from coe.profiler.samples import Samples, samples
from coe.runtime.activations import give_memory_back
from coe.runtime.buffers import Buffers
from coe.runtime.fit import fit, memory, plateau, spread, typical
from coe.runtime.reading import weights
from coe.runtime.slot import Slot
from coe.runtime.trial import Trial, whole_pages
from coe.store.kinds import Kind, ModuleKind, random_weights
from coe.store.manifest import Agreement
from coe.store.store import MANIFEST, Store

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
Backend = Literal["torch", "onnxruntime"]
Precision = Literal["fp32", "bf16"]

_LOADS = 3


@dataclass(frozen=True, slots=True)
class Way:
    """An expert with its weights, and a way to run it.

    A GPU is used within `device_bytes`, a part of what is free if None.
    """

    expert: Expert
    kind: Kind
    store: Store
    device: str
    threads: int
    backend: Backend = "torch"
    precision: Precision = "fp32"
    device_bytes: int | None = None

    @property
    def is_the_engines(self) -> bool:
        """Tell whether the engine itself runs experts so."""
        return (self.backend, self.precision) == ("torch", "fp32")

    @property
    def file(self) -> Path:
        """The weights."""
        return self.store.path(self.expert.weights)


def measure(
    way: Way,
    *,
    sizes: Sequence[int] = SIZES,
    images: Sequence[Path] = (),
    limit_s: float = 30.0,
    say: Callable[[str], None] = lambda sentence: None,
    tick: Callable[[float], None] = lambda done: None,
) -> KindProfile:
    """Measure one expert in one way for about `limit_s` seconds once it is ready to run.

    Nothing else may run in the process. An expert without weights in the store is measured with random ones, which
    never get there. `sizes` are climbed until the average latency has plateaued or the time is up; `images` are sample
    images, else some are generated. `say` is told what a reader of the figures must know, `tick` the part that is done
    (0 to 1); both are called on another thread.

    Raises CannotMeasure for a way that is not to be had, StoreError for weights that are damaged, ConfigError for a
    device that there is not. An interrupt, also one that `tick` raises, passes through between two batches.
    """
    pace = Pace(limit_s, tick)

    def work() -> KindProfile:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coe-profile-")))
            ready = replace(way, store=with_weights(way.expert, way.kind, way.store, folder, say))
            stack.callback(_tidy)
            return _measured(ready, stack.enter_context(_trial(ready, folder)), sizes, images, pace, say)

    # A thread of its own, as in coe.runtime.aside: what OpenMP set up to measure must not slow the engine down later.
    with ThreadPoolExecutor(1, thread_name_prefix="coe-measure") as worker:
        future = worker.submit(work)
        try:
            return future.result()
        except BaseException:
            pace.stop.set()
            raise


def _measured(
    way: Way, trial: Trial, sizes: Sequence[int], images: Sequence[Path], pace: Pace, say: Callable[[str], None]
) -> KindProfile:
    kind = way.kind
    pace.restart()
    held, repeats = climb(trial, sorted({n for n in sizes if n <= kind.max_batch} or {1}), pace)
    rounds(trial, repeats, pace)
    times = {n: typical(each) for n, each in repeats.items()}
    bound = memory(held, trial.least_image_bytes())
    load_s, cold = _load_s(trial, kind, say)
    ready = samples(kind, way.expert, images, say)
    agreement = None if way.is_the_engines else _agreement(way, trial, ready)
    pace.tick(1.0)
    return KindProfile(
        kind=kind.name,
        input_size=way.expert.input_size,
        device=way.device,
        threads=way.threads,
        backend=way.backend,
        precision=way.precision,
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
        decode_s=ready.decode_s,
        preprocess_s=ready.preprocess_s,
        agreement=agreement,
    )


def _load_s(trial: Trial, kind: Kind, say: Callable[[str], None]) -> tuple[float, bool]:
    """Return the seconds of a load, and whether that is from the disk itself."""
    warm = [trial.load_s() or 0.0 for _ in range(_LOADS)]
    cold = [found for _ in range(_LOADS) if (found := trial.load_s(cold=True)) is not None]
    if cold:
        say(f"{kind.name}: a load takes {typical(cold):.3g} s from disk, {typical(warm):.3g} s from the system's cache")
        return typical(cold), True
    say(
        f"{kind.name}: a load takes {typical(warm):.3g} s, timed with the file in memory because the system keeps it "
        "there; from disk it may take longer"
    )
    return typical(warm), False


def with_weights(expert: Expert, kind: Kind, store: Store, folder: Path, say: Callable[[str], None]) -> Store:
    """Return a store that has the expert's weights: the one given, else one in `folder` with random weights."""
    if regular.may_exist(store.folder(expert.weights) / MANIFEST):
        store.check(expert.weights)
        return store
    if not isinstance(kind, ModuleKind):
        raise CannotMeasure(f"expert '{expert.id}' has no weights, and for kind '{kind.name}' none can be made up")
    say(f"'{expert.weights}' is not in the store; {kind.name} is measured with random weights")
    state = random_weights(kind, expert, 0)
    made = Store(folder / "store")
    made.put(expert.weights, kind=kind.name, labels=expert.labels, input_size=expert.input_size, state=state)
    return made


@contextmanager
def _trial(way: Way, folder: Path) -> Iterator[Trial]:
    """Give a trial of an expert, as the engine runs it or in another way; `folder` is for what must be written."""
    own = assembly.devices(
        {way.device: 1},
        way.store,
        {way.expert.kind: way.kind},
        {way.device: way.threads},
        device_bytes=way.device_bytes,
    )[way.device]
    if way.is_the_engines:
        with own.trial(way.expert) as trial:
            yield trial
        return
    if way.device != "cpu" or (way.backend, way.precision) == ("onnxruntime", "bf16"):
        raise CannotMeasure(f"{way.backend} in {way.precision} is not measured on '{way.device}'")
    own.enter("trial")
    if way.backend == "onnxruntime":
        yield backends.onnxruntime(way.kind, way.expert, way.file, way.threads, folder)
    else:
        yield backends.bf16(way.kind, way.expert, way.file)


def _agreement(way: Way, trial: Trial, ready: Samples) -> Agreement:
    """Compare the verdicts of a way with those of torch in fp32, of the same weights and images."""
    assert isinstance(way.kind, ModuleKind), "other kinds run in one way"
    blob = weights(way.store, way.expert).read(Buffers())
    slot = Slot(way.kind, way.expert, blob.structure)
    expected = findings(way.kind, way.expert, ready.prepared, lambda pixels: slot.run(blob, torch.from_numpy(pixels)))
    found = findings(way.kind, way.expert, ready.prepared, trial.answer)
    slot.unbind()
    return compare(expected, found, generated=ready.generated)


def _tidy() -> None:
    gc.collect()
    give_memory_back()
