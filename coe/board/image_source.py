"""An image as the caller handed it over. Law: its pixels stay those of that moment, even if the buffer changes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe import config, values
from coe.board.decoding import Order, Pixels, decode, kept
from coe.board.image_size import pixels_in
from coe.board.picture_file import PictureFile
from coe.errors import ConfigError, ImageError

ImageLike = NDArray[np.uint8] | str | Path | PictureFile | bytes | bytearray | memoryview
"""The forms in which an image may be handed over."""

_ARRAY_BYTES, _DECODER_BYTES = 3, 4
"""The bytes of a pixel in the decoded array, and in Pillow's memory during decoding.

A progressive JPEG takes up to two more (with four inks five): libjpeg holds all frequencies until the last scan.
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """One image for `Inspector.stream`: an array (H, W, 3) uint8 in `order`, an encoded file's bytes, or a path.

    `reference` is a picture of a good part, for a component whose rules say `reference: given`. `within_s` and `board`
    mean the same as for `Inspector.submit`.
    """

    image: ImageLike
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    order: Order = "BGR"
    within_s: float | None = None
    reference: ImageLike | None = None
    board: str = ""

    def check(self) -> None:
        """Raise ConfigError if a name is not a text."""
        for word in ("component", "serial", "refdes", "name", "board"):
            values.text(word, getattr(self, word))


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A source of the pixels of an image, which can be read repeatedly; it holds `held_bytes` while the image waits."""

    image: NDArray[Any] | bytes | PictureFile
    order: Order
    held_bytes: int

    @classmethod
    def of(cls, image: ImageLike, order: Order) -> ImageSource:
        """Take an image over: arrays and buffers are copied now, the file at a path is read when its turn comes.

        Raises TypeError if `image` has none of these forms, ConfigError if `order` is neither "BGR" nor "RGB".
        """
        if order not in ("BGR", "RGB"):
            raise ConfigError(f"order={values.shown(order)} is neither 'BGR' nor 'RGB'")
        if isinstance(image, np.ndarray):
            held = kept(image)
            return cls(held, order, 0 if held is image else held.nbytes)
        if isinstance(image, bytes | bytearray | memoryview):
            encoded = bytes(image)
            return cls(encoded, order, len(encoded))
        if isinstance(image, str | Path):
            return cls(PictureFile(Path(image)), order, 0)
        if isinstance(image, PictureFile):
            return cls(image, order, 0)
        given = "a single number" if isinstance(image, np.generic) else type(image).__name__
        raise TypeError(f"an image is an array (H, W, 3) or (H, W), the bytes of a file or a path, not {given}")

    def decoding_bytes(self) -> int:
        """Return the bytes that decoding needs, by the picture's header; without a readable header, the file's size."""
        if isinstance(self.image, np.ndarray):
            return _ARRAY_BYTES * self.image.shape[0] * self.image.shape[1] if self.image.ndim > 1 else 0
        if isinstance(self.image, bytes):
            read_bytes, pixels = 0, pixels_in(io.BytesIO(self.image))
            size = len(self.image)
        else:
            try:
                with self.image.opened() as (file, size):
                    read_bytes, pixels = size, pixels_in(file)
            except ImageError:  # `decode` will report what is wrong
                return 0
        if pixels is None or pixels > config.MAX_IMAGE_PIXELS:
            return size
        return read_bytes + (_ARRAY_BYTES + _DECODER_BYTES) * pixels

    def pixels(self) -> int:
        """Return how many pixels the picture has by its header; 0 if that does not tell."""
        if isinstance(self.image, np.ndarray):
            return self.image.shape[0] * self.image.shape[1] if self.image.ndim > 1 else 0
        if isinstance(self.image, bytes):
            return _plausible(pixels_in(io.BytesIO(self.image)))
        try:
            with self.image.opened() as (file, _):
                return _plausible(pixels_in(file))
        except ImageError:  # `decode` will report what is wrong
            return 0

    def decode(self) -> Pixels:
        """Return the pixels, (H, W, 3) uint8 RGB, as an array that nobody else sees; raises ImageError."""
        pixels = decode(self.image, order=self.order)
        # An array in RGB comes back as it is; whoever writes into it must not change the picture for the next expert.
        return pixels.copy() if isinstance(self.image, np.ndarray) and np.shares_memory(pixels, self.image) else pixels


def _plausible(pixels: int | None) -> int:
    return 0 if pixels is None or pixels > config.MAX_IMAGE_PIXELS else pixels
