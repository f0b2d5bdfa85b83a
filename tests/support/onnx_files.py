"""ONNX models for tests, whose nodes are written in the language of `onnx.parser`."""

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser


def model(taken, nodes, given, *, opset=17, metadata=None, **numbers):
    """Make a model: inputs as "uint8[n,3,8,8] x", nodes as "y = Flatten(x)", outputs; `numbers` are its constants."""
    head = f'<ir_version: 8, opset_import: ["": {opset}]>'
    made = parser.parse_model(f"{head} g ({taken}) => ({given}) {{ {nodes} }}")
    for name, value in numbers.items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    helper.set_model_props(made, metadata or {})
    return made


def written(path, *parts, **more):
    """Write a model to a file, and return its path."""
    onnx.save(model(*parts, **more), str(path))
    return path
