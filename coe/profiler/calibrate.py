"""Calibrates a machine for a board: measure kinds, choose a configuration, confirm it, and put all into a profile.

What was measured is kept as soon as it is known, so an interrupted calibration goes on where it was.

A little longer than other files: its steps are one story, told in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from coe import config, fingerprint, kinds, profile
from coe.core import Expert
from coe.errors import CoeError, ConfigError
from coe.inspector import Picture
from coe.plan import memory_scores
from coe.profile import BoardProfile, KindProfile, Profile
from coe.profiler.backends import CannotMeasure
from coe.profiler.confirm import Ground, confirm, without_weights
from coe.profiler.measure import measure, with_weights
from coe.profiler.together import together
from coe.profiler.tune import Tuner
from coe.profiler.usage import usage
from coe.rules import Rules
from coe.runtime.cuda import torch_driver
from coe.sim.workload import synthetic
from coe.store import Store

SAMPLE_REQUESTS = 600
"""How many images a simulated sample run has."""
_CONFIRM_S = 2.0
"""So many seconds of images are confirmed with: on a fast board more of them, as short runs tell nothing."""
_AROUND_S = 4.0
"""What a kind takes about beside its batches: weights, loads, memory."""
_CHOOSING_S = 5.0
_CONFIRMING_S = 30.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How long things may take: a kind in one way, whether other ways are measured, and images to confirm with."""

    kind_s: float
    other_ways: bool
    confirm_images: int


THOROUGH = Effort(kind_s=40.0, other_ways=True, confirm_images=200)
QUICK = Effort(kind_s=6.0, other_ways=False, confirm_images=120)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a calibration tells what it does: sentences, and the step that it is in with how much of all is done."""

    say: Callable[[str], None]
    step: Callable[[str, float, float], None]


class _Steps:
    """Steps whose lengths are known roughly, in seconds; what is done of one adds to those before it."""

    def __init__(self, step: Callable[[str, float, float], None], lengths_s: Sequence[tuple[str, float]]) -> None:
        self._step, self._total_s, self._before_s = step, sum(length for _, length in lengths_s), 0.0
        self._coming = iter(lengths_s)
        self._what, self._length_s = "", 0.0

    def begin(self) -> None:
        """Go on to the next step."""
        self._before_s += self._length_s
        self._what, self._length_s = next(self._coming)
        self.part(0.0)

    def part(self, done: float) -> None:
        """Note how much of this step is done, 0 to 1."""
        self._step(self._what, self._before_s + min(1.0, done) * self._length_s, self._total_s)


def calibrate(
    board: Rules,
    store: Store,
    *,
    memory_bytes: int,
    pictures: Sequence[Picture],
    place: Path,
    effort: Effort,
    progress: Progress,
    faithful: int | None = None,
    on_machine: bool = False,
) -> Profile:
    """Return the profile at `place` with this board calibrated; it is written there, whole, at the end.

    `pictures` are sample images, generated ones if there are none. `faithful` is the seed of the paper's random choice.
    Sample runs are simulated, or take place `on_machine`, each with `effort.confirm_images` images.
    A board whose weights are not in the store is measured with random ones, and its choice is not confirmed. Raises
    ConfigError, naming the least memory, if one expert with one image does not fit.
    """
    known = _known(place, progress.say)
    cores = os.cpu_count() or 1
    samples = _samples(board)
    counts = [number for number in range(1, cores + 1) if cores % number == 0 or number == cores]
    threads_of = sorted({cores // number for number in counts}, reverse=True)
    others = [("torch", "bf16"), ("onnxruntime", "fp32")] if effort.other_ways else []
    on_gpu = list(samples.values()) if torch_driver.is_there() else []
    one_s, other_s = effort.kind_s + _AROUND_S, effort.kind_s / 2 + _AROUND_S
    steps = _Steps(
        progress.step,
        [
            *((f"{kind}, {threads} thread(s)", one_s) for threads in threads_of for kind in samples),
            *((f"{sample.kind} on the GPU", other_s) for sample in on_gpu),
            *((f"{kind}, {backend} {precision}", other_s) for kind in samples for backend, precision in others),
            ("choosing executors and memory", _CHOOSING_S),
            ("confirming the choice on the machine", _CONFIRMING_S),
        ],
    )
    paths = [Path(picture.image) for picture in pictures if isinstance(picture.image, str | Path)]
    for threads in threads_of:
        for sample in samples.values():
            steps.begin()
            if known.kind(sample.kind, "cpu", threads) is None:
                found = _measure(sample, store, threads, effort.kind_s, paths, progress.say, steps.part)
                known = _with_kind(known, found, place)
        known = _with_scaling(known, board, store, threads, cores, samples, place)
    for sample in on_gpu:
        steps.begin()
        try:
            if known.kind(sample.kind, "cuda", 1) is None:
                half_s = effort.kind_s / 2
                found = _measure(sample, store, 1, half_s, paths, progress.say, steps.part, device="cuda")
                known = _with_kind(known, found, place)
        except ConfigError as error:
            progress.say(str(error))
    for sample in samples.values():
        for backend, precision in others:
            steps.begin()
            try:
                found = _measure(
                    sample, store, cores, effort.kind_s / 2, paths, progress.say, steps.part, backend, precision
                )
                known = _with_kind(known, found, place)
            except CannotMeasure as error:
                progress.say(str(error))
    steps.begin()
    file_bytes = _file_bytes(board, store, known)
    tuner = Tuner(
        board=board,
        file_bytes=file_bytes,
        memory_bytes=memory_bytes,
        cores=cores,
        kinds_at=lambda threads: _kinds_at(known, samples, threads),
        scaling_at=lambda threads: known.scaling.get("cpu", {}).get(threads, ()),
        sample=synthetic(board, task="sample", requests=SAMPLE_REQUESTS, every_s=0.0),
        faithful=None if faithful is None else Random(faithful),
        on_machine=_on_machine(board, store, known, memory_bytes, pictures, effort) if on_machine else None,
    )
    choices = tuner.choose()
    steps.begin()
    confirmed = confirm(
        board,
        store,
        known,
        choices,
        memory_bytes=memory_bytes,
        pictures=pictures,
        images=min(2000, max(effort.confirm_images, int(_CONFIRM_S * choices[0].chosen.images_per_s))),
        say=progress.say,
        tick=steps.part,
    )
    found_board = BoardProfile(
        board=board.board,
        digest=board.digest,
        memory_bytes=memory_bytes,
        strategy=config.STRATEGY,
        usage=usage(board, confirmed.seen, memory_scores(file_bytes)),
        windows=next(c for c in choices if c.chosen.executors == confirmed.chosen.executors).windows,
        executors=choices[0].points,
        chosen=confirmed.chosen,
    )
    done = known.model_copy(update={"made": _now(), "boards": {**known.boards, board.board: found_board}})
    profile.save(done, place)
    _partial(place).unlink(missing_ok=True)
    return done


def _on_machine(
    board: Rules, store: Store, known: Profile, memory_bytes: int, pictures: Sequence[Picture], effort: Effort
) -> Callable[[int, int, int], float]:
    """Return what runs a sample with so many executors, threads of each and bytes of a pool for batches."""
    if missing := without_weights(board, store):
        raise ConfigError(
            f"nothing can run on the machine: {len(missing)} of {len(board.experts)} experts have no weights; "
            "train or import them, or leave --on-machine out"
        )
    ground = Ground(board, store, known, memory_bytes, pictures, effort.confirm_images)

    def images_per_s(number: int, threads: int, workspace: int) -> float:
        return ground.run({"cpu": number}, {"cpu": threads}, {"cpu": workspace}).row.images_per_s

    return images_per_s


def _partial(place: Path) -> Path:
    return place.with_name(f".{place.stem}.partial.json")


def _known(place: Path, say: Callable[[str], None]) -> Profile:
    """Return what is known already of this very machine: an interrupted calibration, or an earlier profile."""
    now = fingerprint.here()
    for path in (_partial(place), place):
        if not path.exists():
            continue
        try:
            found = profile.load(path)
        except ConfigError as error:
            say(f"{error}; it is replaced")
            continue
        if changed := fingerprint.differences(found.machine, now):
            say(f"the profile at {path} is of another machine ({'; '.join(changed)}); it is replaced")
            continue
        if path == _partial(place):
            say("going on with a calibration that was interrupted")
        return found
    return Profile(made=_now(), machine=now)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _samples(board: Rules) -> dict[str, Expert]:
    """Return one expert of each kind, that with the largest input."""
    found: dict[str, Expert] = {}
    for expert in sorted(board.experts.values(), key=lambda expert: -expert.input_size):
        found.setdefault(expert.kind, expert)
    return found


def _measure(
    sample: Expert,
    store: Store,
    threads: int,
    limit_s: float,
    images: Sequence[Path],
    say: Callable[[str], None],
    tick: Callable[[float], None],
    backend: str = "torch",
    precision: str = "fp32",
    device: str = "cpu",
) -> KindProfile:
    return measure(
        sample,
        kinds.resolve(sample.kind),
        store,
        device,
        threads,
        images=images,
        limit_s=limit_s,
        say=say,
        tick=tick,
        backend=backend,  # type: ignore[arg-type]
        precision=precision,  # type: ignore[arg-type]
    )


def _with_kind(known: Profile, found: KindProfile, place: Path) -> Profile:
    """Add a kind, in the place of what was known of it in the same way, and keep it for an interrupted calibration."""

    def way(kind: KindProfile) -> tuple[str, str, int, str, str]:
        return kind.kind, kind.device, kind.threads, kind.backend, kind.precision

    others = tuple(kind for kind in known.kinds if way(kind) != way(found))
    known = known.model_copy(update={"kinds": (*others, found)})
    profile.save(known, _partial(place))
    return known


def _with_scaling(
    known: Profile,
    board: Rules,
    store: Store,
    threads: int,
    cores: int,
    samples: Mapping[str, Expert],
    place: Path,
) -> Profile:
    """Find out how fast several executors of so many threads are together, on the likeliest expert's kind."""
    measured = known.scaling.get("cpu", {})
    if threads in measured:
        return known
    most = cores // threads
    sample = samples[board.experts[board.graph.by_probability[0]].kind]
    with TemporaryDirectory(prefix="coe-profile-") as folder:
        kind = kinds.resolve(sample.kind)
        whole = with_weights(sample, kind, store, Path(folder), lambda sentence: None)
        speeds = tuple(together(sample, kind, whole, number, threads) for number in range(1, most + 1))
    known = known.model_copy(update={"scaling": {**known.scaling, "cpu": {**measured, threads: speeds}}})
    profile.save(known, _partial(place))
    return known


def _kinds_at(known: Profile, samples: Mapping[str, Expert], threads: int) -> dict[str, KindProfile]:
    found = {name: known.kind(name, "cpu", threads) for name in samples}
    return {name: kind for name, kind in found.items() if kind is not None}


def _file_bytes(board: Rules, store: Store, known: Profile) -> dict[str, int]:
    """Return the bytes of each expert's weights; of one that is not in the store those of its kind."""
    found = {}
    for expert in board.experts.values():
        try:
            found[expert.id] = store.manifest(expert.weights).bytes
        except CoeError:
            found[expert.id] = next(kind.weights_bytes for kind in known.kinds if kind.kind == expert.kind)
    return found
