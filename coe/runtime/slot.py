"""A skeleton of one kind whose weights are views of whichever blob is bound to it."""

from __future__ import annotations

import threading
from typing import Any

import torch

from coe.core import Expert
from coe.kinds import ModuleKind
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
