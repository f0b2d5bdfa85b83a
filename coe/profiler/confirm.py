"""Runs a chosen configuration and the casual one on the machine, with real weights, and keeps the better of the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coe import config
from coe.benchmark.configurations import casual, in_turn, pinned
from coe.benchmark.engine import Measured, measured_run
from coe.benchmark.recorded import recorded
from coe.benchmark.synthetic import synthetic_pictures
from coe.config import format_bytes
from coe.core import Finding
from coe.inspector import Picture
from coe.profile import Chosen, Profile
from coe.profiler.tune import Choice
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


class Ground:
    """The machine as a place for sample runs of a board: the same images, over and over, with configurations."""

    def __init__(
        self, board: Rules, store: Store, known: Profile, memory_bytes: int, pictures: Sequence[Picture], images: int
    ) -> None:
        self.board, self.store, self.known, self.memory_bytes = board, store, known, memory_bytes
        given = list(pictures) or synthetic_pictures(board.path, images, seed=0)
        self._shown = [given[index % len(given)] for index in range(images)]

    def run(self, executors: dict[str, int], threads: dict[str, int], workspace_bytes: dict[str, int]) -> Measured:
        """Run the images through a new line of this configuration."""
        one = Chosen(
            executors=executors,
            threads=threads,
            workspace_bytes=workspace_bytes,
            loaded_experts=0,
            images_per_s=0.0,
            casual_images_per_s=0.0,
            reasons=(),
        )
        return measured_run(
            self.board.path,
            self.store,
            self._shown,
            memory_bytes=self.memory_bytes,
            executors=None,
            strategy=config.STRATEGY,
            task=self.board.board,
            order="sample",
            profile=pinned(self.known, self.board, self.memory_bytes, one),
            as_a_line=True,
        )


def without_weights(board: Rules, store: Store) -> list[str]:
    """Return the experts of a board that are not in the store."""
    return [e.id for e in board.experts.values() if not (store.folder(e.weights) / MANIFEST).exists()]


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
    tick: Callable[[float], None] = lambda done: None,
) -> Confirmed:
    """Measure choices, the best first, and the casual split (one executor, a quarter for batches) on the same images.

    The first is kept unless another is faster by more than `WORSE`. Nothing is run if an expert has no weights; the
    simulated throughputs stand then, and a reason says so.
    """
    candidates = [choice.chosen for choice in choices]
    if missing := without_weights(board, store):
        why = f"not confirmed on the machine: {len(missing)} of {len(board.experts)} experts have no weights"
        say(why)
        return Confirmed(candidates[0].model_copy(update={"reasons": (*candidates[0].reasons, why)}), None)
    ground = Ground(board, store, known, memory_bytes, pictures, images)
    candidates.append(casual(board, store, memory_bytes))
    began = time.monotonic()

    def again(rounds: int) -> bool:
        spent = time.monotonic() - began
        tick(max(rounds / _MOST_RUNS, spent / _LONG_ENOUGH_S))
        return rounds < _MOST_RUNS and spent < _LONG_ENOUGH_S

    rounds = in_turn(
        [partial(ground.run, one.executors, one.threads, one.workspace_bytes) for one in candidates], again=again
    )
    runs = [max(own, key=lambda one: one.row.images_per_s) for own in rounds]
    speeds = [run.row.images_per_s for run in runs]
    best = max(range(len(speeds)), key=speeds.__getitem__)
    best = best if speeds[best] > (1 + WORSE) * speeds[0] else 0
    words = [_words(one) for one in candidates[:-1]] + ["the casual split"]
    told = ", ".join(f"{word} {speed:.1f}" for word, speed in zip(words, speeds, strict=True))
    why = f"measured on {images} images, images/s: {told}; {words[best]} is used"
    # Of the last run: the first ones also pay what libraries take once.
    machine = rounds[best][-1].row.machine
    grown = machine.rss_growth_bytes if machine else 0
    held = (
        f"the process grew by {format_bytes(grown)} under a budget of {format_bytes(memory_bytes)}, beside the "
        f"{format_bytes((machine.peak_rss_bytes if machine else 0) - grown)} that it has before a line is opened"
    )
    trace = recorded(runs[best].trace)
    seen = [(arrival.request.component, trace.findings.get(arrival.request.id, {})) for arrival in trace.arrivals]
    chosen = candidates[best].model_copy(
        update={
            "images_per_s": speeds[best],
            "casual_images_per_s": speeds[-1],
            "sample_images": images,
            "grown_bytes": grown,
            "reasons": (*candidates[best].reasons, why, held),
        }
    )
    return Confirmed(chosen, seen if pictures else None)


def _words(one: Chosen) -> str:
    return ",".join(f"{device}={number}" for device, number in one.executors.items())
