"""The copy lane of a GPU carries what the disk reader has read: it never reads a file itself, whatever is in a hurry.

Real threads, a fake GPU and networks of one weight; the device and host memory hold a few of ten experts.
"""

import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from bare_kind import Multiplying
from fake_gpu import FakeDriver
from tables import with_slow_rows

from coe.core import Request
from coe.inspector.settings import plan
from coe.pictures.image_source import ImageSource
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.engine import Engine
from coe.runtime.reading import Weights
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import CacheSpec, joined
from coe.scheduler.strategies import strategy
from coe.store.kinds import ExpertInput
from coe.store.store import Store
from coe.testing import rules_from

NUMBERS = 20_000
BYTES = 4 * NUMBERS + 2 * 4096
NAMES = "abcdefghij"
BOARD = rules_from(
    "board: t\nexperts:\n"
    + "".join(
        f"  {name}: {{kind: scale, input: 8, labels: [ok, bad], reject: [bad], then: {{ok: OK}}}}\n" for name in NAMES
    )
    + "components:\n"
    + "".join(f"  {name.upper()}: {{count: {at + 1}, inspect: {name}}}\n" for at, name in enumerate(NAMES))
)


class Scale(Multiplying):
    name = "scale"
    numbers = NUMBERS
    max_batch = 8

    def preprocess(self, image, expert):
        return ExpertInput(np.ascontiguousarray(image.transpose(2, 0, 1)), 8, 8)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    filled = Store(tmp_path_factory.mktemp("store"))
    for number, expert in enumerate(BOARD.experts.values(), start=1):
        state = {"weight": torch.full((1, NUMBERS), float(number))}
        filled.put(expert.weights, kind="scale", labels=expert.labels, input_size=8, state=state)
    return filled


def line_of(store, name, *, executors, resident, copies):
    """Make an engine whose GPU holds so many experts for each executor, and host memory so many copies."""
    chosen, experts, copied = strategy(name), list(BOARD.experts.values()), int(copies * BYTES)
    options = {"executors": executors, "memory_bytes": 1 << 28}
    first = CudaDevice(store, {"scale": Scale()}, FakeDriver(image_bytes=100), **options)
    first.prepare(experts, executors)
    options |= {"memory_bytes": first.fixed_bytes(experts, executors) + int(resident * executors * BYTES)}
    device = CudaDevice(store, {"scale": Scale()}, FakeDriver(image_bytes=100), host_bytes=copied, **options)
    device.prepare(experts, executors)
    costs = CostTable({("cuda", expert.id): Cost(1e-4, 1e-4, 1e-3, BYTES, 0, 8, copy_s=2e-4) for expert in experts})
    pools = plan({"cuda": executors}, device.memory.blobs.capacity, BOARD.experts, costs)
    pools = replace(
        pools,
        executors=tuple(replace(each, depth=device.depth) for each in pools.executors),
        cache=CacheSpec(copied, frozenset({"cuda"}), demotes=not chosen.cached) if copied else None,
    )
    pools = joined(pools) if chosen.shared else pools
    controller = Controller(router=BOARD.router, graph=BOARD.graph, costs=costs, plan=pools, strategy=chosen)
    return Engine(controller, {"cuda": device}, BOARD.experts, {"scale": Scale()})


@pytest.mark.parametrize(
    ("name", "executors", "resident", "copies"),
    with_slow_rows([("late-binding", 1, 1.2, 3.3), ("coserve", 2, 3.3, 0), ("samba", 1, 3.3, 5.3)], fast=1),
)
def test_the_disk_reader_alone_reads(store, monkeypatch, name, executors, resident, copies):
    readers = set()
    content = Weights.content

    def noted(weights, buffers):
        readers.add(threading.current_thread().name)
        return content(weights, buffers)

    monkeypatch.setattr(Weights, "content", noted)
    line = line_of(store, name, executors=executors, resident=resident, copies=copies)
    chance = random.Random(0)
    images = [(chance.randrange(len(NAMES)), chance.randrange(1, 200)) for _ in range(150)]
    answers = [
        line.submit(
            Request(line.next_id(), NAMES[expert].upper()), ImageSource.of(np.full((8, 8, 3), shade, np.uint8), "RGB")
        )
        for expert, shade in images
    ]
    results = [answer.result(60) for answer in answers]
    line.close()
    assert [result.error for result in results] == [None] * len(images)
    assert [result.findings[0].score for result in results] == [(expert + 1) * shade for expert, shade in images]
    line.controller.check()
    assert readers == {"coe-disk"}
