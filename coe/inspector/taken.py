"""A picture that a line has taken over: nothing of it is the caller's any more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.image_source import ImageSource, Picture


@dataclass(frozen=True, slots=True)
class TakenPicture:
    """An image of the line's, what is said of it, and the bytes that it books; times on the line's clock."""

    picture: Picture
    source: ImageSource
    size: int
    submitted_s: float
    due_s: float

    @classmethod
    def over(cls, picture: Picture, now: float, prepared_bytes: int) -> TakenPicture:
        """Take a picture's pixels over; `prepared_bytes` is what its first input takes. Raises TypeError."""
        source = ImageSource.of(picture.image, picture.order)
        due_s = math.inf if picture.within_s is None else now + picture.within_s
        # Nothing here keeps the caller's array.
        name = picture.name or (str(picture.image) if isinstance(picture.image, str | Path) else "")
        return cls(replace(picture, image="", name=name), source, source.held_bytes + prepared_bytes, now, due_s)
