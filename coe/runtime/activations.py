"""How many bytes of activations a run holds at its peak: counted, tensor by tensor, not guessed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds the storage of every tensor that an operator makes, and takes it off when the storage dies."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        known = {s.data_ptr() for s in (x.untyped_storage() for x in tree_iter((args, kwargs)) if torch.is_tensor(x))}
        for tensor in tree_iter(out):
            if torch.is_tensor(tensor):
                self._count(tensor.untyped_storage(), known)
        return out

    def _count(self, storage: torch.UntypedStorage, known: set[int]) -> None:
        pointer, size = storage.data_ptr(), storage.nbytes()
        if pointer in self._seen or pointer in known:
            return
        self._seen.add(pointer)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._died, pointer, size)

    def _died(self, pointer: int, size: int) -> None:
        self._seen.discard(pointer)
        self.live -= size


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the peak of the bytes that the operators of `run` hold at once, results included."""
    counter = _LiveBytes()
    with counter:
        run()
    return counter.peak
