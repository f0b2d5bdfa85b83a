"""Runs a chosen configuration and the casual one on the machine, with real weights, and keeps the better of the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from coe import config, regular
from coe.bench.configurations import casual, entry, in_turn, pinned
from coe.bench.engine import Measured, measured_run
from coe.bench.recorded import recorded
from coe.bench.rows import Heading
from coe.bench.synthetic import synthetic_pictures
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import Finding
from coe.inspector.inspector import Picture
from coe.inspector.line_config import AskedSettings, LineConfig
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.profiler.tune import Choice
from coe.store.store import MANIFEST, Store

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
        self,
        board: Rules,
        store: Store,
        known: Profile,
        pictures: Sequence[Picture],
        *,
        memory_bytes: int,
        device_bytes: int | None = None,
        host_bytes: int | None = None,
        allow_kinds: Sequence[str] = (),
    ) -> None:
        self._allowed = tuple(allow_kinds)
        self.board, self.store, self.pictures, self.memory_bytes = board, store, pictures, memory_bytes
        self._known, self._device_bytes, self._host_bytes = known, device_bytes, host_bytes

    def __repr__(self) -> str:
        return f"<Ground {self.board.board}, {format_bytes(self.memory_bytes)}>"

    def entry(self, one: Chosen) -> BoardProfile:
        """Return a configuration as the part of a profile that a line here would run by."""
        return entry(self.board, one, self.memory_bytes, self._device_bytes, self._host_bytes)

    def run(self, one: Chosen, images: int) -> Measured:
        """Run so many images through a new line of a configuration."""
        given = list(self.pictures) or synthetic_pictures(self.board.path, images, seed=0)
        line_config = LineConfig(
            board=self.board.path,
            store=self.store,
            asked=AskedSettings(memory_bytes=self.memory_bytes, profile=pinned(self._known, self.entry(one))),
            allowed_kinds=self._allowed,
        )
        pictures = [given[index % len(given)] for index in range(images)]
        return measured_run(line_config, pictures, heading=Heading(self.board.board, "sample", config.STRATEGY))

    @property
    def budget(self) -> str:
        """What of the host's memory a line here may take, in words."""
        copies = f" and {format_bytes(self._host_bytes)} for copies" if self._host_bytes else ""
        return format_bytes(self.memory_bytes) + copies

    def casual(self) -> Chosen:
        """Return the casual configuration: on the GPU, where there is one."""
        return casual(self.board, self.store, self.memory_bytes, on_gpu=self._device_bytes is not None)

    def without_gpu(self) -> Ground:
        """Return the same without a GPU, where none of it is of use."""
        return Ground(
            self.board,
            self.store,
            self._known,
            self.pictures,
            memory_bytes=self.memory_bytes,
            allow_kinds=self._allowed,
        )


def without_weights(board: Rules, store: Store) -> list[str]:
    """Return the experts of a board that are not in the store."""
    experts = board.experts.values()
    return [one.id for one in experts if not regular.may_exist(store.folder(one.weights) / MANIFEST)]


def confirm(
    ground: Ground,
    choices: Sequence[Choice],
    *,
    images: int,
    say: Callable[[str], None],
    tick: Callable[[float], None] = lambda done: None,
) -> Confirmed:
    """Measure choices, the best first, and the casual split (one executor, a quarter for batches) on the same images.

    The first is kept unless another is faster by more than `WORSE`. Nothing is run if an expert has no weights; the
    simulated throughputs stand then, and a reason says so.
    """
    candidates = [choice.chosen for choice in choices]
    if missing := without_weights(ground.board, ground.store):
        why = f"not confirmed on the machine: {len(missing)} of {len(ground.board.experts)} experts have no weights"
        say(why)
        return Confirmed(candidates[0].model_copy(update={"reasons": (*candidates[0].reasons, why)}), None)
    candidates.append(ground.casual())
    began = time.monotonic()

    def again(rounds: int) -> bool:
        spent = time.monotonic() - began
        tick(max(rounds / _MOST_RUNS, spent / _LONG_ENOUGH_S))
        return rounds < _MOST_RUNS and spent < _LONG_ENOUGH_S

    rounds = in_turn([partial(ground.run, one, images) for one in candidates], again=again)
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
        f"the process grew by {format_bytes(grown)} under a budget of {ground.budget}, beside the "
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
    return Confirmed(chosen, seen if ground.pictures else None)


def _words(one: Chosen) -> str:
    return ",".join(f"{device}={number}" for device, number in one.executors.items())
