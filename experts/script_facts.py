"""What the arguments of usual training scripts say of the pictures that a classifier saw: torchvision's and timm's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coe.preprocessing import NORMALIZATIONS
from experts.stated_facts import blue_first

_SAME_TENSORS = re.compile(r"\w*resnet(aa|blur)\d+\w*")
"""timm's networks that blur between their layers without a tensor of their own: the tensors are those of a ResNet."""
_ANTIALIASED = {"bilinear": "bilinear-antialias", "bicubic": "bicubic-antialias"}


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Fields of the preprocessing, and the input size in pixels; only what the arguments say."""

    preprocessing: Mapping[str, Any]
    input_size: int | None = None


def said(arguments: Mapping[str, Any]) -> ScriptFacts:
    """Read the arguments that a checkpoint keeps; those of other scripts say nothing."""
    fields: dict[str, Any] = {}
    if _is_colour(mean := arguments.get("mean")) and _is_colour(std := arguments.get("std")) and min(std) > 0:
        turned = arguments.get("bgr") is True or blue_first(tuple(mean))
        fields |= {"mean": tuple(mean), "std": tuple(std)} | ({"channels": "bgr"} if turned else {})
    if not {"val_crop_size", "crop_pct"} & arguments.keys():
        return ScriptFacts(fields)
    if (method := arguments.get("interpolation")) in _ANTIALIASED:
        fields["interpolation"] = _ANTIALIASED[method]
    if _is_side(size := arguments.get("val_crop_size")) and _is_side(edge := arguments.get("val_resize_size")):
        # torchvision's script evaluates with ImageNet's normalisation; nothing sets another.
        mean, std = NORMALIZATIONS["imagenet"]
        fields |= {"resize": "center-crop", "shortest_edge": max(size, edge), "mean": mean, "std": std}
        return ScriptFacts(fields, size)
    fields |= {name: tuple(arguments[name]) for name in ("mean", "std") if _is_colour(arguments.get(name))}
    shape = arguments.get("input_size")
    size = arguments.get("img_size") or (shape[-1] if isinstance(shape, list | tuple) and shape else None)
    share = arguments.get("crop_pct")
    if not _is_side(size):
        return ScriptFacts(fields)
    if isinstance(share, float) and 0 < share <= 1:
        fields |= {"resize": "center-crop", "shortest_edge": math.floor(size / share)}
    return ScriptFacts(fields, size)


def another_network(arguments: Mapping[str, Any]) -> str | None:
    """Return the name that a script gives its network if it has a ResNet's tensors and computes something else."""
    names = [name for key in ("arch", "model") if isinstance(name := arguments.get(key), str)]
    return next((name for name in names if _SAME_TENSORS.match(name)), None)


def _is_side(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_colour(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
