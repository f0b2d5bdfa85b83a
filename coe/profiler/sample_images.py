"""Sample images to measure with: the user's, or two generated images of 640 x 480 pixels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from coe.core import Expert
from coe.errors import ImageError
from coe.pictures.decoding import decode
from coe.pictures.wide import AS_FILLED
from coe.prepare.calibration_images import generated, spread
from coe.runtime.cost_fit import typical
from coe.store.kinds import ExpertInput, Kind

MOST = 16
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class TimedSamples:
    """Images ready for an expert, and how long an image took to decode and to preprocess on one thread, in seconds.

    `generated` is true if they are not the user's images.
    """

    prepared: tuple[ExpertInput, ...]
    decode_s: float
    preprocess_s: float
    generated: bool = False


def timed_samples(kind: Kind, expert: Expert, images: Sequence[Path], say: Callable[[str], None]) -> TimedSamples:
    """Prepare at most `MOST` images, spread over the given ones; an image that cannot be decoded is left out."""
    chosen = spread(images, MOST)
    ready = _prepared(kind, expert, chosen)
    if chosen and not ready.prepared:
        say("none of the sample images can be decoded; generated ones are used")
    return ready if ready.prepared else replace(_prepared(kind, expert, generated()), generated=True)


def _prepared(kind: Kind, expert: Expert, images: Sequence[Path | bytes]) -> TimedSamples:
    prepared, decode_s, preprocess_s = [], [], []
    for image in images:
        decodings, preprocessings = [], []
        try:
            for _ in range(_REPEATS):
                began = time.perf_counter()
                pixels = decode(image, bits=AS_FILLED)
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
        return TimedSamples((), 0.0, 0.0)
    return TimedSamples(tuple(prepared), float(np.mean(decode_s)), float(np.mean(preprocess_s)))
