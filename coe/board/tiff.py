"""Proof that a TIFF file is whole, before Pillow decodes it. Law: Pillow reads what passes here without a warning."""

from __future__ import annotations

import io
import itertools
import struct
from typing import ClassVar

from PIL import TiffTags
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from coe.board.image_size import MOST_MARKS
from coe.board.picture_faults import DAMAGED, TRUNCATED, UNSUPPORTED
from coe.errors import ImageError

_COMPRESSION, _JPEGS = 259, {6, 7}
"""The tag of the compression, and its values for JPEGs inside."""
_PLACES = ((273, 279), (324, 325))
"""The tags of offsets and sizes: of strips, and of tiles."""


def open_tiff(data: bytes) -> ImageFile:
    """Return the picture with its size and mode; no pixel is kept. Raises ImageError, and what Pillow raises."""
    directory = _Directory(data)
    if max(directory.numbers(277), default=1) > 6:  # samples a pixel; Pillow would log an error
        raise ImageError(UNSUPPORTED)
    if _JPEGS & {*directory.numbers(_COMPRESSION)}:
        # libtiff goes on behind damage to them, and behind strips that hold fewer rows than they should.
        raise ImageError(UNSUPPORTED)
    for offsets, sizes in _PLACES:
        for offset, size in zip(directory.numbers(offsets), directory.numbers(sizes), strict=False):
            if offset + size > len(data):
                raise ImageError(TRUNCATED)
    return TiffImageFile(io.BytesIO(data))


def orientation(exif: bytes) -> int:
    """Return the orientation that an EXIF block states, 1 if it states none that can be read.

    Nothing else of the block is read: it may be damaged, and the picture is whole.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (first,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, first)
        for at in range(first + 2, first + 2 + 12 * entries, 12):
            tag, kind, count = struct.unpack_from(order + "HHI", exif, at)
            if tag == 274 and kind in (3, 4) and count == 1:
                return int(struct.unpack_from(order + ("H" if kind == 3 else "I"), exif, at + 8)[0])
    except struct.error:
        pass
    return 1


class _Directory:
    """The first directory of a file; raises ImageError where Pillow would warn and go on."""

    _SIZES: ClassVar = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
    _NUMBERS: ClassVar = {1: "B", 3: "H", 4: "I", 13: "I", 16: "Q"}
    _MUST_BE_NUMBERS: ClassVar = {_COMPRESSION, *itertools.chain(*_PLACES)}

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._order = "<" if data[:1] == b"I" else ">"
        self._big = 43 in data[2:4]
        self._tags: dict[int, tuple[int, int, int]] = {}  # tag: type, count, offset of the value
        self._entries = 0
        self._walk(self._unpack("Q", 8) if self._big else self._unpack("I", 4), depth=0)

    def numbers(self, tag: int) -> tuple[int, ...]:
        """Return the values of a tag that holds whole numbers; none if the tag is missing or of another type."""
        kind, count, at = self._tags.get(tag, (0, 0, 0))
        return struct.unpack_from(f"{self._order}{count}{self._NUMBERS[kind]}", self._data, at) if count else ()

    def _walk(self, start: int, depth: int) -> None:
        inline, entry_bytes = (8, 20) if self._big else (4, 12)
        entries = self._unpack("Q" if self._big else "H", start)
        first = start + (8 if self._big else 2)
        if first + entries * entry_bytes + inline > len(self._data):
            raise ImageError(TRUNCATED)
        self._entries += entries
        if self._entries > MOST_MARKS:  # directories may name each other
            raise ImageError(DAMAGED)
        outside = 0
        for at in range(first, first + entries * entry_bytes, entry_bytes):
            tag, kind = self._unpack("H", at), self._unpack("H", at + 2)
            count = self._unpack("Q" if self._big else "I", at + 4)
            size = count * self._SIZES.get(kind, 0)
            value = at + entry_bytes - inline
            if size > inline:
                value = self._unpack("Q" if self._big else "I", value)
                outside += size
                if value + size > len(self._data):
                    raise ImageError(TRUNCATED)
            if outside > len(self._data) or (count > 1 and kind not in (1, 2, 7) and TiffTags.lookup(tag).length == 1):
                raise ImageError(DAMAGED)
            if depth == 0 and tag in self._MUST_BE_NUMBERS and kind not in self._NUMBERS:
                raise ImageError(DAMAGED)
            if depth == 0 and kind in self._NUMBERS and tag not in self._tags:
                self._tags[tag] = (kind, count, value)
            if tag in TiffTags.TAGS_V2_GROUPS and kind in self._NUMBERS and size and depth < 3:
                self._walk(self._unpack(self._NUMBERS[kind], value), depth + 1)

    def _unpack(self, code: str, at: int) -> int:
        try:
            return int(struct.unpack_from(self._order + code, self._data, at)[0])
        except struct.error as error:
            raise ImageError(TRUNCATED) from error
