"""A kind outside the framework: a network so small that a dozen experts learn within a minute, for the first look.

The rules of the first look name it by its dotted path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from coe.core import Expert, Finding
from coe.store.kinds import ExpertInput, Image, ModuleKind, Progress, Trained, TrainingPlan
from experts.augment import Augment
from experts.findings import classified
from experts.fitting_state import fitted
from experts.geometry import letterbox
from experts.normalising import PADDING, normalise

WIDTHS = (24, 48, 96, 128)
GRID, HIDDEN = 4, 256


class SmallNetwork(nn.Module):
    """Four convolutions, each with half the pixels of the one before, and two layers behind them.

    From (n, 3, S, S) numbers to logits (n, labels). The layers see the mean features of each cell of a 4 x 4 grid,
    because a shifted part differs only in position, and the largest features of the image, because a fine defect may
    lie anywhere.
    """

    def __init__(self, labels: int) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        for before, after in zip((3, *WIDTHS), WIDTHS, strict=False):
            stages += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        self.trunk = nn.Sequential(*stages)
        self.hidden = nn.Linear(WIDTHS[-1] * (GRID**2 + 1), HIDDEN)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(HIDDEN, labels)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.trunk(images)
        places = nn.functional.adaptive_avg_pool2d(features, GRID).flatten(1)
        pooled = torch.cat((places, features.amax(dim=(2, 3))), dim=1)
        logits: torch.Tensor = self.fc(self.drop(self.hidden(pooled).relu()))
        return logits


class Small(ModuleKind):
    """A classifier that learns in seconds from a few hundred images; it sees the whole image with its aspect kept."""

    name = "apps.demo.small:Small"
    task = "classify"

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Scale to fit, centre, and pad with one colour."""
        return letterbox(image, expert.input_size, PADDING)

    def skeleton(self, expert: Expert) -> nn.Module:
        """Build the network for `len(expert.labels)` labels."""
        return SmallNetwork(len(expert.labels)).eval()

    def forward(self, module: nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return the logits, (n, labels), of images (n, 3, S, S) uint8 RGB."""
        logits: torch.Tensor = module(normalise(images, next(module.parameters()).dtype))
        return logits

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn logits into the likeliest label and its probability."""
        return classified(outputs.float().softmax(dim=1), expert)

    convert = fitted

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Train on a labelled folder; the best epoch by held-out accuracy is returned."""
        from experts import classifier_train

        return classifier_train.train(self, expert, plan, progress, Augment())
