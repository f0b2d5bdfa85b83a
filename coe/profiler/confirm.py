"""Runs a chosen configuration and the casual one on the machine, with real weights, and keeps the better of the two."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coe import config
from coe.benchmark.engine import Measured, measured_run
from coe.benchmark.recorded import recorded
from coe.benchmark.synthetic import synthetic_pictures
from coe.core import Finding
from coe.inspector import Picture
from coe.profile import BoardProfile, Chosen, Profile
from coe.profiler.tune import CASUAL, Choice
from coe.rules import Rules
from coe.store import MANIFEST, Store

WORSE = 0.02
"""By how much casual must be faster on the machine for the choice to be given up."""

_LONG_ENOUGH_S = 15.0
_MOST_RUNS = 6

Seen = Sequence[tuple[str, Mapping[str, Finding]]]


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What was chosen in the end, and what experts said of the sample images (None if nothing ran)."""

    chosen: Chosen
    seen: Seen | None


def confirm(
    board: Rules,
    store: Store,
    known: Profile,
    choices: Sequence[Choice],
    *,
    memory_bytes: int,
    pictures: Sequence[Picture],
    images: int,
    say: Callable[[str], None],
) -> Confirmed:
    """Measure choices, the best first, and the casual split (one executor, a quarter for batches) on the same images.

    The first is kept unless another is faster by more than `WORSE`. Nothing is run if an expert has no weights; the
    simulated throughputs stand then, and a reason says so.
    """
    candidates = [_chosen(choice) for choice in choices]
    missing = [e.id for e in board.experts.values() if not (store.folder(e.weights) / MANIFEST).exists()]
    if missing:
        why = f"not confirmed on the machine: {len(missing)} of {len(board.experts)} experts have no weights"
        say(why)
        return Confirmed(candidates[0].model_copy(update={"reasons": (*candidates[0].reasons, why)}), None)
    given = list(pictures) or synthetic_pictures(board.path, images, seed=0)
    shown = [given[index % len(given)] for index in range(images)]
    candidates.append(_casual(candidates[0], board, store, memory_bytes))

    def run(one: Chosen) -> Measured:
        entry = BoardProfile(
            board=board.board,
            digest=board.digest,
            memory_bytes=memory_bytes,
            strategy=config.STRATEGY,
            usage=(),
            windows=(),
            executors=(),
            chosen=one,
        )
        return measured_run(
            board.path,
            store,
            shown,
            memory_bytes=memory_bytes,
            executors=None,
            strategy=config.STRATEGY,
            task=board.board,
            order="sample",
            profile=known.model_copy(update={"boards": {board.board: entry}}),
        )

    runs = _in_turn([lambda one=one: run(one) for one in candidates])  # type: ignore[misc]
    speeds = [run.row.images_per_s for run in runs]
    best = max(range(len(speeds)), key=speeds.__getitem__)
    best = best if speeds[best] > (1 + WORSE) * speeds[0] else 0
    words = [_words(one) for one in candidates[:-1]] + ["the casual split"]
    told = ", ".join(f"{word} {speed:.1f}" for word, speed in zip(words, speeds, strict=True))
    why = f"measured on {len(shown)} images, images/s: {told}; {words[best]} is used"
    trace = recorded(runs[best].trace)
    seen = [(arrival.request.component, trace.findings.get(arrival.request.id, {})) for arrival in trace.arrivals]
    chosen = candidates[best].model_copy(
        update={
            "images_per_s": speeds[best],
            "casual_images_per_s": speeds[-1],
            "sample_images": len(shown),
            "reasons": (*candidates[best].reasons, why),
        }
    )
    return Confirmed(chosen, seen if pictures else None)


def _in_turn(works: Sequence[Callable[[], Measured]]) -> list[Measured]:
    """Run things there and back until `_LONG_ENOUGH_S` have passed, and return the fastest run of each.

    There and back, because the first line of a process is the slowest.
    """
    began, runs = time.monotonic(), [[work()] for work in works]
    while len(runs[0]) < _MOST_RUNS and time.monotonic() - began < _LONG_ENOUGH_S:
        order = list(zip(works, runs, strict=True))
        for work, own in order if len(runs[0]) % 2 == 0 else reversed(order):
            own.append(work())
    return [max(own, key=lambda one: one.row.images_per_s) for own in runs]


def _words(one: Chosen) -> str:
    return ",".join(f"{device}={number}" for device, number in one.executors.items())


def _casual(beside: Chosen, board: Rules, store: Store, memory_bytes: int) -> Chosen:
    mean_bytes = sum(store.manifest(e.weights).bytes for e in board.experts.values()) / len(board.experts)
    return beside.model_copy(
        update={
            "executors": {"cpu": 1},
            "threads": {"cpu": os.cpu_count() or 1},
            "workspace_bytes": {"cpu": int(memory_bytes * CASUAL)},
            "loaded_experts": int(memory_bytes * (1 - CASUAL) / mean_bytes),
        }
    )


def _chosen(choice: Choice) -> Chosen:
    return Chosen(
        executors=choice.executors,
        threads=choice.threads,
        workspace_bytes=choice.workspace_bytes,
        loaded_experts=choice.loaded,
        images_per_s=choice.images_per_s,
        casual_images_per_s=choice.casual_images_per_s,
        reasons=choice.reasons,
    )
