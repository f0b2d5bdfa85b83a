"""What an ONNX model must be before it becomes an expert, and its operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.errors import StoreError, first_line
from coe.helpers import regular

NUMBERS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
CHANNELS_LAST = (0, 2, 3, 1)
"""Where the axes of pictures (n, 3, S, S) stand in the input of a model of TensorFlow, (n, S, S, 3)."""
_BESIDE = 0.25
"""By which share of the whole range a classifier's numbers may depend on the pictures beside a picture."""

PASSED = {
    "Cast",
    "Concat",
    "DequantizeLinear",
    "Flatten",
    "Gather",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Slice",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
}
"""Operators that change where numbers stand, or how they are written."""
NOT_READ = {"Shape", "Size"}
"""Operators that read no number."""


def check_portable(path: Path) -> None:
    """Raise StoreError for a model that onnxruntime saved after it had fitted it to a processor.

    Its weights lie in blocks as wide as the registers of that processor; on another one it may say something else.
    """
    import onnx

    with regular.opened(path) as file:
        is_saved = regular.read_at(file, 8, 0)[4:] == b"ORTM"
    domains = () if is_saved else (node.domain for node in onnx.load_model(path, load_external_data=False).graph.node)
    if is_saved or "com.microsoft.nchwc" in domains:
        raise StoreError(
            f"{path}: onnxruntime saved it for the processor on which it ran; give the ONNX model that it was made of"
        )


def graph_of(path: Path) -> Any:
    """Return the graph of a model that was opened before, its functions inlined; other files are not read."""
    import onnx.inliner

    return onnx.inliner.inline_local_functions(onnx.load_model(path, load_external_data=False)).graph


def check_steady(path: Path, once: NDArray[Any], again: NDArray[Any]) -> None:
    """Raise StoreError if a model says something else of the same pictures when it is asked again."""
    if once.shape != again.shape or not np.array_equal(once, again, equal_nan=True):
        raise StoreError(
            f"{path}: it answers otherwise each time for the same picture; was it exported as for training, with its "
            "dropout? Export it after `model.eval()`"
        )


def answered(path: Path, ask: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return what a model says of the test pictures; raises StoreError if its open batch takes one picture alone."""
    try:
        return ask()
    except Exception as error:  # onnxruntime's classes of errors have no other common parent
        ask(alone=True)
        raise StoreError(
            f"{path}: its batch is open, and it runs one picture at a time alone ({first_line(error):.200}); export it "
            "with a batch of 1, or give it one: `python -m onnxruntime.tools.make_dynamic_shape_fixed --input_name "
            "NAME --input_shape 1,3,HEIGHT,WIDTH OLD NEW`"
        ) from error


def check_alone(path: Path, together: NDArray[Any], alone: NDArray[Any]) -> None:
    """Raise StoreError if what a classifier says of a picture depends on the pictures beside it.

    Models that are quantised while they run differ a little; see `_BESIDE`.
    """
    spread = float(np.ptp(together)) or 1.0
    if (
        together.shape != alone.shape
        or float(np.abs(np.subtract(together, alone, dtype=np.float64)).max()) > _BESIDE * spread
    ):
        raise StoreError(
            f"{path}: what it says of a picture depends on the pictures beside it; was it exported as for training, "
            "with its batch norms? Export it after `model.eval()`, or with a batch of 1"
        )


def places(shape: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return where the axes of pictures (n, 3, S, S) stand in an input of four axes."""
    return CHANNELS_LAST if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else (0, 1, 2, 3)


def misfit(path: Path, kind: str, shape: Sequence[Any], inputs: int) -> StoreError:
    """Return an error that says what is wrong with a model's input, and the way out."""
    sizes = [size if isinstance(size, int) else None for size in shape]
    way = "export it for pictures"
    if inputs != 1:
        way = f"it has {inputs} inputs; export it with the picture as its only one, the others as constants"
    elif kind not in NUMBERS:
        way = "export it with an input of float32, float16 or uint8"
    elif len(sizes) == 4:
        _, channels, height, width = (sizes[places(shape).index(axis)] for axis in range(4))
        way = "export it with a batch of 1, or of any size (dynamic)"
        if channels not in (1, 3, None):
            way = f"it takes {channels} channels; export it with a first layer that makes them of red, green and blue"
        elif height != width:
            way = "export it with both sides fixed, or both open, and with opset 17"
    needed = "(n, 3, height, width) or (n, height, width, 3) with n open or 1"
    return StoreError(f"{path}: takes {kind} of shape {list(shape)}; it must be {needed}: {way}")


class Tensors:
    """The tensors of a graph: the operators that compute them and the constants by name, and the inputs."""

    def __init__(self, graph: Any) -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.constants = {one.name: one for one in graph.initializer}
        self.inputs = [one for one in graph.input if one.name not in self.constants]

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return the values of a constant, also of one that an operator writes; None for others and in other files."""
        import onnx

        if (constant := self.constants.get(name)) is None:
            node = self.makers.get(name)
            if node is None or node.op_type not in ("Constant", "ConstantOfShape") or not node.attribute:
                return None
            constant = onnx.helper.get_attribute_value(node.attribute[0])
        if not isinstance(constant, onnx.TensorProto):
            return np.asarray(constant)
        is_elsewhere = constant.data_location == onnx.TensorProto.EXTERNAL
        return None if is_elsewhere else np.asarray(onnx.numpy_helper.to_array(constant))
