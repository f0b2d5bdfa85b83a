"""Memory that onnxruntime's sessions share in a process: what one leaves, the next takes.

Fresh pages are 40 % of the time to open a ResNet101. glibc keeps few for the next session: it returns the end of its
heap as soon as that is free, and we the holes between sessions, which would grow to half of all (measured). An arena of
onnxruntime that grows by what is asked for takes no more memory than sessions without holes.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np

_AS_REQUESTED = 1
_PAGE = 4096
_FROM_THE_ARENA = "session.use_env_allocators", "1"
_NOTHING = (
    b'\x08\x08:7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)
"""The ONNX model whose output y is its input x, one float; onnx, which could build it, is not needed to run a line."""


def share_memory(options: Any) -> None:
    """Let a session with these `onnxruntime.SessionOptions` take its memory from the arena that sessions share.

    Each session keeps its memory to itself in a program that has registered an arena of its own with onnxruntime, and
    where threads have a heap each: the arena's blocks would lie in all of them, and after 2,000 switches 7 MB stayed.
    """
    if os.environ.get("MALLOC_ARENA_MAX") == "1" and _arena_is_there():
        options.add_session_config_entry(*_FROM_THE_ARENA)


def give_session_memory_back() -> None:
    """Return to the heap what the arena keeps for further sessions, if there is an arena."""
    if _arena_is_there.cache_info().currsize and _arena_is_there():
        session, shrinking = _idle_session()
        session.run(None, {"x": np.zeros(1, np.float32)}, shrinking)  # an arena shrinks at the end of a run alone


@cache
def _arena_is_there() -> bool:
    """Make the arena, the first time; return whether there is one of ours."""
    import onnxruntime

    kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
    # By default a request is given a block that may be 128 MB larger, whole.
    size = {"arena_extend_strategy": _AS_REQUESTED, "max_dead_bytes_per_chunk": _PAGE, "max_mem": 0}
    try:
        onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(size))
    except Exception:  # there is another one; onnxruntime's classes of errors have no other common parent
        return False
    return True


@cache
def _idle_session() -> tuple[Any, Any]:
    """Return a session that does nothing, and the options of a run after which the arena is shrunk."""
    import onnxruntime

    options, shrinking = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry(*_FROM_THE_ARENA)
    shrinking.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return onnxruntime.InferenceSession(_NOTHING, options, ["CPUExecutionProvider"]), shrinking
