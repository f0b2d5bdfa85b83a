"""A kind's network without weights, from which each graph on a GPU has its own copy."""

from __future__ import annotations

import copy

import torch

from coe.core import Expert
from coe.runtime.blob import Spec, Structure, folded_skeleton
from coe.runtime.cuda.unpacking import Unpacking
from coe.store.runnable_kinds import NetworkKind
from coe.store.skeletons import bare_skeleton


class Template:
    """A kind's network for a number of labels and a structure, without weights: it is copied, and never run."""

    def __init__(self, kind: NetworkKind, expert: Expert, structure: Structure, device: torch.device) -> None:
        """Build the skeleton; raises StoreError if the kind lacks a layer that the structure folds."""
        self.kind = kind
        module = folded_skeleton(bare_skeleton(kind, expert), structure.folded).eval().requires_grad_(False)
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
