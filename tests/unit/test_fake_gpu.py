"""The fake GPU shows what a real one would make wrong: work that outlives its memory, and graphs that run no Python."""

import gc
import threading
from contextlib import nullcontext

import pytest
import torch
from fake_gpu import FakeDriver

from coe.errors import DeviceLost
from coe.runtime.cuda.collector import uncollected


@pytest.fixture
def driver():
    return FakeDriver(image_bytes=100)


def memory(driver, *numbers):
    """Floats in device memory."""
    made = driver.device_memory(4 * len(numbers)).view(torch.float32)
    return made.copy_(torch.tensor(numbers))


def captured(driver, stream, work):
    with uncollected():
        return driver.capture("capture k x1", stream, work)


def test_a_graph_repeats_operations_on_the_memory_of_its_capture_and_runs_no_python(driver):
    stream, numbers, runs = driver.stream("one"), memory(driver, 1, 2), []

    def work():
        runs.append(1)
        # What Python decides is decided once, after a warm-up; views and what is written in place are the capture's.
        doubled = numbers * (2.0 if len(runs) == 2 else 99.0)
        doubled[1:].add_(numbers[:1])
        return {"sum": doubled.sum(), "all": doubled.reshape(2, 1)}

    graph = captured(driver, stream, work)
    for first in (5.0, 7.0):
        numbers.copy_(torch.tensor([first, 1.0]))
        stream.do("run x1", graph.replay)
        stream.finish()
        assert graph.outputs["sum"].item() == 2 * first + 2 + first
        assert graph.outputs["all"].flatten().tolist() == [2 * first, 2 + first]
    assert len(runs) == 2


@pytest.mark.parametrize(
    "wait",
    [
        lambda numbers: numbers.sum().item(),
        lambda numbers: bool(numbers.any()),
        lambda numbers: numbers[numbers > 1],
        torch.nonzero,
        lambda numbers: numbers.unique(),
        lambda numbers: numbers * torch.tensor([1.0, 2.0]),
    ],
)
def test_whatever_makes_the_host_wait_ends_a_capture_and_loses_the_device(driver, wait):
    stream, numbers = driver.stream("one"), memory(driver, 1, 2)
    with pytest.raises(DeviceLost, match="not permitted"):
        captured(driver, stream, lambda: wait(numbers))
    with pytest.raises(DeviceLost):
        driver.stream("two").do("copy", lambda: None)


@pytest.mark.parametrize("of", ["source", "target"])
def test_memory_that_goes_before_the_device_has_used_it_is_a_fault(driver, of):
    stream = driver.stream("one")
    tensors = {"source": driver.pinned_memory(8).fill_(3), "target": driver.device_memory(8)}
    stream.do("copy a", lambda: tensors["target"].copy_(tensors["source"]))
    stream.finish()
    assert (driver.faults, tensors["target"].tolist()) == ([], [3] * 8), "it may go once it was used"
    stream.do("copy a", lambda: tensors["target"].copy_(tensors["source"]))
    del tensors[of]
    gc.collect()
    assert driver.faults == ["one: copy a uses memory that was freed"]
    with pytest.raises(AssertionError, match="copy a uses memory"):
        stream.do("copy b", lambda: None)
    with pytest.raises(AssertionError, match="freed before"):
        stream.work_until(None)


def test_a_graph_that_goes_before_it_ran_is_a_fault(driver):
    stream, numbers = driver.stream("one"), memory(driver, 1)
    graph = captured(driver, stream, lambda: numbers * 2)
    stream.do("run x1", graph.replay)
    del graph
    gc.collect()
    with pytest.raises(AssertionError, match="the graph went before it ran"):
        stream.finish()


def test_memory_that_a_graph_reads_and_nobody_keeps_is_a_fault(driver):
    stream, numbers, others = driver.stream("one"), memory(driver, 1, 2), [torch.tensor([3.0, 4.0])]
    graph = captured(driver, stream, lambda: (numbers + 1) * others[0] * 2.0)
    for kept in (True, False):
        if not kept:
            others.clear()
        stream.do("run x1", graph.replay)
        with nullcontext() if kept else pytest.raises(AssertionError, match="was freed"):
            stream.finish()
    assert graph.outputs.tolist() == [12.0, 24.0]


def test_the_host_s_part_of_a_launch_is_done_at_the_launch(driver):
    """What it computes on the device is computed when the stream gets there."""
    stream, numbers = driver.stream("one"), memory(driver, 1)
    target, factor = memory(driver, 0), [2.0]
    stream.do("run", lambda: target.copy_(numbers * factor[0]))
    factor[0] = 9.0
    numbers.fill_(5.0)
    stream.finish()
    assert target.item() == 10.0


def test_two_threads_inside_a_launch_on_one_stream_are_a_fault(driver):
    stream, inside, out, failed = driver.stream("one"), threading.Event(), threading.Event(), []

    def slow():
        inside.set()
        assert out.wait(60)

    def second():
        try:
            stream.do("second", lambda: None)
        except AssertionError as error:
            failed.append(str(error))

    first = threading.Thread(target=stream.do, args=("first", slow))
    first.start()
    assert inside.wait(60)
    other = threading.Thread(target=second)
    other.start()
    other.join(60)
    out.set()
    first.join(60)
    assert failed == ["two threads launch on the stream one"]
    driver.stream("two").do("elsewhere", lambda: None)


def test_products_outside_of_graphs_must_be_announced(driver):
    stream, one = driver.stream("one"), memory(driver, 1, 2, 3, 4).view(2, 2)
    with pytest.raises(AssertionError, match="multiplies matrices"):
        stream.do("activate a", lambda: one.addmm_(one, one))
    before = driver.reserved
    for _ in range(2):
        stream.do("activate a", lambda: one.addmm_(one, one), products=True)
        assert driver.reserved == before + driver.workspace
