"""The variant `delta`: an expert as a small difference to the network that it was fine-tuned from.

Fine-tuning changes weights in few directions (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021,
which trains such changes). Here the change is taken from two trained networks: of each tensor, the best approximation
of a low rank (Eckart and Young, 1936) is stored, in `q8`. Folding multiplies each row of a tensor by a number that
depends on the expert's batch norm; so each row of the parent's tensor is first multiplied by the number that brings it
nearest to the expert's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.prepare.fold import Folded
from coe.prepare.layout import LaidOut, can_be_blocks, in_order, lay_out, tensors
from coe.runtime import arena
from coe.store import blob_layout, blob_writing
from coe.store.blob_format import BLOCK, Difference, padded

RANKS = (8, 32, 128)
"""Ranks that are tried, the smallest first: which is enough depends on how far an expert moved from its parent."""
MOST_CUT = 0.25
"""No tensor may be off by more than this share of its size (norm); samples alone may not show what a cut does.

Rounding to 4 bits is off by 0.1 or more.
"""


LARGEST_FACTOR = 32768.0
"""A row of the parent that would be multiplied by more is dead there. A GPU holds the factor in fp16, up to 65,504."""


@dataclass(frozen=True, slots=True)
class TensorChange:
    """What turns a parent's tensor into an expert's: row (out,), left (rank, out), right (rank, n), all fp32.

    The expert's tensor, as `out` rows of n numbers, is nearly row * parent + left^T right.
    """

    row: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor


def is_smaller(rank: int, rows: int, columns: int) -> bool:
    """Tell whether a change of this rank takes fewer bytes than the tensor itself, both in `q8`."""
    return 4 * rows + _q8_bytes(rank * rows) + _q8_bytes(rank * columns) < _q8_bytes(rows * columns)


def change(tensor: torch.Tensor, parent: torch.Tensor, rank: int) -> TensorChange:
    """Return the best change of a rank from a parent's tensor to an expert's, both (out, n) fp32.

    A row whose factor would be beyond LARGEST_FACTOR is multiplied by 1.

    The same tensors give the same change: the exact eigenvectors of the smaller side are computed, in float64.
    """
    own, origin = tensor.double(), parent.double()
    power = origin.square().sum(dim=1)
    row = torch.where(power > 0, (own * origin).sum(dim=1) / power.clamp(min=1e-300), torch.ones_like(power))
    row = torch.where(row.abs() <= LARGEST_FACTOR, row, torch.ones_like(row)).float().double()
    rest = own - row[:, None] * origin
    if rest.shape[0] <= rest.shape[1]:
        directions = _strongest(rest @ rest.T, rank)
        left, right = directions, directions @ rest
    else:
        directions = _strongest(rest.T @ rest, rank)
        left, right = directions @ rest.T, directions
    # Both factors get like sizes, so that no fp16 scale of a block is too small.
    sizes = (left.norm(dim=1) * right.norm(dim=1)).sqrt()[:, None]
    left, right = (factor * (sizes / factor.norm(dim=1)[:, None].clamp(min=1e-300)) for factor in (left, right))
    return TensorChange(row.float(), left.float(), right.float())


def _strongest(squares: torch.Tensor, rank: int) -> torch.Tensor:
    """Return the eigenvectors (rank, n) of a symmetric matrix (n, n) that have the largest eigenvalues."""
    directions: torch.Tensor = torch.linalg.eigh(squares).eigenvectors
    return directions[:, -rank:].flip(1).T


def _q8_bytes(count: int) -> int:
    return padded(count, BLOCK) // BLOCK * (BLOCK + 2)


@dataclass(frozen=True, slots=True)
class Parent:
    """The network that experts were fine-tuned from: its folded weights, and the body that the experts change.

    The body holds the parent's blocks of `q8`, and nothing else.
    """

    id: str
    kind: str
    folded: Folded
    body: LaidOut
    digest: str

    @classmethod
    def of(cls, id: str, kind: str, folded: Folded) -> Parent:
        """Make the body of a parent; raises StoreError if none of its tensors can be blocks."""
        whole = lay_out(folded, "delta", kind=kind, labels=1)
        names = {entry.name for entry in whole.header.tensors if entry.dtype == "Q8"}
        if not names:
            raise StoreError(f"'{id}' has no tensor that could be a parent's; leave `delta` out")
        blob = blob_layout.body_of(whole.bytes, names)
        body = LaidOut(blob.header, torch.frombuffer(blob.data, dtype=torch.uint8))
        return cls(id, kind, folded, body, blob_writing.named(blob.header).digest)


@dataclass(frozen=True, slots=True)
class OwnPart:
    """What is an expert's own beside its parent: tensors, factors among them, and which tensors of the body change."""

    folded: Folded
    differences: tuple[Difference, ...]
    cut: float
    """The largest share of a tensor's size that its change leaves out."""


def own_part(folded: Folded, parent: Parent, rank: int) -> OwnPart:
    """Return what an expert needs beside its parent's body, if its tensors change it by no more than a rank.

    A tensor that takes no more bytes as it is stays whole, and so does one that the body does not hold in its shape.
    """
    bases = tensors(parent.body)
    state: dict[str, torch.Tensor] = {}
    differences: list[Difference] = []
    cut = 0.0
    for name, tensor in folded.state.items():
        base = bases.get(name)
        if base is None or base.shape != tensor.shape or not can_be_blocks(tensor):
            state[name] = tensor
            continue
        if torch.equal(tensor, parent.folded.state[name]):
            continue
        rows = in_order(tensor).view(len(tensor), -1)
        if not is_smaller(rank, *rows.shape):
            state[name] = tensor
            continue
        origin = in_order(base).view(len(tensor), -1)
        made = change(rows, origin, rank)
        off = (made.row[:, None] * origin).addmm_(made.left.T, made.right).sub_(rows).norm() / rows.norm()
        cut = max(cut, float(off))
        differences.append(difference := Difference(name=name))
        state |= zip(difference.parts, (made.row, made.left, made.right), strict=True)
    return OwnPart(Folded(state, folded.pairs), tuple(differences), cut)


def whole(own: LaidOut, body: LaidOut) -> dict[str, torch.Tensor]:
    """Return an expert's tensors as a line makes them: those of the body, changed, and its own, all in fp32."""
    mine = tensors(own)
    result = tensors(body)
    for difference in own.header.differences:
        arena.change(result[difference.name], *(mine.pop(part) for part in difference.parts))
    return result | mine
