"""The CPU as a device: mapped blobs bound to slots, and sessions of kinds that open their own files."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from coe.core import NOTHING, Expert, Finding
from coe.costs import Cost
from coe.errors import CoeError
from coe.kinds import FileKind, Kind, ModuleKind, Prepared, Session
from coe.runtime.activations import give_memory_back, peak_bytes, peak_growth_bytes
from coe.runtime.aside import aside
from coe.runtime.blob import Blob
from coe.runtime.slot import SlotShelf
from coe.store import Store

_MEASURE_S = 0.6
"""How long a batch size is measured, in seconds, after it has run once."""


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
        return aside(lambda: self._measure(expert))

    def _measure(self, expert: Expert) -> Cost:
        kind, size = self.kinds[expert.kind], expert.input_size
        weights_bytes = self.store.manifest(expert.weights).bytes
        torch.set_num_threads(self.threads)
        run: Callable[[int], Any]
        counted = 4 * 3 * size * size
        if isinstance(kind, FileKind):
            before, began = _private_bytes(), time.perf_counter()
            session = kind.open(self.store.path(expert.weights), expert, self.threads)
            load_s = time.perf_counter() - began
            weights_bytes = max(weights_bytes, _private_bytes() - before)
            run = lambda n: session.run(np.zeros((n, 3, size, size), np.uint8))  # noqa: E731
        else:
            slot = self._slots.build(expert)
            run = lambda n: slot.run(None, torch.zeros((n, 3, size, size), dtype=torch.uint8))  # noqa: E731
            counted = max(counted, peak_bytes(lambda: run(1)))
            load_s = self._read_s(expert)
        single_s = _median_s(run, 1)
        sizes = sorted({1, min(kind.max_batch, max(2, min(16, int(_MEASURE_S / single_s))))})
        latencies = {n: single_s if n == 1 else _median_s(run, n) for n in sizes}
        grown = {n: peak_growth_bytes(lambda n=n: run(n)) or n * counted for n in sizes}  # type: ignore[misc]
        if not isinstance(kind, FileKind):
            slot.unbind()
        give_memory_back()
        per_image_s, base_s = _line(latencies)
        more_bytes = (grown[sizes[-1]] - grown[1]) // max(1, sizes[-1] - 1)
        image_bytes = max(counted, more_bytes)
        return Cost(
            per_image_s=per_image_s,
            base_s=base_s,
            load_s=load_s,
            weights_bytes=math.ceil(weights_bytes / 4096) * 4096,
            activation_bytes=image_bytes,
            max_batch=min(kind.max_batch, _plateau(per_image_s, base_s)),
            workspace_bytes=max(0, *(grown[n] - n * image_bytes for n in sizes)),
        )

    def _read_s(self, expert: Expert) -> float:
        """Time a load of the expert; a damaged one tells nothing, it is reported when its turn comes."""
        began = time.perf_counter()
        with contextlib.suppress(CoeError):
            Blob(self.store.path(expert.weights))
        return time.perf_counter() - began

    def _is_proved(self, path: Path) -> bool:
        return self._proved.get(path) == _identity(path)

    def _note_proved(self, path: Path) -> None:
        self._proved[path] = _identity(path)

    def _prove(self, path: Path, expert: Expert) -> None:
        if not self._is_proved(path):
            self.store.check(expert.weights)
            self._note_proved(path)


def _identity(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _private_bytes() -> int:
    return int(psutil.Process().memory_full_info().uss)


def _median_s(run: Callable[[int], Any], images: int) -> float:
    run(images)
    times: list[float] = []
    while not times or (sum(times) < _MEASURE_S and len(times) < 9):
        began = time.perf_counter()
        run(images)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _line(latencies: Mapping[int, float]) -> tuple[float, float]:
    """Fit the paper's K and B by least squares; neither is let below what makes sense."""
    if len(latencies) == 1:
        return latencies[1], 0.0
    slope, intercept = np.polyfit(list(latencies), list(latencies.values()), 1)
    per_image_s = max(float(slope), 0.1 * latencies[1])
    return per_image_s, max(0.0, float(intercept)) if slope > per_image_s / 2 else 0.0


def _plateau(per_image_s: float, base_s: float) -> int:
    """Return the batch size from which a larger one lowers the average latency by less than 5 %."""
    size = 1
    while size < 64 and (base_s / size) / 2 > 0.05 * (per_image_s + base_s / size):
        size *= 2
    return max(4, size)


def _sane(finding: Finding, expert: Expert) -> None:
    if finding.label != NOTHING and finding.label not in expert.labels:
        raise CoeError(f"it said '{finding.label}', which is not one of its labels ({', '.join(expert.labels)})")
    if not math.isfinite(finding.score):
        raise CoeError("its scores are not numbers; the weights are damaged or were trained to nonsense")
