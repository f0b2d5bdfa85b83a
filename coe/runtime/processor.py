"""What the processor can do that torch does not tell, and how many of its cores a thread uses."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import torch

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_CPUINFO = Path("/proc/cpuinfo")


def bound_threads(number: int) -> None:
    """Let the calling thread's operators use so many threads from now on."""
    # Asking is more than asking: a thread that never did takes on, with its first operator, what any thread set last.
    if torch.get_num_threads() != number:
        torch.set_num_threads(number)


@functools.cache
def has_bf16() -> bool:
    """Tell whether the processor calculates in bf16; where it does not, torch would convert number by number."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return bool(found and _BF16_FLAGS & set(found[1].split()))
