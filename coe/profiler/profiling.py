"""Profiles a machine for a board: measures kinds, chooses a configuration, confirms it, and writes a profile.

Each figure is saved as soon as it is measured, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np

from coe.config import format_bytes
from coe.core import Expert
from coe.errors import ConfigError, DeviceFull, DeviceLost
from coe.helpers.system import usable_cores
from coe.inspector import line_devices, profile
from coe.inspector.profile import BoardProfile, Chosen, Fingerprint, KindProfile, Profile
from coe.profiler import profile_file
from coe.profiler.confirm import confirm
from coe.profiler.measure import MeasuredExpert, Target, measure, with_weights
from coe.profiler.site import ProfiledSite
from coe.profiler.tune import Search
from coe.runtime.cuda import torch_driver
from coe.runtime.device import Device
from coe.runtime.processor import on_fresh_thread
from coe.store.kinds import ExpertInput, FileKind
from coe.store.store import Store

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
    """Seconds for a kind in fp32, and the number of images to confirm with."""

    kind_s: float
    confirm_images: int


THOROUGH = Effort(kind_s=40.0, confirm_images=200)
QUICK = Effort(kind_s=6.0, confirm_images=120)


class ProgressSteps:
    """Steps of roughly known lengths in seconds; the part done of a step adds to the steps before it.

    `say` gets sentences; `step` gets the name of the current step, the seconds done, and the seconds in all.
    """

    def __init__(self, say: Callable[[str], None], step: Callable[[str, float, float], None]) -> None:
        self.say, self._step = say, step
        self._total_s = self._before_s = self._length_s = 0.0
        self._coming: Iterator[tuple[str, float]] = iter(())
        self._what = ""

    def expect(self, lengths_s: Sequence[tuple[str, float]]) -> None:
        """Take the names and seconds of all steps, in their order."""
        self._coming, self._total_s = iter(lengths_s), sum(length for _, length in lengths_s)

    def begin(self, what: str) -> None:
        """Go on to a step; steps before it that did not begin count as done."""
        while self._what != what:
            self._before_s += self._length_s
            self._what, self._length_s = next(self._coming)
        self.part(0.0)

    def part(self, done: float) -> None:
        """Report how much of the current step is done, 0 to 1."""
        self._step(self._what, self._before_s + min(1.0, done) * self._length_s, self._total_s)


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
    # From all cores, for a single executor, to one thread for each of many executors.
    threads = sorted({cores // number for number in range(1, cores + 1) if cores % number == 0}, reverse=True)
    site = _Measuring(site, draft, steps, effort).kinds(threads)
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
    if site.strategy.single:
        most = {next(iter(most)): 1}
    choices = search.choose(most)
    if not any("cuda" in choice.chosen.executors for choice in choices):
        site = replace(site, gpu=None)
    steps.begin(_CONFIRMING)
    images = min(2000, max(effort.confirm_images, int(_CONFIRM_S * choices[0].chosen.images_per_s)))
    return draft.finish(confirm(site, draft.profile, choices, images=images, say=steps.say, tick=steps.part))


@dataclass(frozen=True, slots=True)
class _Measuring:
    """Measures the kinds of a site that a draft does not know yet; one expert stands for its kind."""

    site: ProfiledSite
    draft: Draft
    steps: ProgressSteps
    effort: Effort

    def kinds(self, threads: Sequence[int]) -> ProfiledSite:
        """Measure on the CPU, with each number of threads, and the GPU; return the site, with a GPU that is of use."""
        samples, cores, seconds = self.site.samples, threads[0], self.effort.kind_s
        cpus = [Target("cpu", number) for number in threads]
        gpus = [Target("cuda", 1)] if _has_gpu(self.site, self.steps.say) else []
        variants = [Target("cpu", number, "int8") for number in threads]
        self.steps.expect(
            [
                *((target.step(kind), seconds + _AROUND_S) for target in cpus for kind in samples),
                *((target.step(kind), seconds / 2 + _AROUND_S) for target in gpus for kind in samples),
                *((target.step(kind), seconds / 4 + _AROUND_S) for kind, target in self._prepared(variants)),
                (_CHOOSING, _CHOOSING_S),
                (_CONFIRMING, _CONFIRMING_S),
            ]
        )
        for target in cpus:
            for kind in samples:
                self._kind(kind, target, seconds)
            self.together(target, cores // target.threads)
        site = self._with_gpu(gpus[0]) if gpus else self.site
        for kind, target in self._prepared(variants):
            self._kind(kind, target, seconds / 4)
            self._say_what_pays(kind, target)
        return site

    def _prepared(self, targets: Sequence[Target]) -> list[tuple[str, Target]]:
        """Return the kinds, each with the targets in whose variants its sample is prepared."""
        store, samples = self.site.store, self.site.samples
        there = {kind: sample.weights in store.ids() for kind, sample in samples.items()}
        return [
            (kind, target)
            for kind, sample in samples.items()
            for target in targets
            if there[kind] and target.precision in store.manifest(sample.weights).variants
        ]

    def _say_what_pays(self, kind: str, target: Target) -> None:
        profile = self.draft.profile
        full = profile.kind(kind, target.device, target.threads)
        other = profile.kind(kind, target.device, target.threads, target.precision)
        if full is not None and other is not None:
            ratio = full.line.per_image_s / other.line.per_image_s
            memory = other.weights_bytes / full.weights_bytes
            took = f"{1e3 * other.line.per_image_s:.3g} ms an image"
            self.steps.say(
                f"{target.step(kind)}: {took}, {ratio:.2g} times as fast as fp32, in {memory:.0%} of its memory"
            )

    def _with_gpu(self, target: Target) -> ProfiledSite:
        """Measure the kinds on a GPU; return the site with the GPU, or without it where the board does not fit."""
        try:
            for kind in self.site.samples:
                self._kind(kind, target, self.effort.kind_s / 2)
            gpu = self.site.look(target.device, 1).memory
            self.together(target, min(usable_cores(), MOST_ON_GPU))
        except (ConfigError, DeviceFull, DeviceLost) as error:
            self.steps.say(f"{error}; the GPU is left out")
            return self.site
        return replace(self.site, gpu=gpu)

    def _kind(self, kind: str, target: Target, limit_s: float) -> None:
        """Take the next step: measure a kind; raises ConfigError."""
        self.steps.begin(target.step(kind))
        if not self.draft.knows(kind, target):
            images = [Path(each.image) for each in self.site.pictures if isinstance(each.image, str | Path)]
            subject, steps = self._subject(kind, target), self.steps
            self.draft.add_kind(measure(subject, images=images, limit_s=limit_s, say=steps.say, tick=steps.part))

    def together(self, target: Target, most: int) -> None:
        """Measure the joint speed of up to `most` executors, with the likeliest kind, which was measured."""
        board = self.site.board
        kind = board.experts[board.graph.by_probability[0]].kind
        measured = self.draft.profile.kind(kind, target.device, target.threads)
        images = 2 if target.device == "cpu" or measured is None else measured.max_batch
        known = self.draft.scaling(target.device, target.threads)
        speeds = joint_speeds(self._subject(kind, target), known, most, images=images)
        self.draft.add_scaling(target.device, target.threads, speeds)

    def _subject(self, kind: str, target: Target) -> MeasuredExpert:
        site = self.site
        return MeasuredExpert(site.samples[kind], site.kinds[kind], Store(site.store.root), target, site.device_bytes)


def _has_gpu(site: ProfiledSite, say: Callable[[str], None]) -> bool:
    """Tell whether there is a GPU to profile; raises ConfigError if its memory was given and there is no GPU."""
    if not torch_driver.is_there():
        if (site.device_bytes, site.host_bytes) != (None, None):
            raise ConfigError(
                f"there is no GPU that torch can use here: {torch_driver.why_not_there()}; so --device-memory and "
                "--host-memory have no effect; leave them out"
            )
        say(f"no GPU: {torch_driver.why_not_there()}")
        return False
    files = sorted(name for name, kind in site.kinds.items() if isinstance(kind, FileKind))
    if files:
        say(f"experts of kind '{files[0]}' run only on the CPU; the GPU is left out")
        return False
    if missing := site.without_weights:
        say(f"{len(missing)} experts have no weights, so their memory on the GPU is not known; the GPU is left out")
        return False
    usage = torch_driver.driver().usage()
    if usage.free < _CROWDED * usage.total:
        say(
            f"warning: only {format_bytes(usage.free)} of the GPU's {format_bytes(usage.total)} are free, and "
            "this run uses only that; if another program holds the rest, end it and run coe-profile again"
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


# A profile under way: each figure is saved as soon as it is measured, so an interrupted run can go on


def unfinished(place: Path) -> Path:
    """Return the file beside a profile's place from which an interrupted run is resumed."""
    return place.with_name(f".{place.stem}.partial.json")


class Draft:
    """The profile of this machine so far: from an interrupted run, from an earlier profile, or empty.

    The profile's own file is written only at the end; until then a partial file lies in the same folder.
    """

    def __init__(self, place: Path, say: Callable[[str], None]) -> None:
        self._place = place
        self._partial = unfinished(place)
        self.profile = self._start(say)

    def __repr__(self) -> str:
        return f"<Draft of {self._place}, {len(self.profile.kinds)} kinds>"

    def knows(self, kind: str, target: Target) -> bool:
        """Tell whether a kind was measured on a target."""
        return self.profile.kind(kind, target.device, target.threads, target.precision) is not None

    def add_kind(self, measured: KindProfile) -> None:
        """Add a measured kind; it replaces an earlier measurement on the same target."""
        others = tuple(kind for kind in self.profile.kinds if _key(kind) != _key(measured))
        self._keep(self.profile.model_copy(update={"kinds": (*others, measured)}))

    def scaling(self, device: str, threads: int) -> tuple[float, ...]:
        """Return the joint speed of 1, 2, ... executors, in units of one executor; empty if it was not measured."""
        return self.profile.scaling.get(device, {}).get(threads, ())

    def add_scaling(self, device: str, threads: int, speeds: tuple[float, ...]) -> None:
        """Add the joint speed of 1, 2, ... executors of `threads` threads, in units of one executor."""
        measured = {**self.profile.scaling.get(device, {}), threads: speeds}
        self._keep(self.profile.model_copy(update={"scaling": {**self.profile.scaling, device: measured}}))

    def finish(self, board: BoardProfile) -> Profile:
        """Add a board's part and write the profile, whole or not at all; raises NotWritten."""
        done = self.profile.model_copy(update={"made": _now(), "boards": {**self.profile.boards, board.board: board}})
        profile_file.save(done, self._place)
        self._partial.unlink(missing_ok=True)
        return done

    def _keep(self, changed: Profile) -> None:
        self.profile = changed
        profile_file.save(changed, self._partial)

    def _start(self, say: Callable[[str], None]) -> Profile:
        now = Fingerprint.here()
        for path in (self._partial, self._place):
            if not path.exists():
                continue
            try:
                stored = profile.load(path)
            except ConfigError as error:
                say(f"{error}; a new profile will replace it")
                continue
            if changed := stored.machine.changes(now):
                say(
                    f"the profile at {path} is of another machine ({'; '.join(changed)}); a new profile will replace it"
                )
                continue
            if path == self._partial:
                say("resuming an interrupted run")
            return stored
        return Profile(made=_now(), machine=now)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _key(kind: KindProfile) -> tuple[str | int, ...]:
    return kind.kind, kind.device, kind.threads, kind.backend, kind.precision


# Measures how much faster several executors are than one: they share caches, memory, and perhaps cores


_ROUNDS = 5


def joint_speeds(subject: MeasuredExpert, known: Sequence[float], most: int, *, images: int = 2) -> tuple[float, ...]:
    """Return the joint speed of 1, 2, ... executors, up to `most` or until they do not fit; one executor has speed 1.

    `known` speeds are not measured again. More executors than fitted before are tried: there may be more memory now.
    """
    speeds = [*(known or [1.0])]
    with TemporaryDirectory(prefix="coe-profile-") as folder:
        if len(speeds) < most:
            store = on_fresh_thread(
                lambda: with_weights(subject.expert, subject.kind, subject.store, Path(folder), lambda sentence: None)
            )
            speeds += _until_full(replace(subject, store=store), range(len(speeds) + 1, most + 1), images)
    return tuple(speeds)


def _until_full(subject: MeasuredExpert, numbers: Sequence[int], images: int) -> Iterator[float]:
    for number in numbers:
        try:
            yield joint_speed(subject, number, images=images)
        except (ConfigError, DeviceFull):
            return


def joint_speed(subject: MeasuredExpert, executors: int, *, images: int = 2) -> float:
    """Return the joint speed of executors; all run at once, each batches of `images` images on its copy of the expert.

    Raises StoreError, ConfigError or DeviceFull if they do not fit into the memory of a GPU.
    """
    expert, kind, target = subject.expert, subject.kind, subject.target
    size = expert.input_size
    batch = [ExpertInput(np.zeros((3, size, size), np.uint8), size, size)] * images

    def batch_s(number: int) -> float:
        device = line_devices.make(
            {target.device: number},
            subject.store,
            {expert.kind: kind},
            {target.device: target.threads},
            gpu=line_devices.GpuSettings(subject.device_bytes, 0),
        )[target.device]
        return joint_batch_s(device, expert, batch, number)

    return min(float(executors), executors * batch_s(1) / batch_s(executors))


def joint_batch_s(device: Device, expert: Expert, batch: Sequence[ExpertInput], executors: int) -> float:
    """Return the seconds of a batch while so many executors run, on threads that end."""
    device.prepare([expert], executors)
    names = [f"executor {number}" for number in range(executors)]
    ready = threading.Barrier(executors)

    def run_s(name: str) -> float:
        began = time.perf_counter()
        device.run(name, name, expert, batch)
        return time.perf_counter() - began

    def work(name: str) -> float:
        device.enter(name)
        try:
            run_s(name)
            ready.wait()
            return statistics.median(run_s(name) for _ in range(_ROUNDS))
        except BaseException:
            # The other executors would wait at the barrier for ever.
            ready.abort()
            raise

    for name in names:
        device.load(name, expert)
    try:
        with ThreadPoolExecutor(executors, thread_name_prefix="coe-together") as pool:
            futures = [pool.submit(work, name) for name in names]
        for error in filter(None, (future.exception() for future in futures)):
            # A broken barrier only tells that another executor failed.
            if not isinstance(error, threading.BrokenBarrierError):
                raise error
        return statistics.mean(future.result() for future in futures)
    finally:
        for name in names:
            device.evict(name, expert)
        device.trim()
