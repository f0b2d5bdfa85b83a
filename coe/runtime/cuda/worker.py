"""What one executor has of the device: a stream, a place for the weights that run, and graphs that run on it.

The place is shared by all its networks, because an executor runs one batch at a time: activating an expert is one pass
over its bytes. Every graph has a network of its own whose parameters are views of that place, so that what a network
keeps from batch to batch (YOLO's anchors) stays with the graph that read it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from coe.core import Expert
from coe.errors import DeviceFull
from coe.runtime.blob import Spec, Structure
from coe.runtime.cuda.driver import Driver, Graph
from coe.runtime.cuda.garbage import give_back, uncollected
from coe.runtime.cuda.ground import Ground, Resident
from coe.runtime.cuda.recipe import Recipe
from coe.runtime.folding import folded_skeleton
from coe.store.kinds import Image, ModuleKind

SIZES = (1, 4, 8, 16, 32)
"""Of batches that graphs are captured for; a batch is filled up to the next with whatever images lie there.

While launches or the weights' bytes are the limit, a few images more cost less than a graph more does.
"""


def sizes(most: int) -> list[int]:
    """Return the sizes that graphs are captured for where a batch has `most` images at most, in rising order."""
    largest = min(most, SIZES[-1])
    return [*(one for one in SIZES if one < largest), largest]


class Template:
    """A kind's network for a number of labels and a structure, without weights; to be copied, never to be run."""

    def __init__(self, kind: ModuleKind, expert: Expert, structure: Structure, device: torch.device) -> None:
        """Build the skeleton; raises StoreError if the kind does not have what the structure folds."""
        self.kind = kind
        module = folded_skeleton(kind.skeleton(expert), structure.folded).eval().requires_grad_(False)
        state = module.state_dict(keep_vars=True)
        self.spec: Spec = {name: (tuple(t.shape), t.dtype) for name, t in state.items()}
        for target in state.values():
            target.data = torch.empty(0, dtype=target.dtype)
        self._module = module.to(device=device, dtype=structure.dtype)

    def bound(self, recipe: Recipe, weights: torch.Tensor) -> torch.nn.Module:
        """Return a network whose parameters are views of `weights`."""
        module = copy.deepcopy(self._module)
        views = recipe.views(weights)
        for name, target in module.state_dict(keep_vars=True).items():
            target.data = views[name]
        return module


@dataclass(frozen=True, slots=True)
class _Captured:
    images: torch.Tensor
    graph: Graph
    module: torch.nn.Module
    """Kept, because the graph reads what it holds."""


class Worker:
    """One executor on the device, used by one thread at a time; `capturing` is held while a graph is captured."""

    def __init__(
        self, name: str, driver: Driver, weights_bytes: int, input_bytes: int, capturing: threading.Lock
    ) -> None:
        self.name, self._driver, self._capturing = name, driver, capturing
        self.stream = driver.stream(name)
        self._weights = driver.device_memory(weights_bytes)
        self._input = driver.device_memory(input_bytes)
        self._up = driver.pinned_memory(input_bytes)
        self._down = driver.pinned_memory(1)
        self._bound: Resident | None = None
        self._graphs: dict[tuple[Recipe, int, int], _Captured] = {}
        self._most: dict[tuple[Recipe, int], int] = {}

    def __repr__(self) -> str:
        return f"<Worker {self.name}, {len(self._graphs)} graphs>"

    @property
    def outputs_bytes(self) -> int:
        """Bytes of what the graphs put out, which no other graph's memory can be."""
        return sum(one.nbytes for graph in self._graphs.values() for one in _tensors(graph.graph.outputs))

    def activate(self, ground: Ground, resident: Resident) -> None:
        """Make a blob's weights those that run; nothing happens if they are."""
        if self._bound is not resident:
            # None until it is done: what fails halfway must not be taken for an expert.
            self._bound = None
            ground.read(resident, self.name, self.stream, lambda blob: resident.recipe.apply(blob, self._weights))
            self._bound = resident

    def prepare(self, template: Template, recipe: Recipe, size: int, most: int) -> None:
        """Capture the graphs of all batches of up to `most` images of `size` pixels.

        The largest comes first: the memory that it works in is then that of all others. What does not fit is left out;
        raises DeviceFull if not even one image runs, DeviceLost.
        """
        for images in reversed(sizes(most)):
            if self._lacks_memory(template, recipe, images, size):
                self._give_back()
                if reason := self._lacks_memory(template, recipe, images, size):
                    self._shrink(recipe, size, images, reason)

    def run(self, template: Template, recipe: Recipe, images: Sequence[Image], most: int) -> Iterator[tuple[int, Any]]:
        """Run images (3, S, S) uint8, `most` at a time, on the weights that are active.

        Yield how many ran, and their outputs on the host, which the next step overwrites. Where memory runs out, what
        is kept goes, then batches get smaller; raises DeviceFull where one image does not run, and DeviceLost.
        """
        size, done, trimmed = images[0].shape[-1], 0, False
        while done < len(images):
            part = images[done : done + self.most(recipe, size, most)]
            try:
                outputs = self._part(template, recipe, part, self.most(recipe, size, most))
            except DeviceFull as error:
                reason = str(error)
            else:
                yield len(part), outputs
                done, trimmed = done + len(part), False
                continue
            # Not while the error is handled: it holds all that was being made.
            if not trimmed:
                self.trim()
                trimmed = True
            else:
                self._shrink(recipe, size, len(part), reason)

    def most(self, recipe: Recipe, size: int, most: int) -> int:
        """Return how many images a batch has where `most` were allowed: fewer if memory ran out."""
        return min(most, self._most.get((recipe, size), most))

    def trim(self) -> None:
        """Drop all graphs, whose memory is one, and what else is kept."""
        self._graphs.clear()
        self._give_back()

    def capture(self, template: Template, recipe: Recipe, images: int, size: int) -> _Captured:
        """Return the graph for so many images of `size` pixels; it is captured when it is first asked for.

        Raises DeviceFull, DeviceLost.
        """
        key = recipe, size, images
        if key not in self._graphs:
            with self._capturing:
                captured = self._new(template, recipe, images, size)
                self._make_room(captured.graph.outputs)
            self._graphs[key] = captured
        return self._graphs[key]

    def _new(self, template: Template, recipe: Recipe, images: int, size: int) -> _Captured:
        shape = images, 3, size, size
        pixels = self._input[: images * 3 * size * size].view(shape)
        module = template.bound(recipe, self._weights)

        def work() -> Any:
            return template.kind.forward(module, pixels)

        with uncollected():
            graph = self._driver.capture(f"capture {template.kind.name} x{images}", self.stream, work)
        return _Captured(pixels, graph, module)

    def _lacks_memory(self, template: Template, recipe: Recipe, images: int, size: int) -> str:
        """Capture a graph; return why there was no memory for it, nothing if there was.

        No error is handled any more then: it would hold all that was being made.
        """
        try:
            self.capture(template, recipe, images, size)
        except DeviceFull as error:
            return str(error) or "no memory"
        return ""

    def _shrink(self, recipe: Recipe, size: int, images: int, reason: str) -> None:
        """Let batches have fewer images than so many from now on; raises DeviceFull if there are no fewer."""
        if images == 1:
            raise DeviceFull(reason)
        self._most[recipe, size] = max(one for one in SIZES if one < images)

    def _give_back(self) -> None:
        with self._capturing:
            give_back(self._driver)

    def _part(self, template: Template, recipe: Recipe, images: Sequence[Image], most: int) -> Any:
        number, size = len(images), images[0].shape[-1]
        captured = self.capture(template, recipe, next(one for one in sizes(most) if one >= number), size)
        up = self._up[: number * 3 * size * size].view(number, 3, size, size)
        np.stack(images, out=up.numpy())
        pixels = captured.images[:number]
        self.stream.do("images up", lambda: pixels.copy_(up, non_blocking=True))
        self.stream.do(f"run x{len(captured.images)}", captured.graph.replay)
        outputs = tree_map(lambda one: one[:number], captured.graph.outputs)
        down = self._landing(outputs)
        self.stream.do("outputs down", lambda: _copy(outputs, down))
        self.stream.mark().wait()
        return down

    def _make_room(self, outputs: Any) -> None:
        """Take pinned memory where all of `outputs` can land: before images come, since pinning takes a while."""
        needed = sum(_landing_bytes(one) for one in _tensors(outputs))
        if len(self._down) < needed:
            self._down = self._driver.pinned_memory(needed)

    def _landing(self, outputs: Any) -> Any:
        """Return tensors of pinned memory like `outputs`."""
        at = 0

        def place(one: Any) -> Any:
            nonlocal at
            start, at = at, at + _landing_bytes(one)
            return self._down[start : start + one.nbytes].view(one.dtype).view(one.shape)

        return tree_map(place, outputs)


def _tensors(outputs: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(outputs) if torch.is_tensor(one)]


def _landing_bytes(one: torch.Tensor) -> int:
    return -(-one.nbytes // 16) * 16


def _copy(outputs: Any, into: Any) -> None:
    for one, place in zip(tree_leaves(outputs), tree_leaves(into), strict=True):
        place.copy_(one, non_blocking=True)
