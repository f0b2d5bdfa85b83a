"""Which pictures an expert learned from, as digests: so that nobody measures it with these, not even by mistake.

Of each picture two digests are kept, of the bytes of its file and of its decoded pixels: a copy under another name is
found by either, a copy saved again without loss by the second. A copy that lost something (a JPEG saved anew, another
size) is another picture here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from coe.errors import StoreError
from coe.helpers import regular
from coe.helpers.files import replacing
from coe.store.manifest import LearnedFile

_MOST_BYTES = 1 << 30
_TYPE = np.dtype("<u8")


@dataclass(frozen=True, slots=True)
class PictureDigests:
    """The xxh3-64 of a picture's file, and of its pixels with their shape."""

    file: int
    pixels: int

    @classmethod
    def of(cls, content: bytes, pixels: NDArray[np.uint8]) -> PictureDigests:
        """Return the digests of the content of a file and of its decoded pixels, (H, W, 3) uint8 RGB."""
        return cls(xxhash.xxh3_64_intdigest(content), digest_of(pixels))

    @classmethod
    def of_file(cls, path: Path, pixels: NDArray[np.uint8]) -> PictureDigests:
        """Return the digests of a picture's file and of its decoded pixels; raises OSError."""
        return cls.of(path.read_bytes(), pixels)


def digest_of(pixels: NDArray[np.uint8]) -> int:
    """Return the xxh3-64 of the pixels of a picture, (H, W, 3) uint8, with their shape."""
    seen = xxhash.xxh3_64(repr(pixels.shape).encode())
    seen.update(np.ascontiguousarray(pixels).data)
    return seen.intdigest()


@dataclass(frozen=True, slots=True)
class LearnedPictures:
    """The digests of pictures, (n, 2) uint64, of files and of pixels; each picture once, sorted."""

    digests: NDArray[np.uint64]

    @classmethod
    def of(cls, pictures: Iterable[PictureDigests]) -> LearnedPictures:
        """Return the digests of pictures."""
        rows = [(picture.file, picture.pixels) for picture in pictures]
        return cls(np.unique(np.array(rows, np.uint64).reshape(-1, 2), axis=0))

    def __len__(self) -> int:
        return len(self.digests)

    def __or__(self, other: LearnedPictures) -> LearnedPictures:
        """Return the pictures of both."""
        return LearnedPictures(np.unique(np.concatenate((self.digests, other.digests)), axis=0))

    def holds(self, picture: PictureDigests) -> bool:
        """Tell whether a picture is one of these: the same file, or the same pixels."""
        files, pixels = self.digests[:, 0], self.digests[:, 1]
        return bool((files == np.uint64(picture.file)).any() or (pixels == np.uint64(picture.pixels)).any())


def write(folder: Path, place: str, pictures: LearnedPictures) -> LearnedFile:
    """Write digests into an expert's folder, beside the weights `place`; raises OSError.

    The name follows from the content: a file that a manifest names never changes.
    """
    content = pictures.digests.astype(_TYPE).tobytes()
    digest = xxhash.xxh3_128_hexdigest(content)
    path = folder / f"{place}.learned-{digest[:16]}"
    with replacing(path) as file:
        file.write(content)
    return LearnedFile(file=path.name, pictures=len(pictures), bytes=len(content), digest=digest)


def read(path: Path, stated: LearnedFile, name: str) -> LearnedPictures:
    """Read digests and prove them; raises StoreError if they are damaged, OSError."""
    content = regular.read(path, _MOST_BYTES)
    digest, size = xxhash.xxh3_128_hexdigest(content), 16 * stated.pictures
    if (digest, len(content), stated.bytes) != (stated.digest, size, size):
        raise StoreError(f"{name} is damaged (its size or checksum differs); train or import the expert again")
    return LearnedPictures(np.frombuffer(content, _TYPE).astype(np.uint64).reshape(-1, 2))
