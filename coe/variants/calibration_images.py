"""Sample images for an expert: some of the given images, else generated images of 640 x 480 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import xxhash

from coe.core import Expert
from coe.errors import ImageError
from coe.pictures.array_images import AS_FILLED, encoded
from coe.pictures.decoding import decode
from coe.store.kinds import ExpertInput, Kind
from coe.store.kinds import Image as Pixels
from coe.store.learned import LearnedPictures, PictureDigests

T = TypeVar("T")
MOST = 32
_LOOKED_AT = 4 * MOST
"""Among so many pictures those that the expert learned from are looked for."""


@dataclass(frozen=True, slots=True)
class SampleImages:
    """Images ready for an expert, and whether they were generated.

    `learned` is how many of them the expert learned from; None if nobody knows what it learned from. `faults` says of
    each image that was left out what is wrong with it.
    """

    prepared: tuple[ExpertInput, ...]
    generated: bool
    learned: int | None = None
    faults: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """An xxh3-128 of the images as the expert gets them."""
        seen = xxhash.xxh3_128()
        for image in self.prepared:
            seen.update(repr(image.pixels.shape).encode())
            seen.update(np.ascontiguousarray(image.pixels).data)
        return seen.hexdigest()


def sample_images(
    kind: Kind, expert: Expert, images: Sequence[Path], learned: LearnedPictures | None = None, bits: int | None = None
) -> SampleImages:
    """Prepare images, leaving out those that cannot be decoded; generate some if none are left.

    `bits` of 16-bit samples count; None: as many as an image fills.
    Of more than `MOST` images those come first from which the expert `learned`: they show all that it is to tell apart.
    """
    prepared: list[ExpertInput] = []
    faults: list[str] = []
    known = 0
    for image, is_known in _known_first(images, learned):
        try:
            pixels = decode(image, bits=bits or AS_FILLED)
            prepared.append(kind.preprocess(pixels, expert))
        except ImageError as error:
            faults.append(f"{image.name} {error}")
            continue
        if learned is not None:
            known += is_known or learned.holds(PictureDigests.of_file(image, pixels))
        if len(prepared) == MOST:
            break
    if prepared:
        learned_from = None if learned is None else known
        return SampleImages(tuple(prepared), generated=False, learned=learned_from, faults=tuple(faults))
    made = tuple(kind.preprocess(picture, expert) for picture in _generated_pictures(MOST // 2))
    return SampleImages(made, generated=True, faults=tuple(faults))


def _known_first(images: Sequence[Path], learned: LearnedPictures | None) -> list[tuple[Path, bool]]:
    """Return at most `MOST` images, and whether an expert learned from their files; those that it did come first."""
    if learned is None or len(images) <= MOST:
        return [(image, False) for image in spread(images, MOST)]
    files = set(learned.digests[:, 0].tolist())
    looked_at = [(image, _digest(image) in files) for image in spread(images, _LOOKED_AT)]
    known, others = ([pair for pair in looked_at if pair[1] is is_known] for is_known in (True, False))
    return [*spread(known, MOST), *spread(others, max(0, MOST - len(known)))]


def _digest(image: Path) -> int | None:
    try:
        return xxhash.xxh3_64_intdigest(image.read_bytes())
    except OSError:
        return None


def spread(images: Sequence[T], most: int) -> list[T]:
    """Return at most `most` images, spread over all of `images`."""
    if len(images) <= most:
        return list(images)
    return [images[place * len(images) // most] for place in range(most)]


@lru_cache
def generated(count: int = 2) -> tuple[Path | bytes, ...]:
    """Return encoded pictures of waves and noise, JPEG and PNG in turn; each pair has another coarseness."""
    rows, columns = np.ogrid[0:480, 0:640]
    files: list[Path | bytes] = []
    for pair in range((count + 1) // 2):
        steps = (9 + 4 * pair, 23, 57)
        waves = np.stack([128 + 80 * np.sin(rows / step) * np.cos(columns / (2 * step)) for step in steps], axis=2)
        waves += np.random.default_rng(pair).normal(0, 6, waves.shape)
        pixels = np.clip(waves, 0, 255).astype(np.uint8)
        files += encoded(pixels, "JPEG", quality=92), encoded(pixels, compress_level=1)
    return tuple(files[:count])


@lru_cache(maxsize=1)
def _generated_pictures(count: int) -> tuple[Pixels, ...]:
    """Return the generated pictures, decoded, 0.9 MB each: every expert without images gets the same."""
    return tuple(decode(picture) for picture in generated(count))
