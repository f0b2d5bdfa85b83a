"""Images on their way to boxes: no box can read the files of the line's machine, so their bytes travel."""

from __future__ import annotations

from functools import partial

from coe.cluster.messages import CarriedImage
from coe.pictures.image_source import ImageSource
from coe.pictures.picture_file import PictureFile
from coe.runtime.inputs import ReferenceSource
from coe.timely import in_time

_MAX_FILE_BYTES = 1 << 30
"""The largest file of a picture that is carried."""


def whole(image: CarriedImage) -> CarriedImage:
    """Return an image with the bytes of its files; raises ImageError if one cannot be read."""
    reference = image.reference
    if reference is not None:
        spread = None if reference.spread is None else _read(reference.spread)
        reference = ReferenceSource(_read(reference.image), spread)
    return CarriedImage(_read(image.source), reference, image.rule)


def _read(source: ImageSource) -> ImageSource:
    if not isinstance(source.image, PictureFile):
        return source
    return ImageSource.of(in_time(partial(source.image.read, _MAX_FILE_BYTES)), source.order, source.bits)
