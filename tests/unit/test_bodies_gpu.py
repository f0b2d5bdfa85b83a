"""Experts with one body on devices: copied, activated and counted once, also as a session on a CPU."""

import gc
import shutil
import weakref
from contextlib import nullcontext

import numpy as np
import psutil
import pytest
import torch
from bare_kind import BareKind
from common_trunk import BOARD, put_blob, share
from fake_gpu import FakeDriver
from safetensors.torch import load_file
from tables import with_slow_rows

from coe import Inspector, Picture
from coe.core import Expert, FailureKind, Finding
from coe.errors import DeviceFull, StoreError
from coe.helpers.system import give_memory_back
from coe.runtime import cpu
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.reading import Weights
from coe.runtime.trial import peak_growth_bytes
from coe.scheduler.events import Load
from coe.store import bodies, kinds
from coe.store.kinds import ExpertInput
from coe.store.skeletons import random_weights
from coe.store.store import Store
from coe.store.variants import put
from coe.testing import Experiment
from coe.variants.fold import fold, network

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
        return [Finding(expert.id, expert.variant, "ok", 1.0, margin=float(score)) for score in outputs[:, 0]]


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
    experts, options = list(EXPERTS.values()), {"executors": 1, "memory_bytes": 100 << 20}
    probe = CudaDevice(store, {"product": Product()}, FakeDriver(image_bytes=100), **options)
    probe.prepare(experts)
    options = {"executors": 1, "memory_bytes": probe.fixed_bytes(experts, 1) + int(room * SIZE), "host_bytes": 8 * SIZE}
    device = CudaDevice(store, {"product": Product()}, driver, **options)
    device.prepare(experts)
    driver.log.clear()
    return device


def bring(device, name, *, keep_copy=False):
    device.read("pool", EXPERTS[name])
    device.load("pool", EXPERTS[name], keep_copy=keep_copy)


def says_right(device, names):
    image = ExpertInput(np.full((3, 8, 8), 5, np.uint8), 8, 8)
    for name in names:
        first, last = VALUES[name]
        assert device.run("one", "pool", EXPERTS[name], [image])[0].margin == 5 * first * last


@pytest.mark.parametrize("eager", [frozenset(), frozenset({"lane"}), frozenset({"executor 1"})])
def test_a_body_is_copied_once_and_activated_where_another_is_in_place(store, eager):
    driver = FakeDriver(image_bytes=100, eager=eager)
    device = device_of(store, driver, room=6.2)
    for name in "abc":
        bring(device, name)
    says_right(device, "ababcab")
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
    says_right(device, ["a", "whole", "a"])
    device = device_of(store, FakeDriver(image_bytes=100))
    device.load("pool", EXPERTS["a"])
    device.memory.host.take(device.memory.host._extents.capacity)


def test_a_body_stays_when_its_experts_leave(store):
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    for _ in range(3):
        for pair in ("ab", "dc"):
            for name in pair:
                bring(device, name)
            says_right(device, pair)
            device.evict("pool", EXPERTS[pair[0]])
            says_right(device, pair[1])
            device.evict("pool", EXPERTS[pair[1]])
    assert [line for line in driver.log if "copy body" in line] == ["lane: copy body of a", "lane: copy body of d"]
    device.memory.blobs.check()


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
    says_right(device, "ab")


def test_a_body_that_came_with_a_load_that_failed_is_there_for_the_next(store):
    driver = FakeDriver(image_bytes=100)
    device = device_of(store, driver)
    driver.troubles["copy a"] = [DeviceFull("no memory")] * 4
    for _ in range(4):
        with pytest.raises(DeviceFull):
            bring(device, "a")
    for name in "bc":  # with their bodies they fill the device
        bring(device, name)
    says_right(device, "bc")


def test_a_body_that_is_not_that_of_the_copy_or_is_missing_fails_its_experts_alone(store, tmp_path):
    own = Store(shutil.copytree(store.root, tmp_path / "store"))
    device = device_of(own, FakeDriver(image_bytes=100))
    device.fill(EXPERTS["a"])
    with own.changing("t/a") as manifest:  # as if it was trained again while a line runs
        own.rewrite(manifest.model_copy(update={"body": own.manifest("t/c").body}))
    with pytest.raises(StoreError, match="open the line again"):
        device.load("pool", EXPERTS["a"])
    for name in "cd":
        bring(device, name)
    device.load("other", EXPERTS["c"])  # with a body that fills the device
    says_right(device, "cd")
    own = Store(shutil.copytree(store.root, tmp_path / "other"))
    device = device_of(own, FakeDriver(image_bytes=100))
    body = own.manifest("t/a").body
    (own.bodies / body.file).unlink()
    for name in "ab":
        with pytest.raises(StoreError, match=body.file):
            bring(device, name)
    bring(device, "c")
    says_right(device, "c")


@pytest.fixture
def reads(monkeypatch):
    """A list that grows by each file that is read: the expert whose own part it is, or "body"."""
    names, content = [], Weights.content

    def noted(self, *words):
        names.append("body" if self.file is not None else self.expert.id)
        return content(self, *words)

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
    says_right(device, "b")
    assert not device.memory.host._copies


@pytest.fixture(scope="module")
def pictures():
    chance = np.random.default_rng(3)
    noise = [chance.integers(0, 255, (32, 32, 3), dtype=np.uint8) // (1 + number % 5) for number in range(24)]
    return [Picture(pixels, "ABCD"[number % 4], name=f"{number}") for number, pixels in enumerate(noise)]


@pytest.fixture
def trunk(tmp_path):
    (board := tmp_path / "trunk.yaml").write_text(BOARD, encoding="utf-8")
    return board


def inspected(store, pictures, trunk, **options):
    with Inspector(trunk, store=store, profile=None, **options) as line:
        # One by one: which images share a batch may change the last digit of a score.
        return {p.name: line.submit(p.image, p.component, name=p.name).result() for p in pictures}


def found(results):
    assert all(result.failure is None for result in results.values())
    return {name: result.findings for name, result in results.items()}


ON_CPU = {"memory": "13MB", "executors": "cpu=1"}
ON_GPU = {"device_memory": "80MB", "host_memory": "8MB", "executors": "cuda=1", "memory": "200MB"}


@pytest.mark.parametrize("options", [ON_CPU, ON_GPU], ids=["cpu", "gpu"])
def test_every_finding_is_equal_to_the_digit_whole_and_with_a_body(
    prepared_trunk, shared_trunk, pictures, trunk, driver, options
):
    before = found(inspected(prepared_trunk, pictures, trunk, **options))
    assert found(inspected(shared_trunk, pictures, trunk, **options)) == before


def test_a_missing_body_fails_its_experts_alone(shared_trunk, pictures, trunk, tmp_path):
    store = Store(shutil.copytree(shared_trunk, tmp_path / "store"))
    body = store.manifest("trunk/a").variants["fp32"].body
    (store.bodies / body.file).unlink()
    for result in inspected(store.root, pictures, trunk, memory="100MB", executors="cpu=1").values():
        assert (result.failure is None) == (result.request.component == "D")
        assert result.failure is None or result.failure.kind is FailureKind.LOAD
        assert result.failure is None or body.file in result.failure.reason


def body_of(store):
    return Store(store).manifest("trunk/a").variants["fp32"].body


def test_a_body_stays_while_experts_come_and_go(shared_trunk, pictures, trunk, reads):
    with Inspector(trunk, store=shared_trunk, profile=None, experiment=Experiment(keep_trace=True), **ON_CPU) as line:
        # Twice, so that experts leave and come again.
        for _ in range(2):
            found({result.request.image: result for result in line.stream(pictures)})
            assert reads.count("body") == 1
    commands = [command for _, _, some in line.trace for command in some]
    assert sum(isinstance(command, Load) and command.expert in "abc" for command in commands) > 3


def test_pools_give_up_what_a_body_takes_that_a_change_of_boards_brings(shared_trunk, trunk, tmp_path):
    (alone := tmp_path / "alone.yaml").write_text(
        "board: alone\nexperts:\n  d: {kind: narrow, labels: [ok, bad], input: 32, weights: trunk/d}\n"
        "components:\n  D: {count: 1, inspect: d, then: {ok: OK, bad: NG}}\n",
        encoding="utf-8",
    )
    options = {"store": shared_trunk, "profile": None, **ON_CPU}
    with Inspector(alone, **options) as line:
        before = line.plan.pools[0].capacity_bytes
        line.set_boards(trunk)
        after = line.plan.pools[0].capacity_bytes
        assert before - after >= body_of(shared_trunk).bytes
        line.set_boards(alone)
        assert line.plan.pools[0].capacity_bytes == after, "the body stays"
    with Inspector(trunk, **options) as line:
        assert line.plan.pools[0].capacity_bytes == pytest.approx(after, rel=0.02)


@pytest.mark.parametrize("on_gpu", with_slow_rows([False, True], fast=1))
def test_an_expert_that_is_trained_again_joins_the_body_that_is_resident(
    shared_trunk, pictures, trunk, tmp_path, driver, on_gpu
):
    """b is trained again with the same layers frozen, and comes with the next change of boards."""
    store = Store(shutil.copytree(shared_trunk, tmp_path / "store"))
    few = [picture for picture in pictures if picture.component in "ABD"]
    with Inspector(trunk, store=store.root, profile=None, **(ON_GPU if on_gpu else ON_CPU)) as line:
        before = labels(line, few)
        manifest, state = store.manifest("trunk/b"), store.load("trunk/b")
        prepared = manifest.variants["fp32"]
        blob = bodies.whole_blob(store, manifest, prepared)
        state["fc.bias"] = state["fc.bias"] + 1  # of both labels, so it says the same
        store.put("trunk/b", kind="narrow", labels=manifest.labels, input_size=32, state=state)
        with store.changing("trunk/b") as trained:
            put(store, trained, blob, agreement=prepared.agreement, escalate_below=0.0)
        share(store, "trunk/b")
        line.set_boards(trunk)
        assert "b" not in line.rules.experts  # it has another name, as it has other weights
        assert labels(line, few) == labels(line, few) == before
        (device,) = line._assembly.devices.values()
        held = device.memory.bodies if on_gpu else device
        assert list(held._bodies) == [body_of(store.root).digest]


def labels(line, pictures):
    results = {result.request.image: result for result in line.stream(pictures)}
    return {name: [finding.label for finding in findings] for name, findings in found(results).items()}


KINDS = {name: kinds.resolve(name) for name in ("probe", "patch")}
PROBE = KINDS["probe"]


def expert_of(kind, size=64, name="u1"):
    return Expert(name, kind, ("strange",) if kind == "patch" else ("bad", "ok"), size, f"b/{name}")


def state_of(expert, backbone, seed=0):
    own = random_weights(KINDS[expert.kind], expert, seed)
    theirs = {f"backbone.{name}": tensor for name, tensor in load_file(backbone).items()}
    return own | {name: theirs[name] for name in own if name in theirs}


@pytest.fixture(scope="module")
def store_sessions(backbone, built_once):
    """Two probes with one body, prepared, and one that is not; do not change them."""

    def make(folder):
        store = Store(folder)
        for seed, name in enumerate(("u1", "u2", "bare")):
            expert = expert_of("probe", name=name)
            state = state_of(expert, backbone, seed)
            store.put(expert.weights, kind="probe", labels=expert.labels, input_size=64, state=state)
            if name != "bare":
                put_blob(store, expert, "fp32")
            bodies.divide_frozen(store, store.manifest(expert.weights), ("backbone.",))

    return Store(built_once("probes", make))


@pytest.fixture
def opened(monkeypatch):
    """The sessions of bodies that are open."""
    kept = weakref.WeakSet()
    network = cpu.OnnxNetwork

    def opening(*words, **options):
        session = network(*words, **options)
        kept.add(session)
        return session

    monkeypatch.setattr(cpu, "OnnxNetwork", opening)
    return kept


def said(device, expert):
    picture = np.random.default_rng(3).integers(0, 256, (96, 64, 3), np.uint8)
    outputs = device.outputs("one", "pool", expert, [PROBE.preprocess(picture, expert)])
    return torch.cat((outputs["logits"], outputs["unlike"][:, None]), dim=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [64, 72, 104])
def test_a_session_gives_the_maps_that_torch_gives(kind, size, backbone):
    expert, one = expert_of(kind, size), KINDS[kind]
    folded = fold(one, expert, state_of(expert, backbone))
    module = network(one, expert, folded.state, folded.pairs)
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    model, weights = one.body_model(module), dict(module.backbone.named_parameters(prefix="backbone"))
    with torch.inference_mode():
        expected = one.maps(module, images)
        module.body_session = cpu.OnnxNetwork(model, 1, kind, weights, one_at_a_time=True)
        found = one.maps(module, images)
    for map_, other in zip(expected, found, strict=True):
        assert torch.allclose(map_, other, rtol=0, atol=1e-5 * float(map_.abs().max()))


def test_experts_of_a_body_have_one_session_that_stays(store_sessions, opened):
    first, second = (expert_of("probe", name=name) for name in ("u1", "u2"))
    device, in_torch = (CpuDevice(store_sessions, {"probe": PROBE}, 1) for _ in range(2))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cpu, "open_body", lambda *_: False)
        for expert in (first, second):
            in_torch.load("pool", expert)
    assert not opened
    for expert in (first, second):
        device.load("pool", expert)
        assert torch.allclose(said(device, expert), said(in_torch, expert), rtol=1e-4, atol=1e-4)
    assert len(opened) == 1
    device.evict("pool", first)
    device.evict("pool", second)
    device.load("pool", first)
    assert torch.allclose(said(device, first), said(in_torch, first), rtol=1e-4, atol=1e-4)
    assert len(opened) == 1
    device.leave()
    gc.collect()
    assert not opened


def test_weights_as_they_were_trained_and_norms_that_are_not_folded_run_in_torch(store_sessions, opened, backbone):
    expert, device = expert_of("probe", name="bare"), CpuDevice(store_sessions, {"probe": PROBE}, 1)
    device.load("pool", expert)
    assert bool(said(device, expert).isfinite().all())
    assert not opened
    expert = expert_of("probe")
    assert PROBE.body_model(network(PROBE, expert, state_of(expert, backbone))) is None


def test_a_device_counts_a_body_once_with_its_session_and_what_opening_it_needs(store_sessions):
    experts = [expert_of("probe", name=name) for name in ("u1", "u2")]
    device = CpuDevice(store_sessions, {"probe": PROBE}, 1)
    size = store_sessions.manifest("b/u1").variants["fp32"].body.bytes
    once, of_both, of_four = (device.fixed_bytes(*some) for some in ((experts[:1], 1), (experts, 1), (experts[:1], 4)))
    assert 4 * size < once == of_both == of_four < 7 * size
    plain = store_sessions.manifest("b/bare").body.bytes
    assert plain <= device.fixed_bytes([expert_of("probe", name="bare")], 1) < plain + 4096
    device.load("pool", experts[0])
    assert device.fixed_bytes([], 1) >= 2 * size, "it stays, whatever experts are asked for"


@pytest.mark.stress
def test_opening_the_session_of_a_body_takes_no_more_than_is_counted(store_sessions):
    experts, device = [expert_of("probe", name="u1")], CpuDevice(store_sessions, {"probe": PROBE}, 1)
    counted = device.fixed_bytes(experts, 1)
    # The first session of a process brings the library along, which is no memory of a line.
    CpuDevice(store_sessions, {"probe": PROBE}, 1).load("pool", experts[0])
    give_memory_back()
    before = int(psutil.Process().memory_info().rss)
    grown = peak_growth_bytes(lambda: device.load("pool", experts[0]))
    own = store_sessions.manifest("b/u1").variants["fp32"].bytes
    assert grown is None or grown <= own + counted
    assert psutil.Process().memory_info().rss - before <= own + counted + (1 << 20)
