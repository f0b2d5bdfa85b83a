"""An ONNX model in the form that `int8` is made of: it takes pixels as they are, and gives the output that counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, compose, helper, inliner, numpy_helper, version_converter

from coe.errors import NoInt8, first_line
from coe.helpers.preprocessing import Colour
from experts.onnx_reading import tensors_of

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
