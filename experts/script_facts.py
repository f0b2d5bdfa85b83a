"""What the arguments of usual training scripts say of the pictures that a classifier saw: torchvision's and timm's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coe.helpers.preprocessing import NORMALIZATIONS
from experts.stated_facts import blue_first, levels_by_path

_SAME_TENSORS = re.compile(r"\w*resnet(aa|blur)\d+\w*|MultiLabel\w*Head")
"""timm's networks that blur between their layers without a tensor of their own, and OpenMMLab's heads of sigmoids."""
_SETTINGS = (
    "downsample_in_bottleneck",
    "downsample_in_first_stage",
    "aa_layer",
    "output_stride",
    "replace_stride_with_dilation",
)
_ACTIVATIONS = ("act_layer", "hidden_act")
_CLASS = re.compile(r"(\w+)\W*(\(.*)?$")
"""The name of a class at the end of a text, as in `torch.nn.ReLU`, `ReLU(inplace=True)` or `<class '...ReLU'>`."""
_USUAL = re.compile(r"None|False|32|[\[(]False, False, False[\])]|", re.IGNORECASE)
_POOLINGS = ("gp", "global_pool")
_OTHERWISE = {("style", "caffe"), ("problem_type", "multi_label_classification")}
"""Settings by which a network computes something else than a ResNet with the same tensors."""
_ANTIALIASED = {"bilinear": "bilinear-antialias", "bicubic": "bicubic-antialias"}
_CROPS = {"center": "center-crop", "squash": "stretch", "border": "letterbox"}
"""timm's words for `Preprocessing.resize`; its `border` pads with the mean."""


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """Fields of the preprocessing, and the input size in pixels; only what the arguments say.

    `unsaid` are questions as in `Foreign.unsaid`.
    """

    preprocessing: Mapping[str, Any]
    input_size: int | None = None
    unsaid: Mapping[str, str] = field(default_factory=dict)


def said(arguments: Mapping[str, Any]) -> ScriptFacts:
    """Read the arguments that a checkpoint keeps; those of other scripts say nothing."""
    fields: dict[str, Any] = {}
    if "mean" in arguments:
        turned = arguments.get("bgr") is True or blue_first(arguments["mean"])
        fields |= {"mean": arguments["mean"], "std": arguments["std"]} | ({"channels": "bgr"} if turned else {})
    if "sight" in arguments:
        return ScriptFacts(fields | arguments["sight"], arguments["side"])
    if not {"val_crop_size", "crop_pct"} & arguments.keys():
        return ScriptFacts(fields)
    unsaid: dict[str, str] = {}
    if (method := str(arguments.get("interpolation") or "")) in _ANTIALIASED:
        fields["interpolation"] = _ANTIALIASED[method]
    elif method.isalpha():
        unsaid["interpolation"] = (
            f"it scales pictures by '{method:.20}'; say with --interpolation what is nearest to it"
        )
    if _is_side(size := arguments.get("val_crop_size")) and _is_side(edge := arguments.get("val_resize_size")):
        # torchvision's script evaluates with ImageNet's normalisation; nothing sets another.
        mean, std = NORMALIZATIONS["imagenet"]
        fields |= {"resize": "center-crop", "shortest_edge": max(size, edge), "mean": mean, "std": std}
        return ScriptFacts(fields, size, unsaid)
    shape = arguments.get("input_size")
    size = arguments.get("img_size") or (shape[-1] if isinstance(shape, list | tuple) and shape else None)
    share, mode = arguments.get("crop_pct"), str(arguments.get("crop_mode") or "center")
    if not _is_side(size):
        return ScriptFacts(fields)
    how = _CROPS.get(mode)
    is_square = not isinstance(shape, list | tuple) or len({*shape[-2:]}) == 1
    if not is_square or how is None or (how == "letterbox" and share != 1):
        unsaid["resize"] = (
            f"its pictures are brought to {shape or size} with crop_mode = {mode:.20} and crop_pct = {share}, which is "
            "not done here; say with --resize what is nearest to it"
        )
    elif how == "letterbox":
        mean = fields.get("mean", NORMALIZATIONS["imagenet"][0])
        fields |= {"resize": how, "pad": tuple(round(255 * one) for one in mean)}
    elif isinstance(share, int | float) and 0 < share <= 1:
        fields |= {"resize": how, "shortest_edge": math.floor(size / share)}
    return ScriptFacts(fields, size if is_square else None, unsaid)


def another_network(content: Any) -> dict[str, str]:
    """Return the settings of a file, by name, with which a ResNet's tensors may be those of another network.

    Activations are among them, in small letters: each kind knows its own.
    """
    found = {}
    for path, level in levels_by_path(content):
        for name, value in level.items():
            if "teacher" in f"{path}{name}":
                continue
            if name in _ACTIVATIONS and isinstance(value, str) and not _USUAL.fullmatch(value):
                found[name] = named[1].lower() if (named := _CLASS.search(value)) else value
            elif (
                (isinstance(value, str) and (_SAME_TENSORS.match(value) or (name, value) in _OTHERWISE))
                or (name in _SETTINGS and not _USUAL.fullmatch(str(value)))
                or (name in _POOLINGS and "max" in str(value))
            ):
                found[str(name)] = f"{value!s:.60}"
    return found


def _is_side(value: Any) -> bool:
    return type(value) is int and value > 0
