"""Runs the chosen configurations and the paper's default on the machine with real weights, and keeps the best."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from coe.config import format_bytes
from coe.core import Finding
from coe.inspector.profile import BoardProfile, Chosen, Profile
from coe.inspector.settings import memory_scores
from coe.profiler.site import ProfiledSite
from coe.profiler.usage import usage

FindingsByImage = Sequence[tuple[str, Mapping[str, Finding]]]
"""For each image its component, and its findings by expert."""

WORSE = 0.02
"""Another configuration replaces the first choice only if it is faster on the machine by more than this share."""

T = TypeVar("T")

_LONG_ENOUGH_S = 15.0
_MOST_RUNS = 6


def confirm(
    site: ProfiledSite,
    profile: Profile,
    choices: Sequence[BoardProfile],
    *,
    images: int,
    say: Callable[[str], None],
    tick: Callable[[float], None] = lambda done: None,
) -> BoardProfile:
    """Measure choices, the best first, and the paper's default (`paper_default`) on the same images.

    The first is kept unless another is faster by more than `WORSE`; the best is returned with how often images needed
    each expert. If an expert has no weights, nothing runs: the simulated throughputs stay, and a reason tells so.
    """
    candidates = [choice.chosen for choice in choices]
    if missing := site.without_weights:
        why = f"not confirmed on the machine: {len(missing)} of {len(site.board.experts)} experts have no weights"
        say(why)
        first = candidates[0]
        return _entry(site, profile, choices, first.model_copy(update={"reasons": (*first.reasons, why)}), None)
    candidates.append(site.paper_default())
    began = time.monotonic()

    def again(rounds: int) -> bool:
        spent = time.monotonic() - began
        tick(max(rounds / _MOST_RUNS, spent / _LONG_ENOUGH_S))
        return rounds < _MOST_RUNS and spent < _LONG_ENOUGH_S

    rounds = in_turn([partial(site.run, profile, candidate, images) for candidate in candidates], again=again)
    runs = [max(repeats, key=lambda run: run.metrics.images_per_s) for repeats in rounds]
    speeds = [run.metrics.images_per_s for run in runs]
    best = max(range(len(speeds)), key=speeds.__getitem__)
    best = best if speeds[best] > (1 + WORSE) * speeds[0] else 0
    names = [_executors(candidate) for candidate in candidates[:-1]] + ["the paper's default"]
    results = ", ".join(f"{name} {speed:.1f}" for name, speed in zip(names, speeds, strict=True))
    why = f"measured on {images} images, images/s: {results}; {names[best]} is used"
    # The last run counts: in the first ones, libraries take memory that they take once only.
    last = rounds[best][-1]
    memory = (
        f"the process grew by {format_bytes(last.grown_bytes)} under a budget of {_budget(site)} and had "
        f"{format_bytes(last.peak_rss_bytes - last.grown_bytes)} before the line was opened"
    )
    findings_by_image = [
        (result.request.component, {finding.expert: finding for finding in result.findings})
        for result in runs[best].results
        # A picture that runs again says nothing new of how often experts are needed.
        if result.request.id < len(site.pictures) and (result.failure is None or not result.failure.kind.is_of_picture)
    ]
    chosen = candidates[best].model_copy(
        update={
            "images_per_s": speeds[best],
            "casual_images_per_s": speeds[-1],
            "sample_images": images,
            "grown_bytes": last.grown_bytes,
            "reasons": (*candidates[best].reasons, why, memory),
        }
    )
    return _entry(site, profile, choices, chosen, findings_by_image if site.pictures else None)


def _entry(
    site: ProfiledSite,
    profile: Profile,
    choices: Sequence[BoardProfile],
    chosen: Chosen,
    findings_by_image: FindingsByImage | None,
) -> BoardProfile:
    """Return a board's part of the profile: configuration, search samples, and how often images needed each expert."""
    choice = next((choice for choice in choices if choice.chosen.executors == chosen.executors), None)
    return site.board_profile(chosen).model_copy(
        update={
            "usage": usage(site.board, findings_by_image, memory_scores(site.file_bytes(profile))),
            "windows": choice.windows if choice else (),
            "executors": choices[0].executors,
        }
    )


def _budget(site: ProfiledSite) -> str:
    """Write how much of the host's memory a line may take."""
    copies = f" and {format_bytes(site.gpu.host_bytes)} for copies" if site.gpu and site.gpu.host_bytes else ""
    return format_bytes(site.memory_bytes) + copies


def _executors(chosen: Chosen) -> str:
    return ",".join(f"{device}={number}" for device, number in chosen.executors.items())


def in_turn(works: Sequence[Callable[[], T]], *, again: Callable[[int], bool]) -> list[list[T]]:
    """Run `works` in rounds while `again(rounds done)` is true; return the results of each.

    Every second round runs backwards: a process's first line is the slowest, and a machine may slow down as it warms.
    """
    runs = [[work()] for work in works]
    while again(len(runs[0])):
        order = list(zip(works, runs, strict=True))
        for work, results in reversed(order) if len(runs[0]) % 2 else order:
            results.append(work())
    return runs
