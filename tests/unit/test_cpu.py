"""Experts on devices of this machine, a fake GPU among them: copy lanes, and models of a file as blobs."""

import functools
import gc
import random
import threading
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from bare_kind import Multiplying
from fake_gpu import FEW, FakeDriver
from onnx import helper, numpy_helper
from tables import with_slow_rows

from coe.core import Expert, Request
from coe.errors import StoreError
from coe.inspector.settings import plan
from coe.pictures.image_source import ImageSource
from coe.runtime.blob import Buffers
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import worker
from coe.runtime.cuda.cuda_device import CudaDevice
from coe.runtime.engine import Engine
from coe.runtime.onnx_network import ELSEWHERE, OnnxNetwork, flat, open_session
from coe.runtime.reading import Weights
from coe.scheduler.controller import Controller
from coe.scheduler.costs import Cost, CostTable
from coe.scheduler.plan import CacheSpec, joined
from coe.scheduler.strategies import strategy
from coe.store import blob_format, blob_writing, kinds, skeletons
from coe.store.kinds import ExpertInput
from coe.store.store import Store
from coe.testing import rules_from
from coe.variants import int8
from coe.variants.fold import network
from coe.variants.int8_trial import divided, fused
from coe.variants.layout import lay_out_model


@pytest.fixture(scope="module")
def prepared(tiny, prepared_tiny):
    """The small board with each expert prepared, and what unprepared ones say."""
    found, store = prepared_tiny
    trained = CpuDevice(Store(tiny[1]), known(found), 1)
    return found, store, {id: judge(trained, expert) for id, expert in found.experts.items()}


def known(board):
    return {expert.kind: kinds.resolve(expert.kind) for expert in board.experts.values()}


def images(expert):
    chance, size = np.random.default_rng(5), expert.input_size
    return [ExpertInput(chance.integers(0, 255, (3, size, size), dtype=np.uint8), size, size) for _ in range(3)]


def judge(device, expert):
    device.load("pool", expert)
    try:
        return device.run("one", "pool", expert, images(expert))
    finally:
        device.evict("pool", expert)


def test_blobs_say_what_the_trained_weights_say(prepared):
    found, store, before = prepared
    device = CpuDevice(store, known(found), 1)
    for id, expert in found.experts.items():
        for one, other in zip(before[id], judge(device, expert), strict=True):
            assert (other.label, other.score) == (one.label, pytest.approx(one.score, abs=1e-3))
        with pytest.raises(StoreError, match="q8 only on GPUs"):
            device.load("pool", replace(expert, variant="q8"))


LAZY, LANE_FIRST, BATCHES_FIRST = frozenset(), frozenset({"lane"}), frozenset({"executor 1", "executor 2"})
RUNS = [("fp32", LAZY), ("q8", LANE_FIRST), ("fp32", BATCHES_FIRST), ("fp32", LANE_FIRST), ("fp16", LAZY), ("q8", LAZY)]
MEMORY = 600 << 20


@pytest.mark.parametrize(("variant", "eager"), with_slow_rows(RUNS, fast=1))
def test_a_gpu_says_it_too(prepared, variant, eager, monkeypatch):
    monkeypatch.setattr(worker, "SIZES", FEW)
    board, store, before = prepared
    experts = [replace(expert, variant=variant) for expert in board.experts.values()]
    driver, exact = FakeDriver(eager=eager), variant == "fp32"
    device = CudaDevice(store, known(board), driver, executors=2, memory_bytes=MEMORY)
    device.prepare(experts, 2)
    for expert in experts:
        device.load("pool", expert)
    for executor in ("one", "two", "one"):
        for expert in experts:
            said = device.run(executor, "pool", expert, images(expert))
            for one, other in zip(said, before[expert.id], strict=True):
                assert (one.score, one.variant) == (pytest.approx(other.score, abs=1e-3 if exact else 0.05), variant)
                assert not exact or (one.label, len(one.boxes)) == (other.label, len(other.boxes))
    assert driver.peak <= MEMORY


NUMBERS = 20_000
BYTES = 4 * NUMBERS + 2 * 4096
NAMES = "abcdefghij"
ENTRIES = [f"  {name}: {{kind: scale, input: 8, labels: [ok, bad], reject: [bad]}}" for name in NAMES]
PARTS = [f"  {name.upper()}: {{count: {at + 1}, inspect: {name}}}" for at, name in enumerate(NAMES)]
BOARD = rules_from("\n".join(["board: t", "experts:", *ENTRIES, "components:", *PARTS]))


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
    chosen, experts, copied = strategy(name), list(BOARD.experts.values()), int(copies * BYTES)
    options = {"executors": executors, "memory_bytes": 1 << 28}
    first = CudaDevice(store, {"scale": Scale()}, FakeDriver(image_bytes=100), **options)
    first.prepare(experts, executors)
    options = {"memory_bytes": first.fixed_bytes(experts, executors) + int(resident * executors * BYTES)}
    options |= {"executors": executors, "host_bytes": copied}
    device = CudaDevice(store, {"scale": Scale()}, FakeDriver(image_bytes=100), **options)
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
    answers = []
    for expert, shade in images:
        source = ImageSource.of(np.full((8, 8, 3), shade, np.uint8), "RGB")
        answers.append(line.submit(Request(line.next_id(), NAMES[expert].upper()), source))
    results = [answer.result(60) for answer in answers]
    line.close()
    assert [result.error for result in results] == [None] * len(images)
    assert [result.findings[0].margin for result in results] == [(expert + 1) * shade for expert, shade in images]
    line.controller.check()
    assert readers == {"coe-disk"}


JOINT = Expert("joint", "narrow", ("ok", "bad", "gone"), 64, "line/joint", variant="int8")
BRIDGE = Expert("bridge", "narrow_boxes", ("bridge", "gap"), 96, "line/bridge", variant="int8")


def images_stored(expert, count):
    chance, side = np.random.default_rng(1), expert.input_size // 4
    return [chance.integers(0, 256, (3, side, side), np.uint8).repeat(4, 1).repeat(4, 2) for _ in range(count)]


@functools.cache
def quantised(expert, in_float=0):
    """Return a model of random weights in int8, but for some layers; do not change it."""
    kind = kinds.resolve(expert.kind)
    assert isinstance(kind, kinds.ModuleKind)
    module = network(kind, expert, skeletons.random_weights(kind, expert, 3))
    quantiser = int8.Quantiser(int8.export(kind, expert, module, images_stored(expert, 3)), images_stored(expert, 8))
    return quantiser.quantised(quantiser.layers[:in_float])


@pytest.mark.parametrize("in_float", with_slow_rows([3, 0], fast=1))
@pytest.mark.parametrize("expert", [JOINT, BRIDGE], ids=["narrow", "narrow_boxes"])
def test_it_says_what_the_quantised_model_says_bit_for_bit(expert, in_float):
    model, beside = divided(fused(quantised(expert, in_float)))
    exact = OnnxNetwork(quantised(expert, in_float).SerializeToString(), 1, "m")
    stored = OnnxNetwork(model, 1, "m", beside)
    for count in (1, 5, 2):
        batch = np.stack(images_stored(expert, count))
        for one, other in zip(flat(exact.run(batch)), flat(stored.run(batch)), strict=True):
            assert torch.equal(one, other)


def test_a_weight_that_the_blob_lacks_is_an_error():
    model, beside = divided(fused(quantised(JOINT)))
    beside.popitem()
    with pytest.raises(StoreError, match="line/joint"):
        OnnxNetwork(model, 1, "line/joint", beside)


@pytest.mark.parametrize("tensors", [{}, {"w": torch.zeros(64)}, {"w": torch.zeros(64, dtype=torch.uint8)}])
def test_a_header_with_other_weights_than_int8_is_refused(tensors):
    """onnxruntime would take the bytes for int8, whatever they are."""
    header = lay_out_model(b"model", tensors, kind="narrow", labels=3, identity=None).header
    if not tensors:
        header = header.model_copy(update={"tensors": ()})
    with pytest.raises(StoreError, match="beside it"):
        blob_format.decode(blob_writing.encode(header), "the blob")


def test_a_session_holds_the_weights_that_it_did_not_pack():
    """What an addition reads is never packed: the session reads it where it lies, also when nobody else holds it."""
    numbers = np.arange(4096, dtype=np.int8).reshape(64, 64)
    plus = numpy_helper.from_array(numbers, "plus")
    plus.ClearField("raw_data")
    plus.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", ELSEWHERE), ("length", str(numbers.nbytes))):
        plus.external_data.add(key=key, value=value)
    x, y = ([helper.make_tensor_value_info(name, onnx.TensorProto.INT8, (64, 64))] for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "plus"], ["y"])], "g", x, y, [plus])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", int8.OPSET)], ir_version=8)
    buffers = Buffers()
    buffer = buffers.take(numbers.nbytes)
    tensor = buffer.tensor(torch.int8, numbers.size, 0).view(64, 64)
    tensor.copy_(torch.from_numpy(numbers))
    session = open_session(model.SerializeToString(), 1, {"plus": tensor})
    del tensor
    gc.collect()
    buffers.give(buffer)
    del buffer
    assert buffers.allocated_bytes == 0  # it is not lent again while the session reads it
    assert np.array_equal(session.run(None, {"x": np.zeros((64, 64), np.int8)})[0], numbers)


def test_measuring_holds_the_weights_once(prepared, monkeypatch):
    """An expert in fp32 that is measured for second looks of a small int8 must not take twice its memory."""
    found, store, _ = prepared
    expert = next(iter(found.experts.values()))
    held = []

    class Noting(Buffers):
        def take(self, size):
            buffer = super().take(size)
            held.append(self.allocated_bytes)
            return buffer

    monkeypatch.setattr("coe.runtime.cpu.Buffers", Noting)
    device = CpuDevice(store, known(found), 1)
    with device.trial(expert) as trial:
        trial.run(2)
        trial.load()
        trial.run(2)
        trial.load()
    assert len(held) == 3
    assert len(set(held)) == 1
