"""The reference of an image, read once for each expert, as the image itself is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coe.errors import ImageError
from coe.pictures.image_source import ImageSource
from coe.store.kinds import Reference

_COMPARING_BYTES = 20
"""The bytes a pixel that comparing takes beyond what decoding took: both pictures in grey, moved, and centred."""


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """A source of a good part's pixels, and of their spread if several good parts are known."""

    image: ImageSource
    spread: ImageSource | None = None

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds while its image waits."""
        return self.image.held_bytes + (self.spread.held_bytes if self.spread else 0)

    def decoding_bytes(self) -> int:
        """Return the bytes that decoding and comparing need."""
        decoding = self.image.decoding_bytes() + (self.spread.decoding_bytes() if self.spread else 0)
        return decoding + _COMPARING_BYTES * self.image.pixels()

    def decode(self) -> Reference:
        """Return the reference; raises ImageError, which says that the reference is meant."""
        try:
            image = self.image.decode()
            spread = np.zeros(image.shape[:2], np.uint8) if self.spread is None else self.spread.decode()[:, :, 0]
        except ImageError as error:
            raise type(error)(f"the reference {error}") from error
        return Reference(image, spread)
