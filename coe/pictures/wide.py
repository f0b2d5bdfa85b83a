"""Samples of more than 8 bits become 8. Which of their bits count is asked for, said by the file, or all of them.

Cameras of 10, 12 and 14 bits put their values into the low bits of 16. With the high byte alone such a picture would be
nearly black, and nobody would hear of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coe import config
from coe.errors import ImageError

Samples = NDArray[np.uint16]
LEAST, ALL = config.MIN_SAMPLE_BITS, config.MAX_SAMPLE_BITS
AS_FILLED = 0
"""Asks for as many bits as the samples fill, where a picture is not judged, but shown or measured with."""
_LEAST_TOP = 1 << 14
"""16-bit samples that are all smaller are taken for those of a camera of fewer bits."""


@dataclass(frozen=True, slots=True)
class StatedBits:
    """How many bits count by what a file says; `stretched` if its format asks to stretch them to 16."""

    bits: int
    stretched: bool = False


def counted_bits(parts: Callable[[], Iterable[Samples]], asked: int | None, said: StatedBits | None, depth: int) -> int:
    """Return how many low bits count of samples of `depth` bits, which `parts` gives as often as it is called.

    Raises ImageError if a sample has more bits than are asked for or said, or if neither is known and all samples are
    so small that the low bits alone are probably meant.
    """
    top = max(int(part.max()) for part in parts())
    if asked:
        bits = min(depth, asked)
    elif said is not None:
        stretched = said.stretched and (top >> said.bits or _is_stretched(parts(), said.bits))
        bits = depth if stretched else said.bits
    elif depth == ALL and not is_filled(top):
        if asked is None:
            expect_filled(top)
        bits = max(LEAST, top.bit_length())
    else:
        bits = depth
    if top >> bits:
        raise ImageError(
            f"has samples up to {top}, more than {bits} bits hold, as {'is set' if asked else 'the file says'}; say "
            "how many low bits count, 16 if all do (`bits` of the board file, --bits, bits=)"
        )
    return bits


def is_filled(top: int) -> bool:
    """Tell whether 16-bit samples, the largest of which is `top`, are too large for the low bits alone to be meant."""
    return top >= _LEAST_TOP


def expect_filled(top: int) -> None:
    """Raise ImageError if the largest of 16-bit samples is so small that the low bits alone are probably meant."""
    if not is_filled(top):
        raise ImageError(
            f"has 16-bit samples of at most {top}, as a camera of {max(10, top.bit_length())} bits writes them, and "
            "would be nearly black; say how many low bits count (`bits: 12` in the board file, --bits 12, bits=12), 16 "
            "if the picture is meant to be so dark"
        )


def narrow(samples: Samples, bits: int) -> NDArray[np.uint8]:
    """Return the eight highest of the `bits` bits that count, of samples that have no more."""
    return np.right_shift(samples, bits - LEAST, out=np.empty(samples.shape, np.uint8), casting="unsafe")


def _is_stretched(parts: Iterable[Samples], bits: int) -> bool:
    """Tell whether samples, all below 2 to the power `bits`, are those of a dark picture that was stretched to 16."""
    seen = np.unique(np.concatenate([np.unique(part) for part in parts])).astype(np.int64)
    top, full = (1 << bits) - 1, (1 << ALL) - 1
    shifted = seen >> (ALL - bits) << (ALL - bits)
    stretched = np.rint(np.rint(seen * top / full) * full / top)
    return bool((seen == shifted).all() or (seen == stretched).all())
