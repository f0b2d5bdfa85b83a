"""Measured runs of the real engine, on real weights files: what `coe-bench run` reports."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from coe.board import rules
from coe.board.rules import Rules
from coe.core import FULL
from coe.inspector.inspector import Picture
from coe.inspector.line import Line
from coe.inspector.line_config import Inbox, LineConfig
from coe.inspector.line_costs import LineCosts
from coe.results.metrics import Metrics
from coe.runtime.engine import Trace
from coe.runtime.fresh_thread import on_fresh_thread
from coe.scheduler.plan import Plan
from coe.scheduler.strategies import ANY_TIME, Times
from coe.store import kinds
from coe.store.kinds import ModuleKind
from coe.store.store import Store
from coe.system import forget_peak, give_memory_back, peak_since_forgotten
from coe.trials.rows import Heading, Latencies, MachineFigures, Row, row

_READ_REPEATS = 3
_SAMPLE_S = 0.005


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run: its row, and all that is needed to repeat or predict it.

    `trace` holds every event and its commands; `coe.trials.recorded.recorded` reads the arrivals and findings from it.
    """

    row: Row
    strategy: str
    metrics: Metrics
    board: Rules
    costs: LineCosts
    plan: Plan
    trace: Trace


def all_at_once(pictures: Sequence[Picture]) -> Inbox:
    """Return an inbox with room for all pictures of a run, in addition to the memory of the line."""
    return Inbox(max(1, len(pictures)), limit_bytes=1 << 62)


def measured_run(
    line_config: LineConfig,
    pictures: Sequence[Picture],
    *,
    heading: Heading,
    images_per_s: float | None = None,
    times: Times = ANY_TIME,
    settling: int = 0,
    tick: Callable[[], None] = lambda: None,
) -> MeasuredRun:
    """Run pictures through a new line and measure it, from the moment when its pools are filled.

    Pictures come as fast as the line's inbox has room (see `all_at_once`), or at the rate `images_per_s`, whatever the
    line does. Give `costs` in `line_config` to compare runs on one cost table: those of an earlier run with as many
    executors of the same devices in the same precision. Without `costs` they are measured. `times` are the due times of
    the images, as far as the strategy heeds them. `tick` is called for each reply, on a thread of the line. The row has
    `heading`, with the precision added, and latencies without those of the first `settling` images.
    All weights files are read once before, so that switches and plain reads find the page cache in the same state. If
    the line's disk has a bandwidth, it bounds plain reads, too.
    """
    board, store, strategy = line_config.only_board, line_config.store, line_config.strategy
    precision, disk_bytes_per_s = line_config.precision, line_config.disk_bytes_per_s
    heeded = times.heeded_by(strategy)
    paths = _files(board, store)
    _plain_read_s_per_byte(paths, repeats=1)
    _load_libraries(board, line_config.allowed_kinds)
    # Memory that an earlier run left in the heap would count for this run.
    gc.collect()
    give_memory_back()
    process = psutil.Process()
    before = process.memory_info().rss
    _forget_device_peak()
    latencies = Latencies(settling)
    watched = replace(line_config, max_wait_s=heeded.max_wait_s, watchers=[latencies], keep_trace=True)
    with Line(watched) as line:
        sampler = _PeakRss(process)
        line.ready()
        cpu_s = time.process_time()
        _submit(line, [replace(picture, within_s=heeded.within_s) for picture in pictures], images_per_s, tick)
        line.drain()
        cpu_s = time.process_time() - cpu_s
        peak = sampler.stop()
        metrics = line.metrics()
    read_s_per_byte = max(_plain_read_s_per_byte(paths, repeats=_READ_REPEATS), 1 / (disk_bytes_per_s or float("inf")))
    switch_s = metrics.switch_s / metrics.switches if metrics.switches else 0.0
    read_s = read_s_per_byte * metrics.switch_bytes / metrics.switches if metrics.switches else 0.0
    figures = MachineFigures(
        switch_ms=1e3 * switch_s,
        read_ms=1e3 * read_s,
        switch_ratio=switch_s / read_s if read_s else 0.0,
        control_share=metrics.control_s / metrics.wall_s if metrics.wall_s else 0.0,
        peak_reserved_bytes=metrics.peak_reserved_bytes,
        budget_bytes=line.budget_bytes,
        peak_rss_bytes=peak,
        rss_growth_bytes=max(0, peak - before),
        peak_device_bytes=_peak_device_bytes(),
        cpu_ms_per_image=1e3 * cpu_s / max(1, metrics.images),
    )
    devices = Counter(executor.device for executor in line.plan.executors)
    device = ",".join(f"{name}={count}" for name, count in devices.items())
    words = [heading.strategy, *([precision] if precision != FULL else [])]
    heading = replace(heading, strategy=" ".join(words))
    return MeasuredRun(
        row=row(heading, device, metrics, latencies, within_s=times.within_s, machine=figures),
        strategy=strategy.name,
        metrics=metrics,
        board=line.rules,
        costs=line.costs,
        plan=line.plan,
        trace=line.trace,
    )


def _submit(line: Line, pictures: Sequence[Picture], images_per_s: float | None, tick: Callable[[], None]) -> None:
    began = time.perf_counter()
    for index, picture in enumerate(pictures):
        if images_per_s is not None:
            # By the clock, not by pauses: a picture that is late once does not make all that follow late.
            time.sleep(max(0.0, began + index / images_per_s - time.perf_counter()))
        future = line.submit(
            picture.image,
            picture.component,
            serial=picture.serial,
            refdes=picture.refdes,
            name=picture.name,
            order=picture.order,
            within_s=picture.within_s,
            reference=picture.reference,
        )
        future.add_done_callback(lambda _: tick())


def _load_libraries(board: Path | str, allowed: Sequence[str]) -> None:
    """Import all that the kinds import: its memory would count for the first run (torchvision: 130 MB)."""
    first = {expert.kind: expert for expert in rules.load(board).experts.values()}
    for kind, expert in first.items():
        resolved = kinds.resolve(kind, allowed)
        if isinstance(resolved, ModuleKind):
            on_fresh_thread(lambda module_kind=resolved, expert=expert: module_kind.skeleton(expert))  # type: ignore[misc]


def _files(board: Path | str, store: Store) -> list[Path]:
    """Return the weights files of a board; a file that many experts share comes once."""
    paths = {store.path(expert.weights) for expert in rules.load(board).experts.values()}
    return list({path.stat().st_ino: path for path in sorted(paths)}.values())


def _plain_read_s_per_byte(paths: Sequence[Path], *, repeats: int) -> float:
    """Return the median seconds a byte of reading files into one buffer, the plainest way to bring bytes to memory."""
    buffer = bytearray(max(path.stat().st_size for path in paths))
    costs = []
    for _ in range(repeats):
        for path in paths:
            with path.open("rb", buffering=0) as file:
                began = time.perf_counter()
                size = file.readinto(buffer)
                costs.append((time.perf_counter() - began) / max(1, size or 0))
    return statistics.median(costs)


def _forget_device_peak() -> None:
    import torch

    # Not `is_available`: it would begin to use a GPU that the run does not use.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # The peak of this run could not be less than the memory that the allocator kept from an earlier run.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _peak_device_bytes() -> int | None:
    import torch

    # None, too, if the machine has a GPU that the run did not use.
    return int(torch.cuda.max_memory_reserved()) if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]


class _PeakRss:
    """The peak resident set of this process until `stop`: from the system if it keeps the peak, else by sampling."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._peak = process.memory_info().rss
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        # Where the system keeps the peak, no thread of ours has to run next to the line.
        if not forget_peak():
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def stop(self) -> int:
        """Return the peak in bytes."""
        if self._thread is None:
            return peak_since_forgotten()
        self._ended.set()
        self._thread.join()
        return self._peak
