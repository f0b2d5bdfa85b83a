"""How a file says that its pictures come to size: the steps of torchvision, albumentations and OpenMMLab, and more."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from experts.stated_facts import TYPE, colour, levels_by_path

_CLASSES = (TYPE, "_target_", "__class_fullname__")
"""The keys of a step for its class."""
_JUDGING = re.compile(r"((?<![a-z])|(?=[A-Z]))(?i:test|val|eval|infer|predict)")
"""Where steps of judging stand, as under `val_transforms` or `transformTest`, not under `latest`."""
_RANDOM_PLACE = re.compile(r"Random\w*Crop\w*")
"""Steps of a training alone, after which nothing is said of judging."""
_DONE = re.compile(r"Resize(Edge|Image)?d?|(Smallest|Longest)MaxSize|CenterCropd?|CropImage|ImageClassification")
"""Steps that bring pictures to size; what they say is read below."""
_CHANGES_NOTHING = re.compile(
    r"((Load|Decode|Ensure|Pack|Collect)\w*|(\w*To(CHW|Tensor|PIL|Numpy|NumPy|RGB|Image|Dtype|Device|Float|Half|PureTensor|Torch))"
    r"\w*|RGB|FromFloat|ConvertImageDtype|Normalize\w*|ScaleIntensityRange|\w*BoundingBox\w*|\w*FormatBundle|Transpose"
    r"|WrapFieldsToLists|AsChannelFirst|AddChannel|CastToType|Identity|NoOp|Compose|Sequential)(d|D|Dict)?"
)
"""Steps that change the form of pixels alone, or that `stated_normalizations` reads."""
_BY_CHANCE = re.compile(
    r"Rand\w*|\w*(Jitter|Dropout|MixUp|Mixup)|(Auto|Trivial)Augment\w*|AugMix|Cut(Mix|out)|(One|Some)Of"
)
"""Steps that only a training takes. So are those whose probability is less than 1."""
_SCALES = re.compile(r"Resize(Edge|Image)?|(Smallest|Longest)MaxSize")
_MAKES_TENSORS = re.compile(r"(PIL)?To(Tensor|Image|PureTensor)|ImageToTensor")
_OTHER = "other"
"""The key of an interpolation that is none of `Preprocessing`, among the fields of a step."""
_INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", "area": "area"}
_OF_PILLOW = {2: "bilinear-antialias", 3: "bicubic-antialias"}
_OF_BOTH = ("bilinear", "bicubic")
"""What Pillow does too, with antialias."""
_OF_OPENCV = {1: "bilinear", 2: "bicubic", 3: "area"}
_PROCESSOR = "do_resize and do_center_crop"
_SHORTER = re.compile(r"(Alt|Bit|(Chinese)?CLIP|ConvNext|Levit|Mobile(Net|ViT)|PoolFormer)")
"""Hugging Face's programs for which one number as the size is that of the shorter side."""
_LEVIT = 256 / 224
"""By how much Levit's program scales the shorter side larger than its size says."""
_OTHER_STEPS = re.compile(
    r"do_(?!(resize|rescale|normalize|center_crop|flip_channel_order|convert_rgb|reduce_labels|convert_annotations)$)\w+"
    r"|crop_to_patches|resize_short|max_patches|max_size|tile_size"
)
"""Keys of its steps that nothing here does, as to pad to a square."""
_SQUARE_FROM = 384
"""From so many pixels on, Hugging Face's ConvNeXt cuts nothing off."""


@dataclass(frozen=True, slots=True)
class StatedSight:
    """How pictures come to size: the input size in pixels (None if unsaid), and fields of `Preprocessing`.

    `unsaid` are questions as in `Foreign.unsaid`.
    """

    size: int | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    unsaid: Mapping[str, str] = field(default_factory=dict)


def stated_sight(content: Any) -> StatedSight:
    """Return what nested dicts say by the steps that their pictures take, and what these leave to the user.

    The steps with which a training judges count before others. Where these differ, or change pixels in a way that is
    not done here, the user is asked; nothing is said by others that differ.
    """
    found: dict[bool, list[StatedSight]] = {}
    others: dict[bool, dict[str, None]] = {}
    for path, level in _plain_levels(content):
        steps = [step for value in level.values() if (step := _settings(value)) is not None]
        judges = _JUDGING.search(path) is not None
        for sight in (_of_steps(steps, judges=judges), _of_processor(level)):
            if sight is not None:
                found.setdefault(judges, []).append(sight)
        if all(type(key) is int for key in level) and (named := _undone(steps, judges=judges)) is not None:
            others.setdefault(judges, {}).update(dict.fromkeys(named))
    sights, undone = found.get(True, found.get(False, [])), others.get(True, others.get(False, {}))
    differ = any(sight != sights[0] for sight in sights)
    unsaid = {} if differ or not sights else dict(sights[0].unsaid)
    if differ and True in found:
        unsaid["resize"] = "its test steps bring pictures to size in several ways; say with --resize which counts"
    if undone:
        unsaid["steps"] = (
            f"its pictures go through {', '.join(undone)}, which is not done here; export it as ONNX with that inside, "
            "or give --force if your pictures are like that already"
        )
    return replace(StatedSight() if differ or not sights else sights[0], unsaid=unsaid)


def _undone(steps: Sequence[Mapping[str, Any]], *, judges: bool) -> list[str] | None:
    """Return the classes of steps that change pixels, and that nothing here does.

    None if these are no steps of pictures, or none that count: unless it `judges`, a list with chance is a training's.
    """
    known = {name for name in map(_name, steps) if _DONE.fullmatch(name) or _CHANGES_NOTHING.fullmatch(name)}
    if not known or (not judges and any(map(_is_by_chance, steps))):
        return None
    undone = [step for step in steps if not (_is_by_chance(step) or _pads_nothing(step, steps))]
    return [name for name in map(_name, undone) if name not in known]


def _makes_tensor(step: Mapping[str, Any]) -> bool:
    return _MAKES_TENSORS.fullmatch(_name(step)) is not None


def _is_by_chance(step: Mapping[str, Any]) -> bool:
    return _BY_CHANCE.fullmatch(_name(step)) is not None or step.get("p", 1) != 1


def _pads_nothing(step: Mapping[str, Any], steps: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether a step pads by nothing, or with one colour to the square of a letterbox."""
    width = step.get("padding")
    if _name(step) == "PadIfNeeded" and not step.get("border_mode"):
        side = _side((step.get("min_height"), step.get("min_width")))
        return any(_name(one) == "LongestMaxSize" and _side(one.get("max_size")) == side for one in steps)
    return _name(step) == "Pad" and width is not None and not any(width if isinstance(width, list | tuple) else [width])


def _plain_levels(content: Any) -> Iterator[tuple[str, dict[Any, Any]]]:
    for path, level in levels_by_path(content):
        yield path, {key: value for key, value in level.items() if not isinstance(value, torch.Tensor)}


def _name(step: Mapping[str, Any]) -> str:
    return re.split(r"[./]", step[TYPE])[-1]


def _settings(value: Any) -> Mapping[str, Any] | None:
    """Return the settings of a step, its class under `TYPE`; None for anything else.

    Those of Paddle's steps lie under the name of the class.
    """
    level = next((level for _, level in _plain_levels(value)), None) if not isinstance(value, list | tuple) else None
    if level and len(level) == 1 and isinstance(name := next(iter(level)), str) and name[:1].isupper():
        inside = level[name]
        return {**inside, TYPE: name} if isinstance(inside, dict) else {TYPE: name} if inside is None else None
    named = next((level[key] for key in _CLASSES if isinstance(level.get(key), str)), None) if level else None
    return {**level, TYPE: named} if level and named else None


def _of_steps(steps: Sequence[Mapping[str, Any]], *, judges: bool) -> StatedSight | None:
    """Return what steps make of a picture, and what of it nothing here does; None if they say nothing of sizes.

    Unless it `judges`, a list with chance is a training's: it says nothing that nothing here does.
    """
    edge = cut = how = None
    fields: dict[str, Any] = {}
    named: list[str] = []
    for number, step in enumerate(steps):
        name = _name(step)
        if _RANDOM_PLACE.fullmatch(name):
            return None
        if name == "ImageClassification":
            how, edge, cut = "center-crop", _side(step.get("resize_size")), _side(step.get("crop_size"))
            fields = _interpolation(step, is_tensor=False)
        elif _SCALES.fullmatch(name):
            is_second = bool(named)
            before, after = (any(map(_makes_tensor, part)) for part in (steps[:number], steps[number + 1 :]))
            is_tensor = before or (step.get("antialias") is False and not after)
            (how, edge), fields = _scaled_to(step, name), _interpolation(step, is_tensor=is_tensor)
            how = None if is_second else how  # of a picture that was scaled or cut before
        elif name == "PadIfNeeded" and _pads_nothing(step, steps):
            pad = colour(step.get("fill", step.get("value")) or 0, is_spread=True)
            fields |= {"pad": tuple(map(int, pad))} if pad else {}
        elif name in ("CenterCrop", "CropImage"):
            cut = _side(step.get("size", step.get("crop_size", (step.get("height"), step.get("width")))))
        else:
            continue
        named.append(name)
    if not named:
        return None
    sight = _sight(how, edge, cut, fields, ", ".join(named))
    return sight if not sight.unsaid or judges or not any(map(_is_by_chance, steps)) else None


def _sight(how: str | None, edge: int | None, cut: int | None, fields: Mapping[str, Any], named: str) -> StatedSight:
    """Return pictures scaled to an edge in pixels and cut to another, by steps that are `named`.

    What nothing here does is a question: pictures that are no squares of one size, and another interpolation.
    """
    size = cut or (edge if how != "center-crop" else None)
    known, unsaid = dict(fields), dict[str, str]()
    if (other := known.pop(_OTHER, None)) is not None:
        unsaid["interpolation"] = (
            f"it scales pictures by '{other!s:.20}'; say with --interpolation what is nearest to it"
        )
    if how is None or not edge or not size or edge < size or (how == "letterbox" and edge != size):
        unsaid["resize"] = (
            f"its steps ({named}) make no squares of one size, or make them in a way that is not done here; say with "
            "--resize what is nearest to it, as stretch if its pictures are squares already"
        )
        return StatedSight(unsaid=unsaid)
    shorter = edge if edge != size or how == "center-crop" else None
    return StatedSight(size, {"resize": how, "shortest_edge": shorter, **known}, unsaid)


def _scaled_to(step: Mapping[str, Any], name: str) -> tuple[str | None, int | None]:
    """Return how a step scales, a word of `Preprocessing.resize`, and to how many pixels.

    One number is the shorter side's for torchvision, and both sides' for OpenMMLab.
    """
    if name in ("SmallestMaxSize", "LongestMaxSize"):
        return "center-crop" if name == "SmallestMaxSize" else "letterbox", _side(step.get("max_size"))
    size = step.get("size", step.get("scale", (step.get("height"), step.get("width"))))
    if name == "ResizeImage" and "resize_short" in step:
        return "center-crop", _side(step["resize_short"])
    if name == "ResizeEdge":
        return ("center-crop", _side(size)) if step.get("edge", "short") == "short" else (None, None)
    if isinstance(size, list | tuple) and len(size) == 2 and size[1] == -1:
        return "center-crop", _side(size[0])
    if "torchvision" in step[TYPE] and (isinstance(size, int) or (isinstance(size, list | tuple) and len(size) == 1)):
        return "center-crop", _side(size)
    return (None, None) if step.get("keep_ratio") else ("stretch", _side(size))


def _of_processor(level: Mapping[Any, Any]) -> StatedSight | None:
    """Return what a preprocessor_config.json of Hugging Face says."""
    if not level.get("do_resize"):
        return None
    size, share = level.get("size"), level.get("crop_pct")
    maker = str(level.get("image_processor_type") or level.get("feature_extractor_type"))
    if type(size) is int and _SHORTER.match(maker):
        size = {"shortest_edge": size}
    short = _side(size.get("shortest_edge") if isinstance(size, dict) else None)
    if short and maker.startswith("Levit"):
        short = int(short * _LEVIT)
    if others := [key for key, value in level.items() if value and _OTHER_STEPS.fullmatch(str(key))]:
        return _sight(None, None, None, {}, ", ".join(others))
    edge = short or _side([size.get("height"), size.get("width")] if isinstance(size, dict) else size)
    resample = level.get("resample")
    fields: dict[str, Any] = {"rounds_down": True} | (_named(_OF_PILLOW, resample) if isinstance(resample, int) else {})
    fields |= _values(level)
    if isinstance(share, float) and share > 0 and edge:
        how, before = ("stretch", edge) if edge >= _SQUARE_FROM else ("center-crop", int(edge / share))
        return _sight(how, before, edge, fields, _PROCESSOR)
    crop = level.get("crop_size")
    cut = _side([*crop.values()] if isinstance(crop, dict) else crop) if level.get("do_center_crop") else None
    return _sight("center-crop" if short else "stretch", edge, cut, fields, _PROCESSOR)


def _values(level: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the mean and the deviation of what Hugging Face's program scales, shifts and normalises."""
    scale = level.get("rescale_factor", 1 / 255) if level.get("do_rescale", True) else 1.0
    # MobileViT's, which alone turns channels, does not normalise, and does not say so.
    is_normalised = level.get("do_normalize", not level.get("do_flip_channel_order"))
    mean = colour(level.get("image_mean") if is_normalised else 0.0, is_spread=True)
    std = colour(level.get("image_std") if is_normalised else 1.0, is_spread=True)
    if mean is None or std is None or not isinstance(scale, int | float) or min(scale, *std) <= 0:
        return {}
    factor = 255.0 * scale
    shift, times = 1.0 if level.get("rescale_offset") else 0.0, 2 if level.get("include_top") else 1
    return {
        "mean": tuple((one + shift) / factor for one in mean),
        "std": tuple(one**times / factor for one in std),
        "channels": "bgr" if level.get("do_flip_channel_order") else "rgb",
    }


def _interpolation(step: Mapping[str, Any], *, is_tensor: bool) -> dict[str, Any]:
    """Return the interpolation of a step, in the words of `Preprocessing`, or under `_OTHER` where it has none.

    torchvision scales a tensor without antialias where it is told so.
    """
    said, is_torchvision = step.get("interpolation"), "torchvision" in step[TYPE]
    is_pillow = step.get("backend") in ("pillow", "pil") or (
        is_torchvision and not (is_tensor and step.get("antialias", True) in (False, None, "warn"))
    )
    if isinstance(said, int):
        found = _named(_OF_PILLOW if is_torchvision else _OF_OPENCV, said)
    elif not isinstance(word := getattr(said, "word", said), str | None):
        return {}
    else:
        found = _named(_INTERPOLATIONS, word or "bilinear")
        if is_pillow and found.get("interpolation") in _OF_BOTH:
            found["interpolation"] += "-antialias"
    if not is_pillow and is_torchvision and "interpolation" in found:
        found["interpolation"] = found["interpolation"].removesuffix("-antialias")
    return found


def _named(names: Mapping[Any, str], said: Any) -> dict[str, Any]:
    # 0 is the nearest pixel, of Pillow (as in Hugging Face's EfficientNet) and of OpenCV.
    return {"interpolation": names[said]} if said in names else {_OTHER: said or "nearest"}


def _side(size: Any) -> int | None:
    """Return the side of a square, from a number or from equal ones; None for anything else."""
    sides = size if isinstance(size, list | tuple) else [size]
    is_square = all(type(side) is int and side == sides[0] > 0 for side in sides)
    return sides[0] if sides and is_square else None
