"""Features of the processor that torch does not report, and how many cores a thread's operators use."""

from __future__ import annotations

import functools

import torch

from coe.system import processor_features

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def bound_threads(number: int) -> None:
    """Let the calling thread's operators use `number` threads from now on."""
    # `get_num_threads` also fixes the number. A thread that never called it inherits, with its first operator, the
    # last value that any thread set.
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


@functools.cache
def has_bf16() -> bool:
    """Tell whether the processor calculates in bf16; if it does not, torch would convert number by number."""
    return not _BF16_FLAGS.isdisjoint(processor_features())
