"""Calibrates a machine for a board: measure kinds, choose a configuration, confirm it, and put all into a profile.

What was measured is kept as soon as it is known, so an interrupted calibration goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from coe.board.rules import Rules
from coe.core import Expert
from coe.errors import CoeError, ConfigError, DeviceFull, DeviceLost
from coe.inspector.inspector import Picture
from coe.inspector.profile import Chosen, Profile
from coe.profiler.backends import CannotMeasure
from coe.profiler.bench import Bench, step_of
from coe.profiler.confirm import Ground, confirm, without_weights
from coe.profiler.draft import Draft
from coe.profiler.measure import Backend, Precision
from coe.profiler.memories import Memories, warn_if_crowded
from coe.profiler.setup import Basis
from coe.profiler.steps import Progress, Steps
from coe.profiler.tune import Tuner
from coe.profiler.usage import usage
from coe.runtime.cuda import torch_driver
from coe.scheduler.plan import memory_scores
from coe.sim.workload import synthetic
from coe.store import kinds
from coe.store.kinds import FileKind, Kind
from coe.store.store import Store

MOST_ON_GPU = 4
"""So many executors of a GPU are tried at most: each has weights that run, and graphs, of its own."""
SAMPLE_REQUESTS = 600
"""How many images a simulated sample run has."""
_CONFIRM_S = 2.0
"""So many seconds of images are confirmed with: on a fast board more of them, as short runs tell nothing."""
_AROUND_S = 4.0
"""What a kind takes about beside its batches: weights, loads, memory."""
_CHOOSING, _CONFIRMING = "choosing executors and memory", "confirming the choice on the machine"
_CHOOSING_S = 5.0
_CONFIRMING_S = 30.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: the seconds for a kind in one way, whether other ways are measured, images to confirm with.

    Sample runs are simulated, or take place `on_machine`, each with `confirm_images` images. `faithful` is the seed of
    the paper's random choice.
    """

    kind_s: float
    other_ways: bool
    confirm_images: int
    faithful: int | None = None
    on_machine: bool = False


@dataclass(frozen=True, slots=True)
class Budgets:
    """The memory of a line, and what it may use of a GPU and of the host for copies; None is a part of what is free."""

    memory_bytes: int
    device_bytes: int | None = None
    host_bytes: int | None = None


THOROUGH = Effort(kind_s=40.0, other_ways=True, confirm_images=200)
QUICK = Effort(kind_s=6.0, other_ways=False, confirm_images=120)


def calibrate(
    board: Rules,
    store: Store,
    *,
    budgets: Budgets,
    pictures: Sequence[Picture],
    place: Path,
    effort: Effort,
    progress: Progress,
    allow_kinds: Sequence[str] = (),
) -> Profile:
    """Return the profile at `place` with this board calibrated; it is written there, whole, at the end.

    `pictures` are sample images, generated ones if there are none. `allow_kinds` as for `Inspector`.
    A board whose weights are not in the store is measured with random ones, and its choice is not confirmed. Raises
    ConfigError, naming the least memory, if one expert with one image does not fit.
    """
    memory_bytes, device_bytes, host_bytes = budgets.memory_bytes, budgets.device_bytes, budgets.host_bytes
    draft, cores = Draft(place, progress.say), os.cpu_count() or 1
    samples = _samples(board)
    counts = [number for number in range(1, cores + 1) if cores % number == 0 or number == cores]
    threads_of = sorted({cores // number for number in counts}, reverse=True)
    others: list[tuple[Backend, Precision]] = [("torch", "bf16"), ("onnxruntime", "fp32")] if effort.other_ways else []
    known = {kind: kinds.resolve(kind, allow_kinds) for kind in samples}
    on_gpu = list(samples) if _has_gpu(board, store, known, device_bytes, host_bytes, progress.say) else []
    one_s, other_s = effort.kind_s + _AROUND_S, effort.kind_s / 2 + _AROUND_S
    steps = Steps(
        progress.step,
        [
            *((step_of(kind, threads), one_s) for threads in threads_of for kind in samples),
            *((step_of(kind, 1, "cuda"), other_s) for kind in on_gpu),
            *((step_of(kind, cores, "cpu", *way), other_s) for kind in samples for way in others),
            (_CHOOSING, _CHOOSING_S),
            (_CONFIRMING, _CONFIRMING_S),
        ],
    )
    bench = Bench(store, samples, draft, pictures, progress.say, steps, device_bytes, tuple(allow_kinds))
    likeliest = board.experts[board.graph.by_probability[0]].kind
    for threads in threads_of:
        for kind in samples:
            bench.measure(kind, threads, effort.kind_s)
        bench.measure_together(likeliest, "cpu", threads, cores // threads)
    memories, gpu = Memories(board, store, device_bytes, host_bytes, allow_kinds=allow_kinds), None
    try:
        for kind in on_gpu:
            bench.measure(kind, 1, effort.kind_s / 2, device="cuda")
        if on_gpu:
            gpu = memories.look("cuda", 1)
            bench.measure_together(likeliest, "cuda", 1, min(cores, MOST_ON_GPU))
    except (ConfigError, DeviceFull, DeviceLost) as error:
        progress.say(f"{error}; the GPU is left out")
        gpu = None
    for kind in samples:
        for backend, precision in others:
            try:
                bench.measure(kind, cores, effort.kind_s / 2, backend=backend, precision=precision)
            except CannotMeasure as error:
                progress.say(str(error))
    steps.begin(_CHOOSING)
    file_bytes = _file_bytes(board, store, draft.known)
    ground = Ground(
        board,
        store,
        draft.known,
        pictures,
        memory_bytes=memory_bytes,
        device_bytes=gpu.memory_bytes if gpu else None,
        host_bytes=gpu.host_bytes if gpu else None,
        allow_kinds=allow_kinds,
    )
    basis = Basis(
        board=board,
        file_bytes=file_bytes,
        memory_bytes=memory_bytes,
        cores=cores,
        threads=threads_of,
        kinds_at=bench.kinds_at,
        scaling_at=draft.scaling,
        memories=memories,
        sample=synthetic(board, task="sample", requests=SAMPLE_REQUESTS, every_s=0.0),
        on_machine=_on_machine(ground, effort.confirm_images) if effort.on_machine else None,
    )
    most = {**({"cuda": len(draft.scaling("cuda", 1))} if gpu else {}), "cpu": cores}
    choices = Tuner(basis, most, None if effort.faithful is None else Random(effort.faithful)).choose()
    if not any("cuda" in choice.chosen.executors for choice in choices):
        ground = ground.without_gpu()
    steps.begin(_CONFIRMING)
    confirmed = confirm(
        ground,
        choices,
        images=min(2000, max(effort.confirm_images, int(_CONFIRM_S * choices[0].chosen.images_per_s))),
        say=progress.say,
        tick=steps.part,
    )
    found = ground.entry(confirmed.chosen)
    return draft.finish(
        found.model_copy(
            update={
                "usage": usage(board, confirmed.seen, memory_scores(file_bytes)),
                "windows": next((c.windows for c in choices if c.chosen.executors == confirmed.chosen.executors), ()),
                "executors": choices[0].points,
            }
        )
    )


def _has_gpu(
    board: Rules,
    store: Store,
    known: Mapping[str, Kind],
    device_bytes: int | None,
    host_bytes: int | None,
    say: Callable[[str], None],
) -> bool:
    """Tell whether there is a GPU to calibrate; raises ConfigError if memory of one was given and there is none."""
    if not torch_driver.is_there():
        if (device_bytes, host_bytes) != (None, None):
            raise ConfigError(
                "there is no GPU that torch can use, so --device-memory and --host-memory would mean nothing; "
                "leave them out"
            )
        return False
    files = sorted(name for name, kind in known.items() if isinstance(kind, FileKind))
    if files:
        say(f"experts of kind '{files[0]}' run on the CPU alone; the GPU is left out")
        return False
    if missing := without_weights(board, store):
        say(f"{len(missing)} experts have no weights, so nobody knows what the GPU would hold; it is left out")
        return False
    warn_if_crowded(torch_driver.driver().usage(), say)
    return True


def _on_machine(ground: Ground, images: int) -> Callable[[Chosen], float]:
    """Return what runs a sample with a configuration and returns images a second."""
    if missing := without_weights(ground.board, ground.store):
        raise ConfigError(
            f"nothing can run on the machine: {len(missing)} of {len(ground.board.experts)} experts have no weights; "
            "train or import them, or leave --on-machine out"
        )
    return lambda one: ground.run(one, images).row.images_per_s


def _samples(board: Rules) -> dict[str, Expert]:
    """Return one expert of each kind, that with the largest input."""
    found: dict[str, Expert] = {}
    for expert in sorted(board.experts.values(), key=lambda expert: -expert.input_size):
        found.setdefault(expert.kind, expert)
    return found


def _file_bytes(board: Rules, store: Store, known: Profile) -> dict[str, int]:
    """Return the bytes of each expert's weights; of one that is not in the store those of its kind."""
    found = {}
    for expert in board.experts.values():
        try:
            found[expert.id] = store.manifest(expert.weights).bytes
        except CoeError:
            found[expert.id] = next(kind.weights_bytes for kind in known.kinds if kind.kind == expert.kind)
    return found
