"""Sample images for an expert: some of the given images, else generated images of 640 x 480 pixels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from coe.core import Expert
from coe.errors import ImageError
from coe.pictures.decoding import decode
from coe.pictures.wide import AS_FILLED
from coe.store.kinds import ExpertInput, Kind
from coe.store.kinds import Image as Pixels

MOST = 32


@dataclass(frozen=True, slots=True)
class SampleImages:
    """Images ready for an expert, and whether they were generated."""

    prepared: tuple[ExpertInput, ...]
    generated: bool


def sample_images(kind: Kind, expert: Expert, images: Sequence[Path]) -> SampleImages:
    """Prepare images, leaving out those that cannot be decoded; generate some if none are left."""
    prepared = _prepared(kind, expert, spread(images, MOST))
    if prepared:
        return SampleImages(prepared, generated=False)
    pictures = _generated_pictures(MOST // 2)
    return SampleImages(tuple(kind.preprocess(picture, expert) for picture in pictures), generated=True)


def spread(images: Sequence[Path], most: int) -> list[Path | bytes]:
    """Return at most `most` images, spread over all of `images`."""
    if len(images) <= most:
        return list(images)
    return [images[place * len(images) // most] for place in range(most)]


@lru_cache
def generated(count: int = 2) -> tuple[Path | bytes, ...]:
    """Return encoded pictures of waves and noise, JPEG and PNG in turn; each pair has another coarseness."""
    rows, columns = np.mgrid[0:480, 0:640]
    encoded: list[Path | bytes] = []
    for number in range(count):
        chance = np.random.default_rng(number // 2)
        steps = (9 + 4 * (number // 2), 23, 57)
        waves = np.stack([128 + 80 * np.sin(rows / step) * np.cos(columns / (2 * step)) for step in steps], axis=2)
        picture = Image.fromarray(np.clip(waves + chance.normal(0, 6, waves.shape), 0, 255).astype(np.uint8))
        file = io.BytesIO()
        if number % 2:
            picture.save(file, "PNG")
        else:
            picture.save(file, "JPEG", quality=92)
        encoded.append(file.getvalue())
    return tuple(encoded)


@lru_cache(maxsize=1)
def _generated_pictures(count: int) -> tuple[Pixels, ...]:
    """Return the generated pictures, decoded, 0.9 MB each: every expert without images gets the same."""
    return tuple(decode(picture) for picture in generated(count))


def _prepared(kind: Kind, expert: Expert, images: Sequence[Path | bytes]) -> tuple[ExpertInput, ...]:
    prepared = []
    for image in images:
        try:
            prepared.append(kind.preprocess(decode(image, bits=AS_FILLED), expert))
        except ImageError:
            continue
    return tuple(prepared)
