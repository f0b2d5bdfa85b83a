"""Measures a switch on the CPU, and the least time that this machine could take for it.

All operations on an expert are timed in turn, many times, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board import rules
from coe.core import Expert
from coe.helpers.system import forget_file
from coe.lab.eager_baseline import constructed
from coe.lab.library_session import library_session, whole_model
from coe.lab.workloads.synthetic import in_variant, prepare, synthetic_board
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.cpu import CpuDevice
from coe.runtime.processor import on_fresh_thread
from coe.runtime.reading import Weights, weights
from coe.runtime.slot import Slot
from coe.store import kinds
from coe.store.blob_format import Variant
from coe.store.kinds import ModuleKind
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class Switch:
    """Medians of one kind in one variant, in seconds; None where the system would not forget the file.

    `read_*` is the plain read of the same file into memory that is reused, for `int8` with the session that the library
    opens by itself; `load_*` is a load by the engine, checksums included, until the expert can run. `*_cpu_s` is the
    processor time of these. `ready_s` is the time from memory until it can run, with conversion if needed;
    `copy_s` is a plain copy of as many bytes as the weights have in fp32. `eager_s` is the eager baseline, from a
    file in the system's cache: construct, `torch.load`, `load_state_dict`.
    """

    kind: str
    variant: str
    bytes: int
    fp32_bytes: int
    read_warm_s: float
    load_warm_s: float
    read_warm_cpu_s: float
    load_warm_cpu_s: float
    read_cold_s: float | None
    load_cold_s: float | None
    ready_s: float
    copy_s: float
    eager_s: float


def on_cpu(
    work: Path,
    kind: str,
    input_size: int,
    variants: Sequence[Variant],
    repeats: int,
    threads: int,
    say: Callable[[str], None],
) -> list[Switch]:
    """Measure a kind on experts of random weights in `work`, as they were trained and in each variant.

    Raises ConfigError for a kind without a skeleton, or if a variant cannot be prepared.
    """
    board, store = synthetic_board(work, kind=kind, experts=2, input_size=input_size, seed=0)
    prepare(board, store, variants, say)
    experts = list(rules.load(board).experts.values())

    def measured() -> list[Switch]:
        import torch

        torch.set_num_threads(threads)
        # An expert that was never prepared runs from these files.
        trained = [replace(weights(store, e), path=store.path(e.weights), prepared=None) for e in experts]
        pairs = {"as trained": trained}
        pairs |= {variant: [weights(store, expert) for expert in in_variant(experts, variant)] for variant in variants}
        eager = _eager(store, experts[0])
        return [
            _opened(store, pair[0], threads, eager, trained[0].bytes, repeats)
            if name == "int8"
            else _switch(name, pair, eager, trained[0].bytes, repeats)
            for name, pair in pairs.items()
        ]

    return on_fresh_thread(measured)


class Stopwatch:
    """Times by name. The first time of each only warms up."""

    def __init__(self) -> None:
        self._all_s: dict[str, list[float]] = defaultdict(list)
        self._all_cpu_s: dict[str, list[float]] = defaultdict(list)

    def __call__(self, name: str, work: Callable[[], object]) -> None:
        """Do work once, and note how long it took."""
        began, began_cpu = time.perf_counter(), time.process_time()
        work()
        self._all_s[name].append(time.perf_counter() - began)
        self._all_cpu_s[name].append(time.process_time() - began_cpu)

    def medians_s(self, *, cpu: bool = False) -> dict[str, float]:
        """Return the median by name, without the first time; with `cpu` of the processor time of the whole process."""
        times = self._all_cpu_s if cpu else self._all_s
        return {name: statistics.median(times_s[1:]) for name, times_s in times.items() if len(times_s) > 1}


# On the CPU


def _switch(
    variant: str, pair: Sequence[Weights], eager: Callable[[], object], fp32_bytes: int, repeats: int
) -> Switch:
    """Time all operations on two experts in turn."""
    import torch

    buffers, clock = Buffers(), Stopwatch()
    slot = Slot(_module_kind(pair[0].expert), pair[0].expert, pair[0].structure())
    # A body that both have stays in memory, as on a line.
    body = pair[0].body.read(buffers) if pair[0].body is not None else None
    resident = [expert.read(buffers, body) for expert in pair]
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(pair[0].bytes))
    loaded: list[Blob] = []

    def read() -> None:
        _plain_read(pair[0].path, plain)

    def load() -> None:
        loaded.append(pair[0].read(buffers, body))
        slot.bind(loaded[-1])

    def timed(name: str, work: Callable[[], object]) -> None:
        clock(name, work)
        slot.unbind()
        while loaded:
            loaded.pop().release()

    for _ in range(repeats + 1):
        # The second read of a file that has just come from disk makes the system sort its pages again; it is not timed.
        read()
        timed("warm read", read)
        timed("warm load", load)
        timed("copy", lambda: target.copy_(source))
        slot.bind(resident[0])
        timed("ready", lambda: slot.bind(resident[1]))
        timed("eager", eager)
        for name, work in (("cold read", read), ("cold load", load)):
            if forget_file(pair[0].path):
                timed(name, work)
    return _figures(variant, pair[0], clock, fp32_bytes)


def _opened(
    store: Store, weights: Weights, threads: int, eager: Callable[[], object], fp32_bytes: int, repeats: int
) -> Switch:
    """Time all operations on an expert that the library opens as a session; in memory it is ready."""
    import torch

    clock, expert = Stopwatch(), weights.expert
    device = CpuDevice(store, {expert.kind: _module_kind(expert)}, threads)
    content = whole_model(weights)
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(weights.bytes))

    def read() -> None:
        _plain_read(weights.path, plain)
        library_session(content, threads)

    def timed(name: str, work: Callable[[], object]) -> None:
        clock(name, work)
        device.evict("pool", expert)

    for _ in range(repeats + 1):
        _plain_read(weights.path, plain)
        timed("warm read", read)
        timed("warm load", lambda: device.load("pool", expert))
        timed("copy", lambda: target.copy_(source))
        timed("ready", lambda: None)
        timed("eager", eager)
        for name, work in (("cold read", read), ("cold load", lambda: device.load("pool", expert))):
            if forget_file(weights.path):
                timed(name, work)
    return _figures("int8", weights, clock, fp32_bytes)


def _figures(variant: str, weights: Weights, clock: Stopwatch, fp32_bytes: int) -> Switch:
    median_s, median_cpu_s = clock.medians_s(), clock.medians_s(cpu=True)
    return Switch(
        kind=weights.expert.kind,
        variant=variant,
        bytes=weights.bytes,
        fp32_bytes=fp32_bytes,
        read_warm_s=median_s["warm read"],
        load_warm_s=median_s["warm load"],
        read_warm_cpu_s=median_cpu_s["warm read"],
        load_warm_cpu_s=median_cpu_s["warm load"],
        read_cold_s=median_s.get("cold read"),
        load_cold_s=median_s.get("cold load"),
        ready_s=median_s["ready"],
        copy_s=median_s["copy"],
        eager_s=median_s["eager"],
    )


def _plain_read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            done += file.readinto(into[done:])


def _eager(store: Store, expert: Expert) -> Callable[[], object]:
    """Return a function that makes a model ready as a plain program does."""
    import torch

    kind, path = _module_kind(expert), store.root.parent / "eager.pt"
    torch.save(store.load(expert.weights), path)
    return lambda: constructed(kind, expert, torch.load(path, map_location="cpu", weights_only=True))


def _module_kind(expert: Expert) -> ModuleKind:
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, ModuleKind), "a synthetic board has module kinds only"
    return kind
