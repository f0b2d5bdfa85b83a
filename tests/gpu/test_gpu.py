"""The real layer: what the fake GPU of the other tests stands for."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from coe import Inspector, Picture
from coe.errors import DeviceFull
from coe.lab.eager_baseline import EagerDevice
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.store import kinds
from coe.store.kinds import ExpertInput

MEMORY = 2 << 30


def known(found):
    return {expert.kind: kinds.resolve(expert.kind) for expert in found.experts.values()}


def gpu(board, memory=MEMORY, experts=None):
    _, found, store = board
    device = CudaDevice(
        store, known(found), torch_driver.driver(), executors=2, memory_bytes=memory, host_bytes=200 << 20
    )
    device.prepare(experts or found.experts.values(), 2)
    return device


def images(expert, many, seed=5):
    chance = np.random.default_rng(seed)
    size = expert.input_size
    return [ExpertInput(chance.integers(0, 255, (3, size, size), dtype=np.uint8), size, size) for _ in range(many)]


@pytest.mark.parametrize(("variant", "tolerance"), [("fp32", 1e-3), ("fp16", 0.02), ("q8", 0.05)])
def test_it_says_what_the_cpu_says(board, variant, tolerance):
    _, found, store = board
    experts = [replace(expert, variant=variant) for expert in found.experts.values()]
    device, cpu = gpu(board, experts=experts), CpuDevice(store, known(found), 2)
    for expert in experts:
        device.load("pool", expert)
        cpu.load("pool", replace(expert, variant="fp32"))
    for executor in ("one", "two", "one"):
        for expert in experts:
            # 5 is filled up, 40 is run in parts.
            for many in (1, 5, 40):
                expected = cpu.run("cpu", "pool", replace(expert, variant="fp32"), images(expert, many))
                said = device.run(executor, "pool", expert, images(expert, many))
                for one, other in zip(expected, said, strict=True):
                    assert other.score == pytest.approx(one.score, abs=tolerance)
                    assert variant != "fp32" or other.label == one.label


def test_the_usual_way_says_what_the_cpu_says(board):
    _, found, store = board
    driver, cpu = torch_driver.driver(), CpuDevice(store, known(found), 2)
    device = EagerDevice(store, known(found), 1, driver, memory_bytes=MEMORY, host_bytes=200 << 20)
    for expert in found.experts.values():
        cpu.load("pool", expert)
        # Once from the disk and once from host memory.
        for _ in range(2):
            device.load("pool", expert, keep_copy=True)
            for many in (1, 5):
                expected = cpu.run("cpu", "pool", expert, images(expert, many))
                said = device.run("one", "pool", expert, images(expert, many))
                for one, other in zip(expected, said, strict=True):
                    assert other.label == one.label
                    assert other.score == pytest.approx(one.score, abs=1e-3)
            device.evict("pool", expert)
        cost = device.measure(expert)
        assert cost.batch_bytes(4) > cost.batch_bytes(1) > 0
    assert driver.usage().peak <= MEMORY


def test_ten_thousand_switches_leave_the_memory_flat(board):
    _, found, _ = board
    experts = [replace(e, variant=v) for e in found.experts.values() for v in ("fp32", "fp16", "q8")]
    device = gpu(board, experts=experts)
    driver, chance = device.driver, np.random.default_rng(1)
    shots = {expert.id: images(expert, 1) for expert in experts}
    resident, before = [], 0
    for number in range(10_000):
        at = int(chance.integers(len(experts)))
        if (at in resident) or len(resident) > 5:
            gone = resident.pop(resident.index(at) if at in resident else 0)
            device.evict(f"pool{gone}", experts[gone], keep_copy=bool(chance.integers(2)))
        device.load(f"pool{at}", experts[at], keep_copy=bool(chance.integers(2)))
        resident.append(at)
        device.run("one", f"pool{at}", experts[at], shots[experts[at].id])
        if number == 1000:
            before = driver.usage().reserved
    assert driver.usage().reserved == before
    assert driver.usage().peak <= MEMORY
    device.memory.blobs.check()


def test_what_is_reserved_stays_within_the_budget(board):
    path, _, store = board
    budget = 1 << 30
    chance = np.random.default_rng(3)
    pictures = [
        Picture(chance.integers(0, 255, (100, 100, 3), dtype=np.uint8), "ABC"[index % 3], name=f"{index}")
        for index in range(200)
    ]
    with Inspector(path, store=store, executors="cuda=2", device_memory=budget, host_memory="200MB") as line:
        assert {result.error for result in line.stream(pictures)} == {None}
    assert torch_driver.torch.cuda.max_memory_reserved() <= budget


def test_memory_that_is_not_there_is_an_error_and_no_crash(board):
    driver = torch_driver.driver()
    driver.limit(driver.usage().reserved + (100 << 20))
    with pytest.raises(DeviceFull):
        driver.device_memory(200 << 20)
    with pytest.raises(DeviceFull):
        driver.pinned_memory(1 << 50)
    # And others go on.
    assert len(driver.device_memory(1 << 20)) == 1 << 20


def test_a_copy_on_its_way_does_not_hold_up_the_lane(board):
    _, found, _ = board
    device = gpu(board)
    expert = found.experts["body-a"]
    device.load("pool", expert)
    resident = device.memory.expert("pool", expert.id).resident
    resident.written.wait()
    assert resident.written.is_past()
    assert len(device.run("one", "pool", expert, images(expert, 3))) == 3


def test_no_stream_is_handed_out_twice():
    driver = torch_driver.driver()
    kept = [driver.stream(f"{number}") for number in range(10)]
    for _ in range(50):
        kept[0] = driver.stream("another")
        assert len({stream.raw.cuda_stream for stream in kept}) == 10


def test_graphs_are_captured_anew_while_outputs_of_old_ones_are_looked_at():
    driver = torch_driver.driver()
    driver.limit(MEMORY)
    stream, numbers = driver.stream("one"), torch.arange(1 << 20, device=driver.device, dtype=torch.float32)
    looked_at = []
    for number in range(5):
        graph = driver.capture("capture x1", stream, lambda more=number: numbers + more)
        stream.do("run", graph.replay)
        stream.mark().wait()
        assert torch.equal(graph.outputs.cpu(), torch.arange(1 << 20, dtype=torch.float32) + number)
        looked_at.append(graph.outputs)
        del graph
        driver.trim()


def test_a_batch_that_runs_out_of_memory_while_it_is_captured_leaves_the_next_alone():
    driver = torch_driver.driver()
    stream = driver.stream("one")
    numbers = torch.ones(1 << 20, device=driver.device)
    driver.limit(driver.usage().reserved + (100 << 20))
    for end in (1, 3):
        # In its first warm-up; then in the capture itself.
        calls = []

        def work(calls=calls, end=end):
            calls.append(1)
            return numbers.repeat(100 if len(calls) == end else 1) + 1

        with pytest.raises(DeviceFull):
            driver.capture("capture x1", stream, work)
    graph = driver.capture("capture x1", stream, lambda: numbers + 1)
    stream.do("run", graph.replay)
    stream.mark().wait()
    assert set(graph.outputs.tolist()) == {2.0}


def test_others_copy_and_run_while_a_graph_is_captured():
    driver = torch_driver.driver()
    driver.limit(MEMORY)
    size, stop, wrong = 32 << 20, threading.Event(), []
    lane, there = driver.stream("lane"), driver.device_memory(size)
    host, back = driver.pinned_memory(size), driver.pinned_memory(size)

    def copy():
        number = 0
        while not stop.is_set():
            number = (number + 1) % 251
            host.fill_(number)
            lane.do("up", lambda: there.copy_(host, non_blocking=True))
            lane.do("down", lambda: back.copy_(there, non_blocking=True))
            mark = lane.mark()
            while not mark.is_past():
                pass
            if not bool((back == number).all()):
                wrong.append(number)

    thread = threading.Thread(target=copy)
    thread.start()
    try:
        stream, numbers = driver.stream("one"), torch.ones(512, 512, device=driver.device)
        for _ in range(50):
            graph = driver.capture("capture x1", stream, lambda: numbers @ numbers)
            stream.do("run", graph.replay)
            stream.mark().wait()
            assert set(graph.outputs.flatten().tolist()) == {512.0}
    finally:
        stop.set()
        thread.join()
    assert not wrong
