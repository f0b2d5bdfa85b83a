"""The CPU as a device: mapped blobs bound to slots, and sessions of kinds that open their own files."""

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
from coe.errors import CoeError
from coe.kinds import FileKind, Image, Kind, ModuleKind, Prepared, Session
from coe.runtime.activations import give_memory_back
from coe.runtime.aside import aside
from coe.runtime.blob import Blob
from coe.runtime.slot import Slot, SlotShelf
from coe.runtime.trial import Trial, opened, quick_cost, warmed
from coe.store import Store


class CpuDevice:
    """Runs experts of any kind on the CPU, `threads` threads to each executor.

    A blob is proved against its checksum when it is first mapped, and again whenever its file has changed.
    """

    def __init__(self, store: Store, kinds: Mapping[str, Kind], threads: int) -> None:
        self.store, self.kinds, self.threads = store, kinds, threads
        self._resident: dict[tuple[str, str], Blob | Session] = {}
        self._slots = SlotShelf(kinds)
        self._proved: dict[Path, tuple[int, int, int]] = {}

    def __repr__(self) -> str:
        return f"<CpuDevice {len(self._resident)} resident, {len(self._slots)} slots, {self.threads} threads each>"

    def enter(self, executor: str) -> None:
        """Bound the threads of the calling thread's operators."""
        torch.set_num_threads(self.threads)

    def prepare(self, experts: Iterable[Expert]) -> None:
        """Build the skeletons that experts need; later it would be done while the pools are full."""
        needed = [expert for expert in experts if isinstance(self.kinds[expert.kind], ModuleKind)]
        aside(lambda: [self._slots.spare(expert) for expert in needed])

    def load(self, pool: str, expert: Expert) -> None:
        """Map an expert's weights, or open its session; raises StoreError."""
        manifest = self.store.manifest(expert.weights)
        path = self.store.path(expert.weights)
        kind = self.kinds[expert.kind]
        if isinstance(kind, FileKind):
            self._prove(path, expert)
            self._resident[pool, expert.id] = kind.open(path, expert, self.threads)
            return
        blob = Blob(path, None if self._is_proved(path) else manifest.checksum)
        blob.expect(self._slots.spare(expert).spec)
        self._note_proved(path)
        self._resident[pool, expert.id] = blob

    def evict(self, pool: str, expert: Expert) -> None:
        """Drop the blob; a slot that still looks at it is pointed elsewhere first."""
        resident = self._resident.pop((pool, expert.id))
        if isinstance(resident, Blob):
            self._slots.unbind(resident)

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[Prepared]) -> list[Finding]:
        """Run a batch and return one finding an image; raises CoeError if the expert's answer makes no sense."""
        kind = self.kinds[expert.kind]
        resident = self._resident[pool, expert.id]
        pixels = np.stack([image.pixels for image in images])
        if isinstance(resident, Blob):
            outputs = self._slots.of(executor, expert).run(resident, torch.from_numpy(pixels))
        else:
            outputs = resident.run(pixels)
        findings = kind.postprocess(outputs, images, expert)
        if len(findings) != len(images):
            raise CoeError(f"kind '{expert.kind}' gave {len(findings)} findings for {len(images)} images")
        for finding in findings:
            _sane(finding, expert)
        return findings

    def measure(self, expert: Expert) -> Cost:
        """Time batches and see what they take, on a skeleton with random weights or on the expert's own session."""

        def work() -> Cost:
            with self.trial(expert) as trial:
                return quick_cost(trial, self.kinds[expert.kind].max_batch)

        return aside(work)

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[Trial]:
        """Give an expert to measure, on the calling thread; raises StoreError if its manifest cannot be read."""
        kind, manifest, path = (
            self.kinds[expert.kind],
            self.store.manifest(expert.weights),
            self.store.path(expert.weights),
        )
        torch.set_num_threads(self.threads)
        if isinstance(kind, FileKind):
            yield opened(partial(kind.open, path, expert, self.threads), expert.input_size, path)
            return
        slot = self._slots.build(expert)
        blobs: list[Blob] = []
        turns = itertools.count()

        def answer(pixels: Image) -> Any:
            # In turn, as experts come in turn: each batch binds weights.
            blobs.extend([] if blobs else _mapped_twice(path, slot))
            return slot.run(blobs[next(turns) % len(blobs)] if blobs else None, torch.from_numpy(pixels))

        def let_go() -> None:
            if blobs:
                slot.unbind()
                blobs.clear()

        try:
            yield warmed(answer, expert.input_size, manifest.bytes, path, partial(_read, path), let_go)
        finally:
            slot.unbind()
            blobs.clear()
            give_memory_back()

    def _is_proved(self, path: Path) -> bool:
        return self._proved.get(path) == _identity(path)

    def _note_proved(self, path: Path) -> None:
        self._proved[path] = _identity(path)

    def _prove(self, path: Path, expert: Expert) -> None:
        if not self._is_proved(path):
            self.store.check(expert.weights)
            self._note_proved(path)


def _mapped_twice(path: Path, slot: Slot) -> list[Blob]:
    """Map weights two times; an empty list for weights that are damaged, which are reported when their turn comes."""
    with contextlib.suppress(CoeError):
        blobs = [Blob(path), Blob(path)]
        for blob in blobs:
            blob.expect(slot.spec)
        return blobs
    return []


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _read(path: Path) -> None:
    # A damaged file tells nothing, it is reported when its turn comes.
    with contextlib.suppress(CoeError):
        Blob(path)


def _sane(finding: Finding, expert: Expert) -> None:
    if finding.label != NOTHING and finding.label not in expert.labels:
        raise CoeError(f"it said '{finding.label}', which is not one of its labels ({', '.join(expert.labels)})")
    if not math.isfinite(finding.score):
        raise CoeError("its scores are not numbers; the weights are damaged or were trained to nonsense")
