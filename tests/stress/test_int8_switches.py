"""Ten thousand switches of experts in int8: memory that the process holds is flat, and stays under the line's budget.

Method: the resident set of the process (RSS), less what it was before the line was opened, with every library in
memory. A thread reads it every 10 ms as it is, with what the C library keeps; after each hundredth picture it is read
once more when what the heap holds free has been given back.
"""

import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context

import numpy as np
import psutil
import pytest
from PIL import Image

from coe import Inspector
from coe.core import Expert
from coe.helpers.system import give_memory_back
from coe.runtime.cpu import opening_bytes
from coe.runtime.reading import weights
from coe.store import kinds, skeletons
from coe.store.store import Store
from coe.testing import Experiment
from coe.variants.prepare import Preparer

EXPERTS, RESIDENT = 12, 6
SWITCHES = 10_000
MB = 1 << 20


@dataclass
class Samples:
    """The largest resident set over a while, in bytes; a list of them all would grow as what is measured does not."""

    most: int = 0

    @contextmanager
    def taken(self):
        ended, process = threading.Event(), psutil.Process()

        def sample():
            while not ended.wait(0.01):
                self.most = max(self.most, process.memory_info().rss)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def board_of(kind, size, folder):
    """Make a board of experts of the same random weights, each a file of its own for the line, prepared in int8."""
    store, chance = Store(folder / "store"), np.random.default_rng(1)
    pictures = []
    for number in range(12):
        pictures.append(folder / f"{number}.png")
        coarse = chance.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(coarse.repeat(size // 16, 0).repeat(size // 16, 1)).save(pictures[-1])
    expert, built = Expert("e0", kind, ("ok", "bad"), size, "line/e0"), kinds.resolve(kind)
    assert isinstance(built, kinds.ModuleKind)
    store.put(
        expert.weights,
        kind=kind,
        labels=expert.labels,
        input_size=size,
        state=skeletons.random_weights(built, expert, 3),
    )
    assert Preparer(store, ["int8"], search_s=0).prepare(expert.weights, pictures).failed == {}
    with store.changing(expert.weights) as manifest:  # random weights are never sure; no finding is looked at twice
        sure = manifest.variants["int8"].model_copy(update={"escalate_below": 0.0})
        store.rewrite(manifest.model_copy(update={"variants": {"int8": sure}}))
    lines = ["board: line", "experts:"]
    for number in range(EXPERTS):
        if number:
            store.link(f"line/e{number}", "line/e0", labels=expert.labels)
        lines.append(f"  e{number}: {{kind: {kind}, labels: [ok, bad], input: {size}}}")
    lines.append("components:")
    lines += [f"  C{n}: {{inspect: e{n}, then: {{ok: OK, bad: NG}}}}" for n in range(EXPERTS)]
    path = folder / "line.yaml"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path, store


@pytest.mark.parametrize("heaps", ["1", None], ids=["one heap, as commands have it", "a heap for each thread"])
def test_memory_is_flat_over_switches_and_within_the_budget(heaps, tmp_path, monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    if heaps is not None:
        monkeypatch.setenv("MALLOC_ARENA_MAX", heaps)
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        fresh.submit(switch, tmp_path, SWITCHES).result()


def switch(folder, switches):
    """Switch experts, and compare the memory of this process with the budget."""
    kind, size = "narrow", 64
    board, store = board_of(kind, size, folder)
    picture = np.random.default_rng(2).integers(0, 256, (size, size, 3), np.uint8)

    def ask(line, number):
        result = line.submit(picture, f"C{number % EXPERTS}").result(60)
        assert (result.error, result.findings[0].variant) == (None, "int8")

    def opened(memory):
        return Inspector(
            board,
            store=store.root,
            memory=memory,
            executors="cpu=1",
            precision="mixed",
            experiment=Experiment(label_floor=0),
            profile=None,
        )

    with opened(4 << 30) as line:  # brings what the process keeps for good
        for number in range(2 * EXPERTS):
            ask(line, number)
    file = weights(store, replace(store.manifest("line/e0").expert(), variant="int8"))
    # From the file alone: what is measured, and counted against it, moves by a tenth from run to run.
    budget = (RESIDENT * file.bytes * 4 // 3 + opening_bytes(line.kinds[kind], file)) * 4 // 3
    before, samples, held = held_bytes(), Samples(), []
    with opened(budget) as line, samples.taken():
        number = 0
        while line.metrics().switches < switches:
            ask(line, number)
            number += 1
            if number % 100 == 0:
                held.append(held_bytes() - before)
    left = held_bytes() - before
    quarters = [np.median(part) for part in np.array_split(np.array(held), 4)]
    print(f"{kind}, {size} px: {number} pictures, {switches} switches; budget {budget / MB:.1f} MB")
    print(f"RSS above the start: {samples.most / MB - before / MB:.1f} MB at most, {left / MB:.1f} MB afterwards")
    print(f"without what the heap holds free: {max(held) / MB:.1f} MB at most; medians of the quarters:", end=" ")
    print(*(f"{part / MB:.1f}" for part in quarters), "MB")
    assert max(held) <= budget
    assert samples.most - before <= budget
    assert quarters[3] - quarters[1] < 2 * file.bytes  # sessions that stayed would be thousands
    assert left < 2 * file.bytes  # less than two experts of the six


def held_bytes():
    """Return the resident set without what the heap holds free."""
    give_memory_back()
    return int(psutil.Process().memory_info().rss)
