"""Measured runs of the real engine, on real weights files: what `coe-bench` reports."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from coe import kinds, rules
from coe.core import Expert
from coe.errors import ConfigError
from coe.inspector import Inspector, Picture
from coe.kinds import ModuleKind
from coe.store import Store

_READ_REPEATS = 3
_SAMPLE_S = 0.005


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run. `switch_ratio` compares the mean switch with a plain read of the same bytes in the same run.

    `rss_growth_bytes` is what the process grew by from before the line was opened to its peak while it ran: experts
    and activations, but also skeletons and the images that wait.
    """

    board: str
    strategy: str
    images: int
    errors: int
    images_per_s: float
    switches: int
    hit_ratio: float
    switch_ms: float
    read_ms: float
    switch_ratio: float
    control_share: float
    peak_reserved_bytes: int
    budget_bytes: int
    peak_rss_bytes: int
    rss_growth_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return asdict(self)


def synthetic_board(folder: Path, *, kind: str, experts: int, input_size: int, seed: int) -> tuple[Path, Store]:
    """Make a board of `experts` experts of one kind, each with a file of its own of seeded random weights.

    Counts fall like 1/rank (a long tail). Files that are there already are used again.
    """
    name = f"bench-{kind}-{experts}"
    store = Store(folder / "store")
    labels = ("ok", "bad")
    have = set(store.ids())
    found = kinds.resolve(kind)
    if not isinstance(found, ModuleKind):
        raise ConfigError(f"kind '{kind}' has no skeleton to fill with random weights")
    lines = [f"board: {name}", "experts:"]
    import torch

    for index in range(experts):
        lines.append(f"  e{index}: {{kind: {kind}, labels: [ok, bad], input: {input_size}, reject: [bad]}}")
        weights = f"{name}/e{index}"
        if weights not in have:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + index)
                state = found.skeleton(Expert(f"e{index}", kind, labels, input_size, weights)).state_dict()
            store.put(weights, kind=kind, labels=labels, input_size=input_size, state=state, source=f"seed {seed}")
    lines.append("components:")
    lines += [f"  C{index}: {{count: {experts / (index + 1):.2f}, inspect: e{index}}}" for index in range(experts)]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, store


def synthetic_pictures(board: Path, requests: int, seed: int) -> list[Picture]:
    """Draw `requests` pictures of noise, with components by their counts."""
    components = rules.load(board).components
    chance = random.Random(seed)
    names = chance.choices(list(components), [c.count for c in components.values()], k=requests)
    pixels = np.random.default_rng(seed).integers(0, 255, (240, 240, 3), dtype=np.uint8)
    return [Picture(pixels, name, name=f"{index}") for index, name in enumerate(names)]


def measured_run(
    board: Path | str,
    store: Store,
    pictures: Sequence[Picture],
    *,
    memory_bytes: int,
    executors: str,
    strategy: str,
    tick: Callable[[], None] = lambda: None,
) -> Row:
    """Run pictures through a new line, all at once as fast as it takes them, and measure it.

    All weights files are read once before, so that switches and plain reads find the page cache in the same state.
    """
    paths = sorted({store.path(expert.weights) for expert in rules.load(board).experts.values()})
    _plain_read_s_per_byte(paths, repeats=1)
    process = psutil.Process()
    before = process.memory_info().rss
    with Inspector(board, store=store, memory=memory_bytes, executors=executors, strategy=strategy) as line:
        sampler = _PeakRss(process)
        errors = 0
        for result in line.stream(pictures):
            errors += result.error is not None
            tick()
        peak = sampler.stop()
        seen = line.metrics()
    read_s_per_byte = _plain_read_s_per_byte(paths, repeats=_READ_REPEATS)
    switch_s = seen.switch_s / seen.switches if seen.switches else 0.0
    read_s = read_s_per_byte * seen.switch_bytes / seen.switches if seen.switches else 0.0
    return Row(
        board=line.rules.board,
        strategy=strategy,
        images=seen.images,
        errors=errors,
        images_per_s=seen.images_per_s,
        switches=seen.switches,
        hit_ratio=seen.hit_ratio,
        switch_ms=1e3 * switch_s,
        read_ms=1e3 * read_s,
        switch_ratio=switch_s / read_s if read_s else 0.0,
        control_share=seen.control_s / seen.wall_s if seen.wall_s else 0.0,
        peak_reserved_bytes=seen.peak_reserved_bytes,
        budget_bytes=memory_bytes,
        peak_rss_bytes=peak,
        rss_growth_bytes=max(0, peak - before),
    )


def quarter_budget(board: Path | str, store: Store) -> int:
    """Return a budget whose three quarters (the rest is for activations) hold a quarter of a board's experts."""
    total = sum(store.manifest(expert.weights).bytes for expert in rules.load(board).experts.values())
    return total // 4 * 4 // 3


def _plain_read_s_per_byte(paths: Sequence[Path], *, repeats: int) -> float:
    """Read files into one buffer, over and over; the plainest thing that brings their bytes into memory."""
    buffer = bytearray(max(path.stat().st_size for path in paths))
    costs = []
    for _ in range(repeats):
        for path in paths:
            with path.open("rb", buffering=0) as file:
                began = time.perf_counter()
                size = file.readinto(buffer)
                costs.append((time.perf_counter() - began) / max(1, size or 0))
    return statistics.median(costs)


class _PeakRss:
    """Samples the resident set of this process until it is stopped."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._peak = process.memory_info().rss
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._peak
