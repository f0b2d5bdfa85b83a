"""TIFF files: tifffile reads the directory and unpacks samples, behind proofs that it lacks.

tifffile reads what it can of a damaged file: it passes over tags that it cannot read, cuts off what is too long, and
fills in what is missing. So no tag on which the pixels depend may be passed over, and each strip and tile must give
exactly its pixels. Raw samples, PackBits, LZW, Zstandard and fax codes have no checksum: damage may pass that changes
values and no lengths.
"""

from __future__ import annotations

import io
import logging
import math
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from coe.pictures.array_images import ALL, LEAST, StatedBits, counted_bits, over_white
from coe.pictures.exif import ORIENTATION, STARTS, Directory, directory_in, orientation
from coe.pictures.picture_faults import UNWRITTEN_SHARE, damaged, truncated, unsupported

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # else what it passes over stands on stderr

_WIDTH, _HEIGHT, _BITS, _PHOTOMETRIC, _TOP, _INKS, _XMP = 256, 257, 258, 262, 281, 332, 700
_STRIPS, _TILES = (273, 279), (324, 325)
"""The tags of offsets and sizes."""
_MEANINGS = frozenset(
    {*(254, 255, _WIDTH, _HEIGHT, _BITS, 259, _PHOTOMETRIC, 266, 277, 278, 284, 317, 320, 322, 323, _INKS)}
    | {*(338, 339, 32997), *_STRIPS, *_TILES}
)
"""The tags on which the pixels depend."""
_SAMPLES = {0: 1, 1: 1, 2: 3, 3: 1, 5: 4}
"""The samples of a pixel by photometric interpretation: white is 0, black is 0, RGB, palette, four inks."""
_WHITE_IS_ZERO, _RGB, _PALETTE, _CMYK = 0, 2, 3, 5
_RAW, _FAX = 1, (2, 3, 4)
_UNNAMED, _MULTIPLIED = (0,), (1,)
"""What a further sample is: of no stated use, or alpha that is multiplied in."""
_MOST_FILL = 1 << 22
"""The pixels that a tile may have more than its picture: no more memory is taken than was booked, and a little."""


class Tiff:
    """A TIFF: its size, and what is said of its pixels; none is decoded.

    `turn` is the orientation. `is_inked` if it has four inks. `pixels_end` is the place in the file behind the last
    pixel; a file whose last `tail_bytes` in front of it are zeros may not be written yet.
    """

    signatures: ClassVar = STARTS

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what tifffile raises."""
        from tifffile import TiffFile  # takes longer than the rest of a command's `--help`

        directory = directory_in(io.BytesIO(data))
        if directory.next is None or sum(entry.bytes for entry in directory.entries) > len(data):
            raise truncated()
        with TiffFile(io.BytesIO(data), is_lsm=False, is_scanimage=False, is_ndpi=False) as file:
            self._data, self._page = data, file.pages.first
            imagej = file.imagej_metadata or {}
        page = self._page
        self._check(directory)
        self.size = self.width, self.height = page.imagewidth, page.imagelength
        if directory.next and _pixels(directory_in(io.BytesIO(data), directory.next)) > self.width * self.height:
            raise unsupported("a TIFF whose first page is smaller than the next, like a thumbnail")
        turn = directory.number(ORIENTATION)
        self.turn = orientation({"xmp": page.tags.valueof(_XMP)}) if turn is None else turn
        self.is_inked = page.photometric == _CMYK
        self.pixels_end = max(map(sum, zip(page.dataoffsets, page.databytecounts, strict=True)))
        # Zeros may be white, or the first colour of a palette: then all pixels must be zero. Tiles are filled up.
        is_paper = page.photometric in (_WHITE_IS_ZERO, _PALETTE) or page.bitspersample == 1
        first, last = min(page.dataoffsets), max(page.dataoffsets) if page.is_tiled else self.pixels_end
        tail = self.pixels_end - (
            first if is_paper else min(last, self.pixels_end - self.pixels_end // UNWRITTEN_SHARE)
        )
        self.tail_bytes = tail if page.compression == _RAW else 0
        self._expanded, self._is_reversed = _EXPANDED.get(page.compression), page.fillorder == 2
        if self._expanded:
            page.compression = page.fillorder = 1  # what `page.decode` gets is expanded, and in order
        top = directory.number(_TOP) or (imagej.get("min") == 0 and imagej.get("max"))
        # A range from 0 to such a number is how programs say it; any other range was chosen to look well.
        is_said = page.bitspersample == ALL and top in [(1 << bits) - 1 for bits in range(LEAST, ALL)]
        self._said = StatedBits(int(top).bit_length()) if top and is_said else None

    @staticmethod
    def pixels_in(file: BinaryIO) -> int | None:
        """Return width x height by the first directory; None without them."""
        return _pixels(directory_in(file)) or None

    def pixels(self, asked: int | None) -> NDArray[np.uint8]:
        """Return the pixels as they lie in the file: (H, W, 3) RGB, or (H, W, 4) if it `is_inked`.

        `asked` says how many low bits count, as `decode` has it. The interpreter lock is free while strips and tiles
        are expanded. Raises ImageError, and what a codec raises.
        """
        page, depth = self._page, self._page.bitspersample
        bits = depth
        if depth > LEAST and not self.is_inked:  # little ink is bright
            bits = min(depth, asked or (self._said.bits if self._said else depth))
        samples, top = self._samples(bits)
        if depth > LEAST and not self.is_inked:
            counted = counted_bits(lambda: [np.array([top], np.uint16)], asked, self._said, depth)
            samples, bits = (samples, bits) if counted == bits else (self._samples(counted)[0], counted)
        colours, further = np.split(samples, [_SAMPLES[page.photometric]], axis=2)
        if page.photometric == _PALETTE:
            return np.asarray((self._palette.T >> 8).astype(np.uint8)[colours[..., 0]])
        if page.photometric == _WHITE_IS_ZERO:
            colours = ~colours
        if further.size and page.extrasamples != _UNNAMED:
            if bits != depth:
                raise unsupported("a picture with alpha and unused bits")
            return over_white(colours, further, page.extrasamples == _MULTIPLIED)
        return np.repeat(colours, 3, axis=2) if colours.shape[2] == 1 else np.ascontiguousarray(colours)

    def _check(self, directory: Directory) -> None:
        """Raise ImageError for pixels of a form that is not read, or that strips and tiles do not add up to."""
        page, tags = self._page, self._page.tags
        every = [entry.tag for entry in directory.entries]
        said = [tag for tag in every if tag in _MEANINGS]
        if len(set(said)) < len(said) or any(tags.valueof(tag) is None for tag in said):
            raise damaged()
        if 0 in every:  # zeros in the place of an entry
            raise damaged()
        bits, samples = page.bitspersample, _SAMPLES.get(page.photometric, 0) if _PHOTOMETRIC in tags else 0
        has_alpha = page.samplesperpixel == samples + 1 and page.photometric not in (_PALETTE, _CMYK)
        is_fax = page.compression in _FAX and (bits, page.samplesperpixel) == (1, 1)
        if (
            not samples
            or not (page.samplesperpixel == samples or (has_alpha and (samples == 3 or len(page.extrasamples) == 1)))
            or bits not in (1, 2, 4, *range(LEAST, ALL + 1))
            or page.sampleformat != 1
            or not (page.compression in _EXPANDED or is_fax)
            or page.predictor not in ((1, 2) if bits in (8, 16) else (1,))
            or tags.valueof(_INKS, default=1) != 1
        ):
            kind = [getattr(said, "name", said) for said in (page.photometric, page.sampleformat, page.compression)]
            raise unsupported(f"a TIFF of {page.samplesperpixel} samples of {bits} bits ({', '.join(map(str, kind))})")
        if page.subfiletype & 1:
            raise unsupported("a TIFF that begins with a thumbnail")
        if page.imagedepth != 1:
            raise unsupported("a TIFF of a volume")
        self._palette = np.asarray(page.colormap)
        if page.photometric == _PALETTE and self._palette.max() < 256:
            raise unsupported("a palette TIFF whose colours have 8 bits instead of 16")
        pieces = math.prod(page.chunked)
        counts = {tags[tag].count for tag in said if tag in (*_STRIPS, *_TILES)}
        if (
            counts != {pieces}
            or len(page.dataoffsets) != len(page.databytecounts)
            or min(page.dataoffsets) < 0
            or min(page.databytecounts) < 0
            or page.tilewidth * page.tilelength > page.imagewidth * page.imagelength + _MOST_FILL
            or (_BITS in tags and tags[_BITS].count not in (1, page.samplesperpixel))
        ):
            raise damaged()

    def _samples(self, bits: int) -> tuple[NDArray[np.uint8], int]:
        """Return the highest eight of so many bits of the samples (H, W, samples), and the largest sample of a colour.

        Indices of a palette stay as they are. Raises ImageError if a strip or tile is not whole.
        """
        from imagecodecs import bitorder_decode

        page, depth, top = self._page, self._page.bitspersample, 0
        planes, _, height, width, together = page.shaped
        down, across = (page.tilelength, page.tilewidth) if page.is_tiled else (page.rowsperstrip, width)
        row_bytes, strips = -(-across * together * depth // 8), -(-height // down)
        samples, data = np.empty((height, width, planes * together), np.uint8), memoryview(self._data)
        for number, (offset, size) in enumerate(zip(page.dataoffsets, page.databytecounts, strict=True)):
            piece: Any = data[offset : offset + size]
            if len(piece) < size:
                raise truncated()
            if self._expanded:
                rows = down if page.is_tiled else min(down, height - number % strips * down)
                try:
                    piece = self._expanded(bitorder_decode(piece) if self._is_reversed else piece, down * row_bytes)
                except (RuntimeError, zlib.error) as error:  # those of imagecodecs are RuntimeErrors
                    raise damaged() from error
                if len(piece) not in (rows * row_bytes, down * row_bytes):  # a last strip may be filled up
                    raise damaged()
                piece = piece[: rows * row_bytes]
            part, (plane, _, start, left, _), _ = page.decode(piece, number)
            place = samples[start : start + down, left : left + across, plane * together : (plane + 1) * together]
            values = np.asarray(part)[0, : place.shape[0], : place.shape[1]]
            if depth > LEAST:
                top = max(top, int(values[..., : _SAMPLES[page.photometric] - plane].max(initial=0)))
                np.right_shift(values, bits - LEAST, out=place, casting="unsafe")
            else:
                times = 1 if page.photometric == _PALETTE else 255 // ((1 << depth) - 1)
                np.multiply(values, np.uint8(times), out=place)
        return samples, top


def _pixels(directory: Directory) -> int:
    return (directory.number(_WIDTH) or 0) * (directory.number(_HEIGHT) or 0)


def _deflated(piece: Any, most: int) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(piece, most + 1)
    if not stream.eof or stream.unused_data.strip(b"\0"):
        raise damaged()
    return plain


def _by(codec: str) -> Callable[[Any, int], Any]:
    """Return how a codec of imagecodecs expands a strip or tile: to one byte too many at most."""

    def expand(piece: Any, most: int) -> bytes:
        import imagecodecs

        return bytes(getattr(imagecodecs, codec)(piece, out=most + 1))

    return expand


_EXPANDED: dict[int, Callable[[Any, int], Any]] = {
    _RAW: lambda piece, most: piece[:most],
    5: _by("lzw_decode"),
    8: _deflated,
    32773: _by("packbits_decode"),
    32946: _deflated,
    34925: _by("lzma_decode"),
    50000: _by("zstd_decode"),
}
"""How a strip or tile becomes raw samples, by its compression: at least one byte too many, if it has too many."""
