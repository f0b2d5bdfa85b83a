"""A slot: one network's skeleton that runs with the weights of the blob bound to it; and the shelf of slots."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch

from coe.core import Expert
from coe.errors import CoeError, KindFailed
from coe.helpers.plugins import reason
from coe.helpers.system import give_memory_back
from coe.runtime.blob import PLAIN, Blob, Spec, Structure, folded_skeleton
from coe.store.runnable_kinds import NetworkKind, RunnableKind
from coe.store.skeletons import bare_skeleton, skeleton


class Slot:
    """One skeleton, built once, used by one executor.

    Binding a blob points parameters at its tensors; a further batch on the same blob does not. If the expert has a
    body, that is bound before it, unless it is in place already: then the expert's own tensors alone are bound.
    """

    def __init__(self, kind: NetworkKind, expert: Expert, structure: Structure = PLAIN, *, drawn: bool = False) -> None:
        """Build the skeleton, with random weights if they are to be `drawn`: it can run without a blob then.

        Raises StoreError if the kind lacks a layer that the structure folds.
        """
        self.kind = kind
        self.structure = structure
        network = (skeleton if drawn else bare_skeleton)(kind, expert, optional=structure.optional)
        self.module = folded_skeleton(network, structure.folded).eval().requires_grad_(False)
        self._targets: dict[str, torch.Tensor] = dict(self.module.state_dict(keep_vars=True))
        self.spec: Spec = {name: (tuple(t.shape), t.dtype) for name, t in self._targets.items()}
        self._empty = {name: torch.empty(0, dtype=t.dtype) for name, t in self._targets.items()}
        self._bound: Blob | None = None
        self._body: Blob | None = None
        """The body that is in place, with or without an expert bound."""
        self._lock = threading.Lock()

    def run(self, blob: Blob | None, images: torch.Tensor) -> Any:
        """Run a batch, (n, 3, S, S) uint8 RGB; with None as the blob, on the weights that were drawn."""
        if blob is not None:
            self.bind(blob)
        # Outside the lock: while a batch runs, the lane must be able to evict other experts. The expert that runs is
        # pinned, so nothing unbinds it.
        with torch.inference_mode():
            return self.kind.forward(self.module, images)

    def bind(self, blob: Blob) -> None:
        """Make the skeleton run on a blob and its body; raises RuntimeError if one of them has been released."""
        with self._lock:
            if self._bound is blob:
                return
            body = blob.body
            if blob.is_released or (body is not None and body.is_released):
                raise RuntimeError("a blob was run after it was released")
            # Not `unbind`, which would wait for this lock.
            in_place, self._bound, self._body = self._body, None, None
            for part in (body, blob):
                if part is not None and part is not in_place:
                    for name, tensor in part.tensors.items():
                        self._targets[name].data = tensor
            self._bound, self._body = blob, body
            self._use(body)

    def _use(self, body: Blob | None) -> None:
        """Let the kind's `forward` find the session of the body that is in place."""
        self.module.body_session = body.session if body is not None else None  # type: ignore[assignment]

    def unbind(self, blob: Blob | None = None) -> None:
        """Unbind `blob` if it is bound (None: whichever blob is bound), so that its memory can be reused.

        The body of a blob stays, for the next expert that has it, until it is unbound itself.
        """
        with self._lock:
            if blob is None or self._body is blob:
                gone: Iterable[str] = self._targets
                self._bound = self._body = None
                self._use(None)
            elif self._bound is blob:
                gone = blob.shapes
                self._bound = None
            else:
                return
            for name in gone:
                self._targets[name].data = self._empty[name]


NetworkKey = tuple[str, int, int, Hashable, Structure]
"""What tells networks apart: a kind, a number of labels, one of alternates, a normalisation and a structure."""


class SlotShelf:
    """Slots by executor and network.

    Two executors never share a slot.
    """

    def __init__(self, kinds: Mapping[str, RunnableKind]) -> None:
        self._kinds = kinds
        self._spares: dict[NetworkKey, Slot] = {}
        self._slots: dict[tuple[str, NetworkKey], Slot] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._slots)

    def build(self, expert: Expert, structure: Structure) -> Slot:
        """Return a slot with a new skeleton's random weights, to measure; it becomes the network's spare slot."""
        return self._spare(expert, structure, self._new(expert, structure, drawn=True))

    def _spare(self, expert: Expert, structure: Structure, slot: Slot) -> Slot:
        with self._lock:
            return self._spares.setdefault(self.key(expert, structure), slot)

    def spare(self, expert: Expert, structure: Structure) -> Slot:
        """Return the network's spare slot, without weights; its `spec` states what weights must look like."""
        with self._lock:
            slot = self._spares.get(self.key(expert, structure))
        if slot is None:
            slot = self._spare(expert, structure, self._new(expert, structure))
            slot.unbind()
            give_memory_back()
        return slot

    def of(self, executor: str, expert: Expert, key: NetworkKey) -> Slot:
        """Return an executor's slot for the network of an expert; the first executor that asks gets the spare slot."""
        with self._lock:
            if (slot := self._slots.get((executor, key))) is not None:
                return slot
        spare = self.spare(expert, key[-1])
        with self._lock:
            if spare not in self._slots.values():
                return self._keep(executor, key, spare)
        slot = self._new(expert, key[-1])
        slot.unbind()
        give_memory_back()
        with self._lock:
            return self._keep(executor, key, slot)

    def _keep(self, executor: str, key: NetworkKey, slot: Slot) -> Slot:
        self._slots[executor, key] = slot
        return slot

    def unbind(self, blob: Blob) -> None:
        """Unbind a blob from every slot."""
        with self._lock:
            slots = list(self._slots.values())
        for slot in slots:
            slot.unbind(blob)

    def _new(self, expert: Expert, structure: Structure, *, drawn: bool = False) -> Slot:
        kind = self._kinds[expert.kind]
        assert isinstance(kind, NetworkKind), f"{kind} has no skeleton"
        try:
            return Slot(kind, expert, structure, drawn=drawn)
        except (KeyboardInterrupt, CoeError):
            raise
        except BaseException as error:  # code of a user's: it may exit too
            raise KindFailed(f"kind '{expert.kind}' cannot build its network: {reason(error)}") from error

    def key(self, expert: Expert, structure: Structure) -> NetworkKey:
        """Return the key of an expert's network."""
        sizes = len(expert.labels), expert.alternates
        return expert.kind, *sizes, self._kinds[expert.kind].normalization(expert), structure
