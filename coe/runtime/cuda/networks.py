"""What experts need in order to run on a GPU, found out once: their networks, and how their blobs become weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.runtime.aside import aside
from coe.runtime.blob import PLAIN, Content, Structure, expect
from coe.runtime.cuda.recipe import Recipe, recipe_like, structure_on_gpu
from coe.runtime.cuda.worker import Template
from coe.runtime.reading import weights
from coe.store.kinds import Kind, ModuleKind
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class Network:
    """What experts share that run alike: a kind in a structure, laid out alike.

    Their graphs hold alike much, whatever the labels.
    """

    kind: str
    structure: Structure
    channels_last: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """What an expert's file says; `content` is None where it is damaged."""

    network: Network
    running_bytes: int
    content: Content | None


class Networks:
    """Networks of experts in a store. Called from several threads; what two find at once is the same."""

    def __init__(self, store: Store, kinds: Mapping[str, Kind], device: torch.device) -> None:
        """Raises ConfigError for a kind that opens its own files."""
        for name, kind in kinds.items():
            if not isinstance(kind, ModuleKind):
                raise ConfigError(f"experts of kind '{name}' run on the CPU only; use --executors cpu=1 for this board")
        self._store, self._device = store, device
        self._kinds = {name: kind for name, kind in kinds.items() if isinstance(kind, ModuleKind)}
        self._found: dict[tuple[str, str, str], _Found] = {}
        self._recipes: dict[tuple[str, Content], Recipe] = {}
        self._templates: dict[tuple[Network, int], Template] = {}

    def kind(self, expert: Expert) -> ModuleKind:
        """Return the kind of an expert."""
        return self._kinds[expert.kind]

    def of(self, expert: Expert) -> Network:
        """Return the network of an expert; raises StoreError."""
        return self._find(expert).network

    def running_bytes(self, expert: Expert) -> int:
        """Return what an expert's weights take while it runs; raises StoreError."""
        return self._find(expert).running_bytes

    def template(self, expert: Expert) -> Template:
        """Return the network of an expert, without weights; raises StoreError."""
        network = self.of(expert)
        key = network, len(expert.labels)
        if key not in self._templates:
            kind = self.kind(expert)
            # Aside: building uses operators, whose threads would stay with this one.
            self._templates[key] = aside(lambda: Template(kind, expert, network.structure, self._device))
        return self._templates[key]

    def recipe(self, content: Content, expert: Expert) -> Recipe:
        """Return how an expert's blob becomes weights that run; raises StoreError if it is of another kind."""
        key = expert.kind, replace(content, start=0)
        if key not in self._recipes:
            recipe = Recipe(content, structure_on_gpu(content.variant, content.folded))
            expect(recipe.tensors, content.variant, self.template(expert).spec)
            self._recipes[key] = recipe
        return self._recipes[key]

    def recipe_of(self, expert: Expert) -> Recipe:
        """Return how an expert's file becomes weights that run, from its header alone; raises StoreError."""
        found = self._find(expert)
        # Where the header cannot be read, this says why.
        content = found.content or weights(self._store, expert).outline()
        return self.recipe(content, expert)

    def likely_recipe(self, expert: Expert) -> Recipe:
        """Return what `recipe_of` does, or a recipe for a sound blob of the kind if the expert's file is damaged.

        Raises StoreError if there is no such file.
        """
        try:
            return self.recipe_of(expert)
        except StoreError:
            return recipe_like(self.template(expert).spec, self.of(expert).structure)

    def _find(self, expert: Expert) -> _Found:
        key = expert.weights, expert.variant, expert.kind
        if key not in self._found:
            file = weights(self._store, expert)
            try:
                outline = file.outline()
                structure = structure_on_gpu(outline.variant, outline.folded)
                last = any(entry.channels_last for entry in outline.entries)
                found = _Found(Network(expert.kind, structure, last), Recipe(outline, structure).bytes, outline)
            except StoreError:
                # Its load will report it; the others go on.
                found = _Found(Network(expert.kind, PLAIN, True), file.bytes, None)
            self._found[key] = found
        return self._found[key]
