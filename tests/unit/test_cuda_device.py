"""The GPU device on a fake one, with networks of one weight: in which order things happen, and what goes wrong."""

import functools
import gc
import shutil
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from bare_kind import Multiplying
from fake_gpu import FakeDriver, FakeGraph
from waiting import Halt

from coe.core import Expert
from coe.errors import BoardsClash, ConfigError, DeviceFull, DeviceLost, StoreError
from coe.runtime.blob import Structure
from coe.runtime.cuda import collector, probe
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.cuda.networks import Networks
from coe.runtime.cuda.unpacking import unpacking_like
from coe.runtime.reading import Weights
from coe.store.kinds import ExpertInput, FileKind
from coe.store.store import Store

PAGE = 4096
MEMORY = 100 << 20
BLOB = 200_000
"""So many numbers has an expert, that a handful of experts fill the device."""
SIZE = 4 * BLOB + PAGE


class Scale(Multiplying):
    name = "scale"
    numbers = BLOB


class File(FileKind):
    name, task, suffix = "file", "classify", ".x"
    preprocess = postprocess = open = None


def expert(name):
    return Expert(name, "scale", ("ok",), 8, f"t/{name}")


EXPERTS = [expert(name) for name in "abcdef"]
VALUES = {name: number for number, name in enumerate("abcdef", start=1)}
"""The one number of each expert that counts."""
FULL = DeviceFull("no memory")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    found = Store(tmp_path_factory.mktemp("store"))
    for name, value in VALUES.items():
        state = {"weight": value * torch.eye(1, BLOB)}  # one number counts, so that nothing can lie beside its place
        found.put(f"t/{name}", kind="scale", labels=("ok",), input_size=8, state=state)
    return found


def gpu(**options):
    return FakeDriver(image_bytes=100, **options)


def bare_device(driver, store, kind=None, **options):
    return CudaDevice(store, {"scale": kind or Scale()}, driver, **({"executors": 1, "memory_bytes": MEMORY} | options))


@functools.cache
def fixed_bytes(root, executors):
    first = bare_device(gpu(), Store(root), executors=executors)
    first.prepare(EXPERTS, executors)
    return first.fixed_bytes(EXPERTS, executors)


def device_of(store, driver, *, room=3.2, copies=0, executors=1, troubles=None):
    """Make a device with room for so many experts, and host memory for so many copies."""
    memory = fixed_bytes(store.root, executors) + int(room * SIZE)
    device = bare_device(driver, store, executors=executors, memory_bytes=memory, host_bytes=int(copies * SIZE))
    device.fixed_bytes(EXPERTS, executors)  # measured before anything goes wrong
    driver.troubles |= troubles or {}
    device.prepare(EXPERTS, executors)
    driver.log.clear()
    return device


def works(device, *names):
    for name in names:
        device.load("pool", expert(name))
        assert says(device, name, 7) == [7 * VALUES[name]]


def ready(store, names="", *, eager=frozenset(), **options):
    """Return a fake GPU and its device, prepared as `device_of` does, with experts of these names loaded."""
    driver = gpu(eager=eager)
    device = device_of(store, driver, **options)
    for name in names:
        device.load("pool", expert(name))
    return driver, device


def images(*shades):
    return [ExpertInput(np.full((3, 8, 8), shade, np.uint8), 8, 8) for shade in shades]


def says(device, name, *shades, executor="one"):
    return [finding.margin for finding in device.run(executor, "pool", expert(name), images(*shades))]


def test_a_batch_waits_on_the_device_for_its_own_copy_and_nobody_else_does(store):
    driver, device = ready(store, "ab")
    # Loads have returned; nothing has been copied yet, and nobody waited.
    assert driver.log == []
    assert says(device, "a", 10, 20) == [10, 20]
    assert says(device, "a", 30) == [30]
    assert says(device, "b", 10) == [20]
    assert [line.removeprefix("executor 1: ") for line in driver.log] == [
        *("lane: copy a", "activate a", "images up", "run x4", "outputs down"),
        *("images up", "run x1", "outputs down"),  # it is active already
        *("lane: copy b", "activate b", "images up", "run x1", "outputs down"),
    ]
    driver, device = ready(store, "ab")
    device.evict("pool", expert("b"))
    assert says(device, "a", 1) == [1]
    assert "lane: copy b" not in driver.log


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"}), frozenset({"executor 1", "executor 2"})])
def test_what_is_overwritten_has_been_read_before(store, eager):
    """Places are given away at once: whoever comes there waits on the device, not in a thread."""
    _, device = ready(store, eager=eager, room=2.2, executors=2)
    for first, second in ("ab", "cd", "ef", "ba", "dc", "fe", "af"):
        device.load("pool", expert(first))
        device.load("pool", expert(second))
        assert says(device, first, 3, executor="one") == [3 * VALUES[first]]
        assert says(device, second, 3, 5, 7, executor="two") == [each * VALUES[second] for each in (3, 5, 7)]
        assert says(device, second, 1, executor="one") == [VALUES[second]]
        device.evict("pool", expert(first))
        device.evict("pool", expert(second))
    device.memory.blobs.check()


def test_a_batch_is_filled_up_to_the_next_graph_and_run_in_parts_beyond_the_largest(store):
    driver, device = ready(store, "b")
    assert says(device, "b", *range(11)) == [2 * shade for shade in range(11)]
    assert says(device, "b", *range(35)) == [2 * shade for shade in range(35)]
    assert runs(driver) == [16, 32, 4]
    _, device = ready(store, "a")
    inputs = images(1)[0].pixels[::-1], np.broadcast_to(np.uint8(2), (3, 8, 8))
    findings = device.run("one", "pool", expert("a"), [ExpertInput(pixels, 8, 8) for pixels in inputs])
    assert [finding.margin for finding in findings] == [1, 2]


@pytest.fixture
def no_disk(monkeypatch):
    """A function after which each read of a file is an error."""
    return lambda: monkeypatch.setattr(Weights, "content", lambda self, host: 1 / 0)


def test_a_copy_in_host_memory_spares_the_disk_also_after_a_fill(store, no_disk, monkeypatch):
    _, device = ready(store, copies=2.2)
    for name in "ab":
        device.load("pool", expert(name), keep_copy=name == "a")
        device.evict("pool", expert(name))
    no_disk()
    works(device, "a")
    with pytest.raises(ZeroDivisionError):
        device.load("pool", expert("b"))
    device.evict("pool", expert("a"))
    device.forget("a")
    with pytest.raises(ZeroDivisionError):
        device.load("pool", expert("a"))
    monkeypatch.undo()
    driver, device = ready(store, copies=1.2)
    device.fill(expert("b"))
    no_disk()
    device.load("pool", expert("b"))
    device.activate("one", "pool", expert("b"))
    assert driver.log == ["lane: copy b", "executor 1: activate b"]
    assert says(device, "b", 9) == [18]


@pytest.mark.parametrize("filled", [True, False])
def test_a_copy_that_could_not_be_loaded_is_dropped_as_in_the_books(store, filled):
    driver, device = ready(store, copies=1.2)
    device.fill(expert("b")) if filled else device.read("pool", expert("b"))
    driver.troubles["copy b"] = [FULL]
    with pytest.raises(DeviceFull):
        device.load("pool", expert("b"), keep_copy=not filled)
    assert device.memory.host.copy_of("b") is None
    device.read("pool", expert("b"))
    works(device, "b")


def test_what_the_disk_reader_has_read_is_copied_without_the_disk(store, monkeypatch):
    """Two pools may want an expert at the same time: each load has the file read for itself, before it is copied."""
    reads, content = [], Weights.content
    _, device = ready(store)
    monkeypatch.setattr(Weights, "content", lambda self, host: reads.append(self.name) or content(self, host))
    for step in (device.read, device.load):
        for pool in ("pool", "other"):
            step(pool, expert("b"))
    device.read("pool", expert("c"))
    device.load("pool", expert("c"), keep_copy=True)
    assert len(reads) == 3
    assert [says(device, name, 5) for name in "bc"] == [[10], [15]]
    device.evict("pool", expert("c"))
    works(device, "c")
    assert len(reads) == 3


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"})])
def test_who_leaves_the_device_goes_down_with_its_unpacking_and_comes_up_again(store, monkeypatch, no_disk, eager):
    driver, device = ready(store, eager=eager, room=2.2, copies=3.2)
    for name in "abcd":
        device.load("pool", expert(name), keep_copy=name == "a")
        device.evict("pool", expert(name), keep_copy=name in "bc")
    no_disk()
    monkeypatch.setattr(Networks, "unpacking", lambda *_: 1 / 0)
    for name in "cab":
        works(device, name)
        device.evict("pool", expert(name), keep_copy=True)
    device._lane.work_until(None)
    assert [driver.log.count(f"lane: copy {name} down") for name in "abc"] == [0, 1, 1]


@pytest.mark.parametrize("is_full", [False, True])
def test_memory_that_a_copy_comes_down_to_is_lent_again_once_it_is_there_or_failed(store, is_full):
    driver, device = ready(store, "b", copies=1.2)
    driver.troubles["copy b down"] = [FULL] * is_full
    device.evict("pool", expert("b"), keep_copy=True)
    host = device.memory.host
    assert (host.copy_of("b") is None) is is_full
    host.forget("b")
    host.take(host._extents.capacity)
    assert ("lane: copy b down" in driver.log) is not is_full


@pytest.mark.parametrize("what", ["copy b", "copy b down"])
def test_no_pinned_memory_is_lent_while_a_copy_is_put_on_the_lane(store, monkeypatch, what):
    """Until the copy is marked, nothing tells that the device uses the memory."""
    driver, device = ready(store, "b", copies=2.2)
    halt, place = Halt(), ("pool", expert("b"))
    monkeypatch.setattr(driver, "answer", lambda action: halt() if action == what else None)
    halt.holds_up(
        lambda: (device.evict(*place, keep_copy=True), device.load(*place)), lambda: device.memory.host.take(PAGE)
    )


def test_blobs_are_moved_where_gaps_are_too_small(store, tmp_path):
    driver, device = ready(store, "abc", room=4.4)
    device.load("pool", expert("d"))
    size = device.memory.expert("pool", "b").resident.extent.size
    # The gaps of `a` and `c` are taken by something smaller each, so that none is large enough.
    smaller = []
    for name in "ac":
        device.evict("pool", expert(name))
        blob = [torch.zeros(int(0.6 * size), dtype=torch.uint8)]
        smaller.append(device.memory.blobs.put(f"in the place of {name}", blob, unpacking_like({}, Structure())))
    device.load("pool", expert("e"))
    assert [says(device, name, 5) for name in "bde"] == [[10], [20], [25]]
    assert "lane: move b" in driver.log
    for resident in smaller:
        device.memory.blobs.drop(resident)
    device.memory.blobs.check()


@pytest.mark.parametrize("shape", [1, 3])
def test_an_expert_is_read_into_pieces_and_copied_from_them(store, shape):
    driver, device = ready(store, copies=4)
    host = device.memory.host
    runs = []
    with suppress(DeviceFull):
        while True:
            runs.append(host.take(shape * PAGE))
    for run in runs[::2]:
        host.give(run)
    for name in "ab":
        device.load("pool", expert(name), keep_copy=True)
        assert len(host.copy_of(name).buffer.extents) > 50
        assert says(device, name, 7) == [7 * VALUES[name]]
    device.evict("pool", expert("a"))
    works(device, "a")
    assert not any("move" in entry for entry in driver.log)


def test_what_a_network_makes_for_itself_lives_as_long_as_its_graphs(store):
    class Buffered(Scale):
        def skeleton(self, expert):
            module = super().skeleton(expert)
            module.register_buffer("ones", torch.ones(1), persistent=False)
            return module

        def forward(self, module, images):
            return super().forward(module, images) * module.ones

    device = bare_device(gpu(), store, Buffered())
    device.prepare(EXPERTS)
    device.load("pool", expert("b"))
    gc.collect()
    assert says(device, "b", 3) == [6]


def test_a_kind_may_change_what_it_gets(store):
    class Spoiling(Scale):
        def forward(self, module, images):
            return {"all": super().forward(module, images)}

        def postprocess(self, outputs, prepared, expert):
            return super().postprocess(outputs.pop("all").squeeze_()[None, None], prepared, expert)

    device = bare_device(gpu(), store, Spoiling())
    device.prepare(EXPERTS)
    device.load("pool", expert("b"))
    assert [says(device, "b", shade) for shade in range(1, 6)] == [[2], [4], [6], [8], [10]]


@pytest.mark.parametrize(
    "gives_back", [lambda worker: worker.trim(), lambda worker: collector.give_back(worker._driver)]
)
def test_nothing_goes_while_a_graph_is_captured(store, gives_back):
    _, device = ready(store, "a")
    assert says(device, "a", 7) == [7]
    (worker,) = device._workers.values()
    trimmer = threading.Thread(target=gives_back, args=(worker,))
    with collector.uncollected():
        trimmer.start()
        trimmer.join(0.2)
        assert worker._graphs
        assert trimmer.is_alive()
    trimmer.join(60)
    assert not trimmer.is_alive()


@pytest.fixture
def gone(monkeypatch):
    """Whether each graph that went did so while no other can be captured."""
    seen = []
    monkeypatch.setattr(FakeGraph, "__del__", lambda graph: seen.append(collector._alone._is_owned()), raising=False)
    return seen


def test_the_graphs_of_measurings_go_while_no_other_is_captured(store, gone, monkeypatch):
    device = bare_device(gpu(), store)
    device.fixed_bytes(EXPERTS, 1)
    with device.trial(expert("a")):
        pass

    monkeypatch.setattr(probe, "HostMemory", raising(FULL))
    with pytest.raises(ConfigError), device.trial(expert("a")):
        pass
    gc.collect()
    assert len(gone) == 5 + 5 + 5
    assert all(gone)


def test_the_graphs_of_a_line_that_is_closed_lost_or_cannot_open_go_so_too(store, gone):
    _, device = ready(store, "a")
    says(device, "a", 1)
    gone.clear()
    device.close()
    assert gone == 5 * [True]
    too_small = bare_device(gpu(), store, memory_bytes=device.fixed_bytes(EXPERTS, 1) + 1000)
    with pytest.raises(ConfigError):
        too_small.prepare(EXPERTS)
    gc.collect()
    assert all(gone)
    assert too_small.driver.reserved == 0
    driver, device = ready(store, "a")
    says(device, "a", 1)
    gone.clear()
    driver.troubles["wait"] = [DeviceLost("gone")]
    device.close()
    assert gone == 5 * [True]


def raising(error):
    def fails(*_):
        raise error

    return fails


def runs(driver):
    return [int(line.rpartition("x")[2]) for line in driver.log if " run x" in line]


def test_what_is_full_once_is_tried_again_twice_makes_batches_smaller_and_spoils_no_place_and_no_batch_ahead(store):
    driver, device = ready(store, "c", troubles={"capture scale x32": [FULL]})
    assert says(device, "c", *range(20)) == [3 * shade for shade in range(20)]
    assert runs(driver) == [32]
    driver, device = ready(store, "c", troubles={"capture scale x32": [FULL] * 2, "capture scale x16": [FULL] * 2})
    # It stays with what was found out.
    for _ in range(2):
        assert says(device, "c", *range(10)) == [3 * shade for shade in range(10)]
    assert runs(driver) == [8, 4] * 2
    driver, device = ready(store, "ab")
    assert says(device, "a", 1) == [1]
    driver.troubles["activate b"] = [FULL]
    with pytest.raises(DeviceFull):
        says(device, "b", 1)
    assert [says(device, name, 1) for name in "bab"] == [[2], [1], [2]]
    driver, device = ready(store, "ab")
    first = device.launch("one", "pool", expert("a"), images(1))
    driver.troubles["run x"] = [FULL] * 2
    with pytest.raises(DeviceFull):
        device.launch("one", "pool", expert("b"), images(1))
    assert [finding.margin for finding in first()] == [1]
    assert says(device, "b", 3) == [6]


def test_where_graphs_went_they_are_captured_again_smaller_or_the_batch_fails(store):
    driver, device = ready(store, "c")
    assert says(device, "c", 1) == [3]
    device._workers["one"].trim()
    driver.troubles["capture scale x4"] = [FULL]
    assert says(device, "c", 1, 2, 3) == [3, 6, 9]
    driver.troubles["capture scale x16"] = [FULL] * 2
    assert says(device, "c", *range(10)) == [3 * shade for shade in range(10)]
    assert runs(driver) == [1, 4, 8, 4]
    driver.troubles["capture scale x1"] = [FULL] * 2
    with pytest.raises(DeviceFull, match="no memory"):
        says(device, "c", 1)
    assert says(device, "c", 1) == [3]


def test_a_load_that_fails_takes_no_place_whether_in_its_copy_or_before(store, monkeypatch):
    driver, device = ready(store, room=1.2)
    driver.troubles["copy b"] = [FULL] * 20
    for _ in range(20):
        with pytest.raises(DeviceFull):
            device.load("pool", expert("b"))
    works(device, "a")
    with pytest.raises(DeviceFull):
        device.load("pool", expert("c"))
    _, device = ready(store, room=1.2)

    with monkeypatch.context() as patch:
        patch.setattr(Networks, "template", raising(StoreError("the kind lacks a layer")))
        for _ in range(3):
            with pytest.raises(StoreError, match="lacks a layer"):
                device.load("pool", expert("a"))
    works(device, "a")


def test_a_lost_device_says_so_from_then_on_ends_both_batches_and_lets_go(store):
    driver, device = ready(store, "ab")
    driver.troubles["run x1"] = [DeviceLost("it fell off the bus")]
    for _ in range(3):
        with pytest.raises(DeviceLost):
            says(device, "a", 1)
    driver.lost = False  # it is not asked again
    with pytest.raises(DeviceLost):
        device.load("pool", expert("c"))
    device.evict("pool", expert("a"), keep_copy=True)
    device.evict("pool", expert("b"))
    device.trim()
    driver, device = ready(store, "a")
    launched = [device.launch("one", "pool", expert("a"), images(shade)) for shade in (1, 2)]
    driver.troubles["wait"] = [DeviceLost("it fell off the bus")]
    for findings in launched:
        with pytest.raises(DeviceLost):
            findings()
        driver.lost = False
    with pytest.raises(DeviceLost):
        device.load("pool", expert("b"))


def test_damaged_weights_are_reported_and_the_others_go_on(store, tmp_path):
    own = Store(shutil.copytree(store.root, tmp_path / "own"))
    path = own.path("t/b")
    data = bytearray(path.read_bytes())
    data[-5000] ^= 1
    path.write_bytes(data)
    device = device_of(own, gpu())
    with pytest.raises(StoreError, match=r"t/b.* is damaged"):
        device.load("pool", expert("b"))
    works(device, "a")


def test_nothing_is_captured_and_no_memory_taken_while_images_come(store):
    driver, device = ready(store, "ab", room=2.5, executors=2)
    # From here on, memory that is asked for is an error.
    driver.troubles |= {what: [FULL] * 99 for what in ("memory", "pinned", "capture")}
    for count in range(1, 40):
        assert len(says(device, "a", *range(count))) == count
        assert len(says(device, "a", *range(count), executor="two")) == count
    assert driver.peak <= device.memory_bytes


def test_all_graphs_are_captured_by_one_thread_the_largest_first_and_it_is_said(store):
    """Libraries look for the quickest kernels once for each thread."""
    seen = []

    class Watched(FakeDriver):
        def capture(self, what, stream, work):
            seen.append((threading.get_ident(), f"{stream.name}: {what}"))
            return super().capture(what, stream, work)

    said = []
    device = bare_device(Watched(image_bytes=100), store, executors=2, say=said.append)
    device.fixed_bytes(EXPERTS, 2)
    seen.clear()
    device.prepare(EXPERTS, 2)
    assert len({thread for thread, _ in seen}) == 1
    sizes = [f"capture scale x{size}" for size in (32, 16, 8, 4, 1)]
    assert [what for _, what in seen] == [f"executor {number}: {capture}" for number in (1, 2) for capture in sizes]
    assert ["scale" in sentence and "1 of 1" in sentence for sentence in said] == [True]


MIB = 1 << 20


def several(folder, batches):
    """Return a store, kinds and experts: one of each name, with its largest batch."""
    store, kinds = Store(folder), {}
    for name, most in batches.items():
        kinds[name] = type("Another", (Scale,), {"name": name, "max_batch": most})()
        store.put(f"t/{name}", kind=name, labels=("ok",), input_size=8, state={"weight": torch.ones(1, BLOB)})
    return store, kinds, [Expert(name, name, ("ok",), 8, f"t/{name}") for name in batches]


def test_an_executors_graphs_work_in_one_memory_and_the_rest_is_for_experts(tmp_path):
    """Four kinds whose largest batch holds 32 MiB each hold 32 MiB, not 128."""
    store, kinds, experts = several(tmp_path, {"one": 32, "two": 32, "three": 32, "four": 32})
    driver = FakeDriver(image_bytes=MIB)
    device = CudaDevice(store, kinds, driver, executors=2, memory_bytes=300 * MIB)
    # What may be expected before is not far from what is.
    assert device.fixed_bytes(experts, 2) < 230 * MIB
    device.prepare(experts, 2)
    arena = 300 * MIB - device.fixed_bytes(experts, 2)
    assert 2 * 32 * MIB < device.fixed_bytes(experts, 2) < 2 * 32 * MIB + 60 * MIB
    # All of the budget is in use, but for what memory in pieces may take.
    assert 300 * MIB - 50 * MIB < driver.usage().reserved <= driver.peak <= 300 * MIB
    for kind in experts:
        device.load("pool", kind)
        assert [one.margin for one in device.run("one", "pool", kind, images(*range(32)))] == list(range(32))
    assert runs(driver) == [32] * len(experts)
    assert device.memory.blobs.capacity == arena


def test_the_networks_that_hold_most_are_captured_first(tmp_path):
    """Later graphs then reuse their memory; the other way round both would stay reserved."""
    store, kinds, experts = several(tmp_path, {"few": 4, "many": 32, "some": 16})
    said, driver = [], FakeDriver(image_bytes=MIB)
    device = CudaDevice(store, kinds, driver, executors=1, memory_bytes=300 * MIB, say=said.append)
    device.prepare(experts)
    assert [sentence.split()[1] for sentence in said] == ["many", "some", "few"]


def test_what_others_hold_or_left_behind_is_no_memory_of_the_line(store):
    """cuBLAS keeps a workspace of work before the line; it goes at the next capture, so it must go before that."""
    driver = FakeDriver(image_bytes=MIB)
    for measured in (False, True):
        driver.leave(64 * MIB)
        device = bare_device(driver, store)
        if measured:
            driver.leave(64 * MIB)
        device.prepare(EXPERTS)
        assert driver.usage().reserved <= MEMORY
        assert device._sizing.held(EXPERTS[0]).bytes >= 16 * MIB
        device.close()
        del device
    driver, others = gpu(), type("Others", (), {})()
    driver.reserve(others, 60 << 20)
    device = device_of(store, driver, room=2.5)
    works(device, "a", "b")
    assert driver.peak <= device.memory_bytes + (60 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        driver.reserve(device, 60 << 20)


@pytest.mark.parametrize(
    ("executors", "batch_bytes", "batches"),
    [(1, None, [16, 16, 8]), (2, None, 5 * [8]), (1, 40 * MIB, [32, 8]), (1, 0, 40 * [1])],
)
def test_the_largest_batch_that_the_budget_allows_is_what_experts_run(store, executors, batch_bytes, batches):
    """A quarter of the budget is for the graphs of all: 16 images of 1 MiB fit into 25 MiB, 32 do not."""
    driver = FakeDriver(image_bytes=MIB)
    device = bare_device(driver, store, executors=executors, batch_bytes=batch_bytes)
    device.prepare(EXPERTS, executors)
    device.load("pool", expert("b"))
    assert says(device, "b", *range(40)) == [2 * shade for shade in range(40)]
    assert runs(driver) == batches


def test_memory_that_only_garbage_holds_is_found_when_it_is_needed(store):
    """A forward that fails may leave its tensors in cycles; nobody collects them meanwhile."""
    driver = gpu()

    class Hoarder(Scale):
        """While it is captured, the largest batch needs a workspace; if armed it fails once, and hoards that."""

        armed, captured = False, False

        def forward(self, module, images):
            if len(images) == 32 and not self.captured:
                workspace = [driver.device_memory(60 * MIB)]
                if self.armed:
                    self.armed = False
                    workspace.append(workspace)
                    raise torch.OutOfMemoryError("no memory")
            return super().forward(module, images)

    kind = Hoarder()
    device = bare_device(driver, store, kind)
    device.fixed_bytes(EXPERTS, 1)
    kind.armed = True
    gc.disable()
    try:
        device.prepare(EXPERTS)
        assert not gc.isenabled(), "it stays as the program has it"
    finally:
        gc.enable()
    assert not kind.armed
    kind.captured = True
    device.load("pool", expert("a"))
    assert len(says(device, "a", *range(32))) == 32
    assert runs(driver) == [32]
    assert driver.peak <= MEMORY


def test_a_device_that_is_closed_has_done_all_its_work(store):
    driver, device = ready(store, "a", executors=2)
    findings = device.launch("one", "pool", expert("a"), images(3))
    device.load("pool", expert("b"))
    device.close()
    assert {"lane: copy a", "lane: copy b", "executor 1: outputs down"} <= set(driver.log)
    assert findings()[0].margin == 3
    driver.troubles["wait"] = [DeviceLost("gone")]
    device.close()
    device.close()


def test_too_little_memory_is_said_before_anything_runs(store):
    device = bare_device(gpu(), store, memory_bytes=9 << 20)
    with pytest.raises(ConfigError, match=r"9\.0 MiB.*--device-memory"):
        device.prepare(EXPERTS)
    with pytest.raises(ConfigError, match="'file'"):
        CudaDevice(store, {"file": File()}, gpu(), executors=1, memory_bytes=10 << 20)


def test_measuring_tells_times_and_leaves_no_memory_behind(store):
    driver = gpu()
    device = bare_device(driver, store, memory_bytes=1 << 30)
    cost = device.measure(expert("a"))
    assert min(cost.per_image_s, cost.load_s, cost.copy_s) > 0
    assert (cost.activation_bytes, cost.workspace_bytes) == (0, 0)
    assert cost.weights_bytes >= 4 * BLOB
    assert cost.max_batch <= 32
    assert driver.reserved == 0
    with device.trial(expert("a")) as trial:
        driver.log.clear()
        trial.copy()
        assert driver.log == ["probe lane: copy a"], "it is there once its time ends"
        answers = [trial.answer(np.full((1, 3, 8, 8), shade, np.uint8)) for shade in (1, 2, 3)]
        assert answers == [1, 2, 3], "they are the caller's own"
        assert driver.log.count("probe: activate a") == 3, "to activate is a part of a batch's time"


def test_a_trial_that_ends_early_waits_for_its_copies(store, monkeypatch):
    """What was put on the lane reads pinned memory and writes device memory, until it has been done."""
    driver = gpu()
    device = bare_device(driver, store)
    device.fixed_bytes(EXPERTS, 1)
    driver.log.clear()

    def fails(self):
        assert driver.log[-1:] != ["probe lane: copy a"], "copies are under way"
        raise FULL

    monkeypatch.setattr(probe._Bench, "load", fails)
    with pytest.raises(ConfigError), device.trial(expert("a")):
        pass
    gc.collect()
    assert (driver.faults, driver.log.count("probe lane: copy a"), driver.reserved) == ([], 2, 0)


def captures(driver):
    return [line for line in driver.log if "capture" in line]


def test_experts_of_a_network_with_as_many_answers_share_a_template_that_holds_no_memory(store):
    networks = Networks(store, {"scale": Scale()}, torch.device("cpu"))
    template = networks.template(expert("a"))
    assert networks.template(expert("b")) is template
    for answers in ({"labels": ("ok", "bad")}, {"alternates": 2}):
        assert networks.template(replace(expert("a"), **answers)) is not template
    assert not any(tensor.numel() for tensor in template._module.state_dict().values())


def test_nothing_is_measured_twice_in_a_process_but_other_memory_drivers_and_weights_are(store):
    """A second line on the same GPU captures the graphs that it runs, and no others."""
    driver = gpu()
    first = bare_device(driver, store)
    cost = first.measure(expert("a"))
    sizes = first.fixed_bytes(EXPERTS, 1)
    assert [line for line in captures(driver) if line.startswith("probe")]
    driver.log.clear()
    second = bare_device(driver, store)
    assert second.measure(expert("a")) is cost
    assert second.fixed_bytes(EXPERTS, 1) == sizes
    assert captures(driver) == []
    second.prepare(EXPERTS)
    assert [line.split(":")[0] for line in captures(driver)] == ["executor 1"] * 5
    driver = gpu()
    bare_device(driver, store).measure(expert("a"))
    for other, name, memory in ((gpu(), "a", MEMORY), (driver, "b", MEMORY), (driver, "a", MEMORY // 2)):
        other.log.clear()
        bare_device(other, store, memory_bytes=memory).measure(expert(name))
        assert captures(other), (name, memory)


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"executor 1"})])
def test_a_batch_is_put_on_the_device_before_the_batch_ahead_of_it_is_waited_for(store, eager):
    """Each has pinned memory for its images and outputs; the next expert is activated behind the first batch."""
    driver, device = ready(store, "ab", eager=eager)
    launched = [device.launch("one", "pool", expert(name), images(*of)) for name, of in (("a", (1, 2)), ("b", (7,)))]
    assert eager or driver.log == []
    assert [[finding.margin for finding in findings()] for findings in launched] == [[1, 2], [14]]
    assert runs(driver) == [4, 1]


def test_once_it_is_prepared_it_takes_only_what_its_graphs_run(store, tmp_path):
    driver, device = ready(store)
    device.admit([expert("b")], 1)
    assert captures(driver) == []
    with pytest.raises(BoardsClash, match="'b'"):
        device.admit([replace(expert("b"), input_size=16)], 1)
    assert device.measure(expert("a")).load_s > 0
    with pytest.raises(BoardsClash, match="'a'"):
        device.measure(replace(expert("a"), input_size=16))
    large = Store(tmp_path)
    large.put("t/a", kind="scale", labels=("ok",), input_size=8, state={"weight": torch.ones((1, 2 * BLOB))})
    device.store = large
    with pytest.raises(BoardsClash, match="'a'"):
        device.admit([expert("a")], 1)
