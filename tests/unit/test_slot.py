"""A slot runs whichever blob is bound, without copies, and never stands in the lane's way."""

from __future__ import annotations

import threading

import pytest
import torch

from coe.core import Expert
from coe.kinds import ModuleKind
from coe.runtime.buffers import Buffers
from coe.runtime.reading import weights
from coe.runtime.slot import Slot
from coe.store import Store

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
