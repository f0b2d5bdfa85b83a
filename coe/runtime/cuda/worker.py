"""One executor's part of the device: a stream, memory for the activated weights, and the graphs that run on them.

All networks of the executor share that memory, because an executor runs one batch at a time: activating an expert is
one pass over its bytes. Every graph has its own copy of the network, whose parameters are views of that memory, so that
what a network keeps from batch to batch (YOLO's anchors) stays with the graph that read it.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from coe.errors import DeviceFull, DeviceLost
from coe.runtime.cuda.blob_memory import BlobMemory, Resident
from coe.runtime.cuda.collector import give_back, uncollected
from coe.runtime.cuda.networks import Template
from coe.runtime.cuda.torch_driver import TorchDriver, TorchGraph, TorchMark
from coe.runtime.cuda.unpacking import Unpacking, unpack
from coe.store.runnable_kinds import Image

SIZES = (1, 4, 8, 16, 32)
"""The batch sizes that graphs are captured for. A smaller batch runs as the next size, with leftover images.

While launches or the weights' bytes are the limit, a few more images cost less than one more graph.
"""

DEPTH = 2
"""How many batches of an executor may be on the device: each has pinned memory for its images and its outputs."""


def sizes(most: int) -> list[int]:
    """Return the sizes that graphs are captured for if a batch has at most `most` images, in rising order."""
    largest = min(most, SIZES[-1])
    return [*(size for size in SIZES if size < largest), largest]


@dataclass(frozen=True, slots=True)
class _Captured:
    images: torch.Tensor
    graph: TorchGraph
    module: torch.nn.Module
    """Kept, because the graph reads its tensors."""
    places: dict[tuple[int, int], _Places] = field(default_factory=dict)
    """Those of so many images, in the pinned memory of so many turns."""


@dataclass(slots=True)
class _Pinned:
    """Host memory for the images and the outputs of a batch on the device."""

    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Places:
    """Where a batch's images and outputs lie on the host (`up`, `down`) and on the device.

    They are kept: each operation of torch, a view too, gives the interpreter's lock away and waits for it again.
    """

    up: torch.Tensor
    images: torch.Tensor
    outputs: Any
    down: Any


@dataclass(frozen=True, slots=True)
class BatchPart:
    """So many images of a batch, run together; `done` marks the time at which their outputs are on the host."""

    images: int
    done: TorchMark
    landing: Any

    def outputs(self) -> Any:
        """Wait for the outputs and return them."""
        self.done.wait()
        return self.landing


class Worker:
    """One executor on the device, used by one thread at a time; any thread may wait for a `BatchPart`."""

    def __init__(self, name: str, driver: TorchDriver, weights_bytes: int, input_bytes: int) -> None:
        self.name, self._driver = name, driver
        self.stream = driver.stream(name)
        self._weights = driver.device_memory(weights_bytes)
        self._input = driver.device_memory(input_bytes)
        self._pinned = [_Pinned(driver.pinned_memory(input_bytes), driver.pinned_memory(1)) for _ in range(DEPTH)]
        self._turns = itertools.cycle(range(DEPTH))
        self._targets: dict[Unpacking, list[torch.Tensor]] = {}
        self._bound: Resident | None = None
        self._body: Resident | None = None
        self._graphs: dict[tuple[Unpacking, int, int], _Captured] = {}
        self._most: dict[tuple[Unpacking, int], int] = {}

    def __repr__(self) -> str:
        return f"<Worker {self.name}, {len(self._graphs)} graphs>"

    @property
    def outputs_bytes(self) -> int:
        """Bytes of the graphs' outputs, which graphs do not share."""
        return sum(tensor.nbytes for graph in self._graphs.values() for tensor in _tensors(graph.graph.outputs))

    def activate(self, memory: BlobMemory, resident: Resident) -> None:
        """Make a blob's weights those that run; does nothing if they run already.

        A body that is in place stays, and the expert's own part is written behind it. Graphs read fixed places, so they
        hold for every body of a layout.
        """
        if self._bound is not resident:
            # None until it is done: an activation that fails halfway must not count as an expert's weights.
            in_place, self._bound, self._body = self._body, None, None
            if resident.body is not None and resident.body is not in_place:
                self._write(memory, resident.body)
            self._write(memory, resident)
            self._bound, self._body = resident, resident.body

    def _write(self, memory: BlobMemory, resident: Resident) -> None:
        if (targets := self._targets.get(resident.unpacking)) is None:
            targets = self._targets[resident.unpacking] = resident.unpacking.targets(self._weights)
        memory.read(resident, self.name, self.stream, lambda sources: unpack(sources, targets))

    def prepare(self, template: Template, unpacking: Unpacking, size: int, most: int) -> None:
        """Capture the graphs of all batches of up to `most` images of `size` pixels.

        The largest comes first: all others then reuse the memory that it works in. Sizes that do not fit are left out.
        Raises DeviceFull if not even one image runs, DeviceLost.
        """
        for images in reversed(sizes(most)):
            if self._lacks_memory(template, unpacking, images, size):
                give_back(self._driver)
                if reason := self._lacks_memory(template, unpacking, images, size):
                    self._shrink(unpacking, size, images, reason)

    def launch(self, template: Template, unpacking: Unpacking, images: Sequence[Image], most: int) -> list[BatchPart]:
        """Run images (3, S, S) uint8, `most` at a time, on the weights that are active, and wait for no outputs.

        The outputs of a batch are overwritten once `DEPTH` batches have begun after it. If memory runs out, kept memory
        is freed first, then batches get smaller. Raises DeviceFull if one image does not run, and DeviceLost.
        """
        size, trimmed, turn = images[0].shape[-1], False, next(self._turns)
        parts: list[BatchPart] = []
        while (done := sum(part.images for part in parts)) < len(images):
            several = images[done : done + self.most(unpacking, size, most)]
            try:
                if parts:
                    # The next part takes the place of this part's images and outputs.
                    parts[-1] = replace(parts[-1], landing=tree_map(torch.clone, parts[-1].outputs()))
                parts.append(self._part(template, unpacking, several, self.most(unpacking, size, most), turn))
            except DeviceFull as error:
                reason = str(error)
            else:
                trimmed = False
                continue
            # After the handler: the handled error holds all objects that were being made.
            if not trimmed:
                self.trim()
                trimmed = True
            else:
                self._shrink(unpacking, size, len(several), reason)
        return parts

    def most(self, unpacking: Unpacking, size: int, most: int) -> int:
        """Return how many images a batch has if `most` are allowed: fewer if memory ran out before."""
        return min(most, self._most.get((unpacking, size), most))

    def trim(self) -> None:
        """Drop all graphs, which share one memory, and all other memory that is kept."""
        # A graph must not go while it runs.
        self.stream.finish()
        self._drop_graphs()
        give_back(self._driver)

    def close(self) -> None:
        """Drop all graphs, once none runs any more, before the worker goes."""
        # On a lost device nothing runs.
        try:
            with contextlib.suppress(DeviceLost):
                self.stream.finish()
        finally:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        # Not while another is captured, on any line: torch's random numbers keep a set of all graphs.
        with uncollected():
            self._graphs.clear()

    def capture(self, template: Template, unpacking: Unpacking, images: int, size: int) -> _Captured:
        """Return the graph for `images` images of `size` pixels; it is captured at its first use.

        Raises DeviceFull, DeviceLost.
        """
        key = unpacking, size, images
        if key not in self._graphs:
            # Nobody else captures meanwhile, or gives memory back.
            with uncollected():
                captured = self._new(template, unpacking, images, size)
                self._make_room(captured.graph.outputs)
            self._graphs[key] = captured
        return self._graphs[key]

    def _new(self, template: Template, unpacking: Unpacking, images: int, size: int) -> _Captured:
        shape = images, 3, size, size
        pixels = self._input[: images * 3 * size * size].view(shape)
        module = template.bound(unpacking, self._weights)

        def work() -> Any:
            return template.kind.forward(module, pixels)

        graph = self._driver.capture(f"capture {template.kind.name} x{images}", self.stream, work)
        return _Captured(pixels, graph, module)

    def _lacks_memory(self, template: Template, unpacking: Unpacking, images: int, size: int) -> str:
        """Capture a graph; return why there was no memory for it, or "" if there was."""
        # A reason rather than an error: a handled error would hold all objects that were being made.
        try:
            self.capture(template, unpacking, images, size)
        except DeviceFull as error:
            return str(error) or "no memory"
        return ""

    def _shrink(self, unpacking: Unpacking, size: int, images: int, reason: str) -> None:
        """Let batches have fewer than `images` images from now on; raises DeviceFull if that is 1."""
        if images == 1:
            raise DeviceFull(reason)
        self._most[unpacking, size] = max(smaller for smaller in SIZES if smaller < images)

    def _part(
        self, template: Template, unpacking: Unpacking, images: Sequence[Image], most: int, turn: int
    ) -> BatchPart:
        number, size = len(images), images[0].shape[-1]
        captured = self.capture(template, unpacking, next(count for count in sizes(most) if count >= number), size)
        if (places := captured.places.get((number, turn))) is None:
            places = captured.places[number, turn] = self._places(captured, number, self._pinned[turn])
        # One wait for the interpreter's lock, which all threads that make inputs want: numpy waits after each image.
        torch.stack([torch.from_numpy(np.require(image, requirements=("C", "W"))) for image in images], out=places.up)
        self.stream.do("images up", lambda: places.images.copy_(places.up, non_blocking=True))
        self.stream.do(f"run x{len(captured.images)}", captured.graph.replay)
        self.stream.do("outputs down", lambda: _copy(places.outputs, places.down))
        # Of its own: a kind may change the container of its outputs, or their shapes.
        return BatchPart(number, self.stream.mark(), tree_map(lambda output: output[...], places.down))

    def _places(self, captured: _Captured, number: int, pinned: _Pinned) -> _Places:
        images = captured.images[:number]
        outputs = tree_map(lambda output: output[:number], captured.graph.outputs)
        return _Places(pinned.up[: images.numel()].view(images.shape), images, outputs, _landing(pinned.down, outputs))

    def _make_room(self, outputs: Any) -> None:
        """Take pinned memory for all of `outputs`: before images come, because pinning takes a while."""
        needed = sum(_landing_bytes(tensor) for tensor in _tensors(outputs))
        for pinned in self._pinned:
            if len(pinned.down) < needed:
                pinned.down = self._driver.pinned_memory(needed)


def _landing(memory: torch.Tensor, outputs: Any) -> Any:
    """Return tensors in `memory` of the shapes and types of `outputs`."""
    at = 0

    def place(output: Any) -> Any:
        nonlocal at
        start, at = at, at + _landing_bytes(output)
        return memory[start : start + output.nbytes].view(output.dtype).view(output.shape)

    return tree_map(place, outputs)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(outputs) if torch.is_tensor(leaf)]


def _landing_bytes(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // 16) * 16


def _copy(outputs: Any, into: Any) -> None:
    for output, place in zip(tree_leaves(outputs), tree_leaves(into), strict=True):
        place.copy_(output, non_blocking=True)
