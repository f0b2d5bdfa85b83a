"""Experts that share a body on a fake GPU: the body lies there once, and is activated where another is in place."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bare_kind import BareKind
from fake_gpu import FakeDriver

from coe.core import Expert, Finding
from coe.errors import DeviceFull, StoreError
from coe.runtime.cpu import CpuDevice
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
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    shelf = Store(tmp_path_factory.mktemp("products"))
    for name, (first, last) in VALUES.items():
        state = {"first.weight": torch.full((1, NUMBERS), first), "last.weight": torch.full((1, NUMBERS), last)}
        shelf.put(f"t/{name}", kind="product", labels=("ok",), input_size=8, state=state)
        if name != "whole":
            with shelf.changing(f"t/{name}") as manifest:
                bodies.divide(shelf, manifest, {"first.weight"})
    return shelf


def device_of(store: Store, driver: FakeDriver, room: float = 4.2) -> CudaDevice:
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


def bring(device: CudaDevice, name: str, *, body: bool, keep_copy: bool = False) -> None:
    device.read("pool", EXPERTS[name], body=body)
    device.load("pool", EXPERTS[name], body=body, keep_copy=keep_copy)


def body_of(store: Store, name: str) -> str:
    body = store.manifest(f"t/{name}").body
    return body.digest


def says(device: CudaDevice, name: str, shade: int) -> float:
    image = ExpertInput(np.full((3, 8, 8), shade, np.uint8), 8, 8)
    return device.run("one", "pool", EXPERTS[name], [image])[0].score


def expected(name: str, shade: int) -> float:
    first, last = VALUES[name]
    return shade * first * last


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"}), frozenset({"executor 1"})])
def test_a_body_is_copied_once_and_activated_where_another_is_in_place(store: Store, eager: frozenset[str]) -> None:
    driver = FakeDriver(image_bytes=100, eager=eager)
    device = device_of(store, driver, room=6.2)
    bring(device, "a", body=True)
    bring(device, "b", body=False)
    bring(device, "c", body=True)
    turns = "ababcab"
    assert [says(device, name, 10) for name in turns] == [expected(name, 10) for name in turns]
    copied = [line.removeprefix("lane: copy ") for line in driver.log if "copy" in line]
    assert copied == ["body of a", "a", "b", "body of c", "c"]
    activated = [line.removeprefix("executor 1: activate ") for line in driver.log if "activate" in line]
    assert activated == ["body of a", "a", "b", "a", "b", "body of c", "c", "body of a", "a", "b"]
    # The graphs are those that were captured before: one layout, whichever body.
    assert not any("capture" in line for line in driver.log)


def test_a_whole_expert_overwrites_a_body_that_is_in_place(store: Store) -> None:
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a", body=True)
    bring(device, "whole", body=False)
    turns = ["a", "whole", "a"]
    assert [says(device, name, 3) for name in turns] == [expected(name, 3) for name in turns]


def test_a_body_leaves_with_its_last_expert_and_comes_again(store: Store) -> None:
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    for _ in range(5):
        bring(device, "a", body=True)
        bring(device, "b", body=True)  # it came with another expert meanwhile
        assert [says(device, name, 2) for name in "ab"] == [expected(name, 2) for name in "ab"]
        device.evict("pool", EXPERTS["a"])
        assert says(device, "b", 4) == expected("b", 4)
        device.evict("pool", EXPERTS["b"], body=body_of(store, "b"))
        bring(device, "c", body=True)
        bring(device, "d", body=False)
        assert [says(device, name, 5) for name in "dc"] == [expected(name, 5) for name in "dc"]
        device.evict("pool", EXPERTS["c"])
        device.evict("pool", EXPERTS["d"], body=body_of(store, "d"))
    assert driver.log.count("lane: copy body of a") == 5
    device.memory.blobs.check()
    assert device.memory.blobs._extents.used == 0


def test_an_expert_alone_brings_a_body_of_its_own(store: Store) -> None:
    """Tools load experts one by one, and say nothing of bodies."""
    device = device_of(store, FakeDriver(image_bytes=100))
    for name in "ab":
        device.load("pool", EXPERTS[name])
    assert [says(device, name, 2) for name in "ab"] == [expected(name, 2) for name in "ab"]
    for name in "ab":
        device.evict("pool", EXPERTS[name])
    assert device.memory.blobs._extents.used == 0


def test_a_copy_in_host_memory_comes_up_without_the_disk_while_its_body_is_there(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a", body=True)
    bring(device, "b", body=False, keep_copy=True)
    device.evict("pool", EXPERTS["b"])
    device.evict("pool", EXPERTS["a"], keep_copy=True, body=body_of(store, "a"))
    bring(device, "b", body=True)
    monkeypatch.setattr("coe.runtime.reading.Weights.content", lambda self, host: 1 / 0)
    device.load("pool", EXPERTS["a"])
    assert [says(device, name, 2) for name in "ab"] == [expected(name, 2) for name in "ab"]


def test_a_body_that_came_with_a_load_that_failed_goes(store: Store) -> None:
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")]
    with pytest.raises(DeviceFull):
        bring(device, "a", body=True)
    assert device.memory.blobs._extents.used == 0
    bring(device, "b", body=True)
    assert says(device, "b", 2) == expected("b", 2)


def test_a_body_leaves_in_the_name_of_an_expert_that_never_came(store: Store) -> None:
    """b took over the body from a, and could not be loaded then: nobody holds the body."""
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a", body=True)
    assert says(device, "a", 2) == expected("a", 2)
    device.evict("pool", EXPERTS["a"])
    device.evict("pool", EXPERTS["b"], body=body_of(store, "b"))
    assert device.memory.blobs._extents.used == 0
    bring(device, "b", body=True)
    assert says(device, "b", 2) == expected("b", 2)


def is_changed(store: Store, name: str) -> None:
    """Let the manifest of an expert name another body, as if it was trained again while a line runs."""
    with store.changing(f"t/{name}") as manifest:
        store.rewrite(manifest.model_copy(update={"body": store.manifest("t/c").body}))


def test_a_body_that_is_not_the_one_of_the_copy_is_refused(store: Store, tmp_path: Path) -> None:
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    device.fill(EXPERTS["a"])
    is_changed(own, "a")
    with pytest.raises(StoreError, match="open the line again"):
        device.load("pool", EXPERTS["a"], body=True)
    assert device.memory.blobs._extents.used == 0


@pytest.mark.parametrize("on_gpu", [True, False])
def test_a_body_leaves_though_the_manifest_of_the_expert_that_never_came_has_changed(
    store: Store, tmp_path: Path, on_gpu: bool
) -> None:
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100)) if on_gpu else CpuDevice(own, {"product": Product()}, 1)
    if isinstance(device, CpuDevice):
        device.prepare(EXPERTS.values())
    device.read("pool", EXPERTS["a"], body=True)
    device.load("pool", EXPERTS["a"], body=True)
    device.evict("pool", EXPERTS["a"])
    is_changed(own, "b")
    device.evict("pool", EXPERTS["b"], body=body_of(own, "a"))
    if isinstance(device, CudaDevice):
        assert device.memory.blobs._extents.used == 0
    else:
        assert not device._bodies


# Loads that are under way at a time


def copies(device: CudaDevice) -> list[object]:
    return list(device.memory.host._copies)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that grows by each file that is read: the expert whose own part it is, or "body"."""
    names: list[str] = []
    content = Weights.content

    def noted(self: Weights, host: Any) -> Any:
        names.append("body" if self.file is not None else self.expert.id)
        return content(self, host)

    monkeypatch.setattr(Weights, "content", noted)
    return names


@pytest.mark.parametrize("fails", [False, True])
def test_a_body_is_read_once_for_two_loads_under_way(store: Store, reads: list[str], fails: bool) -> None:
    """b is read before a is copied; it copies the body if a fails."""
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")] * fails
    for name in "ab":
        device.read("pool", EXPERTS[name], body=True)
    with pytest.raises(DeviceFull) if fails else nullcontext():
        device.load("pool", EXPERTS["a"], body=True)
    device.load("pool", EXPERTS["b"], body=True)
    assert reads == ["body", "a", "b"]
    assert says(device, "b", 2) == expected("b", 2)
    assert copies(device) == []


def test_a_body_is_read_again_if_the_load_for_which_it_was_read_has_failed(store: Store, reads: list[str]) -> None:
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")]
    with pytest.raises(DeviceFull):
        bring(device, "a", body=True)
    bring(device, "b", body=True)
    assert reads == ["body", "a", "body", "b"]


def test_a_body_that_is_still_to_leave_is_read_for_the_expert_that_comes_after(store: Store, reads: list[str]) -> None:
    """The lane has not evicted a and its body yet when the reader reads b; so the lane need not read the disk."""
    device = device_of(store, FakeDriver(image_bytes=100))
    bring(device, "a", body=True)
    device.read("pool", EXPERTS["b"], body=True)
    device.evict("pool", EXPERTS["a"], body=body_of(store, "a"))
    assert reads == ["body", "a", "body", "b"]
    device.load("pool", EXPERTS["b"], body=True)
    assert reads == ["body", "a", "body", "b"]
    assert says(device, "b", 2) == expected("b", 2)


def test_what_the_lane_reads_itself_leaves_pinned_memory(store: Store) -> None:
    device = device_of(store, FakeDriver(image_bytes=100))
    device.load("pool", EXPERTS["a"], body=True)
    host = device.memory.host
    host.take(host._extents.capacity)


def test_a_load_that_fails_leaves_no_body_in_pinned_memory(store: Store, tmp_path: Path) -> None:
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    own.path("t/a").unlink()
    with pytest.raises(StoreError):
        device.read("pool", EXPERTS["a"], body=True)
    assert copies(device) == []
    device.read("pool", EXPERTS["b"], body=True)
    own.path("t/b").unlink()
    device.memory.host.forget(("pool", "b"))  # as if its memory had been needed for others
    with pytest.raises(StoreError):
        device.load("pool", EXPERTS["b"], body=True)
    assert copies(device) == []


def test_on_a_cpu_a_body_leaves_in_the_name_of_an_expert_that_never_came(store: Store) -> None:
    device = CpuDevice(store, {"product": Product()}, 1)
    device.prepare(EXPERTS.values())
    device.load("pool", EXPERTS["a"], body=True)
    assert len(device._bodies) == 1
    device.evict("pool", EXPERTS["a"])
    device.evict("pool", EXPERTS["b"], body=body_of(store, "b"))
    assert not device._bodies
    device.evict("pool", EXPERTS["b"], body=body_of(store, "b"))  # what is not there passes


def test_a_body_that_is_missing_fails_its_experts_alone(store: Store, tmp_path: Path) -> None:

    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    body = own.manifest("t/a").body
    (own.bodies / body.file).unlink()
    for name in "ab":
        with pytest.raises(StoreError, match=rf"the body {body.file} of 't/{name}' cannot be read"):
            bring(device, name, body=True)
    bring(device, "c", body=True)
    assert says(device, "c", 2) == expected("c", 2)
