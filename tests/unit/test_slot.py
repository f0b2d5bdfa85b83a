"""A slot runs whichever blob is bound, without copies, and never stands in the lane's way."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import KIND, STATE, expert, stored

from coe.core import Expert
from coe.prepare.fold import Folded
from coe.prepare.layout import lay_out, tensors
from coe.runtime.arena import dequantise
from coe.runtime.buffers import Buffers
from coe.runtime.reading import weights
from coe.runtime.slot import Slot, SlotShelf
from coe.store.kinds import ModuleKind
from coe.store.store import Store

EXPERT = Expert("x", "scale", ("ok",), 8, "t/x")


class Scale(ModuleKind):
    """A network of one weight; `gate` lets a test hold a batch."""

    name = "scale"
    task = "classify"

    def __init__(self):
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def preprocess(self, image, expert):
        raise NotImplementedError

    def postprocess(self, outputs, prepared, expert):
        raise NotImplementedError

    def skeleton(self, expert):
        return torch.nn.Linear(1, 1, bias=False)

    def forward(self, module, images):
        self.began.set()
        assert self.gate.wait(30)
        return module(images.float().mean(dim=(1, 2, 3))[:, None])


@pytest.fixture
def blobs(tmp_path):
    store, made = Store(tmp_path), []
    for scale in (2.0, 3.0):
        state = {"weight": torch.tensor([[scale]])}
        store.put(EXPERT.weights, kind="scale", labels=EXPERT.labels, input_size=8, state=state)
        made.append(weights(store, EXPERT).read(Buffers()))
    return made


IMAGES = torch.full((1, 3, 8, 8), 10, dtype=torch.uint8)


def test_the_bound_blob_decides(blobs):
    slot = Slot(Scale(), EXPERT)
    assert [slot.run(blob, IMAGES).item() for blob in (*blobs, blobs[0])] == [20.0, 30.0, 20.0]


def test_weights_are_views_of_the_blob(blobs):
    slot = Slot(Scale(), EXPERT)
    slot.run(blobs[0], IMAGES)
    assert slot.module.weight.data_ptr() == blobs[0].tensors["weight"].data_ptr()
    slot.unbind(blobs[1])
    assert slot.module.weight.numel() == 1
    slot.unbind(blobs[0])
    assert slot.module.weight.numel() == 0


def test_another_blob_can_be_evicted_while_a_batch_runs(blobs):
    kind = Scale()
    slot = Slot(kind, EXPERT)
    slot.run(blobs[1], IMAGES)
    kind.began.clear()
    kind.gate.clear()
    batch = threading.Thread(target=slot.run, args=(blobs[0], IMAGES))
    batch.start()
    assert kind.began.wait(30)
    lane = threading.Thread(target=slot.unbind, args=(blobs[1],))
    lane.start()
    lane.join(10)
    waits = lane.is_alive()
    kind.gate.set()
    batch.join()
    lane.join()
    assert not waits


# Variants


class Plain(ModuleKind):
    """The tensors of `stored.STATE` as a network, which answers with all that it holds."""

    name = KIND
    task = "classify"

    def preprocess(self, image, expert):
        raise NotImplementedError

    def postprocess(self, outputs, prepared, expert):
        raise NotImplementedError

    def skeleton(self, expert):
        module = torch.nn.Module()
        module.conv = torch.nn.Conv2d(7, 20, 3, bias=False)
        module.fc = torch.nn.Linear(1000, 300)
        module.register_buffer("count", torch.tensor(0))
        return module

    def forward(self, module, images):
        return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.fixture
def no_bf16(monkeypatch):
    monkeypatch.setattr("coe.runtime.blob.has_bf16", lambda: False)


@pytest.fixture
def bf16(monkeypatch):
    monkeypatch.setattr("coe.runtime.blob.has_bf16", lambda: True)


def run_in(variant, tmp_path):
    """Return what the slot of a variant holds when it runs, the blob, and the slot."""
    blob = weights(stored(tmp_path, variant), expert(variant)).read(Buffers())
    slot = Slot(Plain(), expert(variant), blob.structure)
    blob.expect(slot.spec)
    return slot.run(blob, IMAGES), blob, slot


def laid_out(variant):
    return tensors(lay_out(Folded(STATE, ()), variant, kind=KIND, labels=2))


@pytest.mark.parametrize("variant", ["fp32", "fp16", "q8"])
def test_a_variant_runs_in_fp32_with_the_numbers_that_its_blob_holds(variant, tmp_path):
    found, _, slot = run_in(variant, tmp_path)
    for name, tensor in laid_out(variant).items():
        assert torch.equal(found[name], tensor.float() if tensor.is_floating_point() else tensor)
        assert found[name].dtype == STATE[name].dtype
    assert slot.module.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_bf16_runs_in_bf16_without_a_copy(bf16, tmp_path):
    found, blob, slot = run_in("bf16", tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in laid_out("bf16").items())
    assert slot.module.fc.weight.data_ptr() == blob.tensors["fc.weight"].data_ptr()
    assert (found["fc.weight"].dtype, found["count"].dtype, slot.arena.bytes) == (torch.bfloat16, torch.int64, 0)


def test_bf16_is_widened_where_the_processor_has_none(no_bf16, tmp_path):
    found, blob, slot = run_in("bf16", tmp_path)
    assert all(torch.equal(found[name], t.float() if name != "count" else t) for name, t in laid_out("bf16").items())
    assert found["fc.weight"].dtype == torch.float32
    assert slot.arena.bytes == 4 * blob.converted


def test_only_what_is_quantised_is_converted(tmp_path):
    _, blob, slot = run_in("q8", tmp_path)
    assert slot.module.fc.bias.data_ptr() == blob.tensors["fc.bias"].data_ptr()
    assert slot.module.fc.weight.data_ptr() != blob.values.numbers.data_ptr()


def test_a_further_batch_on_the_same_expert_converts_nothing(tmp_path):
    _, blob, slot = run_in("q8", tmp_path)
    slot.module.fc.weight.fill_(7)
    assert slot.run(blob, IMAGES)["fc.weight"].unique().tolist() == [7]
    slot.unbind(blob)
    assert torch.equal(slot.run(blob, IMAGES)["fc.weight"], laid_out("q8")["fc.weight"])


def test_a_blob_that_was_released_never_runs_again(tmp_path):
    _, blob, slot = run_in("fp32", tmp_path)
    slot.unbind(blob)
    blob.release()
    assert slot.module.fc.weight.numel() == 0
    with pytest.raises(RuntimeError, match="after it was released"):
        slot.run(blob, IMAGES)


# The shelf


def test_two_executors_share_neither_slot_nor_arena_and_the_slots_of_one_share_its_arena(tmp_path):
    shelf = SlotShelf({KIND: Plain()})
    blob = weights(stored(tmp_path, "q8"), expert("q8")).read(Buffers())
    other = expert("q8", labels=("a", "b", "c"))
    one, two = shelf.of("one", expert("q8"), blob.structure), shelf.of("two", expert("q8"), blob.structure)
    further = shelf.of("one", other, blob.structure)
    assert one is not two
    assert one.arena is not two.arena
    assert further is not one
    assert further.arena is one.arena
    assert one is shelf.of("one", expert("q8"), blob.structure)

    expected = laid_out("q8")["fc.weight"]
    one.run(blob, IMAGES)
    assert torch.equal(further.run(blob, IMAGES)["fc.weight"], expected)
    # What the other slot held there is gone, and it knows.
    assert one.module.fc.weight.numel() == 0
    assert torch.equal(one.run(blob, IMAGES)["fc.weight"], expected)


@settings(max_examples=20)
@given(st.integers(1, 20_000), st.integers(0, 5))
def test_dequantising_in_steps_is_a_number_times_its_scale(blocks, seed):
    chance = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-127, 128, (blocks * 128,), generator=chance, dtype=torch.int8)
    scales = torch.rand(blocks, generator=chance).half()
    into = torch.empty(blocks * 128)
    dequantise(numbers, scales, into)
    assert torch.equal(into, (numbers.float().view(-1, 128) * scales.float()[:, None]).view(-1))
