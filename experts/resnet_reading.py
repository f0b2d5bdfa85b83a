"""Reading a foreign file of a classifier's weights: its tensors by our names, and what its writer recorded."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch

from coe.errors import StoreError, list_few
from coe.store.kinds import Foreign, ModuleKind
from experts import records
from experts.checkpoint import read_checkpoint

_EMBEDDER = "resnet.embedder."
_HUGGING_FACE = {
    r"resnet\.embedder\.embedder\.convolution": "conv1",
    r"resnet\.embedder\.embedder\.normalization": "bn1",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.convolution": "layer{}.{}.downsample.0",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.shortcut\.normalization": "layer{}.{}.downsample.1",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.convolution": "layer{}.{}.conv{}",
    r"resnet\.encoder\.stages\.(\d)\.layers\.(\d+)\.layer\.(\d)\.normalization": "layer{}.{}.bn{}",
}
"""Hugging Face's names of a ResNet's layers; torchvision counts stages and layers of a block from 1."""


def read(kind: ModuleKind, activation: str, path: Path, foreign: Foreign | None) -> Foreign:
    """Return what a file holds, and what its training and the records beside it say of its pictures.

    `activation` is the kind's, and `foreign` the content, None for a file that torch saved. Raises StoreError, also for
    another network's weights.
    """
    foreign = foreign or read_checkpoint(path)
    beside, contents, remarks = records.of_files(path)
    differs = records.another_network({**foreign.settings, **contents})
    if others := [f"{name} = {value}" for name, value in differs.items() if value != activation]:
        raise StoreError(
            f"{path}: its network has {list_few(others)}, and {kind.name} computes something else with its tensors; "
            "export it as ONNX and import that with --kind onnx"
        )
    own = records.Record(foreign.labels, foreign.input_size, foreign.seen, foreign.unsaid).beside(beside)
    return replace(
        foreign,
        state=_renamed(foreign.state),
        labels=own.labels,
        input_size=own.input_size,
        seen=own.seen,
        unsaid=own.unsaid,
        remarks=(*foreign.remarks, *remarks),
    )


def _renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return Hugging Face's tensors by torchvision's names, and a last layer behind a Dropout as the last."""
    if any(_EMBEDDER in name for name in state):
        return {_torchvision_name(name): value for name, value in state.items()}
    behind = {name for name in state if re.search(r"(?<![^./])fc\.\d", name)}
    if {name.rpartition("fc.")[2] for name in behind} != {"1.weight", "1.bias"}:
        return state
    return {name.replace("fc.1.", "fc.") if name in behind else name: value for name, value in state.items()}


def _torchvision_name(name: str) -> str:
    for theirs, ours in _HUGGING_FACE.items():
        if (found := re.search(theirs, name)) is not None:
            numbers = [int(one) + (place != 1) for place, one in enumerate(found.groups())]
            return f"{name[: found.start()]}{ours.format(*numbers)}{name[found.end() :]}"
    return re.sub(r"(?<![^./])classifier\.1\.", "fc.", name)
