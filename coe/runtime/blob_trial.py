"""An expert whose weights are bound to a network, ready to be measured on the CPU."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from coe.errors import CoeError
from coe.helpers.system import give_memory_back
from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.reading import Weights
from coe.runtime.sessions import open_body
from coe.runtime.slot import Slot
from coe.runtime.trial import Trial, warmed
from coe.store.runnable_kinds import Image


@contextlib.contextmanager
def blob_trial(file: Weights, slot: Slot, threads: int) -> Iterator[Trial]:
    """Give a trial of the weights in a file, in a slot of its own; their memory is free at the end.

    Weights that are damaged run as they happen to lie in the slot: their load on the line will report the damage.
    """
    buffers = Buffers()
    body: list[Blob] = []
    blobs: list[Blob] = []
    turns = itertools.count()

    def read() -> Blob:
        if file.body is not None and not body:
            body.append(file.body.read(buffers))
        blob = file.read(buffers, *body)
        blob.expect(slot.spec)
        for common in body:
            open_body(slot, file, common, threads)
        return blob

    def load() -> None:
        with contextlib.suppress(CoeError):
            read().release()

    def answer(pixels: Image) -> Any:
        # The two blobs take turns, as experts do on a line: each batch binds weights, but for a common body.
        if not blobs:
            with contextlib.suppress(CoeError):
                blobs.extend([read(), read()])
        return slot.run(blobs[next(turns) % len(blobs)] if blobs else None, torch.from_numpy(pixels))

    try:
        trial = warmed(answer, file.expert.input_size, file.bytes, file.path, load)
        # The first load is not timed: on a line, loads reuse the memory of evicted experts, and bodies stay.
        trial.load()
        yield trial
    finally:
        slot.unbind()
        for blob in (*blobs, *body):
            blob.release()
        buffers.make_room(buffers.idle_bytes)
        give_memory_back()
