"""Profiles a machine for a board: measures kinds, chooses a configuration, confirms it, and writes a profile.

Each figure is saved as soon as it is measured, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from coe.config import format_bytes
from coe.errors import ConfigError, DeviceFull, DeviceLost
from coe.inspector.profile import Chosen, Profile
from coe.profiler.backends import CannotMeasure
from coe.profiler.confirm import confirm
from coe.profiler.site import ProfiledSite
from coe.profiler.steps import ProgressSteps
from coe.profiler.survey import measure_kind, measure_together
from coe.profiler.target import Target
from coe.profiler.tune import Search
from coe.profiler.unfinished import Draft
from coe.runtime.cuda import torch_driver
from coe.store.kinds import FileKind
from coe.system import usable_cores

MOST_ON_GPU = 4
"""The most executors of a GPU that are tried: each takes memory for its active weights and its graphs."""
SAMPLE_REQUESTS = 600
"""How many images a simulated sample run has."""
_CONFIRM_S = 2.0
"""A run that confirms takes at least about this long: a fast board needs more images, as a short run tells nothing."""
_AROUND_S = 4.0
"""About how long a kind takes in addition to its batches: weights, loads, memory."""
_CROWDED = 0.5
"""A GPU with a smaller share of its memory free gets a warning."""
_CHOOSING, _CONFIRMING = "choosing executors and memory", "confirming the choice on the machine"
_CHOOSING_S = 5.0
_CONFIRMING_S = 30.0


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds for a kind in one way, whether other ways are measured, and the number of images to confirm with."""

    kind_s: float
    other_ways: bool
    confirm_images: int


THOROUGH = Effort(kind_s=40.0, other_ways=True, confirm_images=200)
QUICK = Effort(kind_s=6.0, other_ways=False, confirm_images=120)


def profile_machine(
    site: ProfiledSite,
    *,
    place: Path,
    effort: Effort,
    steps: ProgressSteps,
    faithful: int | None = None,
    on_machine: bool = False,
) -> Profile:
    """Profile the machine for the board of a site; return the profile, which is written whole to `place` at the end.

    `faithful` is the seed of the paper's random choice. Sample runs are simulated, or run `on_machine` with
    `effort.confirm_images` images each. A board whose weights are not in the store is measured with random weights,
    and its configuration is not confirmed. Raises ConfigError, naming the least memory, if one expert with one image
    does not fit.
    """
    draft, cores = Draft(place, steps.say), usable_cores()
    counts = [number for number in range(1, cores + 1) if cores % number == 0 or number == cores]
    threads = sorted({cores // number for number in counts}, reverse=True)
    site = _measured(site, draft, steps, effort, threads)
    steps.begin(_CHOOSING)
    search = Search(
        site,
        draft.profile,
        cores,
        threads,
        SAMPLE_REQUESTS,
        _on_machine(site, draft.profile, effort.confirm_images) if on_machine else None,
        None if faithful is None else Random(faithful),
    )
    most = {**({"cuda": len(draft.scaling("cuda", 1))} if site.gpu else {}), "cpu": cores}
    choices = search.choose(most)
    if not any("cuda" in choice.chosen.executors for choice in choices):
        site = site.without_gpu()
    steps.begin(_CONFIRMING)
    images = min(2000, max(effort.confirm_images, int(_CONFIRM_S * choices[0].chosen.images_per_s)))
    return draft.finish(confirm(site, draft.profile, choices, images=images, say=steps.say, tick=steps.part))


def _measured(
    site: ProfiledSite, draft: Draft, steps: ProgressSteps, effort: Effort, threads: Sequence[int]
) -> ProfiledSite:
    """Measure the kinds of a site on the CPU and the GPU; return the site, with its GPU if the GPU is of use.

    `threads` falls from all cores, for a single executor, to one thread for each of many executors.
    """
    cores = threads[0]
    targets = [Target("cpu", number) for number in threads]
    gpu = [Target("cuda", 1)] if _has_gpu(site, steps.say) else []
    others = [Target("cpu", cores, "torch", "bf16"), Target("cpu", cores, "onnxruntime")] if effort.other_ways else []
    engine_s, other_s = effort.kind_s + _AROUND_S, effort.kind_s / 2 + _AROUND_S
    steps.expect(
        [
            *((target.step(kind), engine_s) for target in targets for kind in site.samples),
            *((target.step(kind), other_s) for target in gpu for kind in site.samples),
            *((target.step(kind), other_s) for kind in site.samples for target in others),
            (_CHOOSING, _CHOOSING_S),
            (_CONFIRMING, _CONFIRMING_S),
        ]
    )
    likeliest = site.board.experts[site.board.graph.by_probability[0]].kind
    for target in targets:
        for kind in site.samples:
            measure_kind(site, draft, steps, kind, target, effort.kind_s)
        measure_together(site, draft, likeliest, target, cores // target.threads)
    for target in gpu:
        site = _with_gpu(site, draft, steps, likeliest, target, effort.kind_s / 2)
    for kind in site.samples:
        for target in others:
            try:
                measure_kind(site, draft, steps, kind, target, effort.kind_s / 2)
            except CannotMeasure as error:
                steps.say(str(error))
    return site


def _with_gpu(
    site: ProfiledSite, draft: Draft, steps: ProgressSteps, likeliest: str, target: Target, limit_s: float
) -> ProfiledSite:
    """Measure the kinds on a GPU; return the site with the GPU, or without it where the board does not fit."""
    try:
        for kind in site.samples:
            measure_kind(site, draft, steps, kind, target, limit_s)
        gpu = site.look(target.device, 1)
        measure_together(site, draft, likeliest, target, min(usable_cores(), MOST_ON_GPU))
    except (ConfigError, DeviceFull, DeviceLost) as error:
        steps.say(f"{error}; the GPU is left out")
        return site
    return replace(site, gpu=gpu)


def _has_gpu(site: ProfiledSite, say: Callable[[str], None]) -> bool:
    """Tell whether there is a GPU to profile; raises ConfigError if its memory was given and there is no GPU."""
    if not torch_driver.is_there():
        if (site.device_bytes, site.host_bytes) != (None, None):
            raise ConfigError(
                "torch finds no GPU to use, so --device-memory and --host-memory have no effect; leave them out"
            )
        return False
    files = sorted(name for name, kind in site.kinds.items() if isinstance(kind, FileKind))
    if files:
        say(f"experts of kind '{files[0]}' run on the CPU alone; the GPU is left out")
        return False
    if missing := site.without_weights:
        say(f"{len(missing)} experts have no weights, so their memory on the GPU is not known; the GPU is left out")
        return False
    usage = torch_driver.driver().usage()
    if usage.free < _CROWDED * usage.total:
        say(
            f"warning: only {format_bytes(usage.free)} of the GPU's {format_bytes(usage.total)} are free, and "
            "this run uses only these; if a program holds the rest for now, end it and run coe-profile again"
        )
    return True


def _on_machine(site: ProfiledSite, profile: Profile, images: int) -> Callable[[Chosen], float]:
    """Return a function that runs sample images with a configuration and returns images a second."""
    if missing := site.without_weights:
        raise ConfigError(
            f"nothing can run on the machine: {len(missing)} of {len(site.board.experts)} experts have no weights; "
            "train or import them, or leave --on-machine out"
        )
    return lambda chosen: site.run(profile, chosen, images).metrics.images_per_s
