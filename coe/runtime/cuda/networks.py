"""What experts need to run on a GPU, worked out once: their networks, and the unpackings from blobs to weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.preprocessing import Colour
from coe.runtime.blob import PLAIN, Spec, Structure, expect, folded_skeleton
from coe.runtime.cuda.unpacking import Unpacking, structure_on_gpu, unpacking_like
from coe.runtime.processor import on_fresh_thread
from coe.runtime.reading import Weights, weights
from coe.store.blob_format import Content
from coe.store.runnable_kinds import NetworkKind, RunnableKind
from coe.store.skeletons import bare_skeleton
from coe.store.store_reader import StoreReader


class Template:
    """A kind's network for a number of labels and a structure, without weights: it is copied, and never run."""

    def __init__(self, kind: NetworkKind, expert: Expert, structure: Structure, device: torch.device) -> None:
        """Build the skeleton; raises StoreError if the kind lacks a layer that the structure folds."""
        self.kind = kind
        bare = bare_skeleton(kind, expert, optional=structure.optional)
        module = folded_skeleton(bare, structure.folded).eval().requires_grad_(False)
        state = module.state_dict(keep_vars=True)
        self.spec: Spec = {name: (tuple(t.shape), t.dtype) for name, t in state.items()}
        for target in state.values():
            target.data = torch.empty(0, dtype=target.dtype)
        self._module = module.to(device=device, dtype=structure.dtype)

    def bound(self, unpacking: Unpacking, weights: torch.Tensor) -> torch.nn.Module:
        """Return a copy of the network whose parameters are views of `weights`."""
        module = copy.deepcopy(self._module)
        views = unpacking.views(weights)
        for name, target in module.state_dict(keep_vars=True).items():
            target.data = views[name]
        return module


@dataclass(frozen=True, slots=True)
class Network:
    """What experts with the same graphs share: a kind, a structure, a memory layout and a normalisation.

    Their graphs hold the same amount of memory, whatever their labels.
    """

    kind: str
    structure: Structure
    channels_last: bool
    normalization: tuple[Colour, Colour] | None = None


_Contents = tuple[Content, Content | None]
"""What lies in an expert's file, and in that of its body, if it has one."""


@dataclass(frozen=True, slots=True)
class _ExpertFile:
    """What an expert's files say; `contents` is None if one of them is damaged."""

    network: Network
    running_bytes: int
    contents: _Contents | None


class Networks:
    """Networks of experts in a store. Called from several threads; two that work out the same entry get equal ones."""

    def __init__(self, store: StoreReader, kinds: Mapping[str, RunnableKind], device: torch.device) -> None:
        """Raises ConfigError for a kind that opens its own files."""
        for name, kind in kinds.items():
            if not isinstance(kind, NetworkKind):
                raise ConfigError(f"experts of kind '{name}' run only on the CPU; use --executors cpu=1 for this board")
        self._store, self._device = store, device
        self._kinds = {name: kind for name, kind in kinds.items() if isinstance(kind, NetworkKind)}
        self._files: dict[tuple[str, str, str], _ExpertFile] = {}
        self._unpackings: dict[tuple[str, Content, Content | None], Unpacking] = {}
        self._templates: dict[tuple[Network, int, int], Template] = {}

    def kind(self, expert: Expert) -> NetworkKind:
        """Return the kind of an expert."""
        return self._kinds[expert.kind]

    def of(self, expert: Expert) -> Network:
        """Return the network of an expert; raises StoreError."""
        return self._file(expert).network

    def running_bytes(self, expert: Expert) -> int:
        """Return the bytes of an expert's weights while it runs; raises StoreError."""
        return self._file(expert).running_bytes

    def template(self, expert: Expert) -> Template:
        """Return the network of an expert, without weights; raises StoreError."""
        network = self.of(expert)
        key = network, len(expert.labels), expert.alternates
        if key not in self._templates:
            kind = self.kind(expert)
            # Aside: building runs operators, which would leave this thread a team of OpenMP threads.
            self._templates[key] = on_fresh_thread(lambda: Template(kind, expert, network.structure, self._device))
        return self._templates[key]

    def unpacking(self, content: Content, expert: Expert, body: Content | None = None) -> Unpacking:
        """Return the unpacking from an expert's blob to weights that run; raises StoreError if it is of another kind.

        `body` is the content of the expert's body, if it has one.
        """
        key = expert.kind, replace(content, start=0), replace(body, start=0) if body is not None else None
        if key not in self._unpackings:
            unpacking = _unpacking(content, body)
            expect(unpacking.tensors, content.variant, self.template(expert).spec)
            self._unpackings[key] = unpacking
        return self._unpackings[key]

    def unpacking_of(self, expert: Expert) -> Unpacking:
        """Return the unpacking from an expert's file to weights that run, from headers alone; raises StoreError."""
        contents = self._file(expert).contents
        if contents is None:
            # If a header cannot be read, this raises the reason.
            contents = _outlines(weights(self._store, expert))
        own, body = contents
        return self.unpacking(own, expert, body)

    def likely_unpacking(self, expert: Expert) -> Unpacking:
        """Return `unpacking_of` an expert, or one for a sound blob of its kind if the expert's file is damaged.

        Raises StoreError if there is no such file.
        """
        try:
            return self.unpacking_of(expert)
        except StoreError:
            return unpacking_like(self.template(expert).spec, self.of(expert).structure)

    def _file(self, expert: Expert) -> _ExpertFile:
        key = expert.weights, expert.variant, expert.kind
        if key not in self._files:
            file = weights(self._store, expert)
            try:
                contents = _outlines(file)
                unpacking = _unpacking(*contents)
                network = Network(
                    expert.kind,
                    unpacking.structure,
                    any(p.entry.channels_last for p in unpacking.places.values()),
                    self.kind(expert).normalization(expert),
                )
                self._files[key] = _ExpertFile(network, unpacking.bytes, contents)
            except StoreError:
                # The expert's load will report the damage; the others go on.
                self._files[key] = _ExpertFile(Network(expert.kind, PLAIN, True), file.whole_bytes, None)
        return self._files[key]


def _outlines(file: Weights) -> _Contents:
    return file.outline(), file.body.outline() if file.body is not None else None


def _unpacking(content: Content, body: Content | None) -> Unpacking:
    structure = structure_on_gpu(content, body)
    return Unpacking(content, structure, Unpacking(body, structure) if body is not None else None)
