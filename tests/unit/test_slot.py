"""A slot runs whichever blob is bound, without copies, and never stands in the lane's way."""

import threading
from pathlib import Path

import pytest
import torch
from bare_kind import BareKind
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import KIND, STATE, expert, stored

from coe.core import Expert
from coe.prepare.fold import Folded
from coe.prepare.layout import lay_out, tensors
from coe.runtime.arena import dequantise
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.reading import weights
from coe.runtime.slot import Slot, SlotShelf
from coe.store.kinds import ModuleKind, resolve
from coe.store.store import Store

EXPERT = Expert("x", "scale", ("ok",), 8, "t/x")


class Scale(BareKind):
    """A network of one weight; `gate` lets a test hold a batch."""

    name = "scale"

    def __init__(self):
        self.began = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

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


class Plain(BareKind):
    """The tensors of `stored.STATE` as a network, which answers with all that it holds."""

    name = KIND

    def skeleton(self, expert):
        module = torch.nn.Module()
        module.conv = torch.nn.Conv2d(9, 20, 3, bias=False)
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
    key = shelf.key(expert("q8"), blob.structure)
    one, two = shelf.of("one", expert("q8"), key), shelf.of("two", expert("q8"), key)
    further = shelf.of("one", other, shelf.key(other, blob.structure))
    assert one is not two
    assert one.arena is not two.arena
    assert further is not one
    assert further.arena is one.arena
    assert one is shelf.of("one", expert("q8"), key)

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


# Experts that share a body


def shared_blobs(store: Store, variant: str, buffers: Buffers) -> list[Blob]:
    """Return the blobs of two experts that share a body, which is the first blob."""
    files = [weights(store, Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}", variant=variant)) for id in "ab"]
    body = files[0].body.read(buffers)
    return [body, *(file.read(buffers, body) for file in files)]


@pytest.mark.parametrize("variant", ["fp32", "q8"])
def test_a_body_that_is_in_place_stays_and_the_expert_s_own_tensors_alone_are_bound(
    shared_trunk: Path, prepared_trunk: Path, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, buffers, images = resolve("narrow"), Buffers(), torch.full((1, 3, 32, 32), 90, dtype=torch.uint8)
    assert isinstance(kind, ModuleKind)
    experts = [Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}", variant=variant) for id in "ab"]
    whole = [weights(Store(prepared_trunk), expert).read(buffers) for expert in experts]
    expected = [Slot(kind, experts[0], blob.structure).run(blob, images).tolist() for blob in whole]
    body, *own = shared_blobs(Store(shared_trunk), variant, buffers)
    slot = Slot(kind, experts[0], own[0].structure)
    for blob in own:
        blob.expect(slot.spec)
    bound: list[Blob] = []
    point = Slot._point
    monkeypatch.setattr(Slot, "_point", lambda slot, blob, memory: bound.append(blob) or point(slot, blob, memory))
    # To the bit as from whole blobs, whichever was bound before.
    assert [slot.run(own[turn], images).tolist() for turn in (0, 1, 0)] == [expected[turn] for turn in (0, 1, 0)]
    assert bound == [body, own[0], own[1], own[0]]
    # The body survives the eviction of an expert, and not its own.
    slot.unbind(own[0])
    assert slot.run(own[1], images).tolist() == expected[1]
    slot.unbind(body)
    assert slot.run(own[1], images).tolist() == expected[1]
    assert bound[4:] == [own[1], body, own[1]]


def test_another_network_in_the_arena_drives_a_converted_body_out(shared_trunk: Path, prepared_trunk: Path) -> None:
    kind, buffers, images = resolve("narrow"), Buffers(), torch.full((1, 3, 32, 32), 90, dtype=torch.uint8)
    assert isinstance(kind, ModuleKind)
    first, other = (Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}", variant="q8") for id in "ad")
    _, own, _ = shared_blobs(Store(shared_trunk), "q8", buffers)
    alone = weights(Store(prepared_trunk), other).read(buffers)
    slots = [Slot(kind, expert, own.structure) for expert in (first, other)]
    slots[1].arena = slots[0].arena
    expected = slots[0].run(own, images).tolist()
    slots[1].run(alone, images)
    assert slots[0].run(own, images).tolist() == expected


def test_weights_that_were_released_with_their_body_are_refused(shared_trunk: Path) -> None:
    kind, buffers = resolve("narrow"), Buffers()
    assert isinstance(kind, ModuleKind)
    body, own, _ = shared_blobs(Store(shared_trunk), "fp32", buffers)
    body.release()
    slot = Slot(kind, Expert("a", "narrow", ("ok", "bad"), 32, "trunk/a"), own.structure)
    with pytest.raises(RuntimeError, match="after it was released"):
        slot.bind(own)
