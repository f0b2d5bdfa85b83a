"""What a file for import says of its model, beside what the user says of it: neither overrules the other in silence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from coe.core import Expert
from coe.errors import ConfigError, list_few
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing, Resize
from coe.store.kinds import FileKind, Foreign, Kind


@dataclass(frozen=True, slots=True)
class Agreed:
    """An expert as its file and the user describe it, and remarks on what was decided between the two."""

    expert: Expert
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user says of an expert's preprocessing, by field, and of its outputs; with `force` against the file.

    `force` is None where the user cannot insist. `usual_input` is the input size (pixels) that nobody has to say, or 0.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    outputs: Outputs | None = None
    force: bool | None = False
    usual_input: int = 0


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
    means = {name: given[option] for option, name in _OUTPUTS.items() if option in given}
    _check(Outputs, means, {"name": "output"})
    return Wishes(seen, Outputs.model_validate(means) if means else None, force)


_OUTPUTS = {"output": "name", "layout": "layout", "activation": "activation"}


_GUESSED = {"resize": "come to size (--resize)", "mean": "are normalised (--normalize, --channels)"}
"""What is guessed where nobody says it, by fields of `Preprocessing`, with the options that say it."""


def _check(record: type[BaseModel], fields: Mapping[str, Any], options: Mapping[str, str]) -> None:
    try:
        record.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise ConfigError(f"--{options.get(name, name)}: {first['msg']}") from None


def agree(expert: Expert, foreign: Foreign, kind: Kind, said: Wishes) -> Agreed:
    """Return the expert whose labels, input size and preprocessing the file and the user agree on.

    Without labels, or with an input size of 0, the user leaves these to the file. Raises ConfigError for what the file
    says otherwise, all at once, unless the user insists; labels in another order than the file's take its order (not
    that of a file beside it, which may be of something else).
    """
    against: list[str] = []
    labels, size = expert.labels, expert.input_size
    foreign = _beside_labels(foreign, labels)
    remarks = list(foreign.remarks)
    in_file = () if foreign.has_labels_beside else foreign.labels
    if in_file and sorted(labels) == sorted(in_file) and labels != in_file:
        remarks.append(f"the labels are taken in the order of the file: {', '.join(in_file)}")
        labels = in_file
    elif foreign.labels and labels and labels != foreign.labels:
        against.append(f"its labels are {', '.join(foreign.labels)}, not {', '.join(labels)}")
    if foreign.input_size and size and size != foreign.input_size:
        against.append(f"its input has {foreign.input_size} pixels, not {size}")
    labels, size = labels or foreign.labels or (), size or foreign.input_size or said.usual_input
    if not size:
        raise ConfigError(f"the file does not say the input size of '{expert.id}'; give --input")
    if said.outputs is not None and not isinstance(kind, FileKind):
        raise ConfigError(
            f"kind '{expert.kind}' knows what its output means; leave --output, --layout and --activation out"
        )
    seen = foreign.preprocessing or kind.preprocessing
    if seen is None and said.preprocessing:
        names = ", ".join(said.preprocessing)
        raise ConfigError(f"kind '{expert.kind}' prepares pictures in its own way; leave the options out ({names})")
    unsaid = {name: why for name, why in foreign.unsaid.items() if name not in said.preprocessing}
    if said.force:  # it answers what no option does, so that the way out is not told again
        against += [unsaid.pop(name).partition(";")[0] for name in [*unsaid] if name not in Preprocessing.model_fields]
    if unsaid:
        raise ConfigError(f"what it sees of a picture is unclear: {'; '.join(unsaid.values())}")
    if seen is not None:
        wanted = seen.model_copy(update=dict(said.preprocessing))
        if any(getattr(wanted, name) != getattr(seen, name) for name in foreign.stated):
            against.append(f"it sees pictures {seen.described(size)}, not {wanted.described(size)}")
        if wanted.shortest_edge is not None and wanted.shortest_edge < size:
            raise ConfigError(f"--resize: to keep the middle {size} pixels needs a shorter side of {size} or more")
        seen = wanted
    if against and not said.force:
        insist = "" if said.force is None else ", or give --force"
        says = f"the file, or {foreign.beside} beside it, says" if foreign.beside else "the file says"
        raise ConfigError(f"{says} otherwise: {'; '.join(against)}. Leave out what it says itself{insist}")
    remarks += [f"against the file: {fault}" for fault in against]
    agreed = replace(expert, labels=labels, input_size=size, preprocessing=seen, outputs=said.outputs)
    return Agreed(agreed, tuple(remarks))


def guessed(foreign: Foreign, said: Wishes) -> list[str]:
    """Return a sentence on what neither a file nor the user says of its pictures; none if its kind alone knows it."""
    unsure = [how for name, how in _GUESSED.items() if name not in foreign.stated | said.preprocessing.keys()]
    if foreign.preprocessing is None or not unsure:
        return []
    how = " and ".join(unsure)
    return [f"no file says how its pictures {how}: what it sees is guessed; confirm or change it"]


def _beside_labels(foreign: Foreign, labels: tuple[str, ...]) -> Foreign:
    """Return what counts beside labels of a user, and tell it: not numbers, nor more or fewer labels of other files."""
    found = foreign.labels or ("",)
    # Programs number labels that nobody has named, behind a word of their own: class_0, class_1.
    if found == tuple(f"{found[0][:-1]}{place}" for place in range(len(labels))):
        told = [f"its labels are numbers ({list_few(found)}), so that those of --labels count"] * (labels != found)
        foreign = replace(foreign, labels=labels, remarks=(*foreign.remarks, *told))
    if not foreign.beside:
        return foreign
    took = f"took what {foreign.beside} beside it says"
    if foreign.has_labels_beside and foreign.labels and labels and len(labels) != len(foreign.labels):
        took = f"of what {foreign.beside} beside it says, the {len(foreign.labels)} labels do not count"
        foreign = replace(foreign, labels=None)
    return replace(foreign, remarks=(*foreign.remarks, took))


def described(expert: Expert) -> list[str]:
    """Return sentences that say what an expert's network sees, and what its outputs mean."""
    sentences = []
    if expert.preprocessing is not None:
        sentences.append(f"it sees each picture {expert.preprocessing.described(expert.input_size)}")
    if expert.outputs is not None:
        sentences.append(expert.outputs.described())
    return sentences


def _normalization(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if text.lower() in NORMALIZATIONS:
        return NORMALIZATIONS[text.lower()]
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = []
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
    try:
        numbers = [int(number) for number in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3):
        raise ConfigError(f"--pad: '{text}' is no colour; give one number from 0 to 255, or three, as 114,114,114")
    return tuple(numbers * (3 // len(numbers)))
