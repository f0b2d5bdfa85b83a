"""Experts that share a body on a fake GPU: the body lies there once, and is activated where another is in place."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from bare_kind import BareKind
from fake_gpu import FakeDriver

from coe.core import Expert, Finding
from coe.errors import DeviceFull, StoreError
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.reading import Weights
from coe.store import bodies
from coe.store.kinds import ExpertInput
from coe.store.store import Store

NUMBERS = 100_000
"""So many numbers has a body, and so many the rest, that a handful of experts fill the device."""
SIZE = 4 * NUMBERS + 4096
VALUES = {"a": (2.0, 3.0), "b": (2.0, 5.0), "c": (7.0, 3.0), "d": (7.0, 11.0), "whole": (2.0, 13.0)}
"""The first numbers of body and rest; `a` and `b` share a body, `c` and `d` another, `whole` has none."""
EXPERTS = {name: Expert(name, "product", ("ok",), 8, f"t/{name}") for name in VALUES}


class Product(BareKind):
    """A network that multiplies the mean of an image with the first number of its body and that of the rest."""

    name = "product"

    def skeleton(self, expert):
        module = torch.nn.Module()
        module.first = torch.nn.Linear(NUMBERS, 1, bias=False)
        module.last = torch.nn.Linear(NUMBERS, 1, bias=False)
        return module

    def forward(self, module, images):
        return images.float().mean(dim=(1, 2, 3))[:, None] * module.first.weight[:, :1] * module.last.weight[:, :1]

    def postprocess(self, outputs, prepared, expert):
        return [Finding(expert.id, expert.variant, "ok", float(score)) for score in outputs[:, 0]]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    shelf = Store(tmp_path_factory.mktemp("products"))
    for name, (first, last) in VALUES.items():
        state = {"first.weight": torch.full((1, NUMBERS), first), "last.weight": torch.full((1, NUMBERS), last)}
        shelf.put(f"t/{name}", kind="product", labels=("ok",), input_size=8, state=state)
        if name != "whole":
            with shelf.changing(f"t/{name}") as manifest:
                bodies.divide(shelf, manifest, {"first.weight"})
    return shelf


def device_of(store, driver, room=4.2):
    """Make a device with room for so many bodies or rests."""
    experts = list(EXPERTS.values())
    probe = CudaDevice(store, {"product": Product()}, FakeDriver(image_bytes=100), executors=1, memory_bytes=100 << 20)
    probe.prepare(experts)
    memory = probe.fixed_bytes(experts, 1) + int(room * SIZE)
    host = 8 * SIZE
    device = CudaDevice(store, {"product": Product()}, driver, executors=1, memory_bytes=memory, host_bytes=host)
    device.prepare(experts)
    driver.log.clear()
    return device


def bring(device, name, *, keep_copy=False):
    device.read("pool", EXPERTS[name])
    device.load("pool", EXPERTS[name], keep_copy=keep_copy)


def says(device, name, shade):
    image = ExpertInput(np.full((3, 8, 8), shade, np.uint8), 8, 8)
    return device.run("one", "pool", EXPERTS[name], [image])[0].score


def expected(name, shade):
    first, last = VALUES[name]
    return shade * first * last


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"}), frozenset({"executor 1"})])
def test_a_body_is_copied_once_and_activated_where_another_is_in_place(store, eager):
    driver = FakeDriver(image_bytes=100, eager=eager)
    device = device_of(store, driver, room=6.2)
    bring(device, "a")
    bring(device, "b")
    bring(device, "c")
    turns = "ababcab"
    assert [says(device, name, 10) for name in turns] == [expected(name, 10) for name in turns]
    copied = [line.removeprefix("lane: copy ") for line in driver.log if "copy" in line]
    assert copied == ["body of a", "a", "b", "body of c", "c"]
    activated = [line.removeprefix("executor 1: activate ") for line in driver.log if "activate" in line]
    assert activated == ["body of a", "a", "b", "a", "b", "body of c", "c", "body of a", "a", "b"]
    # The graphs are those that were captured before: one layout, whichever body.
    assert not any("capture" in line for line in driver.log)


def test_a_whole_expert_overwrites_a_body_and_what_the_lane_reads_itself_leaves_pinned_memory(store):
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a")
    bring(device, "whole")
    turns = ["a", "whole", "a"]
    assert [says(device, name, 3) for name in turns] == [expected(name, 3) for name in turns]
    device = device_of(store, FakeDriver(image_bytes=100))
    device.load("pool", EXPERTS["a"])
    host = device.memory.host
    host.take(host._extents.capacity)


def test_a_body_stays_when_its_experts_leave(store):
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    for _ in range(3):
        bring(device, "a")
        bring(device, "b")
        assert [says(device, name, 2) for name in "ab"] == [expected(name, 2) for name in "ab"]
        device.evict("pool", EXPERTS["a"])
        assert says(device, "b", 4) == expected("b", 4)
        device.evict("pool", EXPERTS["b"])
        bring(device, "c")
        bring(device, "d")
        assert [says(device, name, 5) for name in "dc"] == [expected(name, 5) for name in "dc"]
        device.evict("pool", EXPERTS["c"])
        device.evict("pool", EXPERTS["d"])
    assert [line for line in driver.log if "copy body" in line] == ["lane: copy body of a", "lane: copy body of c"]
    device.memory.blobs.check()
    assert device.memory.blobs._extents.used == sum(device.memory.bodies.bytes.values()) >= 2 * 4 * NUMBERS


def test_bodies_are_counted_once_and_a_copy_in_host_memory_comes_up_without_the_disk(store, monkeypatch):
    device = device_of(store, FakeDriver(image_bytes=100))
    none, one, both = (device.fixed_bytes([EXPERTS[name] for name in names], 1) for names in (["whole"], "ab", "abcd"))
    assert both - one == one - none >= 4 * NUMBERS
    bring(device, "a")
    assert device.fixed_bytes([EXPERTS["whole"]], 1) == one, "it stays, whatever experts are asked for"
    assert device.fixed_bytes([EXPERTS[name] for name in "abcd"], 1) == both
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a")
    bring(device, "b", keep_copy=True)
    device.evict("pool", EXPERTS["b"])
    device.evict("pool", EXPERTS["a"], keep_copy=True)
    monkeypatch.setattr("coe.runtime.reading.Weights.content", lambda self, host: 1 / 0)
    for name in "ab":
        device.load("pool", EXPERTS[name])
    assert [says(device, name, 2) for name in "ab"] == [expected(name, 2) for name in "ab"]


def test_a_body_that_came_with_a_load_that_failed_is_there_for_the_next(store):
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")]
    with pytest.raises(DeviceFull):
        bring(device, "a")
    assert device.memory.blobs._extents.used == sum(device.memory.bodies.bytes.values())
    bring(device, "b")
    assert says(device, "b", 2) == expected("b", 2)


def is_changed(store, name):
    """Let the manifest of an expert name another body, as if it was trained again while a line runs."""
    with store.changing(f"t/{name}") as manifest:
        store.rewrite(manifest.model_copy(update={"body": store.manifest("t/c").body}))


def test_a_body_that_is_not_the_one_of_the_copy_is_refused(store, tmp_path):
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    device.fill(EXPERTS["a"])
    is_changed(own, "a")
    with pytest.raises(StoreError, match="open the line again"):
        device.load("pool", EXPERTS["a"])
    assert device.memory.blobs._extents.used == 0


# Loads that are under way at a time


def copies(device):
    return list(device.memory.host._copies)


@pytest.fixture
def reads(monkeypatch):
    """A list that grows by each file that is read: the expert whose own part it is, or "body"."""
    names = []
    content = Weights.content

    def noted(self, host):
        names.append("body" if self.file is not None else self.expert.id)
        return content(self, host)

    monkeypatch.setattr(Weights, "content", noted)
    return names


@pytest.mark.parametrize("fails", [False, True])
def test_a_body_is_read_once_for_two_loads_under_way(store, reads, fails):
    """b is read before a is copied; it copies the body if a fails."""
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")] * fails
    for name in "ab":
        device.read("pool", EXPERTS[name])
    with pytest.raises(DeviceFull) if fails else nullcontext():
        device.load("pool", EXPERTS["a"])
    device.load("pool", EXPERTS["b"])
    assert reads == ["body", "a", "b"]
    assert says(device, "b", 2) == expected("b", 2)
    assert copies(device) == []


def test_a_body_that_is_missing_fails_its_experts_alone(store, tmp_path):
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    body = own.manifest("t/a").body
    (own.bodies / body.file).unlink()
    for name in "ab":
        with pytest.raises(StoreError, match=rf"the body {body.file} of 't/{name}' cannot be read"):
            bring(device, name)
    bring(device, "c")
    assert says(device, "c", 2) == expected("c", 2)
