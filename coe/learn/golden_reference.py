"""Learning a golden reference from pictures of good parts: their median, and by how much they differ from it.

A bad picture among good pictures does not become a part of the reference, and its name is said. A picture is left
out if it does not fit the others, or if it differs from their median at far more pixels than the others do. The median
itself stands as long as fewer than half of the pictures are bad at a place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from coe.comparing import left_out as left_out_rule
from coe.comparing.alignment import align, same_shape
from coe.comparing.comparison import is_dark
from coe.comparing.motion import LEAST_FIT, LEAST_SEEN, OPENING, lasting_differences
from coe.errors import ConfigError, ImageError
from coe.pictures.array_images import DecodedImage, encoded
from coe.pictures.decoding import decode
from coe.pictures.image_source import ImageSource
from coe.pictures.photographs import Photograph
from coe.store.learned import digest_of
from coe.store.reference_reader import EncodedReference, ReferenceManifest
from coe.store.references import NewReference, References

MOST = 50
"""The most pictures that a reference is made of; of more pictures, such as a whole day's, a spread choice is enough."""
_MOST_PIXELS = 200_000_000
"""The most pixels of all these pictures together: each is in memory twice."""
_BAND_BYTES = 64 << 20
"""How many bytes of all pictures together are compared at a time."""
_SPREADS = 3.0
"""The spread is this many median deviations: two standard deviations of a normal distribution."""
_STRANGE_LEVELS = 40
"""A pixel differs if it is more than this many grey levels away from the median. Thin lines do not count: a good part
that lies a fraction of a pixel beside the others differs at its edges."""
_STRANGE_FACTOR, _STRANGE_SHARE = 4.0, 0.001
"""A picture is left out if it differs at this many times the pixels of most pictures, and at this share more."""
_FEW = 3
"""From this many pictures on, the other pictures show which picture is bad."""


@dataclass(frozen=True, slots=True)
class Learned:
    """A reference: `image` (H, W, 3) and `spread` (H, W), both uint8; how many pictures are in it, and the others.

    `left_out` holds the reason by the name of a picture.
    """

    image: DecodedImage
    spread: DecodedImage
    images: int
    left_out: Mapping[str, str]

    def encoded(self, source: str) -> NewReference:
        """Return it as it goes into the store, with the words where it comes from."""
        height, width = self.spread.shape
        pictures = EncodedReference(encoded(self.image), encoded(self.spread))
        return NewReference(pictures, width, height, self.images, tuple(self.left_out), source)


@dataclass(frozen=True, slots=True)
class Median:
    """What pictures in one frame show, `image` (H, W, 3), and by how much they differ from it, `spread` (H, W)."""

    image: DecodedImage
    spread: DecodedImage


def learn(pictures: Mapping[str, DecodedImage]) -> Learned:
    """Learn a reference from good parts, (H, W, 3) uint8 RGB by name; all are brought into the frame of one of them.

    Raises ConfigError if there is no picture, if they are dark, if no two of several pictures fit each other, if most
    do not (`coe.comparing.left_out`), or if only two do and show something different: then nothing tells which of them
    is good, and what differs would pass as the spread.
    """
    if not pictures:
        raise ConfigError("a reference needs at least one picture of a good part")
    base, left_out = _aligned_to_best(pictures)
    kept = dict(base)
    if len(kept) >= _FEW:
        strange = _strange(kept)
        left_out |= strange
        kept = {name: picture for name, picture in kept.items() if name not in strange}
    left_out_rule.check(len(kept), left_out)
    if len(kept) == 2:
        _refuse_different(kept)
    median = median_and_spread(list(kept.values()))
    if is_dark(median.image):
        raise ConfigError("these pictures are dark; was the light on?")
    return Learned(median.image, median.spread, len(kept), left_out)


def most(pixels: int) -> int:
    """Return how many pictures of a size a reference is made of: fewer if they are large."""
    return max(_FEW, min(MOST, _MOST_PIXELS // max(1, pixels)))


def _refuse_different(two: Mapping[str, DecodedImage]) -> None:
    """Raise ConfigError if two good parts in one frame differ at more than single pixels."""
    name, other = two
    if count := lasting_differences(two[name], two[other]):
        raise ConfigError(
            f"'{name}' and '{other}' differ at {count} pixels, and it is unknown which is good; give at least "
            f"{_FEW} pictures of good parts, or a single one"
        )


def median_and_spread(pictures: Sequence[DecodedImage]) -> Median:
    """Return the median of pictures (H, W, 3) uint8 in one frame, and three times their median deviation from it."""
    image = np.empty_like(pictures[0])
    spread = np.empty(image.shape[:2], np.uint8)
    # In bands: at once, many large pictures would take several times their bytes.
    rows = max(1, _BAND_BYTES // (len(pictures) * image[0].nbytes))
    for top in range(0, len(image), rows):
        band = slice(top, top + rows)
        image[band] = _median([picture[band] for picture in pictures]).round()
        deviations = [_apart(picture[band], image[band]) for picture in pictures]
        spread[band] = np.minimum(_SPREADS * _median(deviations), 255)
    return Median(image, spread)


def _apart(image: DecodedImage, other: DecodedImage) -> DecodedImage:
    red, green, blue = cv2.split(cv2.absdiff(image, other))
    return np.asarray(cv2.max(cv2.max(red, green), blue), np.uint8)


def _median(rows: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
    """Return the median of arrays of one shape at each place.

    Neighbours trade places until all are in order (odd-even transposition sort), each step for all places at once: that
    takes a tenth of the time in which numpy sorts at each place.
    """
    ordered = [np.array(row) for row in rows]
    count = len(ordered)
    for step in range(count):
        for place in range(step % 2, count - 1, 2):
            low = np.minimum(ordered[place], ordered[place + 1])
            np.maximum(ordered[place], ordered[place + 1], out=ordered[place + 1])
            ordered[place] = low
    middle: NDArray[np.float32] = np.add(ordered[(count - 1) // 2], ordered[count // 2], dtype=np.float32)
    middle /= 2
    return middle


def _aligned_to_best(pictures: Mapping[str, DecodedImage]) -> tuple[dict[str, DecodedImage], dict[str, str]]:
    """Bring all pictures into the frame of one that most of them fit; return these, and the others with the reason."""
    best: tuple[dict[str, DecodedImage], dict[str, str]] | None = None
    for name in _likeliest_bases(pictures):
        fitting, others = _aligned_to(name, pictures)
        if best is None or len(fitting) > len(best[0]):
            best = fitting, others
        if len(best[0]) > len(pictures) / 2:
            break
    assert best is not None
    if len(pictures) > 1 and len(best[0]) < 2:
        raise ConfigError(
            "no two of these pictures show the same part in the same place; give pictures of one part, or "
            + left_out_rule.WITHOUT_REFERENCE
        )
    return best


def _likeliest_bases(pictures: Mapping[str, DecodedImage]) -> Sequence[str]:
    """Return at most three names with which to begin: of the commonest size, from all over the list."""
    sizes = [picture.shape for picture in pictures.values()]
    commonest = max(sizes, key=sizes.count)
    names = [name for name, picture in pictures.items() if picture.shape == commonest]
    return list(dict.fromkeys((names[0], names[len(names) // 2], names[-1])))


def _aligned_to(base: str, pictures: Mapping[str, DecodedImage]) -> tuple[dict[str, DecodedImage], dict[str, str]]:
    fitting, others = {}, {}
    for name, picture in pictures.items():
        if not same_shape(picture, pictures[base]):
            others[name] = f"has another shape than '{base}' ({_size(picture)}, not {_size(pictures[base])})"
            continue
        alignment = align(picture, pictures[base])
        if alignment.fit < LEAST_FIT or alignment.seen < LEAST_SEEN:
            others[name] = f"does not fit '{base}' (fit {alignment.fit:.2f})"
        elif not alignment.is_certain:
            others[name] = f"fits '{base}' in two places, and only one of them shows a difference"
        else:
            fitting[name] = alignment.image
    return fitting, others


def _strange(pictures: Mapping[str, DecodedImage]) -> dict[str, str]:
    """Return the pictures that differ from the median of all at far more pixels than the others, with the reason."""
    median = median_and_spread(list(pictures.values())).image
    shares = {name: _different_share(picture, median) for name, picture in pictures.items()}
    limit = _STRANGE_FACTOR * float(np.median(list(shares.values()))) + _STRANGE_SHARE
    return {
        name: f"differs from the others at {share:.2%} of its pixels; is the part good?"
        for name, share in shares.items()
        if share > limit
    }


def _different_share(picture: DecodedImage, median: DecodedImage) -> float:
    different = (cv2.absdiff(picture, median).max(axis=2) > _STRANGE_LEVELS).astype(np.uint8)
    return float(cv2.morphologyEx(different, cv2.MORPH_OPEN, OPENING).mean())


def _size(picture: DecodedImage) -> str:
    return f"{picture.shape[1]} x {picture.shape[0]}"


def made(
    references: References, id: str, items: list[Photograph], source: str, bits: int | None
) -> tuple[ReferenceManifest, dict[str, str]]:
    """Make a reference and put it into the store; return its manifest, and why pictures were left out, by name."""
    reasons: dict[str, str] = {}
    pictures = {}
    count = min(len(items), most(_pixels(items[0])))
    for place in range(count):
        item = items[place * len(items) // count]
        try:
            pictures[item.name] = decode(item.file, bits=bits)
        except ImageError as error:
            reasons[item.name] = str(error)
    learned = learn(pictures)
    digests = tuple(digest_of(pixels) for name, pixels in pictures.items() if name not in learned.left_out)
    new = replace(learned.encoded(source), learned=digests)
    return references.put(id, new), {**reasons, **learned.left_out}


def _pixels(item: Photograph) -> int:
    """Return how many pixels a picture has by its header; 0 if that does not tell."""
    return ImageSource.of(item.path, "RGB").pixels()
