"""CoE: vision inspection by hundreds of experts on boxes whose memory holds only part of them.

    from coe import Inspector

    with Inspector(board="demo") as line:
        result = line.submit(frame, component="R0402", serial="SN1").result()

The names below are the whole public API for a factory line. Each is imported at its first use, so that `import coe`
takes no time and needs no torch.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from coe.board.completeness import Expected
    from coe.core import Box, Failure, FailureKind, Finding, Request, Result, Verdict
    from coe.errors import (
        BoardsClash,
        CoeError,
        ConfigError,
        ImageError,
        LineClosed,
        LineFull,
        RulesError,
        StoreError,
        WouldWaitForItself,
    )
    from coe.inspector.inspector import Inspector, Picture
    from coe.results.drawing import draw

# OpenMP reads it when torch is first imported. On a busy machine a batch takes up to twice as long if threads spin
# while they wait (docs/api.md). What the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# torch would count on a thread for each core, and with fewer some of its products are wrong (coe.runtime.processor).
if (_limit := os.environ.get("OMP_THREAD_LIMIT", "")).isdecimal() and 0 < int(_limit) < (os.cpu_count() or 1):
    os.environ.setdefault("OMP_NUM_THREADS", _limit)

_NAMES = {
    "coe.board.completeness": ("Expected",),
    "coe.core": ("Box", "Failure", "FailureKind", "Finding", "Request", "Result", "Verdict"),
    "coe.errors": (
        *("BoardsClash", "CoeError", "ConfigError", "ImageError", "LineClosed", "LineFull", "RulesError", "StoreError"),
        "WouldWaitForItself",
    ),
    "coe.inspector.inspector": ("Inspector", "Picture"),
    "coe.results.drawing": ("draw",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "BoardsClash",
    "Box",
    "CoeError",
    "ConfigError",
    "Expected",
    "Failure",
    "FailureKind",
    "Finding",
    "ImageError",
    "Inspector",
    "LineClosed",
    "LineFull",
    "Picture",
    "Request",
    "Result",
    "RulesError",
    "StoreError",
    "Verdict",
    "WouldWaitForItself",
    "__version__",
    "draw",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("coe.helpers.versions").own()
    if name not in _HOMES:
        raise AttributeError(f"module 'coe' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
