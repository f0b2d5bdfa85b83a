"""Memory that weights are converted into: one run of numbers for each executor, shared by all its slots.

An executor runs one batch at a time, so it needs the converted weights of one expert at a time. A memory for each
network would take as much as all networks together.
"""

from __future__ import annotations

import weakref
from typing import Protocol

import torch

from coe.runtime.blob import Blob, converts, shaped
from coe.store.blob_format import BLOCK

_STEP = 1 << 19
"""Numbers converted in one step: the processor's cache still holds what was copied when it is multiplied."""


class Holder(Protocol):
    """A user of the arena: its weights lie there."""

    def unbind(self) -> None:
        """Let go of the arena's memory."""


class Arena:
    """The memory of one executor; used on its thread alone."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self.version = 0
        """Changes with the memory: what was written before is gone."""
        # Weak: a cycle would keep weights in memory until garbage is collected.
        self._holder: weakref.ref[Holder] | None = None

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return self._memory.nbytes

    def claim(self, size: int, dtype: torch.dtype, holder: Holder) -> torch.Tensor:
        """Return memory for `size` numbers, for `holder` to write to; another holder is unbound first."""
        last = self._holder() if self._holder else None
        if last is not None and last is not holder:
            last.unbind()
        self._holder = weakref.ref(holder)
        if self.bytes < size * dtype.itemsize:
            # The old memory goes before the new one comes.
            self.version += 1
            self._memory = torch.empty(0, dtype=torch.uint8)
            self._memory = torch.empty(size * dtype.itemsize, dtype=torch.uint8)
        return self._memory[: size * dtype.itemsize].view(dtype)


def convert(blob: Blob, into: torch.Tensor) -> dict[str, torch.Tensor]:
    """Convert into `into` all numbers of a blob that are of another precision; return those tensors, as views of it."""
    views: dict[str, torch.Tensor] = {}
    at = 0
    if blob.values is not None:
        at = len(blob.values.numbers)
        dequantise(blob.values.numbers, blob.values.scales, into[:at])
        for name, place in blob.values.places.items():
            views[name] = shaped(into[place.offset : place.offset + place.elements], place)
    for name, tensor in blob.tensors.items():
        if converts(tensor.dtype, into.dtype):
            # With the strides of the original, so that a channels-last tensor stays channels-last.
            views[name] = torch.as_strided(into, tensor.shape, tensor.stride(), at).copy_(tensor)
            at += -(-tensor.numel() // BLOCK) * BLOCK
    return views


def restore(blob: Blob, name: str, into: torch.Tensor) -> torch.Tensor:
    """Write a quantised tensor of a blob again, where `convert` writes it in `into`; return it."""
    assert blob.values is not None, "the blob holds quantised tensors"
    place = blob.values.places[name]
    first, end = place.offset, place.offset + place.bytes
    scales = blob.values.scales[first // BLOCK : end // BLOCK]
    dequantise(blob.values.numbers[first:end], scales, into[first:end])
    return shaped(into[first : first + place.elements], place)


def change(tensor: torch.Tensor, row: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Turn a tensor of a body into an expert's own, in place: each row times a number, and then plus left^T right.

    tensor: (out, ...), dense, in the order of its blob; row: (out,), left: (rank, out), right: (rank, n).
    """
    rows = torch.as_strided(tensor, (left.shape[1], right.shape[1]), (right.shape[1], 1), tensor.storage_offset())
    rows.mul_(row.to(rows.dtype)[:, None]).addmm_(left.T, right)


def dequantise(numbers: torch.Tensor, scales: torch.Tensor, into: torch.Tensor) -> None:
    """Write `numbers` (n) int8 times their `scales` (n / 128) into `into` (n), on the calling thread alone.

    Numbers are copied, then multiplied in place: one call of `torch.mul` on int8 and floats takes six times as long.
    One thread fills the memory's bandwidth. Two threads gain nothing, and wait for each other after each step; that
    takes ten times as long when the other core is busy.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        scales = scales.to(into.dtype)[:, None]
        for start in range(0, len(numbers), _STEP):
            part = into[start : start + _STEP].copy_(numbers[start : start + _STEP])
            part.view(-1, BLOCK).mul_(scales[start // BLOCK : (start + _STEP) // BLOCK])
    finally:
        torch.set_num_threads(threads)
