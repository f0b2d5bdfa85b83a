"""How many images a core inspects with an expert that stays in memory, in each precision, through a whole line.

All lines of a kind are open at the same time and take turns, so that a slow moment of the machine hits all of them, and
the bare loop of onnxruntime with them: the same model, opened with the library's defaults, and nothing around it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from coe.board import rules
from coe.core import Expert
from coe.inspector.experiment import Experiment
from coe.inspector.inspector import Inspector, Picture
from coe.lab.switch import library_session, whole_model
from coe.lab.workloads.synthetic import prepare, synthetic_board, synthetic_pictures
from coe.runtime.reading import weights
from coe.store.blob_format import Variant
from coe.store.store import Store

VARIANTS: tuple[Variant, ...] = ("fp32", "int8")


@dataclass(frozen=True, slots=True)
class ResidentTimes:
    """What an image took in one precision, in milliseconds of one core.

    `line_ms` is processor time of the whole process, `device_ms` that of the executor alone, `wall_ms` the time that
    passed. `bare_ms` is processor time of the library's own loop with batches as large as those of the line, for int8.
    `again` is the share of findings that were looked at twice. `images_over_fp32` is images a second of
    processor time, over those in fp32.
    """

    kind: str
    input_size: int
    precision: str
    variants: tuple[str, ...]
    batch: float
    line_ms: float
    device_ms: float
    wall_ms: float
    bare_ms: float | None
    again: float
    images_over_fp32: float = 1.0


def resident(
    work: Path,
    kind: str,
    input_size: int,
    precisions: Sequence[str],
    *,
    images: int,
    rounds: int,
    say: Callable[[str], None],
) -> list[ResidentTimes]:
    """Measure a kind on an expert of random weights in `work`; each round runs `images` images in each precision.

    Raises ConfigError for a kind without a skeleton, or if a variant cannot be prepared.
    """
    board, store = synthetic_board(work, kind=kind, experts=1, input_size=input_size, seed=0)
    prepare(board, store, VARIANTS, say)
    (expert,) = rules.load(board).experts.values()
    pictures = synthetic_pictures(board, images, 0)
    with ExitStack() as opened:
        lines = []
        for name in precisions:
            inspector = Inspector(
                board, store=store, precision=name, executors="cpu=1", threads=1, experiment=Experiment(label_floor=0.0)
            )
            opened.enter_context(inspector).ready()
            lines.append(_Measured(name, inspector))
        say(f"{kind} at {input_size} px: warming up")
        for line in lines:
            line.run(pictures, counts=False)
        bare = _Bare(store, expert) if any(line.runs_int8() for line in lines) else None
        for number in range(rounds):
            say(f"{kind} at {input_size} px: round {number + 1} of {rounds}")
            for line in lines:
                line.run(pictures, counts=True)
                if bare is not None and line.runs_int8():
                    bare.run(max(1, round(line.batch())), images)
        rows = [line.row(kind, input_size, bare if line.runs_int8() else None) for line in lines]
    exact = next((row for row in rows if row.precision == "fp32"), None)
    return [replace(row, images_over_fp32=exact.line_ms / row.line_ms if exact else 1.0) for row in rows]


@dataclass(slots=True)
class _Measured:
    """A line, and what its images took so far, in seconds."""

    precision: str
    inspector: Inspector
    variants: set[str] = field(default_factory=set)
    images: int = 0
    batches: int = 0
    again: int = 0
    cpu_s: float = 0.0
    device_s: float = 0.0
    wall_s: float = 0.0

    def run(self, pictures: Sequence[Picture], *, counts: bool) -> None:
        batches, device_s = self.inspector.metrics().batches, _executors_s()
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        results = list(self.inspector.stream(pictures))
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        findings = [finding for result in results for finding in result.findings]
        self.variants |= {finding.variant for finding in findings}
        if not counts:
            return
        self.images += len(results)
        self.batches += self.inspector.metrics().batches - batches
        self.again += len(findings) - len(results)
        self.device_s += _executors_s() - device_s
        self.cpu_s += cpu_s
        self.wall_s += wall_s

    def runs_int8(self) -> bool:
        """Tell whether the line runs its expert in int8."""
        return "int8" in self.variants

    def batch(self) -> float:
        """Return the mean size of a batch."""
        return self.images / max(1, self.batches)

    def row(self, kind: str, input_size: int, bare: _Bare | None) -> ResidentTimes:
        return ResidentTimes(
            kind=kind,
            input_size=input_size,
            precision=self.precision,
            variants=tuple(sorted(self.variants)),
            batch=self.batch(),
            line_ms=1e3 * self.cpu_s / self.images,
            device_ms=1e3 * self.device_s / self.images,
            wall_ms=1e3 * self.wall_s / self.images,
            bare_ms=1e3 * bare.cpu_s / bare.images if bare else None,
            again=self.again / self.images,
        )


class _Bare:
    """The model of an expert in int8 as the library runs it by itself, on one thread."""

    def __init__(self, store: Store, expert: Expert) -> None:
        self._session = library_session(whole_model(weights(store, replace(expert, variant="int8"))), 1)
        self._size = expert.input_size
        self.images, self.cpu_s = 0, 0.0

    def run(self, batch: int, images: int) -> None:
        """Run about so many images, in batches, behind one that warms up."""
        pixels = np.random.default_rng(0).integers(0, 256, (batch, 3, self._size, self._size), np.uint8)
        self._session.run(None, {"images": pixels})
        began = time.thread_time()
        for _ in range(max(1, images // batch)):
            self._session.run(None, {"images": pixels})
        self.cpu_s += time.thread_time() - began
        self.images += batch * max(1, images // batch)


def _executors_s() -> float:
    """Return the processor time of all executors of this process; lines that wait add nothing to it."""
    return sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
        for thread in threading.enumerate()
        if thread.name.startswith("coe-executor-") and thread.ident is not None
    )
