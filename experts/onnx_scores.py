"""Whether what an ONNX classifier ends with makes logits: told by its last operators, and by what goes into them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.errors import StoreError
from coe.helpers.preprocessing import Outputs
from experts.onnx_checks import NOT_READ, PASSED, Tensors, graph_of

Measured = Callable[[Sequence[str]], Mapping[str, NDArray[Any]]]
"""Returns the numbers of tensors inside of a model, by name, for the test pictures; none if that cannot be run."""

_SHARES = {"HardSigmoid", "Sigmoid", "Softmax"}
_BOUNDED = {"Asin", "Atan", "Cos", "Erf", "LpNormalization", "Sign", "Sin", "Softsign", "Tanh"}
"""Operators whose results lie between two small numbers."""
_POSITIVE = {"Abs", "Exp", "Relu", "Softplus"}
_LENGTHS = {"Acos", "Pow", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Sqrt"}
_SUMS = {"ReduceMean", "ReduceSum"}
_JOINED = {"Add", "Concat", "Mean", "Sub", "Sum", "Where"}
"""Operators whose results are logits if all that they join are."""
_PRODUCTS = {"Gemm", "MatMul", "Mul"}
_SCALING = {"Div", "Expand", "LpNormalization", "Mul"}
"""Operators that may make rows of length 1."""
_LINEAR = re.compile(r"Conv|Gemm|MatMul|Einsum|BatchNorm|Integer|^(Where|If|Loop|Add|Sub|Sum|Mean|Mul|Concat)$")
"""Operators with weights, and those that join what such ones compute."""
_WEIGHTED = re.compile("Conv|Gemm|MatMul")
_POOLING = re.compile(r"Pool|^Reduce(Max|Mean)$")
_MOVED = {"Add", "Div", "Mul", "Neg", "Sub"}
"""Operators behind which numbers have the same meaning, beside a constant."""
_WIDEST = 2.0
"""Numbers that are bounded, and moved or scaled no further than this, were not made to be logits."""
_NEARLY = 1e-3
_WIDEST_STEP = 0.5
"""In larger steps no score above 0 is one of 8 bits."""


def proved(path: Path, means: Outputs, values: NDArray[Any], measured: Measured) -> Outputs:
    """Return what a classifier's output means, `values` of which are given, if its last operators agree.

    Raises StoreError if they do not, or leave it open: nobody has said which activation it needs. The model was opened
    before.
    """
    ending = _Ending(graph_of(path))
    if means.activation is None:
        if not ending.is_layer(means.name):
            raise StoreError(
                f"{path}: its scores lie between 0 and 1 without summing to 1; say with --activation what they need: "
                "softmax for logits, none if each is a probability by itself"
            )
        means = means.model_copy(update={"activation": "softmax"})
    if means.activation != "none":
        _check_logits(path, ending, means.name, values, measured)
    elif values.shape[1] == 1 and not ending.is_share(means.name):
        raise StoreError(
            f"{path}: its one output lies between 0 and 1 for the test pictures, but the model does not end with a "
            "sigmoid; say with --activation what it needs: sigmoid for a logit, none for a probability"
        )
    return means


def _check_logits(path: Path, ending: _Ending, output: str, values: NDArray[Any], measured: Measured) -> None:
    """Raise StoreError if the last operators that compute an output, `values` of which are given, make no logits.

    Only these tell: the logits of some networks are small, or all below 0.
    """
    if bool((np.abs(np.exp(np.minimum(values, 1)).sum(axis=1) - 1) <= _NEARLY).all()):  # logarithms of probabilities
        return
    if values.shape[1] == 1 and (fault := ending.fault(output, values, measured) or ending.one_fault(output)):
        raise StoreError(
            f"{path}: its one output is no logit: its scores {fault}; export it with the probability of the second "
            "label, or say with --activation sigmoid that it is one"
        )
    if fault := ending.fault(output, values, measured):
        raise StoreError(
            f"{path}: its scores {fault}; export it with probabilities, which sum to 1, or say with --activation "
            "softmax that they are logits, the largest of which is right"
        )


def check_step(path: Path, output: str) -> None:
    """Raise StoreError if the boxes and scores of a detector share a step of 8 bits that is larger than any score."""
    tensors = Tensors(graph_of(path))
    node = tensors.makers.get(output)
    while node is not None and node.op_type in ("Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"):
        node = tensors.makers.get(node.input[0])
    is_stepped = node is not None and node.op_type == "DequantizeLinear"
    if is_stepped and (step := tensors.numbers(node.input[1])) is not None and step.min() > _WIDEST_STEP:
        raise StoreError(
            f"{path}: its boxes and scores share a step of {float(step.min()):.3g} in 8 bits, and scores lie from 0 to "
            "1: nothing would be found; quantise it without its last Concat (`nodes_to_exclude`), or give it in floats"
        )


class _Ending:
    """The operators of a graph by what they compute, and the tensors that depend on the pixels of the picture."""

    def __init__(self, graph: Any) -> None:
        self._tensors = Tensors(graph)
        self._seen = {one.name for one in self._tensors.inputs}
        for node in graph.node:
            if not self._seen.isdisjoint(node.input) and node.op_type not in NOT_READ:
                self._seen.update(node.output)

    def maker(self, output: str, beside: Collection[str] = ()) -> Any:
        """Return the operator that computes a tensor, before `PASSED`, and `beside` constants; None for none."""
        while (node := self._tensors.makers.get(output)) is not None:
            computed = self._computed(node)
            if len(computed) != 1 or node.op_type not in PASSED.union(beside):
                break
            output = computed[0]
        return node

    def is_share(self, output: str) -> bool:
        """Tell whether the last operator that computes an output makes numbers from 0 to 1.

        A Clip is taken for one: nobody clips logits to such a range.
        """
        node = self.maker(output)
        return node is not None and node.op_type in _SHARES | {"Clip"}

    def is_layer(self, output: str) -> bool:
        """Tell whether the last operator that computes an output, before constants and poolings, has weights."""
        node = self.unpooled(output)
        return node is not None and _WEIGHTED.search(node.op_type) is not None

    def unpooled(self, output: str) -> Any:
        """Return the operator that computes a tensor, before constants and poolings; None for none."""
        node = self.maker(output, _MOVED)
        while node is not None and _POOLING.search(node.op_type) and node.input:
            node = self.maker(node.input[0], _MOVED)
        return node

    def fault(self, output: str, values: NDArray[Any], measured: Measured) -> str:
        """Return in words what makes a tensor no logits; "" if nothing does. `values` are those of the whole model."""
        node = self.maker(output, _MOVED)
        if node is None:
            return ""
        kind, computed = node.op_type, self._computed(node)
        is_small = bool(np.abs(values).max() <= _WIDEST)
        if kind in _LENGTHS or self._is_square(node) or (kind in _SUMS and self._is_of_sizes(node)):
            return f"are distances, by the {kind} at the end"
        if kind in _SHARES:
            return f"are shares that do not sum to 1, by the {kind} at the end"
        if is_small and (kind in _BOUNDED or (kind == "Div" and len(computed) > 1)):
            return f"end with a {kind}, between small numbers"
        if kind == "Clip" and (is_small or values.min() >= 0):
            return "end with a Clip"
        if kind in _POSITIVE and values.min() >= 0:
            return f"are never below 0, by the {kind} at the end"
        if kind == "Log":
            return "are logarithms of numbers that do not sum to 1"
        if len(computed) > 1 and kind in _JOINED:
            parts = measured(computed).values() if kind == "Concat" else ()
            if any(part.ndim == values.ndim and 1 < part.shape[1] < values.shape[1] for part in parts):
                return f"are those of {len(computed)} heads, side by side"
            return next(filter(None, (self.fault(name, values, measured) for name in computed)), "")
        if kind == "ReduceMean" and self._kind_of(node.input[0]) == "Concat":  # of several networks
            return self.fault(node.input[0], values, measured)
        return f"are cosines, by the {kind} at the end" if self._is_cosine(node, values, measured) else ""

    def one_fault(self, output: str) -> str:
        """Return in words what makes the only output no logit, but a measure, as of anomalies; "" for a linear layer.

        What is pooled counts, and an operator that nobody here knows may be a linear layer.
        """
        node = self.unpooled(output)
        known = node is not None and node.domain in ("", "ai.onnx") and not _LINEAR.search(node.op_type)
        return f"come from a {node.op_type}, not from a layer of weights" if known else ""

    def _computed(self, node: Any) -> list[str]:
        return [name for name in node.input if name in self._seen]

    def _kind_of(self, name: str) -> str:
        """Return the operator that computes a tensor, before `PASSED`; "" for none."""
        node = self.maker(name)
        return "" if node is None else str(node.op_type)

    def _is_square(self, node: Any) -> bool:
        return node.op_type == "Mul" and node.input[0] == node.input[1]

    def _is_of_sizes(self, node: Any) -> bool:
        """Tell whether an operator gets squares, or numbers without their signs."""
        inner = self.maker(node.input[0])
        return inner is not None and (inner.op_type in ("Abs", "Pow") or self._is_square(inner))

    def _is_cosine(self, node: Any, values: NDArray[Any], measured: Measured) -> bool:
        """Tell whether an operator multiplies rows of length 1, and its products are not made wider afterwards."""
        product = self.maker(node.input[0]) if node.op_type == "ReduceSum" else node
        if product is None or product.op_type not in _PRODUCTS:
            return False
        pair, end = [*product.input[:2]], node.output[0]
        if _SCALING.isdisjoint(map(self._kind_of, pair)):  # so that most models need not run once more
            return False
        found = {name: numbers for name in pair if (numbers := self._tensors.numbers(name)) is not None}
        found |= measured([end, *(name for name in pair if name not in found)])
        if not {*pair, end} <= found.keys():
            return False
        are_units = _are_units(found[pair[0]], -1) and any(_are_units(found[pair[1]], axis) for axis in (-1, -2))
        products = found[end] - found[end].mean()
        is_turned = products.size == values.size and float(np.vdot(products, values - values.mean())) < 0
        return are_units and (is_turned or bool(np.abs(values).max() <= _WIDEST))


def _are_units(rows: NDArray[Any], axis: int) -> bool:
    return rows.ndim > 1 and bool((np.abs(np.linalg.norm(rows, axis=axis) - 1) <= _NEARLY).all())
