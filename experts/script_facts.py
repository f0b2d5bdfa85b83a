"""What the arguments of usual training scripts say of the pictures that a classifier saw: torchvision's and timm's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coe.preprocessing import NORMALIZATIONS
from experts.stated_facts import blue_first, levels_by_path

_SAME_TENSORS = re.compile(r"\w*resnet(aa|blur)\d+\w*|MultiLabel\w*Head")
"""timm's networks that blur between their layers without a tensor of their own, and OpenMMLab's heads of sigmoids."""
_SETTINGS = (
    "act_layer",
    "hidden_act",
    "downsample_in_bottleneck",
    "downsample_in_first_stage",
    "aa_layer",
    "output_stride",
    "replace_stride_with_dilation",
)
_USUAL = re.compile(r"None|False|(.*\.)?relu|32|[\[(]False, False, False[\])]|", re.IGNORECASE)
_POOLINGS = ("gp", "global_pool")
_OTHERWISE = {("style", "caffe"), ("problem_type", "multi_label_classification")}
"""Settings by which a network computes something else than a ResNet with the same tensors."""
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
    if "sight" in arguments:
        return ScriptFacts(fields | arguments["sight"], arguments["side"])
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


def another_network(content: Any) -> str | None:
    """Return what a file says of its network if that has a ResNet's tensors and computes something else."""
    for path, level in levels_by_path(content):
        for name, value in level.items():
            if "teacher" in f"{path}{name}":
                continue
            if isinstance(value, str) and (_SAME_TENSORS.match(value) or (name, value) in _OTHERWISE):
                return f"is a {value:.60}" if _SAME_TENSORS.match(value) else f"has {name} = {value}"
            if (name in _SETTINGS and not _USUAL.fullmatch(str(value))) or (name in _POOLINGS and "max" in str(value)):
                return f"has {name} = {value!r:.40}"
    return None


def _is_side(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_colour(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(isinstance(one, int | float) for one in value)
