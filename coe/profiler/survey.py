"""Measures what a draft does not know yet of the kinds of a site, each by one expert that stands for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from coe.errors import ConfigError, DeviceFull
from coe.profiler.draft import Draft
from coe.profiler.measure import Subject, measure, with_weights
from coe.profiler.site import Site
from coe.profiler.steps import Steps
from coe.profiler.target import Target
from coe.profiler.together import together
from coe.runtime.aside import aside


def measure_kind(site: Site, draft: Draft, steps: Steps, kind: str, target: Target, limit_s: float) -> None:
    """Take the next step: measure a kind; raises CannotMeasure, ConfigError."""
    steps.begin(target.step(kind))
    if draft.knows(kind, target):
        return
    found = measure(
        Subject(site.samples[kind], site.kinds[kind], site.store, target, site.device_bytes),
        images=[Path(picture.image) for picture in site.pictures if isinstance(picture.image, str | Path)],
        limit_s=limit_s,
        say=steps.say,
        tick=steps.part,
    )
    draft.add_kind(found)


def measure_together(site: Site, draft: Draft, kind: str, target: Target, most: int) -> None:
    """Find out how fast 1, 2, ... executors are together, by a kind that was measured.

    What is known is not measured again; more executors than once fitted are tried, since memory may be another now.
    """
    speeds = list(draft.scaling(target.device, target.threads)) or [1.0]
    if len(speeds) < most:
        speeds += _faster(site, draft, kind, target, range(len(speeds) + 1, most + 1))
    draft.add_scaling(target.device, target.threads, tuple(speeds))


def _faster(site: Site, draft: Draft, kind: str, target: Target, numbers: Iterable[int]) -> Iterator[float]:
    """Give the speeds of so many executors together, until they do not fit."""
    known = draft.known.kind(kind, target.device, target.threads)
    images = {} if target.device == "cpu" or known is None else {"images": known.max_batch}
    sample, own = site.samples[kind], site.kinds[kind]
    with TemporaryDirectory(prefix="coe-profile-") as folder:
        whole = aside(lambda: with_weights(sample, own, site.store, Path(folder), lambda sentence: None))
        for number in numbers:
            try:
                yield together(sample, own, whole, number, target, device_bytes=site.device_bytes, **images)
            except (ConfigError, DeviceFull):
                return
