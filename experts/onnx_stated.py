"""What an ONNX model says of the pixels that it takes: by its first operators, and by its metadata as Windows reads it.

A model that normalises pixels itself must not get normalised ones: it would answer, and be wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.helpers.preprocessing import NORMALIZATIONS, Preprocessing
from experts import onnx_checks, onnx_grey, onnx_sides, onnx_yolox
from experts.stated_facts import BRIGHTEST, blue_first, names_mean_alone, normalization_in_text
from experts.ultralytics_facts import LETTERBOX

KERAS = Preprocessing(resize="stretch", interpolation="bilinear")
"""What most classifiers of TensorFlow see, whose channels come last."""
YOLOX = LETTERBOX.model_copy(update={"channels": "bgr", "std": NORMALIZATIONS["0..255"][1]})
"""Its pixels are those that OpenCV reads."""
_RANGES = {"NominalRange_0_255": "0..255", "Normalized_0_1": "0..1", "Normalized_1_1": "-1..1"}
_CHANNELS = {"Rgb8": "rgb", "Bgr8": "bgr"}
_REVERSED = "model_info reverse_input_channels"
"""What OpenVINO's tools say of channels: some reverse those of OpenCV, others those of a picture in RGB."""
_RESIZES = {"standard": "stretch", "crop": "center-crop"} | dict.fromkeys(
    ("fit_to_window", "fit_to_window_letterbox"), "letterbox"
)
"""OpenVINO's words for `Preprocessing.resize`."""
_PASSED = onnx_checks.PASSED | {"Pad", "Resize", "Split", "Upsample"}
"""Operators that change where numbers stand, and no number."""
_REORDERING = {"Concat", "Conv", "Gather", "Slice", "Split"}
"""Operators after which channels may stand in another order."""
_MOST_PASSED = 12
_WHITE = 255
_LEAST_MEAN = 0.05
"""What subtracts less normalises nothing."""
_FAINTEST = 0.1
"""What multiplies by less takes pixels from 0 to 255."""
_LEAST_OF_PIXELS, _WIDEST_OF_PIXELS = 0.05, 0.35
"""A batch norm with a larger mean, and a smaller deviation, may take pixels from 0 to 1."""
_WHITEST = 3.0
"""No normalised pixel is larger: ImageNet's white is 2.6, and a batch norm may have learned from white pictures."""
_TURNS = (slice(None), slice(None, None, -1))


@dataclass(frozen=True, slots=True)
class StatedPixels:
    """The fields of the preprocessing that a model states; and those that it leaves open, each with a sentence."""

    fields: Mapping[str, Any]
    unsaid: Mapping[str, str]


def stated_pixels(graph: Any, metadata: Mapping[str, str], places: Sequence[int]) -> StatedPixels:
    """Return what a model, by its graph and its metadata, states of its preprocessing.

    `places` are those of the axes of its input.
    """
    by_operators = _by_operators(graph)
    said: dict[str, Any] = {}
    span = _RANGES.get(metadata.get("Image.NominalPixelRange", "")) or by_operators.span
    if (seen := normalization_in_text(metadata) if span is None else NORMALIZATIONS[span]) is not None:
        said["mean"], said["std"] = seen
    if by_operators.subtracts_bgr or (seen is not None and blue_first(seen[0])):
        said["channels"] = "bgr"
    if (channels := metadata.get("Image.BitmapPixelFormat")) in _CHANNELS:
        said["channels"] = _CHANNELS[channels]
    if (resize := _RESIZES.get(metadata.get("model_info resize_type", ""))) is not None:
        said["resize"] = resize
    if (pad := metadata.get("model_info pad_value", "")).isdecimal() and int(pad) <= _WHITE:
        said["pad"] = (int(pad),) * 3
    why = by_operators.unclear
    if not why and "mean" not in said and names_mean_alone(metadata):
        why = "its metadata name a mean, and no standard deviation beside it"
    if not why and "mean" not in said and onnx_yolox.decodes(graph, places) is None:
        why = "it may be YOLOX, which takes 0..255 and --channels bgr, or another detector of 0..1"
    unsaid = {"mean": f"{why}; say with --normalize what it takes"} if why else {}
    return StatedPixels({name: value for name, value in said.items() if name in Preprocessing.model_fields}, unsaid)


def usual(graph: Any, is_classifier: bool, places: Sequence[int]) -> Preprocessing:
    """Return what a model, which was opened before and says nothing of it, is likely to see.

    `places` are those of the axes of its input.
    """
    mean, deviation = NORMALIZATIONS["imagenet"]
    if not is_classifier:
        return YOLOX if onnx_yolox.decodes(graph, places) else LETTERBOX
    if tuple(places) == onnx_checks.CHANNELS_LAST:
        return KERAS
    return Preprocessing() if _takes_grey(graph) else Preprocessing(mean=mean, std=deviation)


def remarks(graph: Any, seen: Preprocessing, said: Collection[str], metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Return sentences about what import put before the layers of a model, and guessed of what it sees.

    `said` are the fields of `seen` that the model says, beside which `metadata` may say more.
    """
    told = ["its one channel, grey, is made of red, green and blue (0.299, 0.587, 0.114)"] * _takes_grey(graph)
    if seen == YOLOX:
        told.append("it makes boxes as YOLOX does, so it gets BGR, 0 to 255, unless --channels or --normalize differ")
    elif (reverse := metadata.get(_REVERSED)) is not None and "channels" not in said:
        told.append(
            f"its metadata say reverse_input_channels: {reverse:.20}, which some write of RGB and some of BGR; it gets "
            f"{seen.channels.upper()}, unless --channels differs"
        )
    return tuple(told)


def _takes_grey(graph: Any) -> bool:
    return any(node.name == onnx_grey.NAME for node in graph.node)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The range of the pixels that a model takes, None if its operators do not say it, and what they subtract.

    `unclear` says why they may say it or not.
    """

    span: str | None = None
    subtracts_bgr: bool = False
    unclear: str = ""


def _by_operators(graph: Any) -> _Beginning:
    tensors = onnx_checks.Tensors(graph)
    names = {one.name for one in tensors.inputs[:1]}
    span: str | None = None
    ordered = True
    for _ in range(_MOST_PASSED):
        readers = [
            node for node in graph.node if names.intersection(node.input) and node.op_type not in onnx_checks.NOT_READ
        ]
        if not readers:
            break
        if not all(node.op_type in _PASSED or node.name == onnx_grey.NAME for node in readers):
            if len(readers) > 1 or len(names) > 1:
                break
            node = readers[0]
            others = [_numbers(other, tensors) for other in node.input if other not in names]
            is_first = node.input[0] in names or node.op_type in ("Mul", "Add")
            passes = is_first and _changes_nothing(node.op_type, others)
            # A convolution of grey gives several channels of one.
            is_line = is_first and not passes and not (node.op_type == "Conv" and _takes_grey(graph))
            if is_line and (line := _line_of(node.op_type, others)) is not None:
                return replace(line, span=line.span or span, subtracts_bgr=line.subtracts_bgr and ordered)
            if not passes:
                bgr = ordered and node.op_type in ("Sub", "Add") and _is_bgr(others[0] if others else None)
                return _Beginning((_range_of(node.op_type, others) if is_first else None) or span, bgr)
        for node in readers:
            if node.op_type == "QuantizeLinear":
                span = _range_of_steps(*(_numbers(other, tensors) for other in node.input[1:3]))
        ordered = ordered and _REORDERING.isdisjoint(node.op_type for node in readers if node.name != onnx_sides.NAME)
        names = {name for node in readers for name in node.output}
    return _Beginning(span)


def _line_of(operator: str, others: list[NDArray[Any] | None]) -> _Beginning | None:
    """Return what a batch norm, or a convolution of one pixel, says that normalises each channel; None for another."""
    numbers = [np.asarray(one, np.float64) for one in others if one is not None]
    if not numbers or len(numbers) < len(others):
        return None
    if operator == "BatchNormalization" and [one.size for one in numbers] == [3] * 4:
        mean, deviation = numbers[2].ravel(), np.sqrt(np.abs(numbers[3].ravel()))
        is_wide = mean.max() > _WHITEST and mean.min() >= 0
        may_be = mean.min() > _LEAST_OF_PIXELS and deviation.max() < _WIDEST_OF_PIXELS
        may_be |= max(np.abs(mean).max(), deviation.max()) > _WHITEST  # of 0 to 255 without their mean, perhaps
    elif operator == "Conv" and (slope := _slope_of(numbers[0])) is not None:
        shift = numbers[1] if len(numbers) > 1 else np.zeros(3)
        mean, deviation = -np.linalg.inv(slope) @ shift, 1 / np.abs(slope).max(axis=0)
        is_wide = deviation.min() > 1 / _FAINTEST or np.abs(mean).min() > BRIGHTEST
        may_be = True
    else:
        return None
    usual = [both for name, both in NORMALIZATIONS.items() if name in ("imagenet", "-1..1")]
    if is_wide:
        return _Beginning("0..255", _is_bgr(mean))
    if any(np.allclose((mean, deviation), np.array(both)[:, turn], atol=0.01) for both in usual for turn in _TURNS):
        return _Beginning("0..1", _is_bgr(mean))
    named = " and divides by ".join(", ".join(f"{one:.2g}" for one in few) for few in (mean, deviation))
    return _Beginning(unclear=f"its first layer takes away {named}" if may_be else "")


def _slope_of(weight: NDArray[Any]) -> NDArray[np.float64] | None:
    """Return what a convolution of one pixel makes of each channel, (3, 3); None if it mixes channels."""
    if weight.shape not in ((3, 1, 1, 1), (3, 3, 1, 1)):
        return None
    slope = np.float64(weight[:, :, 0, 0])
    slope = slope if slope.shape[1] > 1 else np.diag(slope[:, 0])
    is_plain = all((np.count_nonzero(slope, axis=axis) == 1).all() for axis in (0, 1))
    return slope if is_plain else None


def _changes_nothing(operator: str, others: list[NDArray[Any] | None]) -> bool:
    if operator == "Conv" and others and others[0] is not None:
        slope, shift = _slope_of(others[0]), others[1] if len(others) > 1 else np.zeros(3)
        return slope is not None and shift is not None and not shift.any() and bool((slope[slope != 0] == 1).all())
    if not others or others[0] is None or operator not in ("Sub", "Add", "Mul", "Div"):
        return False
    largest = float(np.abs(others[0]).max())
    return largest < _LEAST_MEAN if operator in ("Sub", "Add") else bool((others[0] == 1).all())


def _range_of(operator: str, others: list[NDArray[Any] | None]) -> str | None:
    """Return the range of what an operator takes beside constants."""
    first = others[0] if others else None
    if operator == "Clip":
        edges = tuple(float(one.flat[0]) for one in others if one is not None and one.size == 1)
        return {(0.0, 1.0): "0..1", (0.0, 255.0): "0..255"}.get(edges)
    if first is None or (first.size not in (1, 3) and operator != "Sub"):  # some subtract the mean of all pictures
        return None
    largest = float(np.abs(first).max())
    if operator in ("Sub", "Add", "Div"):
        return "0..255" if largest > BRIGHTEST else "0..1"
    if operator == "Mul" and largest:
        return "0..255" if largest < _FAINTEST else "0..1"
    return None


def _range_of_steps(step: NDArray[Any] | None = None, zero: NDArray[Any] | None = None) -> str | None:
    """Return the range of what was quantised, 256 steps from below 0 on or from 0 on; None for normalised pixels."""
    if step is None or step.size != 1 or zero is None or zero.dtype.kind not in "iu":
        return None
    if int(zero.flat[0]) != np.iinfo(zero.dtype).min:
        return None
    return "0..255" if float(step.flat[0]) * 255 > BRIGHTEST else "0..1"


def _is_bgr(values: NDArray[Any] | None) -> bool:
    if values is None or values.size != 3:
        return False
    red, green, blue = np.abs(values.reshape(3).astype(np.float64)) / (255 if np.abs(values).max() > BRIGHTEST else 1)
    return blue_first((float(red), float(green), float(blue)))


def _numbers(name: str, tensors: onnx_checks.Tensors) -> NDArray[Any] | None:
    """Return a constant by its name, also one that the model writes in another form first; None for no numbers."""
    while (node := tensors.makers.get(name)) is not None and node.op_type in _PASSED and node.input:
        name = node.input[0]
    values = tensors.numbers(name)
    # No texts, no sparse tensor.
    return values if values is not None and values.size and values.dtype.kind not in "OSU" else None
