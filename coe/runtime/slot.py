"""A skeleton of one kind whose weights are views of whichever blob is bound to it; and the shelf that keeps slots."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from coe.core import Expert
from coe.kinds import Kind, ModuleKind
from coe.runtime.activations import give_memory_back
from coe.runtime.blob import Blob, Spec


class Slot:
    """One skeleton, built once, used by one executor. Binding a blob sets references, it copies nothing."""

    def __init__(self, kind: ModuleKind, expert: Expert) -> None:
        self.kind = kind
        self.module = kind.skeleton(expert).eval().requires_grad_(False)
        self._targets: dict[str, torch.Tensor] = dict(self.module.state_dict(keep_vars=True))
        self.spec: Spec = {name: (tuple(t.shape), t.dtype) for name, t in self._targets.items()}
        self._empty = {name: torch.empty(0, dtype=t.dtype) for name, t in self._targets.items()}
        self._bound: Blob | None = None
        self._lock = threading.Lock()

    def run(self, blob: Blob | None, images: torch.Tensor) -> Any:
        """Run a batch, (n, 3, S, S) uint8 RGB; None runs on whatever weights the skeleton has."""
        if blob is not None:
            self._bind(blob)
        # Outside the lock: while a batch runs, the lane must be able to evict other experts. The one that runs is
        # pinned, so nobody unbinds it.
        with torch.inference_mode():
            return self.kind.forward(self.module, images)

    def _bind(self, blob: Blob) -> None:
        with self._lock:
            if self._bound is not blob:
                for name, target in self._targets.items():
                    target.data = blob.tensors[name]
                self._bound = blob

    def unbind(self, blob: Blob | None = None) -> None:
        """Let go of a blob if it is the one that is bound (None: of whatever is), so that its memory can be freed."""
        with self._lock:
            if blob is None or self._bound is blob:
                for name, target in self._targets.items():
                    target.data = self._empty[name]
                self._bound = None


_Key = tuple[str, int]


class SlotShelf:
    """Slots by executor and network; a network is a kind with a number of labels. Two executors never share a slot."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self._kinds = kinds
        self._spares: dict[_Key, Slot] = {}
        self._slots: dict[tuple[str, _Key], Slot] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def build(self, expert: Expert) -> Slot:
        """Return a slot with the random weights of a new skeleton, to measure; it becomes the network's spare."""
        slot = self._new(expert)
        with self._lock:
            return self._spares.setdefault(_key(expert), slot)

    def spare(self, expert: Expert) -> Slot:
        """Return the network's first slot, without weights; it tells what weights must look like."""
        with self._lock:
            found = self._spares.get(_key(expert))
        if found is None:
            found = self.build(expert)
            found.unbind()
            give_memory_back()
        return found

    def of(self, executor: str, expert: Expert) -> Slot:
        """Return an executor's slot for a network; the first executor that asks gets the spare."""
        key = _key(expert)
        spare = self.spare(expert)
        with self._lock:
            if (executor, key) in self._slots:
                return self._slots[executor, key]
            if spare not in self._slots.values():
                self._slots[executor, key] = spare
                return spare
        slot = self._new(expert)
        slot.unbind()
        give_memory_back()
        with self._lock:
            self._slots[executor, key] = slot
        return slot

    def unbind(self, blob: Blob) -> None:
        """Make every slot let go of a blob."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            slot.unbind(blob)

    def _new(self, expert: Expert) -> Slot:
        kind = self._kinds[expert.kind]
        assert isinstance(kind, ModuleKind), f"{kind} has no skeleton"
        return Slot(kind, expert)


def _key(expert: Expert) -> _Key:
    return expert.kind, len(expert.labels)
