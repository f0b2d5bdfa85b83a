"""A picture that a line has taken over: it shares nothing with the caller any more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from coe.board.image_source import ImageSource, Picture


@dataclass(frozen=True, slots=True)
class TakenPicture:
    """A picture that the line owns, and the bytes that it counts in the inbox (`size`); times on the line's clock."""

    picture: Picture
    source: ImageSource
    size: int
    submitted_s: float
    due_s: float

    @classmethod
    def over(cls, picture: Picture, now: float, prepared_bytes: int) -> TakenPicture:
        """Take over a picture's pixels; `prepared_bytes` is the size of its first prepared input. Raises TypeError."""
        source = ImageSource.of(picture.image, picture.order)
        due_s = math.inf if picture.within_s is None else now + picture.within_s
        name = picture.name or (str(picture.image) if isinstance(picture.image, str | Path) else "")
        # Without the image: no reference to the caller's array is kept.
        kept = Picture("", picture.component, picture.serial, picture.refdes, name, picture.order, picture.within_s)
        return cls(kept, source, source.held_bytes + prepared_bytes, now, due_s)
