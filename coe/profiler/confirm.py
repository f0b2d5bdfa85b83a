"""Runs a chosen configuration and the casual one on the machine, with real weights, and keeps the better of the two."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from coe.bench.configurations import in_turn
from coe.bench.recorded import recorded
from coe.config import format_bytes
from coe.core import Finding
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.profiler.site import Site
from coe.profiler.usage import usage
from coe.scheduler.plan import memory_scores

Seen = Sequence[tuple[str, Mapping[str, Finding]]]
"""Of each image its component, and what experts said of it."""

WORSE = 0.02
"""By how much casual must be faster on the machine for the choice to be given up."""

_LONG_ENOUGH_S = 15.0
_MOST_RUNS = 6


def confirm(
    site: Site,
    known: Profile,
    choices: Sequence[BoardProfile],
    *,
    images: int,
    say: Callable[[str], None],
    tick: Callable[[float], None] = lambda done: None,
) -> BoardProfile:
    """Measure choices, the best first, and the casual split (one executor, a quarter for batches) on the same images.

    The first is kept unless another is faster by more than `WORSE`; it is returned with how often the experts were
    used. Nothing is run if an expert has no weights; the simulated throughputs stand then, and a reason says so.
    """
    candidates = [choice.chosen for choice in choices]
    if missing := site.without_weights:
        why = f"not confirmed on the machine: {len(missing)} of {len(site.board.experts)} experts have no weights"
        say(why)
        first = candidates[0]
        return _entry(site, known, choices, first.model_copy(update={"reasons": (*first.reasons, why)}), None)
    candidates.append(site.casual())
    began = time.monotonic()

    def again(rounds: int) -> bool:
        spent = time.monotonic() - began
        tick(max(rounds / _MOST_RUNS, spent / _LONG_ENOUGH_S))
        return rounds < _MOST_RUNS and spent < _LONG_ENOUGH_S

    rounds = in_turn([partial(site.run, known, one, images) for one in candidates], again=again)
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
        f"the process grew by {format_bytes(grown)} under a budget of {_budget(site)}, beside the "
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
    return _entry(site, known, choices, chosen, seen if site.pictures else None)


def _entry(
    site: Site, known: Profile, choices: Sequence[BoardProfile], chosen: Chosen, seen: Seen | None
) -> BoardProfile:
    """Return what goes into the profile: a configuration, how it was found, and how often images needed each expert."""
    found = next((choice for choice in choices if choice.chosen.executors == chosen.executors), None)
    return site.entry(chosen).model_copy(
        update={
            "usage": usage(site.board, seen, memory_scores(site.file_bytes(known))),
            "windows": found.windows if found else (),
            "executors": choices[0].executors,
        }
    )


def _budget(site: Site) -> str:
    """Say what of the host's memory a line may take."""
    copies = f" and {format_bytes(site.gpu.host_bytes)} for copies" if site.gpu and site.gpu.host_bytes else ""
    return format_bytes(site.memory_bytes) + copies


def _words(one: Chosen) -> str:
    return ",".join(f"{device}={number}" for device, number in one.executors.items())
