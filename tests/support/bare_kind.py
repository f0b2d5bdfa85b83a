"""Kinds of which a test uses the network alone."""

from collections.abc import Sequence
from typing import Any

import torch

from coe.core import Expert, Finding
from coe.store.kinds import ExpertInput, Image, ModuleKind


class BareKind(ModuleKind):
    """A classifier that prepares no pictures and reads no answers."""

    task = "classify"

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        raise NotImplementedError

    def postprocess(self, outputs: Any, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        raise NotImplementedError


class Multiplying(BareKind):
    """A network that multiplies the mean of an image with the first of its numbers."""

    numbers: int

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        return torch.nn.Linear(self.numbers, 1, bias=False)

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        return images.float().mean(dim=(1, 2, 3))[:, None] * module.weight[:, :1]

    def postprocess(self, outputs: Any, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        return [Finding(expert.id, expert.variant, "ok", float(score)) for score in outputs[:, 0]]
