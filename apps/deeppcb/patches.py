"""A kind outside the framework: a small ResNet that looks for a defect at every place of a large image.

A common classifier averages over the whole image, which hides a defect of 30 pixels in 640 x 640. This network keeps
its map of scores, and the worst place decides for the image. The rules name the kind by its dotted path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from coe.core import Expert, Finding
from coe.errors import ConfigError
from coe.store.kinds import Image, ModuleKind, Prepared, Progress, Trained, TrainingPlan
from experts.findings import classified
from experts.geometry import letterbox
from experts.resnet import fitted

PADDING = (255, 255, 255)
"""White is bare board in these images."""


class PatchNetwork(nn.Module):
    """ResNet18 up to its third stage, half as wide, on one grey channel; a score where ResNet18 would go on.

    From (n, 1, S, S) in 0..1 to logits (n, 1, S / 16, S / 16); one logit sees 211 x 211 pixels. `limit` is the logit
    from which an image is bad, calibrated after training; training itself does not use it.
    """

    def __init__(self, width: int = 32) -> None:
        from torchvision.models.resnet import BasicBlock

        def stage(before: int, after: int, stride: int) -> nn.Sequential:
            shortcut = None
            if stride > 1:
                shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
            return nn.Sequential(BasicBlock(before, after, stride, shortcut), BasicBlock(after, after))

        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.Sequential(stage(width, width, 1), stage(width, 2 * width, 2), stage(2 * width, 4 * width, 2))
        self.head = nn.Conv2d(4 * width, 1, 1)
        self.limit: torch.Tensor
        self.register_buffer("limit", torch.zeros(1))

    def forward(self, grey: torch.Tensor) -> torch.Tensor:
        """Return the map of logits."""
        logits: torch.Tensor = self.head(self.stages(self.stem(grey)))
        return logits


class PatchResNet18(ModuleKind):
    """Good or defective, by the worst place of the image. An expert has two labels: the good one, then the bad one."""

    name = "apps.deeppcb.patches:PatchResNet18"
    task = "classify"
    max_batch = 8

    def preprocess(self, image: Image, expert: Expert) -> Prepared:
        """Scale to fit, centre, and pad with white."""
        return letterbox(image, expert.input_size, PADDING)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the expert has two labels."""
        if len(expert.labels) != 2:
            raise ConfigError(f"expert '{expert.id}': this kind tells good from bad, so it needs exactly two labels")
        return PatchNetwork().eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return the logit of "bad", (n,), of images (n, 3, S, S) uint8: the worst place's, less the limit."""
        grey = images[:, :1].to(next(module.parameters()).dtype).div_(255.0)
        worst: torch.Tensor = module(grey).flatten(1).amax(dim=1)
        return worst - module.limit

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[Prepared], expert: Expert) -> list[Finding]:
        """Turn logits into good or bad; the calibrated limit is at a probability of 0.5."""
        bad = outputs.float().sigmoid()
        return classified(torch.stack((1 - bad, bad), dim=1), expert)

    def convert(self, state: dict[str, torch.Tensor], expert: Expert) -> dict[str, torch.Tensor]:
        """Check that a state dict fits this network; raises StoreError."""
        return fitted(state, self, expert)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Train on a list of image pairs, see `apps.deeppcb.patch_train`."""
        from apps.deeppcb import patch_train

        return patch_train.train(self, expert, plan, progress)
