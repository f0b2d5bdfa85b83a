"""The CPU as a device: blobs read into buffers and bound to slots, and sessions of kinds that open their own files."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coe.core import NOTHING, Expert, Finding
from coe.costs import Cost
from coe.errors import CoeError, StoreError
from coe.kinds import FileKind, Image, Kind, Prepared, Session
from coe.runtime.activations import give_memory_back
from coe.runtime.arena import Arena
from coe.runtime.aside import aside
from coe.runtime.blob import PLAIN, Blob
from coe.runtime.buffers import Buffers
from coe.runtime.processor import bound_threads
from coe.runtime.reading import Needs, Weights, weights
from coe.runtime.slot import Slot, SlotShelf
from coe.runtime.trial import Trial, opened, quick_cost, warmed
from coe.store import Store


class CpuDevice:
    """Runs experts of any kind on the CPU, `threads` threads to each executor.

    Weights are proved against their checksums whenever they are read; the file of a session, which its runtime reads,
    when it is first opened and again whenever it has changed.
    """

    memory_bytes: int | None = None
    host_bytes = 0

    def __init__(self, store: Store, kinds: Mapping[str, Kind], threads: int) -> None:
        self.store, self.kinds, self.threads = store, kinds, threads
        self._resident: dict[tuple[str, str], Blob | Session] = {}
        self._buffers = Buffers()
        self._slots = SlotShelf(kinds)
        self._proved: dict[Path, tuple[int, int, int]] = {}

    def __repr__(self) -> str:
        return f"<CpuDevice {len(self._resident)} resident, {len(self._slots)} slots, {self.threads} threads each>"

    def enter(self, executor: str) -> None:
        """Bound the threads of the calling thread's operators."""
        bound_threads(self.threads)

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Build the skeletons that experts need; later it would be done while the pools are full."""
        found = [(expert, needs) for expert in experts if (needs := self._needs(expert))]
        aside(lambda: [self._slots.spare(expert, needs.structure) for expert, needs in found])

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return what so many executors hold beside such experts and their activations.

        Each converts weights of another precision than it runs into a memory of its own, as large as the largest needs.
        """
        found = (self._needs(expert) for expert in experts)
        return executors * max((needs.converted_bytes for needs in found if needs), default=0)

    def load(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Read an expert's weights, or open its session; raises StoreError. There are no copies to keep."""
        kind = self.kinds[expert.kind]
        if isinstance(kind, FileKind):
            path = self.store.path(expert.weights)
            self._prove(path, expert)
            self._buffers.make_room(path.stat().st_size)
            self._resident[pool, expert.id] = kind.open(path, expert, self.threads)
            return
        blob = weights(self.store, expert).read(self._buffers)
        try:
            blob.expect(self._slots.spare(expert, blob.structure).spec)
        except BaseException:
            blob.release()
            raise
        self._resident[pool, expert.id] = blob

    def evict(self, pool: str, expert: Expert, *, keep: bool = False) -> None:
        """Drop the blob; a slot that still looks at it is pointed elsewhere first. There is nowhere to keep it."""
        resident = self._resident.pop((pool, expert.id))
        if isinstance(resident, Blob):
            self._slots.unbind(resident)
            resident.release()

    def forget(self, expert: str) -> None:
        """Do nothing: there are no copies."""

    def trim(self) -> None:
        """Give back the buffers that wait for the next load."""
        self._buffers.make_room(self._buffers.idle_bytes)

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[Prepared]) -> list[Finding]:
        """Run a batch and return one finding an image; raises CoeError if the expert's answer makes no sense."""
        kind = self.kinds[expert.kind]
        resident = self._resident[pool, expert.id]
        pixels = np.stack([image.pixels for image in images])
        if isinstance(resident, Blob):
            outputs = self._slots.of(executor, expert, resident.structure).run(resident, torch.from_numpy(pixels))
        else:
            outputs = resident.run(pixels)
        return findings_of(kind, outputs, images, expert)

    def measure(self, expert: Expert) -> Cost:
        """Time batches and see what they take, on a skeleton with random weights or on the expert's own session."""

        def work() -> Cost:
            with self.trial(expert) as trial:
                return quick_cost(trial, self.kinds[expert.kind].max_batch)

        return aside(work)

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[Trial]:
        """Give an expert to measure, on the calling thread; raises StoreError if its manifest cannot be read."""
        kind = self.kinds[expert.kind]
        bound_threads(self.threads)
        if isinstance(kind, FileKind):
            path = self.store.path(expert.weights)
            yield opened(partial(kind.open, path, expert, self.threads), expert.input_size, path)
            return
        file, buffers = weights(self.store, expert), Buffers()
        needs = self._needs(expert)
        slot = self._slots.build(expert, needs.structure if needs else PLAIN)
        blobs: list[Blob] = []
        turns = itertools.count()

        def answer(pixels: Image) -> Any:
            # In turn, as experts come in turn: each batch binds weights.
            blobs.extend([] if blobs else _read_twice(file, slot, buffers))
            return slot.run(blobs[next(turns) % len(blobs)] if blobs else None, torch.from_numpy(pixels))

        try:
            trial = warmed(answer, expert.input_size, file.bytes, file.path, partial(_read, file, buffers))
            # Once before it is timed: later loads find memory that evicted experts have left.
            trial.load()
            yield trial
        finally:
            slot.unbind()
            slot.arena = Arena()
            for blob in blobs:
                blob.release()
            buffers.make_room(buffers.idle_bytes)
            give_memory_back()

    def _needs(self, expert: Expert) -> Needs | None:
        """Tell what skeleton an expert needs; None if it needs none, or is damaged, which its load will report."""
        if isinstance(self.kinds[expert.kind], FileKind):
            return None
        with contextlib.suppress(StoreError):
            return weights(self.store, expert).needs()
        return None

    def _is_proved(self, path: Path) -> bool:
        return self._proved.get(path) == _identity(path)

    def _note_proved(self, path: Path) -> None:
        self._proved[path] = _identity(path)

    def _prove(self, path: Path, expert: Expert) -> None:
        if not self._is_proved(path):
            self.store.check(expert.weights)
            self._note_proved(path)


def _read_twice(file: Weights, slot: Slot, buffers: Buffers) -> list[Blob]:
    """Read weights two times; an empty list for weights that are damaged, which are reported when their turn comes."""
    with contextlib.suppress(CoeError):
        blobs = [file.read(buffers), file.read(buffers)]
        for blob in blobs:
            blob.expect(slot.spec)
        return blobs
    return []


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read(file: Weights, buffers: Buffers) -> None:
    # A damaged file tells nothing, it is reported when its turn comes.
    with contextlib.suppress(CoeError):
        file.read(buffers).release()


def findings_of(kind: Kind, outputs: Any, images: Sequence[Prepared], expert: Expert) -> list[Finding]:
    """Return what a batch's outputs mean, one finding an image; raises CoeError if that makes no sense."""
    findings = kind.postprocess(outputs, images, expert)
    if len(findings) != len(images):
        raise CoeError(f"kind '{expert.kind}' gave {len(findings)} findings for {len(images)} images")
    for finding in findings:
        _check(finding, expert)
    return findings


def _check(finding: Finding, expert: Expert) -> None:
    if finding.boxes and NOTHING in finding.labels:
        raise CoeError(f"it said '{NOTHING}' and yet gave {len(finding.boxes)} box(es)")
    if strange := sorted(finding.labels.difference(expert.labels, {NOTHING})):
        raise CoeError(f"it said '{strange[0]}', which is not one of its labels ({', '.join(expert.labels)})")
    if not all(math.isfinite(score) for score in (finding.score, *(box.score for box in finding.boxes))):
        raise CoeError("its scores are not numbers; the weights are damaged or were trained to nonsense")
    if not all(math.isfinite(place) for box in finding.boxes for place in box.xyxy):
        raise CoeError("its boxes have no place in numbers; the weights are damaged or were trained to nonsense")
