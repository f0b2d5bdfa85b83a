"""How a blob becomes weights that run: few large steps, from the blob's bytes to an executor's fixed memory.

The header determines the steps. One step copies, widens, narrows or dequantises many adjacent tensors, because a launch
takes longer than the work on a small tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from coe.errors import StoreError
from coe.runtime.blob import DTYPES, NAMES, Spec, Structure, converts, joined, shaped
from coe.store.blob_format import ALIGNMENT, BLOCK, Content, TensorEntry, Variant, lies_channels_last, padded

_APART = 256
"""Steps write at multiples of this number of bytes, which suits the device's kernels best."""
_RUNS_IN: dict[Variant, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "q8": torch.float16}


def structure_on_gpu(content: Content, body: Content | None = None) -> Structure:
    """Return the structure that runs a blob on a GPU: blocks in fp16, every other variant as it is stored."""
    optional = content.optional | (body.optional if body is not None else frozenset())
    return Structure(_RUNS_IN[content.variant], content.folded, optional)


Source = tuple[torch.Tensor, torch.Tensor | None]
"""Numbers of a blob, and the scales of their blocks if they have any."""


@dataclass(frozen=True, slots=True)
class ActivationStep:
    """Write `count` numbers of type `stored`, from byte `source` of the blob on, as `dtype` from byte `target` on.

    With `scales`, each block of 128 numbers is multiplied by its fp16 scale; the scales begin at that byte of the blob.
    """

    source: int
    stored: torch.dtype
    count: int
    target: int
    dtype: torch.dtype
    scales: int | None = None


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies among the weights that run; `start` in bytes."""

    entry: TensorEntry
    dtype: torch.dtype
    start: int


class Unpacking:
    """The steps for all blobs of one layout, and where their tensors then lie; `bytes` is the size of the result.

    The unpacking of an expert with a body holds that of the body: its tensors lie first, wherever its own tensors lie
    behind them, so what was written of a body can stay. The steps are those of the expert's own blob alone.
    """

    def __init__(self, content: Content, structure: Structure, body: Unpacking | None = None) -> None:
        """Plan the steps from a header; raises StoreError for a tensor that is not aligned to its type."""
        self.structure, self.body = structure, body
        self.places: dict[str, TensorPlace] = {}
        self.steps: list[ActivationStep] = []
        self._end: int = body.bytes if body is not None else 0
        if content.quantised is not None and content.quantised.blocks:
            self._dequantise(content)
        for row in _rows(content.entries):
            self._row(row)
        self.bytes: int = padded(self._end, _APART)
        if body is not None:
            joined(self.tensors, body.tensors)
            self.places = {**body.places, **self.places}

    def __repr__(self) -> str:
        return f"<Unpacking to {self.structure.dtype}, {len(self.steps)} steps, {self.bytes:,} bytes>"

    @property
    def tensors(self) -> Spec:
        """Shapes and types as they are stored; fp32 for quantised tensors."""
        return {
            name: (place.entry.shape, torch.float32 if place.entry.dtype == "Q8" else DTYPES[place.entry.dtype])
            for name, place in self.places.items()
        }

    def sources(self, blob: torch.Tensor) -> list[Source]:
        """Return what each step reads of a blob's bytes, (n,) uint8 at a page: its numbers, and its scales or None."""
        sources: list[Source] = []
        for step in self.steps:
            numbers = _numbers(blob, step.source, step.stored, step.count)
            if step.scales is None:
                sources.append((numbers, None))
            else:
                scales = _numbers(blob, step.scales, torch.float16, step.count // BLOCK)
                sources.append((numbers.view(-1, BLOCK), scales[:, None]))
        return sources

    def targets(self, weights: torch.Tensor) -> list[torch.Tensor]:
        """Return where each step writes in an executor's weights, bytes (n,) uint8 at a page."""
        targets = [_numbers(weights, step.target, step.dtype, step.count) for step in self.steps]
        return [
            target if step.scales is None else target.view(-1, BLOCK)
            for step, target in zip(self.steps, targets, strict=True)
        ]

    def views(self, weights: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Return the tensors that lie in `weights`, those of the body too, by name."""
        return {
            name: shaped(_numbers(weights, place.start, place.dtype, place.entry.elements), place.entry)
            if place.entry.elements
            else torch.empty(place.entry.shape, dtype=place.dtype, device=weights.device)
            for name, place in self.places.items()
        }

    def _dequantise(self, content: Content) -> None:
        parts, dtype = content.quantised, self.structure.dtype
        assert parts is not None
        target, count = self._claim(parts.blocks * BLOCK * dtype.itemsize), parts.blocks * BLOCK
        self.steps.append(ActivationStep(parts.values, torch.int8, count, target, dtype, parts.scales))
        for entry in content.entries:
            if entry.dtype == "Q8":
                start = target + (entry.offset - parts.values) * dtype.itemsize
                self.places[entry.name] = TensorPlace(entry, dtype, start)

    def _row(self, row: list[TensorEntry]) -> None:
        stored = DTYPES[row[0].dtype]
        dtype = self.structure.dtype if converts(stored, self.structure.dtype) else stored
        first = row[0].offset
        count = (row[-1].offset + row[-1].bytes - first) // stored.itemsize
        target = self._claim(count * dtype.itemsize)
        if count:
            self.steps.append(ActivationStep(first, stored, count, target, dtype))
        for entry in row:
            at = (entry.offset - first) // stored.itemsize
            self.places[entry.name] = TensorPlace(entry, dtype, target + at * dtype.itemsize)

    def _claim(self, size: int) -> int:
        start = padded(self._end, _APART)
        self._end = start + size
        return start


def unpack(sources: Sequence[Source], targets: Sequence[torch.Tensor]) -> None:
    """Write the weights of a blob, without its body: one operation a step.

    Each operation gives the interpreter's lock away and waits for it again, views too: they are made before.
    """
    for (numbers, scales), target in zip(sources, targets, strict=True):
        if scales is None:
            target.copy_(numbers)
        else:
            torch.mul(numbers, scales, out=target)


def unpacking_like(spec: Spec, structure: Structure) -> Unpacking:
    """Return an unpacking for the weights that a skeleton expects, to measure with if there is no sound blob.

    The weights lie as in a blob, so that the measured graphs are those that run.
    """
    entries: list[TensorEntry] = []
    for name, (shape, dtype) in spec.items():
        offset = padded(entries[-1].offset + entries[-1].bytes, ALIGNMENT) if entries else 0
        last = lies_channels_last(shape, dtype.is_floating_point)
        entries.append(TensorEntry(name=name, dtype=NAMES[dtype], shape=shape, offset=offset, channels_last=last))
    return Unpacking(Content(tuple(entries)), structure)


def _rows(entries: tuple[TensorEntry, ...]) -> Iterator[list[TensorEntry]]:
    """Yield rows of adjacent tensors of one type."""
    row: list[TensorEntry] = []
    plain = (entry for entry in entries if entry.dtype != "Q8")
    for entry in sorted(plain, key=lambda entry: (entry.offset, entry.bytes)):
        if entry.offset % DTYPES[entry.dtype].itemsize:
            raise StoreError(
                f"'{entry.name}' is not aligned for a GPU; prepare the expert (coe-experts prepare) and try again"
            )
        end = row[-1].offset + row[-1].bytes if row else 0
        if row and (entry.dtype != row[0].dtype or entry.offset - end >= ALIGNMENT):
            yield row
            row = []
        row.append(entry)
    if row:
        yield row


def _numbers(memory: torch.Tensor, start: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    return memory[start : start + count * dtype.itemsize].view(dtype)
