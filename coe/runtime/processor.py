"""What the processor can do that torch does not tell."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
_CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def has_bf16() -> bool:
    """Tell whether the processor calculates in bf16; where it does not, torch would convert number by number."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return bool(found and _BF16_FLAGS & set(found[1].split()))
