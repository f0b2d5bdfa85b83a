"""One run of pictures through a new line on this machine, with the memory and the processor time that it took."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from coe.board import rules
from coe.board.rules import Rules
from coe.core import Result
from coe.helpers.system import forget_peak, give_memory_back, peak_since_forgotten
from coe.inspector.inspector import Picture
from coe.inspector.line import Line
from coe.inspector.line_options import LineOptions
from coe.inspector.precision import LineCosts
from coe.results.metrics import Metrics
from coe.runtime.processor import on_fresh_thread
from coe.scheduler.events import Reply, Trace
from coe.scheduler.plan import Plan
from coe.store import kinds
from coe.store.kinds import ModuleKind
from coe.store.store_reader import StoreReader

_SAMPLE_S = 0.005


@dataclass(frozen=True, slots=True)
class LineRun:
    """A run, and all that is needed to repeat or predict it; `trace` holds every event and its commands.

    `grown_bytes` is the growth of the process from before the line was opened to its peak, `peak_device_bytes` is None
    without a GPU, and `cpu_s` is the processor time of the whole process.
    """

    board: Rules
    costs: LineCosts
    plan: Plan
    metrics: Metrics
    trace: Trace
    budget_bytes: int
    peak_rss_bytes: int
    grown_bytes: int
    peak_device_bytes: int | None
    cpu_s: float

    @property
    def results(self) -> list[Result]:
        """The result of each picture, in the order of the replies."""
        return [command.result for _, _, commands in self.trace for command in commands if isinstance(command, Reply)]


def run_line(
    line_options: LineOptions,
    pictures: Sequence[Picture],
    *,
    images_per_s: float | None = None,
    tick: Callable[[], None] = lambda: None,
) -> LineRun:
    """Run pictures through a new line, from the moment when its pools are filled.

    Pictures come as fast as the line's inbox has room, or at the rate `images_per_s`, whatever the line does. Without
    `costs` in `line_options` they are measured. `tick` is called for each reply, on a thread of the line. All weights
    files are read once before, so that every run finds the page cache in the same state.
    """
    board = rules.load(line_options.only_board)
    for path in weights_files(board, line_options.store):
        path.read_bytes()
    _load_libraries(board, line_options.allow_kinds)
    # Memory that an earlier run left in the heap would count for this run.
    gc.collect()
    give_memory_back()
    process = psutil.Process()
    before = process.memory_info().rss
    forget_device_peak()
    with Line(line_options.but(experiment=replace(line_options.experiment, keep_trace=True))) as line:
        sampler = _PeakRss(process)
        line.ready()
        cpu_s = time.process_time()
        _submit(line, pictures, images_per_s, tick)
        line.drain()
        cpu_s = time.process_time() - cpu_s
        peak = sampler.stop()
        metrics = line.metrics()
    return LineRun(
        board=line.rules,
        costs=line.costs,
        plan=line.plan,
        metrics=metrics,
        trace=line.trace,
        budget_bytes=line.budget_bytes,
        peak_rss_bytes=peak,
        grown_bytes=max(0, peak - before),
        peak_device_bytes=device_peak_bytes(),
        cpu_s=cpu_s,
    )


def weights_files(board: Rules, store: StoreReader) -> list[Path]:
    """Return the weights files of a board; a file that many experts share comes once."""
    paths = {store.path(expert.weights) for expert in board.experts.values()}
    return list({path.stat().st_ino: path for path in sorted(paths)}.values())


def _submit(line: Line, pictures: Sequence[Picture], images_per_s: float | None, tick: Callable[[], None]) -> None:
    began = time.perf_counter()
    for index, picture in enumerate(pictures):
        if images_per_s is not None:
            # By the clock, not by pauses: a picture that is late once does not make all that follow late.
            time.sleep(max(0.0, began + index / images_per_s - time.perf_counter()))
        line.submit_picture(picture).add_done_callback(lambda _: tick())


def _load_libraries(board: Rules, allowed: Sequence[str]) -> None:
    """Import all that the kinds import: its memory would count for the first run."""
    first = {expert.kind: expert for expert in board.experts.values()}
    for kind, expert in first.items():
        resolved = kinds.resolve(kind, allowed)
        if isinstance(resolved, ModuleKind):
            on_fresh_thread(lambda module_kind=resolved, expert=expert: module_kind.skeleton(expert))  # type: ignore[misc]


def forget_device_peak() -> None:
    """Let the peak of the memory that torch takes on a GPU count from now on, if this process uses a GPU."""
    import torch

    # Not `is_available`: it would begin to use a GPU that the run does not use.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # The peak of this run could not be less than the memory that the allocator kept from an earlier run.
        torch.cuda.empty_cache()
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)


def device_peak_bytes() -> int | None:
    """Return the peak of all GPUs together; None, too, if the machine has a GPU that this process did not use."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    return sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())))


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
