"""What an ONNX model says of the pixels that it takes: by its first operators, and by its metadata as Windows reads it.

A model that normalises pixels itself must not get normalised ones: it would answer, and be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.preprocessing import NORMALIZATIONS, Preprocessing
from experts import onnx_checks, onnx_grey
from experts.stated_facts import blue_first, normalization_in_text
from experts.ultralytics_facts import LETTERBOX

KERAS = Preprocessing(resize="stretch", interpolation="bilinear")
"""What most classifiers of TensorFlow see, whose channels come last."""
YOLOX = LETTERBOX.model_copy(update={"channels": "bgr", "std": NORMALIZATIONS["0..255"][1]})
"""Its pixels are those that OpenCV reads."""
_RANGES = {"NominalRange_0_255": "0..255", "Normalized_0_1": "0..1", "Normalized_1_1": "-1..1"}
_CHANNELS = {"Rgb8": "rgb", "Bgr8": "bgr"}
_PASSED = onnx_checks.PASSED | {"Pad", "Resize", "Split", "Upsample"}
"""Operators that change where numbers stand, and no number."""
_PLACED = onnx_checks.PASSED | {"Expand", "ScatterND"}
"""Operators that put numbers together to a table, as torch exports that."""
_STEPS = (8, 16, 32)
"""The pixels between the places of YOLOX's grids."""
_READ_ALONE = {"Shape", "Size"}
"""Operators that read no number."""
_MOST_PASSED = 12
_BRIGHTEST = 2.0
"""What subtracts more, or divides by more, takes pixels from 0 to 255."""
_LEAST_MEAN = 0.05
"""What subtracts less normalises nothing."""
_FAINTEST = 0.1
"""What multiplies by less takes pixels from 0 to 255."""


def stated_pixels(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the preprocessing that a model, which was opened before, states; empty if it states none."""
    by_operators = _by_operators(path)
    said: dict[str, Any] = {"channels": "bgr"} if by_operators.subtracts_bgr else {}
    if (channels := metadata.get("Image.BitmapPixelFormat")) in _CHANNELS:
        said["channels"] = _CHANNELS[channels]
    span = _RANGES.get(metadata.get("Image.NominalPixelRange", "")) or by_operators.span
    if (seen := normalization_in_text(metadata) if span is None else NORMALIZATIONS[span]) is not None:
        said["mean"], said["std"] = seen
    return {name: value for name, value in said.items() if name in Preprocessing.model_fields}


def usual(path: Path, is_classifier: bool, places: Sequence[int]) -> Preprocessing:
    """Return what a model, which was opened before and says nothing of it, is likely to see.

    `places` are those of the axes of its input.
    """
    mean, deviation = NORMALIZATIONS["imagenet"]
    graph = _graph(path)
    if not is_classifier:
        return YOLOX if _decodes_as_yolox(graph, places) else LETTERBOX
    if tuple(places) == onnx_checks.CHANNELS_LAST:
        return KERAS
    return Preprocessing() if _takes_grey(graph) else Preprocessing(mean=mean, std=deviation)


def remarks(path: Path, seen: Preprocessing) -> tuple[str, ...]:
    """Return sentences about what import put before the layers of a model, and guessed of what it sees."""
    said = ["its one channel, grey, is made of red, green and blue (0.299, 0.587, 0.114)"] * _takes_grey(_graph(path))
    if seen == YOLOX:
        said.append("it makes boxes as YOLOX does, so it gets BGR, 0 to 255, unless --channels or --normalize differ")
    return tuple(said)


def _takes_grey(graph: Any) -> bool:
    return any(node.name == onnx_grey.NAME for node in graph.node)


def _decodes_as_yolox(graph: Any, places: Sequence[int]) -> bool:
    """Tell whether a detector gives a box for each place of three grids, whose sides are exponentials times a step."""
    weights = {one.name for one in graph.initializer}
    size = next(_sizes(one)[places.index(2)] for one in graph.input if one.name not in weights)
    rows = sum((size // step) ** 2 for step in _STEPS)
    shapes = {one.name: _sizes(one) for one in graph.output}
    tables = [name for name, shape in shapes.items() if len(shape) == 3 and shape[1] == rows > 0 and shape[2] > 5]
    makers = {name: node for node in graph.node for name in node.output}
    products = [node for node in _computed(tables, makers) if node.op_type == "Mul"]
    sides = [node for one in products for node in _computed(one.input, makers) if node.op_type == "Exp"]
    # What others read, too, is no side: a softmax reads the sum.
    read = [name for node in graph.node for name in node.input]
    return len(sides) in (1, len(_STEPS)) and all(read.count(node.output[0]) == 1 for node in sides)


def _sizes(value: Any) -> list[int]:
    """Return the sizes of an input or output, 0 for open ones."""
    return [size.dim_value for size in value.type.tensor_type.shape.dim]


def _computed(names: Sequence[str], makers: Mapping[str, Any]) -> list[Any]:
    """Return the operators that compute the numbers of tensors, behind those that change where numbers stand."""
    found, ahead, seen = [], list(names), set[str]()
    while ahead:
        name = ahead.pop()
        if name not in seen and (node := makers.get(name)) is not None:
            seen.add(name)
            if node.op_type in _PLACED:
                ahead += node.input
            else:
                found.append(node)
    return found


def _graph(path: Path) -> Any:
    import onnx.inliner

    return onnx.inliner.inline_local_functions(onnx.load_model(path, load_external_data=False)).graph


@dataclass(frozen=True, slots=True)
class _Beginning:
    """The range of the pixels that a model takes, None if its operators do not say it, and what they subtract."""

    span: str | None = None
    subtracts_bgr: bool = False


def _by_operators(path: Path) -> _Beginning:
    graph = _graph(path)
    constants = {one.name: one for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    names = {next((one.name for one in graph.input if one.name not in constants), "")}
    span: str | None = None
    ordered = True
    for _ in range(_MOST_PASSED):
        readers = [node for node in graph.node if names.intersection(node.input) and node.op_type not in _READ_ALONE]
        if not readers:
            break
        if not all(node.op_type in _PASSED or node.name == onnx_grey.NAME for node in readers):
            if len(readers) > 1 or len(names) > 1:
                break
            node = readers[0]
            others = [_numbers(other, constants, makers) for other in node.input if other not in names]
            is_first = node.input[0] in names or node.op_type in ("Mul", "Add")
            if not is_first or not _changes_nothing(node.op_type, others):
                bgr = ordered and node.op_type in ("Sub", "Add") and _is_bgr(others[0] if others else None)
                return _Beginning((_range_of(node.op_type, others) if is_first else None) or span, bgr)
        for node in readers:
            if node.op_type == "QuantizeLinear":
                span = _range_of_steps(*(_numbers(other, constants, makers) for other in node.input[1:3]))
        ordered = ordered and not {"Concat", "Gather", "Slice", "Split"}.intersection(one.op_type for one in readers)
        names = {name for node in readers for name in node.output}
    return _Beginning(span)


def _changes_nothing(operator: str, others: list[NDArray[Any] | None]) -> bool:
    if not others or others[0] is None or operator not in ("Sub", "Add", "Mul", "Div"):
        return False
    largest = float(np.abs(others[0]).max())
    return largest < _LEAST_MEAN if operator in ("Sub", "Add") else bool((others[0] == 1).all())


def _range_of(operator: str, others: list[NDArray[Any] | None]) -> str | None:
    """Return the range of what an operator takes beside constants."""
    first = others[0] if others else None
    if operator == "BatchNormalization" and len(others) == 4 and (mean := others[2]) is not None:
        return "0..255" if float(np.abs(mean).max()) > _BRIGHTEST else None
    if operator == "Clip":
        edges = tuple(float(one.flat[0]) for one in others if one is not None and one.size == 1)
        return {(0.0, 1.0): "0..1", (0.0, 255.0): "0..255"}.get(edges)
    if first is None or (first.size not in (1, 3) and operator != "Sub"):  # some subtract the mean of all pictures
        return None
    largest = float(np.abs(first).max())
    if operator in ("Sub", "Add", "Div"):
        return "0..255" if largest > _BRIGHTEST else "0..1"
    if operator == "Mul" and largest:
        return "0..255" if largest < _FAINTEST else "0..1"
    return None


def _range_of_steps(step: NDArray[Any] | None = None, zero: NDArray[Any] | None = None) -> str | None:
    """Return the range of what was quantised, 256 steps from below 0 on or from 0 on; None for normalised pixels."""
    if step is None or step.size != 1 or zero is None or zero.dtype.kind not in "iu":
        return None
    if int(zero.flat[0]) != np.iinfo(zero.dtype).min:
        return None
    return "0..255" if float(step.flat[0]) * 255 > _BRIGHTEST else "0..1"


def _is_bgr(values: NDArray[Any] | None) -> bool:
    if values is None or values.size != 3:
        return False
    red, green, blue = np.abs(values.reshape(3).astype(np.float64)) / (255 if np.abs(values).max() > _BRIGHTEST else 1)
    return blue_first((float(red), float(green), float(blue)))


def _numbers(name: str, constants: Mapping[str, Any], makers: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return a constant by its name, also one that the model writes in another form first; None for no numbers."""
    import onnx

    while (node := makers.get(name)) is not None and node.op_type in _PASSED and node.input:
        name = node.input[0]
    if node is not None and node.op_type == "Constant" and node.attribute:
        values = np.asarray(_of_attribute(node.attribute[0]))
    else:
        constant = constants.get(name)
        if constant is None or constant.data_location == onnx.TensorProto.EXTERNAL:
            return None
        values = np.asarray(onnx.numpy_helper.to_array(constant))
    return values if values.size and values.dtype.kind not in "OSU" else None  # no texts, no sparse tensor


def _of_attribute(attribute: Any) -> Any:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
