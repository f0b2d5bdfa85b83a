"""Which verified pictures an expert learned from."""

from __future__ import annotations

from collections.abc import Sequence

from coe.calibrate.verified import VerifiedPicture
from coe.errors import ConfigError, ImageError
from coe.pictures.decoding import decode
from coe.store.learned import LearnedPictures, PictureDigests


def among(learned: LearnedPictures, pictures: Sequence[VerifiedPicture], bits: int | None) -> list[str]:
    """Return the names of the pictures that are among the learned ones; one that cannot be decoded is none of them.

    `bits` says how many low bits of 16-bit samples count.

    Raises ConfigError if a file cannot be read.
    """
    known = []
    for picture in pictures:
        try:
            if learned.holds(PictureDigests.of_file(picture.path, decode(picture.path, bits=bits))):
                known.append(picture.name)
        except ImageError:
            continue  # it is named when it is judged
        except OSError as error:
            raise ConfigError(f"{picture.path} cannot be read: {error.strerror or error}") from error
    return known
