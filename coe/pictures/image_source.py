"""An image as the caller handed it over: its pixels stay those of that moment, even if the buffer changes."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coe import config
from coe.errors import ConfigError, ImageError, UnsupportedImage
from coe.helpers import values
from coe.helpers.timely import in_time
from coe.pictures.array_images import (
    RAW_FRAME,
    DecodedImage,
    Order,
    SupportsArray,
    SupportsDlpack,
    copy_of,
    from_array,
    taken_from,
)
from coe.pictures.decoding import NO_PICTURE, decode
from coe.pictures.formats import format_of, pixels_in
from coe.pictures.picture_file import PictureFile

ImageLike = (
    NDArray[np.uint8]
    | str
    | Path
    | PictureFile
    | bytes
    | bytearray
    | memoryview
    | Image.Image
    | SupportsArray
    | SupportsDlpack
)
"""The forms in which an image may be handed over."""

_COMPARING_BYTES = 20
"""The bytes a pixel that comparing takes beyond what decoding took: both pictures in grey, moved, and centred."""
_ARRAY_BYTES, _DECODER_BYTES = 3, 4
"""The bytes of a pixel in the decoded array, and in Pillow's memory during decoding.

A progressive JPEG takes up to two more (with four inks five): libjpeg holds all frequencies until the last scan.
"""


@dataclass(frozen=True, slots=True)
class Picture:
    """One image for `Inspector.stream`, in the forms that `Inspector.submit` takes.

    `reference` is a picture of a good part, for a component whose rules say `reference: given`. `within_s`, `board` and
    `bits` mean the same as for `Inspector.submit`.

    Example:
        >>> pictures = [Picture("R7.png", "R0402-10K", refdes=refdes) for refdes in ("R7", "R8")]
        >>> with Inspector("demo") as line:
        ...     print(sorted(result.request.refdes for result in line.stream(pictures)))
        ['R7', 'R8']
    """

    image: ImageLike
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    order: Order | None = None
    within_s: float | None = None
    reference: ImageLike | None = None
    board: str = ""
    bits: int | None = None

    def check(self) -> None:
        """Raise ConfigError if a name is not a text, or `bits` no number of bits."""
        for word in ("component", "serial", "refdes", "name", "board"):
            if not isinstance(getattr(self, word), str):
                values.text(word, getattr(self, word))
        if self.bits is not None:
            values.whole("bits", self.bits, least=config.MIN_SAMPLE_BITS, most=config.MAX_SAMPLE_BITS)


@dataclass(frozen=True, slots=True)
class Reference:
    """A good part, `image` (H, W, 3) uint8 RGB, and by how many grey levels good parts vary, `spread` (H, W) uint8.

    `id` is its id in the store, "" for one that came with a picture. `others` are its alternates, good parts of other
    looks, which have none themselves; `place` is that among all of them, from 0.
    """

    image: DecodedImage
    spread: NDArray[np.uint8]
    id: str = ""
    others: tuple[Reference, ...] = ()
    place: int = 0

    @property
    def alternates(self) -> tuple[Reference, ...]:
        """The reference and the others, in the order of the rules."""
        return self, *self.others


@dataclass(frozen=True, slots=True)
class ImageSource:
    """A source of the pixels of an image, which can be read repeatedly; it holds `held_bytes` while the image waits.

    `bits` of its 16-bit samples count (see `decode`). `reference` is the good part that it is compared with, if any.
    """

    image: NDArray[Any] | bytes | PictureFile
    order: Order
    held_bytes: int
    bits: int | None = None
    reference: ReferenceSource | None = None

    @classmethod
    def of(cls, image: ImageLike, order: Order | None = None, bits: int | None = None) -> ImageSource:
        """Take an image over: arrays and buffers are copied now, the file at a path is read when its turn comes.

        Without `order`, the colours of a numpy array are BGR. A file says its order. A uint8 array with one axis, or
        one column, is the bytes of a file (`np.fromfile` and `cv2.imencode` give such arrays).

        Raises TypeError if `image` has none of these forms, ConfigError if `order` is neither "BGR" nor "RGB", or if
        it must be said (see `array_images.taken_from`).
        """
        if order not in (None, "BGR", "RGB"):
            raise ConfigError(f"order={values.shown(order)} is neither 'BGR' nor 'RGB'")
        if isinstance(image, str | Path):
            image = PictureFile(Path(image))
        if isinstance(image, PictureFile):
            return cls(image, "BGR", 0, bits)
        if (
            isinstance(image, np.ndarray)
            and image.dtype == np.uint8
            and image.shape in {(image.size,), (image.size, 1)}
        ):
            image = image.tobytes()
        elif not isinstance(image, np.ndarray | bytes | bytearray) and not _is_row(image):
            taken, order = taken_from(image, order), order or "RGB"
            if taken is None:
                given = "a single number" if isinstance(image, np.generic) else type(image).__name__
                names = [name for name in ("read", "get") if hasattr(image, name) and not isinstance(image, dict)]
                ways = [f"pass what its `{name}()` returns (of a pair, the second)" for name in names]
                if isinstance(image, tuple) and image and isinstance(image[0], bool):
                    ways = ["OpenCV returns a pair: pass the second"]
                elif image is None:
                    ways = ["`cv2.imread` returns it for a file that it cannot read; pass the path"]
                raise TypeError(
                    "an image is an array (H, W, 3) or (H, W), the bytes of a file, a path or a Pillow image, not "
                    f"{given}; {next(iter(ways), 'a frame of bytes is ' + RAW_FRAME)}"
                )
            image = taken
        if isinstance(image, np.ndarray):
            held = copy_of(image, bits)
            return cls(held, order or "BGR", 0 if held is image else held.nbytes, bits)
        encoded = bytes(image)
        return cls(encoded, "BGR", len(encoded), bits)

    def beside(self, reference: ReferenceSource | None) -> ImageSource:
        """Return the source with this reference, unless it brought one."""
        return self if reference is None or self.reference is not None else replace(self, reference=reference)

    def decoding_bytes(self) -> int:
        """Return the bytes that decoding needs, by the picture's header; without a readable header, the file's size.

        Those of decoding the reference, and of comparing, count too.
        """
        return self._own_bytes() + (self.reference.decoding_bytes() if self.reference is not None else 0)

    def _own_bytes(self) -> int:
        size, pixels = self._header()
        if isinstance(self.image, np.ndarray):
            return (1 if self.image.dtype == np.uint8 else 2) * _ARRAY_BYTES * pixels
        if not pixels:
            return size
        # The low bytes of colours are decoded beside the high ones.
        passes = 1 if self.bits in (None, config.MAX_SAMPLE_BITS) else 2
        read_bytes = 0 if isinstance(self.image, bytes) else size
        return read_bytes + (_ARRAY_BYTES + passes * _DECODER_BYTES) * pixels

    def pixels(self) -> int:
        """Return how many pixels the picture has by its header; 0 if that does not tell."""
        return self._header()[1]

    def _header(self) -> tuple[int, int]:
        """Return the size of the file in bytes, and the pixels by its header; 0 for what is not known."""
        if isinstance(self.image, np.ndarray):
            return 0, self.image.shape[0] * self.image.shape[1] if self.image.ndim > 1 else 0
        if isinstance(self.image, bytes):
            size, pixels = len(self.image), pixels_in(io.BytesIO(self.image))
        else:
            try:
                size, pixels = in_time(self.image.header)
            except ImageError:  # `decode` will report what is wrong
                return 0, 0
        return size, 0 if pixels is None or pixels > config.image_pixels() else pixels

    def decode(self) -> DecodedImage:
        """Return the pixels, (H, W, 3) uint8 RGB, as an array that nobody else sees; raises ImageError."""
        if not isinstance(self.image, np.ndarray):
            if isinstance(self.image, bytes) and self.image and format_of(self.image[:8]) is None:
                raise UnsupportedImage(f"{NO_PICTURE}; in Python, a frame of bytes is {RAW_FRAME}")
            return decode(self.image, bits=self.bits)
        pixels = from_array(self.image, self.order, self.bits)
        # An array in RGB comes back as it is; whoever writes into it must not change the picture for the next expert.
        return pixels.copy() if pixels is self.image or pixels.base is not None else pixels


def _is_row(image: object) -> TypeGuard[memoryview]:
    """Tell whether a buffer is a row or a column of bytes, as those of a file; others are arrays."""
    return isinstance(image, memoryview) and max(image.shape or (0,)) == image.nbytes


@dataclass(frozen=True, slots=True)
class ReferenceSource:
    """A source of a good part's pixels, and of their spread if several good parts are known.

    `id` is that of `Reference`. `others` are its alternates: good parts of other looks, which have none themselves.
    """

    image: ImageSource
    spread: ImageSource | None = None
    id: str = ""
    others: tuple[ReferenceSource, ...] = ()

    @property
    def held_bytes(self) -> int:
        """The bytes that it holds while its image waits, with its alternates."""
        own = self.image.held_bytes + (self.spread.held_bytes if self.spread else 0)
        return own + sum(other.held_bytes for other in self.others)

    def decoding_bytes(self) -> int:
        """Return the bytes that decoding and comparing need, with its alternates."""
        decoding = self.image.decoding_bytes() + (self.spread.decoding_bytes() if self.spread else 0)
        own = decoding + _COMPARING_BYTES * self.image.pixels()
        return own + sum(other.decoding_bytes() for other in self.others)

    def decode(self) -> Reference:
        """Return the reference with its alternates; raises ImageError, which says that the reference is meant."""
        try:
            image = self.image.decode()
            spread = np.zeros(image.shape[:2], np.uint8) if self.spread is None else self.spread.decode()[:, :, 0]
        except ImageError as error:
            raise type(error)(f"the reference {error}") from error
        others = tuple(replace(other.decode(), place=place) for place, other in enumerate(self.others, 1))
        return Reference(image, spread, self.id, others)
