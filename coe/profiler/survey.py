"""Measures the kinds of a site that a draft does not know yet; one expert stands for its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from coe.errors import ConfigError, DeviceFull
from coe.profiler.measure import MeasuredExpert, measure, with_weights
from coe.profiler.several_executors import together
from coe.profiler.site import ProfiledSite
from coe.profiler.steps import ProgressSteps
from coe.profiler.target import Target
from coe.profiler.unfinished import Draft
from coe.runtime.processor import on_fresh_thread


def measure_kind(
    site: ProfiledSite, draft: Draft, steps: ProgressSteps, kind: str, target: Target, limit_s: float
) -> None:
    """Take the next step: measure a kind; raises CannotMeasure, ConfigError."""
    steps.begin(target.step(kind))
    if draft.knows(kind, target):
        return
    measured = measure(
        MeasuredExpert(site.samples[kind], site.kinds[kind], site.store, target, site.device_bytes),
        images=[Path(picture.image) for picture in site.pictures if isinstance(picture.image, str | Path)],
        limit_s=limit_s,
        say=steps.say,
        tick=steps.part,
    )
    draft.add_kind(measured)


def measure_together(site: ProfiledSite, draft: Draft, kind: str, target: Target, most: int) -> None:
    """Measure the joint speed of 1, 2, ... executors, up to `most`, with a kind that was measured.

    Known speeds are not measured again. More executors than fitted before are tried: there may be more memory now.
    """
    speeds = list(draft.scaling(target.device, target.threads)) or [1.0]
    if len(speeds) < most:
        speeds += _faster(site, draft, kind, target, range(len(speeds) + 1, most + 1))
    draft.add_scaling(target.device, target.threads, tuple(speeds))


def _faster(site: ProfiledSite, draft: Draft, kind: str, target: Target, numbers: Iterable[int]) -> Iterator[float]:
    """Yield the joint speed for each number of executors, until a number does not fit."""
    measured = draft.profile.kind(kind, target.device, target.threads)
    images = {} if target.device == "cpu" or measured is None else {"images": measured.max_batch}
    expert, resolved = site.samples[kind], site.kinds[kind]
    with TemporaryDirectory(prefix="coe-profile-") as folder:
        store = on_fresh_thread(lambda: with_weights(expert, resolved, site.store, Path(folder), lambda sentence: None))
        for number in numbers:
            try:
                yield together(expert, resolved, store, number, target, device_bytes=site.device_bytes, **images)
            except (ConfigError, DeviceFull):
                return
