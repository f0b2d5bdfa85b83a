"""A picture that a line has taken over: it shares nothing with the caller any more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from coe.pictures.image_source import ImageSource, Picture
from coe.runtime.inputs import ReferenceSource


@dataclass(frozen=True, slots=True)
class TakenPicture:
    """A picture that the line owns, and the bytes that it counts in the inbox (`size`); times on the line's clock.

    `reference` is the reference that came with it.
    """

    picture: Picture
    source: ImageSource
    reference: ReferenceSource | None
    size: int
    submitted_s: float
    due_s: float

    @classmethod
    def over(
        cls, picture: Picture, now: float, prepared_bytes: int, board: str, bits: int | None = None
    ) -> TakenPicture:
        """Take over the pixels of a picture of a board, by its name; raises TypeError.

        `prepared_bytes` is the size of its first prepared input. `bits` is what the board says of 16-bit samples.
        """
        bits = bits if picture.bits is None else picture.bits
        source = ImageSource.of(picture.image, picture.order, bits)
        reference = None
        if picture.reference is not None:
            reference = ReferenceSource(ImageSource.of(picture.reference, picture.order, bits))
        size = source.held_bytes + prepared_bytes + (reference.held_bytes if reference else 0)
        due_s = math.inf if picture.within_s is None else now + picture.within_s
        name = picture.name or (str(picture.image) if isinstance(picture.image, str | Path) else "")
        # Without the image: nothing of the caller's arrays is kept.
        place = (picture.component, picture.serial, picture.refdes)
        kept = Picture("", *place, name, picture.order, picture.within_s, board=board)
        return cls(kept, source, reference, size, now, due_s)
