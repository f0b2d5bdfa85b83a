"""The forms in which a benchmark hands pictures in: as arrays, as cameras' libraries do, or as JPEGs in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from coe.pictures.array_images import encoded
from coe.pictures.image_source import ImageLike, ImageSource, Picture

QUALITY = 90
"""The quality of the JPEGs, as cameras make them."""


class PictureForm(StrEnum):
    """How a picture is handed in."""

    ARRAY = "array"
    JPEG = "jpeg"


def handed_in(pictures: Sequence[Picture], form: PictureForm | None) -> list[Picture]:
    """Return the pictures in a form, arrays in the order BGR; None leaves them as they are. Raises ImageError.

    A picture that comes several times is converted once.
    """
    if form is None:
        return list(pictures)
    made: dict[object, ImageLike] = {}
    for picture in pictures:
        if (key := _identity(picture)) not in made:
            pixels = ImageSource.of(picture.image, picture.order).decode()
            made[key] = (
                np.ascontiguousarray(pixels[..., ::-1])
                if form is PictureForm.ARRAY
                else encoded(pixels, "JPEG", quality=QUALITY)
            )
    return [replace(picture, image=made[_identity(picture)], order="BGR") for picture in pictures]


def _identity(picture: Picture) -> object:
    return picture.image if isinstance(picture.image, str | Path) else id(picture.image)
