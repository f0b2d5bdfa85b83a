"""What must be known of a model, who said it (a record, `model.yaml`, an option), and one question for all the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from coe import config
from coe.core import Expert
from coe.errors import ConfigError, first_line, list_few
from coe.helpers import strict_yaml
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing, Resize
from coe.store.kinds import FileKind, Foreign, Kind

FILE = "model.yaml"
"""The file beside weights in which a user says what options of import say."""
SEEN = ("resize", "interpolation", "channels", "normalize", "pad")
OUTPUTS = {"output": "name", "layout": "layout", "activation": "activation"}
_KEYS = ("kind", "labels", "input", "prefix", *SEEN, *OUTPUTS)
_QUESTIONS = {
    "labels": "labels: ok,defect (--labels, in the order of the outputs)",
    "input": "input: 224 (--input, in pixels)",
    "resize": "resize: letterbox (--resize; or stretch, center-crop:256)",
    "interpolation": "interpolation: area (--interpolation; or bilinear, bicubic-antialias, ...)",
    "channels": "channels: rgb (--channels; or bgr)",
    "mean": "normalize: imagenet (--normalize; or 0..1, -1..1, 0..255, MEAN,STD)",
    "layout": "layout: yolov8 (--layout; or corners, yolov5, end2end, scores)",
    "activation": "activation: softmax (--activation, for logits; or none for probabilities, sigmoid)",
    "name": "output: NAME (--output, the output to use)",
}
"""By what is missing: the line of `model.yaml` that says it, and the option."""
_ASKED = ("resize", "channels", "mean")
"""The fields of `Preprocessing` that somebody must say of a network that was trained elsewhere."""


def question(where: str, missing: Mapping[str, str]) -> ConfigError:
    """Return the error that asks for all that is missing, by name; each with the reason why it is asked, or ""."""
    lines = [_QUESTIONS[name] + (f", as {why}" if why else "") for name, why in missing.items()]
    names = list_few([one.partition(":")[0] for one in lines], 9)
    return ConfigError(
        f"{where} does not state {names}; write into {FILE} beside the weights, or give as options: {'; '.join(lines)}"
    )


@dataclass(frozen=True, slots=True)
class Agreed:
    """An expert as its record and the user describe it, remarks on what was decided, and what nobody says.

    `is_stated` tells whether the user says anything of its pictures that no record says.
    """

    expert: Expert
    remarks: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    is_stated: bool = False


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user says of an expert's preprocessing, by field, and of its outputs; with `force` against the record.

    `prefix` is where the weights lie in a file. `force` is None where the user cannot insist. `labels` and `input_size`
    (pixels) are those of `model.yaml`, () and 0 if it says none. `usual_input` is the input size that nobody has to
    say, or 0.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    outputs: Outputs | None = None
    force: bool | None = False
    usual_input: int = 0
    prefix: str = ""
    labels: tuple[str, ...] = ()
    input_size: int = 0


def beside(path: Path) -> dict[str, str]:
    """Return what `model.yaml` beside weights says, by the names of the options; empty if there is none.

    Each word stays as it is written: a label `no` is not a boolean. Raises ConfigError for a file that cannot be read,
    for an unknown key, and for a key without a value.
    """
    file, keys = path.parent / FILE, ", ".join(_KEYS)
    if not file.is_file():
        return {}
    document = strict_yaml.parse(file, strict_yaml.content(file, FILE), f"some of {keys}")
    said = {}
    for key, value in document.data.items():
        words = value if isinstance(value, list) else [value]
        if key not in _KEYS:
            raise document.error((key,), f"'{key:.40}' is not a key; the keys are {keys}")
        if not words or not all(isinstance(word, str) for word in words):
            raise document.error((key,), f"'{key}' needs a word, or a list such as [ok, missing]")
        said[key] = ",".join(words)
    return said


def wishes(options: Mapping[str, str | None], *, force: bool = False) -> Wishes:
    """Read the options of import, by name; None for an option that was not given.

    Raises ConfigError that names the option.
    """
    given = {name: text for name, text in options.items() if text is not None}
    seen: dict[str, Any] = {name: given[name] for name in ("interpolation", "channels") if name in given}
    if "normalize" in given:
        seen["mean"], seen["std"] = _normalization(given["normalize"])
    if "resize" in given:
        seen["resize"], seen["shortest_edge"] = _resize(given["resize"])
    if "pad" in given:
        seen["pad"] = _colour(given["pad"])
    _check(Preprocessing, seen, {"mean": "normalize", "std": "normalize"})
    means = {name: given[option] for option, name in OUTPUTS.items() if option in given}
    _check(Outputs, means, {"name": "output"})
    labels = tuple(word.strip() for word in given["labels"].split(",")) if "labels" in given else ()
    size = given.get("input", "0")
    if not size.isdecimal() or not (size == "0" or config.MIN_INPUT <= int(size) <= config.MAX_INPUT):
        raise ConfigError(f"{FILE}: 'input: {size:.20}' is not a number of pixels")
    outputs = Outputs.model_validate(means) if means else None
    return Wishes(seen, outputs, force, prefix=given.get("prefix", ""), labels=labels, input_size=int(size))


def _check(record: type[BaseModel], fields: Mapping[str, Any], options: Mapping[str, str]) -> None:
    try:
        record.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{options.get(name, name)}: {first['msg']}") from None


def agree(expert: Expert, foreign: Foreign, kind: Kind, said: Wishes) -> Agreed:
    """Return the expert whose labels, input size and preprocessing the record and the user agree on.

    Without labels, or with an input size of 0, the user leaves these to the record. Raises ConfigError for what the
    record, or `model.yaml`, says otherwise, all at once, unless the user insists; labels in another order take theirs.
    """
    remarks, against = list(foreign.remarks), list[str]()
    labels, size = expert.labels, expert.input_size
    for source, its, pixels in (
        (FILE, said.labels, said.input_size),
        ("the record", foreign.labels or (), foreign.input_size),
    ):
        labels = _labels(source, its, labels, remarks, against)
        if pixels and size and size != pixels:
            against.append(f"the input of {source} has {pixels} pixels, not {size}")
        size = size or pixels or 0
    size = size or said.usual_input
    if said.outputs is not None and not isinstance(kind, FileKind):
        raise ConfigError(
            f"kind '{expert.kind}' knows what its output means; leave --output, --layout and --activation out"
        )
    missing = {name: "" for name, value in (("labels", labels), ("input", size)) if not value}
    seen = None
    if kind.preprocessing is None:
        if said.preprocessing:
            names = ", ".join(said.preprocessing)
            raise ConfigError(f"kind '{expert.kind}' prepares pictures in its own way; leave the options out ({names})")
    else:
        fields = {**foreign.seen, **said.preprocessing}
        unsaid = {name: why for name, why in foreign.unsaid.items() if name not in fields}
        missing |= {name: "" for name in _ASKED if name not in fields} | unsaid
        try:
            seen = Preprocessing.model_validate({**dict(kind.preprocessing), **fields})
            was = Preprocessing.model_validate({**dict(seen), **foreign.seen})
        except ValidationError as error:
            raise ConfigError(f"its record of the preprocessing is inconsistent ({first_line(error)})") from error
        if was != seen:
            against.append(f"it takes pictures {was.described(size)}, not {seen.described(size)}")
        if seen.shortest_edge is not None and seen.shortest_edge < size:
            raise ConfigError(f"--resize: to keep the middle {size} pixels needs a shorter side of {size} or more")
    if against and not said.force:
        insist = "" if said.force is None else ", or give --force"
        raise ConfigError(f"statements contradict each other: {'; '.join(against)}. Remove the wrong ones{insist}")
    remarks += [f"contradiction ignored: {fault}" for fault in against]
    agreed = replace(expert, labels=labels, input_size=size, preprocessing=seen, outputs=said.outputs)
    is_stated = any(name in said.preprocessing and name not in foreign.seen for name in _ASKED)
    return Agreed(agreed, tuple(remarks), missing, is_stated)


def _labels(
    source: str, its: tuple[str, ...], labels: tuple[str, ...], remarks: list[str], against: list[str]
) -> tuple[str, ...]:
    """Return the labels behind those of a source; says in `remarks` and `against` where it has others."""
    if not (its and labels) or its == labels:
        return labels or its
    if its == tuple(f"{its[0][:-1]}{place}" for place in range(len(labels))):
        # Programs number labels that nobody has named, behind a word of their own: class_0, class_1.
        remarks.append(f"the labels of {source} are numbers ({list_few(its)}), so yours are used")
    elif sorted(labels) == sorted(its):
        remarks.append(f"the labels are taken in the order of {source}: {', '.join(its)}")
        return its
    else:
        against.append(f"the labels of {source} are {', '.join(its)}, not {', '.join(labels)}")
    return labels


def described(expert: Expert) -> list[str]:
    """Return sentences that say what an expert's network sees, and what its outputs mean."""
    sentences = []
    if expert.preprocessing is not None:
        sentences.append(f"it takes each picture {expert.preprocessing.described(expert.input_size)}")
    if expert.outputs is not None:
        sentences.append(expert.outputs.described())
    return sentences


def _normalization(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if text.lower() in NORMALIZATIONS:
        return NORMALIZATIONS[text.lower()]
    numbers = _numbers(text)
    if len(numbers) not in (2, 6):
        raise ConfigError(
            f"--normalize: '{text}' is none of {', '.join(NORMALIZATIONS)}, nor mean,std of values from 0 to 1 (two "
            "numbers, or three for the mean and three for std)"
        )
    mean, std = numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]
    return tuple(mean * (3 // len(mean))), tuple(std * (3 // len(std)))


def _resize(text: str) -> tuple[str, int | None]:
    name, colon, edge = text.partition(":")
    if name not in get_args(Resize) or (colon and (name == "letterbox" or not edge.isdecimal())):
        raise ConfigError(
            f"--resize: '{text}' is none of {', '.join(get_args(Resize))}, nor center-crop:PIXELS or "
            "stretch:PIXELS with the shorter side before the crop"
        )
    return name, int(edge) if edge else None


def _colour(text: str) -> tuple[int, ...]:
    numbers = [int(one) for one in _numbers(text) if one.is_integer()]
    if len(numbers) not in (1, 3):
        raise ConfigError(f"--pad: '{text}' is not a colour; give one number from 0 to 255, or three, as 114,114,114")
    return tuple(numbers * (3 // len(numbers)))


def _numbers(text: str) -> list[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        return []
