"""What networks put out: proved to be finite numbers before anything of it is dropped.

A comparison with NaN is false, so a box whose score is NaN counts nowhere, and "nothing was seen" would follow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.errors import StoreError

_SMALL = 1 << 15
"""Up to this many numbers, numpy checks each number in less time than torch takes to add them."""


def leaves(outputs: Any) -> Iterator[torch.Tensor | NDArray[Any]]:
    """Yield all tensors and arrays of a kind's outputs, however they are nested; those of a dict by its sorted keys.

    A number by itself, and what gives its numbers as an array, are arrays, too; a dataclass is its fields.
    """
    if isinstance(outputs, np.ndarray) and outputs.dtype.hasobject:
        yield from leaves(outputs.tolist())
    elif isinstance(outputs, torch.Tensor | np.ndarray):
        yield outputs
    elif isinstance(outputs, float | complex | np.generic) or hasattr(outputs, "__array__"):
        yield np.asarray(outputs)
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        yield from leaves([getattr(outputs, field.name) for field in fields(outputs)])
    elif isinstance(outputs, Mapping):
        for key in sorted(outputs, key=str):
            yield from leaves(outputs[key])
    elif isinstance(outputs, Sequence | Set) and not isinstance(outputs, str | bytes):
        for part in outputs:
            yield from leaves(part)


def prove(outputs: Any) -> None:
    """Raise StoreError if a kind's outputs, however they are nested, hold a number that is not finite."""
    if not all(map(is_finite, leaves(outputs))):
        raise StoreError("some of its outputs are not numbers; the weights are damaged or badly trained")


def unhidden(values: torch.Tensor) -> torch.Tensor:
    """Return the same values, and NaN for those that are infinite.

    Use it before a function that makes finite numbers of infinities, as a sigmoid does: `prove` would not see them.
    """
    return values + 0 * values


def is_finite(values: torch.Tensor | NDArray[Any]) -> bool:
    """Tell whether all numbers are finite. A sum shows it without a copy, unless it is too large itself."""
    if isinstance(values, torch.Tensor):
        if not (values.is_floating_point() or values.is_complex()):
            return True
        if values.dtype is torch.float32 and values.device.type == "cpu" and values.numel() <= _SMALL:
            return bool(np.isfinite(values.detach().numpy()).all())
        whole = values.is_floating_point() and math.isfinite(float(values.detach().sum(dtype=torch.float32)))
        return whole or bool(values.isfinite().all())
    if values.dtype.kind not in "fc":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum(dtype=np.result_type(values.dtype, np.float32))
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())
