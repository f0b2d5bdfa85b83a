"""What torch's errors of a GPU mean: the device is full, or it is lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coe.errors import CoeError, DeviceFull, DeviceLost, first_line

NO_MEMORY = 2
"""The error code of CUDA for too little memory, outside the allocator of torch, too."""
_CAPTURE_ERRORS = range(900, 909)
"""All of CUDA's error codes for a capture."""
_LIBRARIES_FULL = (
    "ALLOC(ATION)?_FAILED|STATUS_(NOT_INITIALIZED|INTERNAL_ERROR)|driver error: out of memory|unable to find an engine"
)
_OF_CUDA = "CUDA (driver )?error|STATUS_EXECUTION_FAILED"
"""Words of errors that have neither a class nor a code; see `_has_words`.

Libraries also say that they are not initialized, or speak of an internal error, where they got no memory."""


@contextmanager
def errors() -> Iterator[None]:
    """Turn torch's errors into ours."""
    try:
        yield
    except RuntimeError as error:
        if (meant := _meant(error)) is None:
            raise
        # Python 3.12 and later: this frame leads to that of contextlib, which holds the error: a cycle, as below.
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        try:
            raise meant from error
        finally:
            # Else the error lies in a frame that its own traceback holds: a cycle that keeps the failed call's tensors.
            del meant


def _meant(error: RuntimeError) -> CoeError | None:
    # A capture that ends early raises an error about that, too; the cause is further up the chain.
    chain: list[BaseException] = [error]
    while (before := chain[-1].__context__) is not None:
        chain.append(before)
    for link in chain:
        if _is_full(link):
            return DeviceFull(first_line(link))
    if any(_code(link) in _CAPTURE_ERRORS for link in chain):
        # The device is lost all the same: torch's allocator believes that the capture still goes on.
        return DeviceLost(
            f"a batch cannot be captured as a graph; its kind's `forward` must not make the host wait "
            f"({first_line(chain[-1])})"
        )
    # After an error of the device every further call fails: nothing on it can be used again.
    if any(_is_device_error(link) for link in chain):
        return DeviceLost(first_line(error))
    return None


def _is_full(error: BaseException) -> bool:
    """Tell whether an error says that the device has no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or _code(error) == NO_MEMORY or _has_words(error, _LIBRARIES_FULL)


def _is_device_error(error: BaseException) -> bool:
    """Tell whether an error is one of the device."""
    return isinstance(error, torch.AcceleratorError) or _has_words(error, _OF_CUDA)


def _has_words(error: BaseException, words: str) -> bool:
    """Tell whether the message of an error has words that match a pattern."""
    # Torch reports an error of cuBLAS or cuDNN as a `RuntimeError` without a code: only its message says what it is.
    return re.search(words, str(error)) is not None


def _code(error: BaseException) -> int | None:
    return getattr(error, "error_code", None) if isinstance(error, torch.AcceleratorError) else None
