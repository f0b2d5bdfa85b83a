"""The GPU device on a fake one, with networks of one weight: in which order things happen, and what goes wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fake_gpu import FakeDriver

from coe.core import Expert, Finding
from coe.errors import ConfigError, DeviceFull, DeviceLost, StoreError
from coe.kinds import FileKind, ModuleKind, Prepared
from coe.runtime.cuda.device import CudaDevice
from coe.store import Store

PAGE = 4096
BLOB = 200_000
"""So many numbers has an expert, that a handful of experts fill the device."""


class Scale(ModuleKind):
    """A network that multiplies the mean of an image with the first of its numbers."""

    name = "scale"
    task = "classify"

    def preprocess(self, image, expert):
        raise NotImplementedError

    def skeleton(self, expert):
        return torch.nn.Linear(BLOB, 1, bias=False)

    def forward(self, module, images):
        return images.float().mean(dim=(1, 2, 3))[:, None] * module.weight[:, :1]

    def postprocess(self, outputs, prepared, expert):
        return [Finding(expert.id, expert.variant, "ok", float(score)) for score in outputs[:, 0]]


class File(FileKind):
    name = "file"
    task = "classify"
    preprocess = postprocess = open = None  # type: ignore[assignment]


File.__abstractmethods__ = frozenset()


def expert(name):
    return Expert(name, "scale", ("ok",), 8, f"t/{name}")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    found = Store(tmp_path_factory.mktemp("store"))
    for number, name in enumerate("abcdef", start=1):
        state = {"weight": torch.full((1, BLOB), float(number))}
        found.put(f"t/{name}", kind="scale", labels=("ok",), input_size=8, state=state)
    return found


def device_of(store, driver, *, room=3.2, copies=0, executors=1):
    """Make a device with room for so many experts, and host memory for so many copies."""
    size = 4 * BLOB + PAGE
    fixed = CudaDevice(
        store, {"scale": Scale()}, FakeDriver(image_bytes=100), executors=executors, memory_bytes=1 << 30
    )
    memory = fixed.fixed_bytes(map(expert, "abcdef"), executors) + int(room * size)
    device = CudaDevice(
        store, {"scale": Scale()}, driver, executors=executors, memory_bytes=memory, host_bytes=int(copies * size)
    )
    device.prepare(map(expert, "abcdef"), executors)
    driver.log.clear()
    return device


def gpu(**options):
    return FakeDriver(image_bytes=100, **options)


def images(*shades):
    return [Prepared(np.full((3, 8, 8), shade, np.uint8), 8, 8) for shade in shades]


def says(device, name, *shades, executor="one"):
    return [finding.score for finding in device.run(executor, "pool", expert(name), images(*shades))]


def finish(device):
    device._lane.work_until(None)


def test_a_batch_waits_on_the_device_for_the_copy_and_nobody_else_does(store):
    driver = gpu()
    device = device_of(store, driver)
    device.load("pool", expert("a"))
    device.load("pool", expert("b"))
    # Loads have returned; nothing has been copied yet, and nobody waited.
    assert driver.log == []
    assert says(device, "a", 10, 20) == [10, 20]
    assert says(device, "a", 30) == [30]
    assert says(device, "b", 10) == [20]
    assert driver.log == [
        "one: capture scale x2",
        "lane: copy a",
        "one: activate a",
        "one: images up",
        "one: run x2",
        "one: outputs down",
        # Active already.
        "one: capture scale x1",
        "one: images up",
        "one: run x1",
        "one: outputs down",
        "lane: copy b",
        "one: activate b",
        "one: images up",
        "one: run x1",
        "one: outputs down",
    ]


def test_a_copy_that_is_not_wanted_any_more_is_not_waited_for(store):
    driver = gpu()
    device = device_of(store, driver)
    for name in "ab":
        device.load("pool", expert(name))
    device.evict("pool", expert("b"))
    assert says(device, "a", 1) == [1]
    assert driver.log[:2] == ["one: capture scale x1", "lane: copy a"]
    assert "lane: copy b" not in driver.log


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"}), frozenset({"one", "two"})])
def test_what_is_overwritten_has_been_read_before(store, eager):
    """Places are given away at once: whoever comes there waits on the device, not in a thread."""
    driver = gpu(eager=eager)
    device = device_of(store, driver, room=2.2, executors=2)
    value = {name: number for number, name in enumerate("abcdef", start=1)}
    for first, second in ("ab", "cd", "ef", "ba", "dc", "fe", "af"):
        device.load("pool", expert(first))
        device.load("pool", expert(second))
        assert says(device, first, 3, executor="one") == [3 * value[first]]
        assert says(device, second, 3, 5, 7, executor="two") == [each * value[second] for each in (3, 5, 7)]
        assert says(device, second, 1, executor="one") == [value[second]]
        device.evict("pool", expert(first))
        device.evict("pool", expert(second))
    device._ground.check()


def test_a_batch_is_filled_up_to_the_next_graph_and_run_in_parts_beyond_the_largest(store):
    driver = gpu()
    device = device_of(store, driver)
    device.load("pool", expert("b"))
    assert says(device, "b", *range(11)) == [2 * shade for shade in range(11)]
    assert says(device, "b", *range(35)) == [2 * shade for shade in range(35)]
    assert [line for line in driver.log if " run x" in line] == ["one: run x12", "one: run x32", "one: run x4"]


# Tiers


def test_a_copy_in_host_memory_spares_the_disk(store, monkeypatch):
    driver = gpu()
    device = device_of(store, driver, copies=2.2)
    device.load("pool", expert("a"), keep=True)
    device.load("pool", expert("b"))
    for name in "ab":
        device.evict("pool", expert(name))
    reads = []
    monkeypatch.setattr("coe.runtime.reading.Weights.content", lambda self, host: reads.append(1) or 1 / 0)
    device.load("pool", expert("a"))
    assert says(device, "a", 9) == [9]
    with pytest.raises(ZeroDivisionError):
        device.load("pool", expert("b"))
    device.evict("pool", expert("a"))
    device.forget("a")
    with pytest.raises(ZeroDivisionError):
        device.load("pool", expert("a"))


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"})])
def test_who_leaves_the_device_goes_down_and_comes_up_again(store, monkeypatch, eager):
    driver = gpu(eager=eager)
    device = device_of(store, driver, room=2.2, copies=3.2)
    for name in "abcd":
        device.load("pool", expert(name))
        device.evict("pool", expert(name), keep=name != "d")
    monkeypatch.setattr("coe.runtime.reading.Weights.content", lambda self, host: 1 / 0)
    for name, value in (("c", 3), ("a", 1), ("b", 2)):
        device.load("pool", expert(name))
        assert says(device, name, 7) == [7 * value]
        device.evict("pool", expert(name), keep=True)
    finish(device)
    assert driver.log.count("lane: copy a down") == 1


def test_blobs_are_moved_together_where_gaps_are_too_small(store, tmp_path):
    driver = gpu()
    device = device_of(store, driver, room=3.2)
    for name in "abc":
        device.load("pool", expert(name))
    # Half of the gap that `a` leaves is taken by something small, so that none is large enough.
    device.evict("pool", expert("a"))
    small = device._ground.put(
        "small", torch.zeros(PAGE, dtype=torch.uint8), device._loaded["pool", "b"].resident.recipe
    )
    device.load("pool", expert("d"))
    assert [says(device, name, 5) for name in "bcd"] == [[10], [15], [20]]
    assert {"lane: move b", "lane: move c"} <= set(driver.log)
    device._ground.drop(small)
    device._ground.check()


# What goes wrong


def test_without_memory_for_a_graph_the_batch_gets_smaller_and_the_line_goes_on(store):
    driver = gpu()
    device = device_of(store, driver)
    driver.troubles["capture scale x12"] = [DeviceFull("no memory")] * 9
    device.load("pool", expert("c"))
    assert says(device, "c", *range(10)) == [3 * shade for shade in range(10)]
    assert [line for line in driver.log if " run x" in line] == ["one: run x8", "one: run x2"]
    # It stays with what was found out.
    assert says(device, "c", *range(10)) == [3 * shade for shade in range(10)]
    assert len(driver.troubles["capture scale x12"]) == 8


def test_graphs_go_before_batches_get_smaller(store):
    driver = gpu()
    device = device_of(store, driver)
    device.load("pool", expert("c"))
    assert says(device, "c", 1, 2) == [3, 6]
    driver.troubles["capture scale x4"] = [DeviceFull("no memory")]
    assert says(device, "c", 1, 2, 3, 4) == [3, 6, 9, 12]
    assert driver.log[-1] == "one: outputs down"
    assert "one: run x4" in driver.log


def test_where_not_even_one_image_runs_the_batch_fails_and_the_next_one_does_not(store):
    driver = gpu()
    device = device_of(store, driver)
    driver.troubles["capture scale x1"] = [DeviceFull("no memory")]
    device.load("pool", expert("c"))
    with pytest.raises(DeviceFull, match="no memory"):
        says(device, "c", 1)
    assert says(device, "c", 1) == [3]


def test_an_activation_that_fails_leaves_no_expert_in_the_place(store):
    driver = gpu()
    device = device_of(store, driver)
    device.load("pool", expert("a"))
    device.load("pool", expert("b"))
    assert says(device, "a", 1) == [1]
    driver.troubles["activate b"] = [DeviceFull("no memory")]
    with pytest.raises(DeviceFull):
        says(device, "b", 1)
    assert [says(device, name, 1) for name in "bab"] == [[2], [1], [2]]


def test_a_load_that_fails_takes_no_place(store):
    driver = gpu()
    device = device_of(store, driver, room=1.2)
    driver.troubles["copy b"] = [DeviceFull("no memory")] * 20
    for _ in range(20):
        with pytest.raises(DeviceFull):
            device.load("pool", expert("b"))
    device.load("pool", expert("a"))
    assert says(device, "a", 4) == [4]
    with pytest.raises(DeviceFull, match="more than is free"):
        device.load("pool", expert("c"))


def test_a_lost_device_says_so_from_then_on_and_lets_go(store):
    driver = gpu()
    device = device_of(store, driver)
    device.load("pool", expert("a"))
    device.load("pool", expert("b"))
    driver.troubles["run x1"] = [DeviceLost("it fell off the bus")]
    for _ in range(3):
        with pytest.raises(DeviceLost):
            says(device, "a", 1)
    with pytest.raises(DeviceLost):
        device.load("pool", expert("c"))
    device.evict("pool", expert("a"), keep=True)
    device.evict("pool", expert("b"))
    device.trim()


def test_damaged_weights_are_reported_and_the_others_go_on(store, tmp_path):
    import shutil

    own = Store(shutil.copytree(store.root, tmp_path / "own"))
    path = own.path("t/b")
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    device = device_of(own, gpu())
    with pytest.raises(StoreError, match=r"t/b.* is damaged"):
        device.load("pool", expert("b"))
    device.load("pool", expert("a"))
    assert says(device, "a", 2) == [2]


def test_what_the_budget_is_for_is_never_passed(store):
    driver = gpu()
    device = device_of(store, driver, room=2.5, executors=2)
    for name in "ab":
        device.load("pool", expert(name))
    for count in (1, 2, 3, 5, 9, 13, 17, 25, 32):
        for executor in ("one", "two"):
            assert len(says(device, "a", *range(count), executor=executor)) == count
    assert driver.peak <= device.memory_bytes


def test_too_little_memory_is_said_before_anything_runs(store):
    device = CudaDevice(store, {"scale": Scale()}, gpu(), executors=1, memory_bytes=9 << 20)
    with pytest.raises(ConfigError, match=r"device memory of 9.0 MiB leaves .* give more --device-memory"):
        device.prepare(map(expert, "abcdef"))
    with pytest.raises(ConfigError, match="kind 'file' run on the CPU only"):
        CudaDevice(store, {"file": File()}, gpu(), executors=1, memory_bytes=10 << 20)


def test_measuring_tells_times_and_leaves_no_memory_behind(store):
    driver = gpu()
    device = CudaDevice(store, {"scale": Scale()}, driver, executors=1, memory_bytes=1 << 30)
    cost = device.measure(expert("a"))
    assert cost.per_image_s > 0
    assert cost.load_s > 0
    assert cost.copy_s > 0
    assert (cost.activation_bytes, cost.workspace_bytes) == (0, 0)
    assert cost.weights_bytes >= 4 * BLOB
    assert cost.max_batch <= 32
    assert driver.reserved == 0
