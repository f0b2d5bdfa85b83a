"""What files of weights say beside them, in the words that trainings use: labels, and how pictures were normalised."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from coe.errors import StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Colour
from experts.stand_ins import Arguments, Numbers

_LABELS = re.compile(
    r"(class|cls|label|category|target)_?(names?|list)|classes|labels|categories|character|"
    r"(class|cls|label|category|name)e?s?_?(to|2)_?(idx|index|id|ix|i)|"
    r"(idx|index|id|ix|i)_?(to|2)_?(class|cls|label|category|name)e?s?",
    re.IGNORECASE,
)
"""The keys under which labels stand, with their numbers or in their order."""
_OPENVINO = "model_info "
_OPENVINO_KEYS = {"mean_values": ("mean", 0.0), "scale_values": ("std", 1 / 255)}
"""OpenVINO's keys with ours, and the value that changes nothing."""
_MEAN = re.compile(
    r"((img|image|pixel|norm|normali[sz]e|normali[sz]ation|input|dataset|transforms?)_)?means?(_values?)?",
    re.IGNORECASE,
)
"""The keys of a mean of pixels; that of the deviation beside it has one of `_DEVIATIONS` in the place of `mean`."""
_DEVIATIONS = "(std|stdev|stddev|std_dev|deviation)s?"
_OF_PIXELS = re.compile(r"normali[sz]|norm(?![a-z])|pixel|image|img|input|preproc", re.IGNORECASE)
"""Words in the key, or in the name of what holds it, of one mean for all channels that is one of pixels."""
_ARGUMENTS = re.compile(r"(\.(hyper_parameters|args|train_args|opt|config|cfg))?")
"""Where arguments stand, a mean among which is one of pixels: not one of noise, or of first weights."""
_LEAST_OF_ALL = 0.1
"""A smaller deviation of all channels is one of noise, or of first weights."""
_MEASURES = re.compile(r"metric|score|result|histor|loss|acc|f1|fold|per_class|box|target", re.IGNORECASE)
"""Keys of measures, whose mean and deviation are none of pixels."""
_TEXTS = ("cfg", "config")
_PRINTED = re.compile(r"^Compose\(\s*$|^Normalize\(mean=", re.MULTILINE)
"""A text in which torchvision's steps stand, a line for each."""
TYPE = "type"
"""The key of a level for the class that it is made of, as configurations have it."""
_DEEPEST = 8
_MOST_STEPS = 100
"""Longer lists hold no transforms of pictures."""
_LEAST_DEVIATION = 1e-3
"""A smaller one is none of pixels."""
BRIGHTEST = 2.0
"""What subtracts more, or divides by more, takes pixels from 0 to 255."""
_ANY_NUMBER = 1e9
"""No number of pixels is larger, nor infinite."""
_NEARLY = 0.015
"""By so much the means that people use for ImageNet's pictures differ."""


def stated_labels(content: Any, where: str) -> tuple[str, ...] | None:
    """Return the labels that nested dicts name, in the order of their numbers; None if they name none.

    `where` begins the sentence of the StoreError that is raised if they name different ones.
    """
    found = [
        labels
        for _, level in levels_by_path(content, whole=False)
        for key, value in level.items()
        if isinstance(key, str) and _LABELS.fullmatch(key) and (labels := _labels(value))
    ]
    if len(set(found)) > 1:
        first, other = list(dict.fromkeys(found))[:2]
        raise StoreError(
            f"{where}: it names its labels in two ways, {', '.join(first):.80} and {', '.join(other):.80}; save it "
            "with one of them, or its `state_dict()` alone with torch.save, and give --labels in their order"
        )
    return found[0] if found else None


def labels_in_text(metadata: Mapping[str, str], where: str) -> tuple[str, ...] | None:
    """Return the labels that the metadata of a model file name, in JSON, as Python writes them, or between commas."""
    read = entries(metadata)
    # Elsewhere `names` may be those of anything.
    named = {key: value for key, value in read.items() if _LABELS.fullmatch(key)}
    return stated_labels({**named, "names": {"labels": read.get("names")}}, where)


def normalization_in_text(metadata: Mapping[str, str]) -> tuple[Colour, Colour] | None:
    """Return the mean and the standard deviation that the metadata of a model file name, as `stated_normalization`."""
    return stated_normalization(entries(metadata))


def entries(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return what metadata hold; those of OpenVINO have a word before their keys, and spaces or commas in values.

    OpenVINO's means and deviations are of pixels from 0 to 255, and one number is that of all channels.
    """
    found = {}
    for key, text in metadata.items():
        name = key.removeprefix(_OPENVINO)
        value = _read(text if name == key else ",".join(re.findall(r"[^,\s]+", text)))
        if name != key and name in _OPENVINO_KEYS:
            pixels = colour(value, is_spread=True)
            name, value = _OPENVINO_KEYS[name][0], pixels and _scaled(pixels, 255.0)
        found[name] = value
    # There, what lacks of the two changes nothing.
    if any(_OPENVINO + name in metadata for name in _OPENVINO_KEYS):
        for name, (key, unchanged) in _OPENVINO_KEYS.items():
            if not metadata.get(_OPENVINO + name):
                found[key] = [unchanged] * 3
    return found


def names_mean_alone(metadata: Mapping[str, str]) -> bool:
    """Tell whether metadata name a mean of pixels, and no standard deviation beside it."""
    return mean_alone(entries(metadata))


def mean_alone(content: Mapping[str, Any], *, deep: bool = True) -> bool:
    """Tell whether a dict, or if `deep` one in it, names a mean of pixels, and no standard deviation beside it."""
    own = content if deep else {key: value for key, value in content.items() if not isinstance(value, dict)}
    return any(any(mean) and std is None for mean, std in _pairs(own))


def _pairs(content: Any) -> Iterator[tuple[Colour, Colour | None]]:
    """Yield each mean in nested dicts with the deviation beside it; one number for both is that of each channel."""
    for path, level in levels_by_path(content):
        for key in level:
            if _fits(_MEAN, key):
                mean, deviation = colour(level[key]), _deviation(level, key)
                if mean is None and deviation is not None and min(deviation) >= _LEAST_OF_ALL:
                    holder = f"{path.rpartition('.')[2]} {level.get(TYPE)} {key}"
                    if _OF_PIXELS.search(holder) or _ARGUMENTS.fullmatch(path):
                        mean = colour(level[key], is_spread=True)
                if mean is not None:
                    yield mean, deviation


def _deviation(level: Mapping[Any, Any], key: str) -> Colour | None:
    """Return the deviation beside the mean under a key; one number is that of each channel."""
    form = re.compile(re.sub("means?", _DEVIATIONS, key.lower()), re.IGNORECASE)
    return colour(next((one for name, one in level.items() if _fits(form, name)), None), is_spread=True)


def _fits(form: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and form.fullmatch(name) is not None


def takes_blue_first(content: Any) -> bool:
    """Tell whether a configuration of OpenMMLab's or Paddle's programs has the colours of OpenCV stay as they are."""
    levels = [level for _, level in levels_by_path(content)]
    said = [level["to_rgb"] for level in levels if "to_rgb" in level]
    said += [level["img_mode"] == "RGB" for level in levels if "img_mode" in level]
    return bool(said) and not any(said)


def stated_normalization(content: Any) -> tuple[Colour, Colour] | None:
    """Return the only pair of `stated_normalizations`; None if there are none or several."""
    found = stated_normalizations(content)
    return found[0] if len(found) == 1 else None


def stated_normalizations(content: Any) -> list[tuple[Colour, Colour]]:
    """Return each mean with the standard deviation beside it in nested dicts, as shares of 255; equal pairs once."""
    found: dict[tuple[float, ...], tuple[Colour, Colour]] = {}
    for mean, std in _pairs(content):
        if std is not None and min(std) > _LEAST_DEVIATION:
            scale = 255.0 if max(*mean, *std) > BRIGHTEST else 1.0
            pair = _scaled(mean, scale), _scaled(std, scale)
            found.setdefault(tuple(round(one, 4) for values in pair for one in values), pair)
    return [*found.values()]


def levels_by_path(
    content: Any, *, whole: bool = True, seen: set[int] | None = None, depth: int = 0, path: str = ""
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Yield nested dicts, and the arguments of scripts as dicts, each once, with the keys that lead to it.

    The `whole` also has lists, as the transforms of pictures stand there, and configurations in texts, but no measures.
    """
    seen = set[int]() if seen is None else seen  # a dict may also hold itself
    level = {TYPE: content.named, **vars(content)} if isinstance(content, Arguments) else content
    if whole and isinstance(level, list | tuple) and len(level) <= _MOST_STEPS:
        level = dict(enumerate(level))
    if isinstance(level, dict) and depth <= _DEEPEST and id(content) not in seen:
        seen.add(id(content))
        yield path, level
        for key, value in level.items():
            if whole and _MEASURES.search(str(key)):
                continue
            inside = _in_text(key, value) if whole and isinstance(value, str) else value
            yield from levels_by_path(inside, whole=whole, seen=seen, depth=depth + 1, path=f"{path}.{key}")


def _in_text(key: Any, text: str) -> Any:
    """Return what a text holds: a configuration of OpenMMLab, or the steps of torchvision as they print themselves."""
    if key in _TEXTS:
        return configuration(text)
    if not _PRINTED.search(text):
        return text
    steps = []
    for line in text.splitlines():
        try:
            call = ast.parse(line.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the first line and the last
            continue
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            words = {one.arg: _word(one.value) or _plain_value(one.value) for one in call.keywords}
            steps.append({TYPE: f"torchvision.{call.func.id}", **words})
    return steps


def _word(node: ast.expr) -> str:
    """Return a bare word, as of an interpolation; "" for anything else."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr.lower()
    return ""


def configuration(text: str) -> Any:
    """Return the plain values of a text in Python's words, as OpenMMLab's programs keep their settings, by name."""
    try:
        lines = ast.parse(text).body
        return {
            line.targets[0].id: _plain_value(line.value)
            for line in lines
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
        }
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _plain_value(node: ast.expr) -> Any:
    match node:
        case ast.Call(func=ast.Name(id="dict")):
            return {one.arg: _plain_value(one.value) for one in node.keywords}
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {key.value: _plain_value(value) for key, value in pairs if isinstance(key, ast.Constant)}
        case ast.List() | ast.Tuple():
            return [_plain_value(one) for one in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def _labels(value: Any) -> tuple[str, ...] | None:
    """Return the labels that a list or a mapping holds, by their numbers; None if it holds something else."""
    if isinstance(value, dict) and len(value) == 1:  # Lobe's labels stand under another key
        value = next(iter(value.values()))
    if isinstance(value, dict):
        texts = {key: text for key, text in value.items() if isinstance(text, str)}
        if not texts:  # numbers by label
            texts = {number: label for label, number in value.items() if isinstance(number, int | str)}
        numbered = {int(key): text for key, text in texts.items() if re.fullmatch(r"\d{1,6}", str(key))}
        if len(numbered) < len(value) or sorted(numbered) != list(range(len(numbered))):
            return None
        value = [numbered[number] for number in range(len(numbered))]
    if not isinstance(value, list | tuple) or len(value) < 2 or not all(isinstance(one, str) and one for one in value):
        return None
    is_unnamed = all(re.fullmatch(rf"LABEL_{number}", text) for number, text in enumerate(value))
    return tuple(value) if len(set(value)) == len(value) and not is_unnamed else None


def _read(text: str) -> Any:
    for read in (json.loads, ast.literal_eval):
        try:
            value = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return value
    return [word.strip() for word in re.split(r"[,;\n]", text.strip())]


def blue_first(mean: Colour) -> bool:
    """Tell whether a mean, as shares of 255, is ImageNet's in the order of OpenCV and Caffe: blue, green, red."""
    usual = NORMALIZATIONS["imagenet"][0][::-1]
    return all(abs(one - other) < _NEARLY for one, other in zip(mean, usual, strict=True))


def colour(value: Any, *, is_spread: bool = False) -> Colour | None:
    """Return three finite numbers, a single one three times if it `is_spread`; None for anything else."""
    if isinstance(value, torch.Tensor | Numbers):
        value = value.flatten().tolist() if isinstance(value, torch.Tensor) else value.values
    each = value if isinstance(value, list | tuple) else [value]
    each = [one.values[0] if isinstance(one, Numbers) and len(one.values) == 1 else one for one in each]
    if len(each) == 1 and is_spread:
        each = [*each] * 3
    if len(each) != 3:
        return None
    if not all(isinstance(one, int | float) and not isinstance(one, bool) and abs(one) < _ANY_NUMBER for one in each):
        return None
    return float(each[0]), float(each[1]), float(each[2])


def _scaled(values: Colour, scale: float) -> Colour:
    return values[0] / scale, values[1] / scale, values[2] / scale
