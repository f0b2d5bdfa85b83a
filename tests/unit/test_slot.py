"""A slot runs whichever blob is bound, without copies, and never stands in the lane's way."""

import threading

import pytest
import torch
from bare_kind import BareKind
from stored import KIND, STATE, expert, stored

from coe.core import Expert
from coe.runtime.blob import Buffers
from coe.runtime.reading import weights
from coe.runtime.slot import Slot, SlotShelf
from coe.store.kinds import resolve
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


def test_the_bound_blob_decides_and_weights_are_views_of_it(blobs):
    slot = Slot(Scale(), EXPERT)
    assert [slot.run(blob, IMAGES).item() for blob in (*blobs, blobs[0])] == [20.0, 30.0, 20.0]
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


def test_a_blob_that_was_released_never_runs_again(tmp_path):
    blob = weights(stored(tmp_path, "fp32"), expert()).read(Buffers())
    slot = Slot(Plain(), expert(), blob.structure)
    blob.expect(slot.spec)
    found = slot.run(blob, IMAGES)
    assert all(torch.equal(found[name], tensor) for name, tensor in STATE.items())
    assert slot.module.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert slot.module.fc.weight.data_ptr() == blob.tensors["fc.weight"].data_ptr()
    slot.unbind(blob)
    blob.release()
    assert slot.module.fc.weight.numel() == 0
    with pytest.raises(RuntimeError, match="after it was released"):
        slot.run(blob, IMAGES)


def test_two_executors_share_no_slot_and_networks_that_differ_do_neither(tmp_path):
    shelf = SlotShelf({KIND: Plain()})
    blob = weights(stored(tmp_path, "fp32"), expert()).read(Buffers())
    other = expert(labels=("a", "b", "c"))
    key = shelf.key(expert(), blob.structure)
    one, two = shelf.of("one", expert(), key), shelf.of("two", expert(), key)
    further = shelf.of("one", other, shelf.key(other, blob.structure))
    assert len({id(slot) for slot in (one, two, further)}) == 3
    assert one is shelf.of("one", expert(), key)


# Experts that share a body


def shared_blobs(store, buffers):
    """Return the blobs of two experts that share a body, which is the first blob."""
    files = [weights(store, Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}")) for id in "ab"]
    body = files[0].body.read(buffers)
    return [body, *(file.read(buffers, body) for file in files)]


def test_a_body_stays_in_place_and_the_experts_own_tensors_are_bound(shared_trunk, prepared_trunk):
    kind, buffers, images = resolve("narrow"), Buffers(), torch.full((1, 3, 32, 32), 90, dtype=torch.uint8)
    experts = [Expert(id, "narrow", ("ok", "bad"), 32, f"trunk/{id}") for id in "ab"]
    whole = [weights(Store(prepared_trunk), expert).read(buffers) for expert in experts]
    expected = [Slot(kind, experts[0], blob.structure).run(blob, images).tolist() for blob in whole]
    body, *own = shared_blobs(Store(shared_trunk), buffers)
    slot = Slot(kind, experts[0], own[0].structure)
    for blob in own:
        blob.expect(slot.spec)
    # To the bit as from whole blobs, whichever was bound before.
    assert [slot.run(own[turn], images).tolist() for turn in (0, 1, 0)] == [expected[turn] for turn in (0, 1, 0)]
    # The body survives the eviction of an expert, and not its own.
    slot.unbind(own[0])
    weight = slot.module.conv1.weight
    assert weight.data_ptr() == body.tensors["conv1.weight"].data_ptr()
    assert slot.run(own[1], images).tolist() == expected[1]
    slot.unbind(body)
    assert weight.numel() == 0
    assert slot.run(own[1], images).tolist() == expected[1]


def test_weights_that_were_released_with_their_body_are_refused(shared_trunk):
    kind, buffers = resolve("narrow"), Buffers()
    body, own, _ = shared_blobs(Store(shared_trunk), buffers)
    body.release()
    slot = Slot(kind, Expert("a", "narrow", ("ok", "bad"), 32, "trunk/a"), own.structure)
    with pytest.raises(RuntimeError, match="after it was released"):
        slot.bind(own)
