"""Reading a foreign file of a classifier's weights: its tensors by our names, and what it says of its pictures."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError

from coe.errors import StoreError, first_line, list_few
from coe.helpers.preprocessing import Preprocessing
from coe.store.kinds import Foreign, ModuleKind
from experts import script_facts
from experts.checkpoint import read_checkpoint, with_metadata, without_normalisation
from experts.stated_beside import with_beside

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
    """Return what a file holds, and what it, its training and the files beside it say of its pictures.

    `activation` is the kind's, and `foreign` the content, None for a file that torch saved. Raises StoreError, also for
    another network's weights.
    """
    usual = kind.preprocessing or Preprocessing()
    foreign = with_beside(path, with_metadata(path, foreign) if foreign else read_checkpoint(path))
    others = [f"{name} = {value}" for name, value in foreign.arguments.get("other", {}).items() if value != activation]
    if others:
        raise StoreError(
            f"{path}: its network has {list_few(others)}, and {kind.name} computes something else with its tensors; "
            "export it as ONNX and import that with --kind onnx"
        )
    foreign = without_normalisation(replace(foreign, state=_renamed(foreign.state)))
    said = script_facts.said(foreign.arguments)
    try:
        seen = Preprocessing.model_validate({**dict(usual), **said.preprocessing})
    except ValidationError as error:
        raise StoreError(f"{path}: its arguments of the training make no sense ({first_line(error)})") from error
    stated = frozenset(said.preprocessing)
    asked = {**foreign.arguments.get("unsaid", {}), **said.unsaid}
    unsaid = {name: why for name, why in asked.items() if name not in stated}
    sizes = "" if said.input_size else foreign.arguments.get("sizes", "")
    told = [f"the file names {sizes}, and not how its pictures came to size"] if sizes else []
    return replace(
        foreign,
        input_size=said.input_size,
        preprocessing=seen,
        stated=stated,
        unsaid=unsaid,
        remarks=(*foreign.remarks, *told),
    )


def _renamed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return Hugging Face's tensors by torchvision's names; others as they are."""
    is_theirs = any(_EMBEDDER in name for name in state)
    return {_torchvision_name(name): value for name, value in state.items()} if is_theirs else state


def _torchvision_name(name: str) -> str:
    for theirs, ours in _HUGGING_FACE.items():
        if (found := re.search(theirs, name)) is not None:
            numbers = [int(one) + (place != 1) for place, one in enumerate(found.groups())]
            return f"{name[: found.start()]}{ours.format(*numbers)}{name[found.end() :]}"
    return re.sub(r"(?<![^.])classifier\.1\.", "fc.", name)
