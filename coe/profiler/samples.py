"""Sample images to measure with: those that were given, else two that are made up, of 640 x 480 pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coe.board.decoding import decode
from coe.core import Expert
from coe.errors import ImageError
from coe.prepare.samples import generated, spread
from coe.runtime.fit import typical
from coe.store.kinds import Kind, Prepared

MOST = 16
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Samples:
    """Images ready for an expert, and how long an image took to decode and to preprocess on one thread, in seconds.

    `generated` says that they are made up.
    """

    prepared: tuple[Prepared, ...]
    decode_s: float
    preprocess_s: float
    generated: bool = False


def samples(kind: Kind, expert: Expert, images: Sequence[Path], say: Callable[[str], None]) -> Samples:
    """Prepare images, `MOST` at most, spread over all that were given; those that cannot be decoded are left out."""
    chosen = spread(images, MOST)
    found = _prepared(kind, expert, chosen)
    if chosen and not found.prepared:
        say("none of the sample images can be decoded; generated ones are used")
    return found if found.prepared else replace(_prepared(kind, expert, generated()), generated=True)


def _prepared(kind: Kind, expert: Expert, images: Sequence[Path | bytes]) -> Samples:
    prepared, decode_s, preprocess_s = [], [], []
    for image in images:
        decodings, preprocessings = [], []
        try:
            for _ in range(_REPEATS):
                began = time.perf_counter()
                pixels = decode(image)
                decoded = time.perf_counter()
                ready = kind.preprocess(pixels, expert)
                decodings.append(decoded - began)
                preprocessings.append(time.perf_counter() - decoded)
        except ImageError:
            continue
        prepared.append(ready)
        decode_s.append(typical(decodings))
        preprocess_s.append(typical(preprocessings))
    if not prepared:
        return Samples((), 0.0, 0.0)
    return Samples(tuple(prepared), float(np.mean(decode_s)), float(np.mean(preprocess_s)))
