"""What the processor can do that torch does not tell, and how many of its cores a thread uses."""

from __future__ import annotations

import functools

import torch

from coe.system import processor_features

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def bound_threads(number: int) -> None:
    """Let the calling thread's operators use so many threads from now on."""
    # Asking is more than asking: a thread that never did takes on, with its first operator, what any thread set last.
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


@functools.cache
def has_bf16() -> bool:
    """Tell whether the processor calculates in bf16; where it does not, torch would convert number by number."""
    return not _BF16_FLAGS.isdisjoint(processor_features())
