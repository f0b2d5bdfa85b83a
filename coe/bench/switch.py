"""What a switch costs: from disk and from memory to weights that run, beside the least that this machine could do.

Everything of an expert is timed in turn, again and again, so that a slow moment of the machine meets all alike.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from coe.bench.synthetic import prepare, synthetic_board
from coe.bench.usual import constructed
from coe.board import rules
from coe.core import Expert
from coe.runtime.aside import aside
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.cpu import CpuDevice
from coe.runtime.reading import Weights, weights
from coe.runtime.slot import Slot
from coe.store import kinds
from coe.store.blob_format import Variant
from coe.store.kinds import ModuleKind, Prepared
from coe.store.store import Store
from coe.system import forget_file, open_descriptors


@dataclass(frozen=True, slots=True)
class Switch:
    """Medians of one kind in one variant, in seconds; None where the system would not forget the file.

    `read_*` is the plain read of the same file into memory that is reused, `load_*` that of the engine, checksums
    included, until it runs; `ready_s` from memory until it runs (converted, if it must be), `copy_s` a plain copy of as
    many bytes as the weights have in fp32. `usual_s` is the usual way, from a file in the system's cache: construct,
    `torch.load`, `load_state_dict`.
    """

    kind: str
    variant: str
    bytes: int
    fp32_bytes: int
    read_warm_s: float
    load_warm_s: float
    read_cold_s: float | None
    load_cold_s: float | None
    ready_s: float
    copy_s: float
    usual_s: float


@dataclass(frozen=True, slots=True)
class Cycles:
    """What many loads, runs and evictions left behind: of the second half, by least squares."""

    cycles: int
    experts: int
    rss_slope_bytes: float
    descriptors_before: int
    descriptors_after: int


def measure(
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
    experts = list(rules.load(board).experts.values())
    prepare(board, store, variants, say)
    return aside(lambda: _measured(store, experts, variants, repeats, threads))


def _measured(
    store: Store, experts: Sequence[Expert], variants: Sequence[Variant], repeats: int, threads: int
) -> list[Switch]:
    import torch

    torch.set_num_threads(threads)
    ways = {"as trained": [_trained(store, expert) for expert in experts]}
    for variant in variants:
        ways[variant] = [weights(store, replace(expert, variant=variant)) for expert in experts]
    usual = _Usual(store, experts[0])
    trained_bytes = ways["as trained"][0].bytes
    found = []
    for name, pair in ways.items():
        times = _times(pair, usual, trained_bytes, repeats)
        found.append(
            Switch(
                kind=experts[0].kind,
                variant=name,
                bytes=pair[0].bytes,
                fp32_bytes=trained_bytes,
                read_warm_s=statistics.median(times["read"]),
                load_warm_s=statistics.median(times["load"]),
                read_cold_s=statistics.median(times["cold read"]) if times["cold read"] else None,
                load_cold_s=statistics.median(times["cold load"]) if times["cold load"] else None,
                ready_s=statistics.median(times["ready"]),
                copy_s=statistics.median(times["copy"]),
                usual_s=statistics.median(times["usual"]),
            )
        )
    return found


def _trained(store: Store, expert: Expert) -> Weights:
    """Return the weights as an expert that was never prepared runs from them."""
    return replace(weights(store, expert), path=store.path(expert.weights), prepared=None)


def _times(pair: Sequence[Weights], usual: _Usual, fp32_bytes: int, repeats: int) -> dict[str, list[float]]:
    """Time everything in turn; the first round only warms up."""
    import torch

    buffers = Buffers()
    kind = kinds.resolve(pair[0].expert.kind)
    assert isinstance(kind, ModuleKind), "a synthetic board has no other"
    slot = Slot(kind, pair[0].expert, pair[0].needs().structure)
    resident = [one.read(buffers) for one in pair]
    source, target = torch.zeros(fp32_bytes, dtype=torch.uint8), torch.zeros(fp32_bytes, dtype=torch.uint8)
    plain = memoryview(bytearray(pair[0].bytes))
    loaded: list[Blob] = []

    def load() -> None:
        loaded.append(pair[0].read(buffers))
        slot.bind(loaded[-1])

    def leave() -> None:
        slot.unbind()
        while loaded:
            loaded.pop().release()

    def from_disk(work: Callable[[], None]) -> Callable[[], None] | None:
        return work if forget_file(pair[0].path) else None

    times: dict[str, list[float]] = defaultdict(list)

    def clock(name: str, work: Callable[[], object] | None) -> None:
        if work is not None:
            began = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - began)
        leave()

    for number in range(repeats + 1):
        # The second read of what has just come from disk makes the system sort its pages anew; nobody pays for that.
        _plain_read(pair[0].path, plain)
        clock("read", lambda: _plain_read(pair[0].path, plain))
        clock("load", load)
        clock("copy", lambda: target.copy_(source))
        slot.bind(resident[0])
        clock("ready", lambda: slot.bind(resident[1]))
        clock("usual", usual.load)
        clock("cold read", from_disk(lambda: _plain_read(pair[0].path, plain)))
        clock("cold load", from_disk(load))
        if not number:
            times.clear()
    return times


def _plain_read(path: Path, into: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < len(into):
            done += file.readinto(into[done:])


class _Usual:
    """The usual way to bring a model to where it runs."""

    def __init__(self, store: Store, expert: Expert) -> None:
        import torch

        self._expert = expert
        kind = kinds.resolve(expert.kind)
        assert isinstance(kind, ModuleKind), "a synthetic board has no other"
        self._kind = kind
        self._path = store.root.parent / "usual.pt"
        torch.save(store.load(expert.weights), self._path)

    def load(self) -> Any:
        import torch

        state = torch.load(self._path, map_location="cpu", weights_only=True)
        return constructed(self._kind, self._expert, state)


def turn_over(
    work: Path, kind: str, input_size: int, variant: Variant, cycles: int, experts: int, threads: int
) -> Cycles:
    """Load, run and evict experts one after another, and see what that leaves behind."""
    # A few files stand for all experts: what may leak does not depend on what is in them.
    board, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=0, files=4)
    line = [replace(expert, variant=variant) for expert in rules.load(board).experts.values()]
    prepare(board, store, [variant], lambda sentence: None)
    device = CpuDevice(store, {kind: kinds.resolve(kind)}, threads)
    device.prepare(line)
    black = Prepared(np.zeros((3, input_size, input_size), np.uint8), input_size, input_size)

    def work_through() -> Cycles:
        device.enter("one")
        process, resident = psutil.Process(), []
        before = 0
        for number in range(cycles):
            expert = line[number % len(line)]
            device.load("cpu", expert)
            device.run("one", "cpu", expert, [black])
            device.evict("cpu", expert)
            resident.append(process.memory_info().rss)
            before = before or open_descriptors()
        half = np.array(resident[cycles // 2 :], float)
        slope = float(np.polyfit(np.arange(len(half)), half, 1)[0]) if len(half) > 1 else 0.0
        return Cycles(cycles, experts, slope, before, open_descriptors())

    return aside(work_through)
