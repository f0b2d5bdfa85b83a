"""Reading a foreign ONNX model: made into one file, what its writer recorded, and what its head does to pixels.

Weights may lie in other files beside it, as torch exports them: a file is read only if it lies in the folder of the
model, and no more is read than the files hold. A model that normalises pixels itself must not get normalised ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, inliner, numpy_helper, version_converter
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from coe.errors import NoInt8, StoreError, first_line
from coe.helpers import regular
from coe.helpers.preprocessing import NORMALIZATIONS, Colour
from coe.store.kinds import Foreign
from experts import records
from experts.onnx_forms import Entry
from experts.records import Record

MOST_BYTES = (1 << 31) - 1
"""A model is a message of protobuf, which holds no more."""
_PASSING = """
Cast Concat DequantizeLinear Flatten Gather Identity Pad QuantizeLinear Reshape Resize Slice Split Squeeze Transpose
Unsqueeze Upsample
"""
_PASSED = frozenset(_PASSING.split())
"""Operators that change where numbers stand, or how they are written, and no number."""
_SCALE_KEPT = _PASSED | {"AveragePool", "Clip"}
"""Operators behind which pixels have the same range."""
_NOT_READ = frozenset({"Shape", "Size"})
"""Operators that read no number."""
_MOST_PASSED = 12
_BRIGHTEST = 2.0
"""What subtracts more, or divides by more, takes pixels from 0 to 255."""
_FAINTEST = 0.1
"""What multiplies by less takes pixels from 0 to 255."""
_LEAST_MEAN = 0.05
"""What subtracts less normalises nothing."""
_WHITEST = 3.0
"""No normalised pixel is larger: a batch norm of three channels with larger means takes pixels from 0 to 255."""


def recorded(path: Path, metadata: Mapping[str, str], *, is_classifier: bool) -> tuple[Record, tuple[str, ...]]:
    """Return what a model, its metadata and the records beside it say, with sentences on these; raises StoreError."""
    own = records.ultralytics(metadata, str(path), is_classifier=is_classifier)
    beside, _, remarks = records.of_files(path)
    if own.seen:  # all that its networks see
        return own.beside(Record(beside.labels)), remarks
    graph = inliner.inline_local_functions(onnx.load_model(path, load_external_data=False)).graph
    found = Record(seen=normalised(graph)).beside(records.openvino(metadata)).beside(beside)
    return replace(
        found, outputs=own.outputs, layouts=own.layouts, gives_logits=found.gives_logits or own.gives_logits
    ), remarks


def read(path: Path, metadata: Mapping[str, str], entry: Entry, columns: int, *, is_classifier: bool) -> Foreign:
    """Return what is recorded of a model's labels and pictures; raises StoreError.

    A classifier has `columns` scores, 0 for an open number.
    """
    found, remarks = recorded(path, metadata, is_classifier=is_classifier)
    seen = dict(found.seen)
    if entry.sides is not None:
        seen["sides"] = entry.sides
    if entry.is_grey:
        seen["channels"] = "rgb"
        remarks = ("its single channel, grey, is computed from red, green and blue (0.299, 0.587, 0.114)", *remarks)
    if entry.kind == "tensor(uint8)":
        seen["mean"], seen["std"] = NORMALIZATIONS["0..255"]
    unsaid = {name: why for name, why in found.unsaid.items() if name not in seen}
    side = entry.size or found.input_size
    return Foreign({}, found.labels, {}, side, seen, unsaid, remarks=remarks, columns=columns)


def check_portable(path: Path) -> None:
    """Raise StoreError for a model that onnxruntime saved after it had fitted it to a processor.

    Its weights lie in blocks as wide as the registers of that processor; on another one it may say something else.
    """
    with regular.opened(path) as file:
        is_saved = regular.read_at(file, 8, 0)[4:] == b"ORTM"
    domains = () if is_saved else (node.domain for node in onnx.load_model(path, load_external_data=False).graph.node)
    if is_saved or "com.microsoft.nchwc" in domains:
        raise StoreError(f"{path}: onnxruntime saved it optimised for one processor; give the original ONNX model")


# Weights in other files


def bundled(path: Path, work: Path) -> Path:
    """Return a model file that needs no other: `path`, or a copy in `work` with the weights of other files.

    Raises StoreError if such a file is missing, lies elsewhere, or is shorter than the model says.
    """
    try:
        if not 0 < path.stat().st_size <= MOST_BYTES:
            return path  # onnxruntime says what is wrong with it
        model = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception:  # no ONNX model at all: onnxruntime says so
        return path
    outside = [tensor for tensor in tensors_of(model) if uses_external_data(tensor)]
    if not outside:
        return path
    try:
        _check_sizes(path, [ExternalDataInfo(tensor) for tensor in outside])
        load_external_data_for_model(model, str(path.parent))  # refuses files that lie elsewhere, or are too short
        onnx.save_model(model, work / path.name)
    except StoreError:
        raise
    except Exception as error:  # the library raises several classes for files that are missing, elsewhere, or odd
        raise StoreError(
            f"{path}: the files with its weights cannot be read ({first_line(error):.300}); copy what the exporter "
            "wrote into one folder, whole"
        ) from error
    records.copied(path, work)
    return work / path.name


def _check_sizes(path: Path, places: Sequence[Any]) -> None:
    """Raise StoreError if a file is missing, or for more weights than one file of ONNX holds: they come into memory."""
    files = [(place.length, path.parent / place.location) for place in places]
    if lacking := next((file for _, file in files if not file.is_file()), None):
        raise StoreError(f"{path}: there is no file {lacking}; copy all files of the exporter into one folder")
    claimed = sum(file.stat().st_size if length is None else length for length, file in files)
    if claimed + path.stat().st_size > MOST_BYTES:
        raise StoreError(
            f"{path}: has {claimed:,} bytes of weights; an expert holds 2 GiB at most, as one file of ONNX does"
        )


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield all tensors that a model holds, those inside of its nodes and functions too."""
    yield from _tensors(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(graph)


# What the first arithmetic says of pixels


def normalised(graph: onnx.GraphProto) -> dict[str, Any]:
    """Return the fields of `Preprocessing` that the first arithmetic of a model leaves no choice of."""
    constants = {one.name: one for one in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    names = {one.name for one in [one for one in graph.input if one.name not in constants][:1]}
    for _ in range(_MOST_PASSED):
        readers = [node for node in graph.node if names.intersection(node.input) and node.op_type not in _NOT_READ]
        if not readers:
            break
        if not all(node.op_type in _SCALE_KEPT for node in readers):
            node, *others = readers
            beside = [_constant(name, makers, constants) for name in node.input if name not in names]
            numbers = [np.asarray(one, np.float64) for one in beside if one is not None]
            is_first = node.input[0] in names or node.op_type in ("Mul", "Add")
            if others or not is_first or not numbers or len(numbers) < len(beside):
                break
            if not _changes_nothing(node.op_type, numbers[0]):
                return _fields(node.op_type, numbers)
        names = {name for node in readers for name in node.output}
    return {}


def _constant(name: str, makers: Mapping[str, Any], constants: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the numbers of a constant, also of one that operators write; None for others, and for one elsewhere."""
    while (node := makers.get(name)) is not None and node.op_type in _PASSED and node.input:
        name = node.input[0]
    value = constants.get(name)
    if value is None and node is not None and node.op_type in ("Constant", "ConstantOfShape") and node.attribute:
        value = helper.get_attribute_value(node.attribute[0])
    if isinstance(value, TensorProto):
        is_elsewhere = value.data_location == TensorProto.EXTERNAL
        value = None if is_elsewhere else numpy_helper.to_array(value)
    values = np.asarray(value)
    return values if values.size and values.dtype.kind in "fiu" else None


def _changes_nothing(operator: str, first: NDArray[np.float64]) -> bool:
    if operator in ("Sub", "Add"):
        return bool(np.abs(first).max() < _LEAST_MEAN)
    return operator in ("Mul", "Div") and bool((first == 1).all())


def _fields(operator: str, numbers: list[NDArray[np.float64]]) -> dict[str, Any]:
    """Return what an operator beside constants says of the pixels that it takes."""
    if operator == "BatchNormalization" and [one.size for one in numbers] == [3] * 4:
        span = "0..255" if numbers[2].max() > _WHITEST and numbers[2].min() >= 0 else ""
    elif operator in ("Sub", "Add", "Mul", "Div") and (numbers[0].size in (1, 3) or operator == "Sub"):
        largest = np.abs(numbers[0]).max()  # some subtract the mean of all pictures
        is_bytes = largest < _FAINTEST if operator == "Mul" else largest > _BRIGHTEST
        span = "0..255" if is_bytes else "0..1"
    else:
        return {}
    return dict(zip(("mean", "std"), NORMALIZATIONS[span], strict=True)) if span else {}


# The form that `int8` is made of: it takes pixels as they are, and gives the output that counts


_PER_CHANNEL = 13
"""The first opset with a scale for each channel; models of older ones are brought to `_NEWER`."""
_NEWER = 17
_INSIDE = "model/"
"""What stands before the names of the file, so that none of them is that of the pixels."""
_QUANTISED = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}


def taking_pixels(
    path: Path, output: str, normalization: tuple[Colour, Colour], size: int, order: Sequence[int], columns: int = 0
) -> onnx.ModelProto:
    """Return a model file as one that takes `images`, (n, 3, size, size) uint8 RGB, and gives `output` alone.

    With `columns` it gives that as rows of so many scores.

    The file's own input has its axes in the order `order`. One of floats is normalised as `normalization`, mean and
    standard deviation of 0 to 1, says. Raises NoInt8 for a model that cannot be quantised.
    """
    model = _ready(inliner.inline_local_functions(onnx.load_model(path)))
    graph = model.graph
    weights = {one.name for one in graph.initializer}
    (entry,) = (one for one in graph.input if one.name not in weights)
    batch = entry.type.tensor_type.shape.dim[0].dim_value or "n"
    first = entry.name if tuple(order) == (0, 1, 2, 3) else "placed"
    if entry.type.tensor_type.elem_type == TensorProto.UINT8:
        nodes = [helper.make_node("Identity", ["images"], [first], name="pixels")]
    else:
        mean, deviation = (np.array(values, np.float32)[None, :, None, None] for values in normalization)
        for name, values in (("scale", 1 / (255 * deviation)), ("shift", -mean / deviation)):
            graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
        nodes = [
            helper.make_node("Cast", ["images"], ["numbers"], name="numbers", to=TensorProto.FLOAT),
            helper.make_node("Mul", ["numbers", "scale"], ["scaled"], name="scaled"),
            helper.make_node("Add", ["scaled", "shift"], [first], name="normalised"),
        ]
    if first != entry.name:
        nodes.append(helper.make_node("Transpose", [first], [entry.name], perm=order, name="placed"))
    nodes += graph.node
    kept = next(one for one in graph.output if one.name == _INSIDE + output)
    if columns:
        graph.initializer.append(numpy_helper.from_array(np.array([-1, columns], np.int64), "shape"))
        nodes.append(helper.make_node("Reshape", [kept.name, "shape"], ["rows"], name="rows"))
        kept = helper.make_tensor_value_info("rows", kept.type.tensor_type.elem_type, [batch, columns])
    # Shapes that the file states may be open where the pictures of an expert have one size.
    del graph.node[:], graph.input[:], graph.output[:], graph.value_info[:], model.metadata_props[:]
    graph.node.extend(nodes)
    graph.input.append(helper.make_tensor_value_info("images", TensorProto.UINT8, [batch, 3, size, size]))
    graph.output.append(kept)
    return model


def _ready(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with `_INSIDE` before its names, in a form that can be quantised; raises NoInt8."""
    operators = {node.op_type for node in model.graph.node}
    if _QUANTISED & operators or any(name.startswith("QLinear") for name in operators):
        raise NoInt8("its file is quantised already, and runs as it is")
    if any(tensor.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) for tensor in tensors_of(model)):
        raise NoInt8("it computes in 16 bits; export it in float32 and import that, if it is to have int8")
    if branches := sorted({"If", "Loop", "Scan"} & operators):
        raise NoInt8(f"what it computes depends on its numbers ({', '.join(branches)}); export it without")
    opset = next((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), 0)
    if opset < _PER_CHANNEL:
        try:
            model = version_converter.convert_version(model, _NEWER)
        except Exception as error:  # the library raises what it likes
            raise NoInt8(
                f"its opset {opset} cannot be brought to {_NEWER} ({first_line(error):.200}); export it with that"
            ) from error
    model.ir_version = max(model.ir_version, 8)
    return compose.add_prefix(model, _INSIDE)
