"""Sample images to measure with: those that were given, else two that are made up, of 640 x 480 pixels."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from coe.core import Expert
from coe.decoding import decode
from coe.errors import ImageError
from coe.fit import typical
from coe.kinds import Kind, Prepared

MOST = 16
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Samples:
    """Images ready for an expert, and how long an image took to decode and to preprocess on one thread, in seconds."""

    prepared: tuple[Prepared, ...]
    decode_s: float
    preprocess_s: float


def samples(kind: Kind, expert: Expert, images: Sequence[Path], say: Callable[[str], None]) -> Samples:
    """Prepare images, `MOST` at most, spread over all that were given; those that cannot be decoded are left out."""
    chosen: list[Path | bytes] = list(images[:: max(1, len(images) // MOST)][:MOST])
    found = _prepared(kind, expert, chosen)
    if chosen and not found.prepared:
        say("none of the sample images can be decoded; generated ones are used")
    return found if found.prepared else _prepared(kind, expert, generated())


def generated() -> list[Path | bytes]:
    """Return a JPEG and a PNG of blobs and noise."""
    chance = np.random.default_rng(0)
    rows, columns = np.mgrid[0:480, 0:640]
    waves = np.stack([128 + 80 * np.sin(rows / step) * np.cos(columns / (2 * step)) for step in (9, 23, 57)], axis=2)
    picture = Image.fromarray(np.clip(waves + chance.normal(0, 6, waves.shape), 0, 255).astype(np.uint8))
    encoded: list[Path | bytes] = []
    for form in ("JPEG", "PNG"):
        file = io.BytesIO()
        picture.save(file, form, **({"quality": 92} if form == "JPEG" else {}))
        encoded.append(file.getvalue())
    return encoded


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
