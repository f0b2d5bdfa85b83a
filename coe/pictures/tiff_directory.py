"""The first directory of a TIFF file, or of an EXIF block, which is written as one."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, ClassVar, TypeVar

from PIL import TiffTags

from coe.errors import ImageError
from coe.pictures.picture_faults import damaged, truncated

T = TypeVar("T")
_MOST_ENTRIES = 10_000
"""Real pictures have dozens."""
_DIRECTORY = 13
_SIDES = (256, 257)
"""The tags of width and height."""
_NUMBERS = {1: "B", 3: "H", 4: "I", _DIRECTORY: "I", 16: "Q"}
"""How `struct` names the types of whole numbers."""
_ALSO_READ = (270, 274, 282, 283, 296, 34675)
"""Further tags that Pillow reads: description, orientation, resolution and profile."""


@dataclass(frozen=True, slots=True)
class TiffNumber:
    """An entry of a directory that holds whole numbers: their type, how many they are, and the first."""

    tag: int
    kind: int
    count: int
    value: int


def numbers_in(file: BinaryIO) -> Iterator[TiffNumber]:
    """Yield the entries that hold whole numbers, not places of directories; raises struct.error where the file ends.

    Whatever else is damaged does not matter. If several numbers do not fit into their entry, `value` is their place.
    """
    file.seek(0)
    start = file.read(4)
    order, is_big = "<" if start[:1] == b"I" else ">", 43 in start[2:]

    def read(form: str) -> tuple[int, ...]:
        return struct.unpack(order + form, file.read(struct.calcsize(order + form)))

    if is_big:
        file.seek(8)
    file.seek(min(*read("Q" if is_big else "I"), 2**62))
    (entries,) = read("Q" if is_big else "H")
    for _ in range(min(entries, _MOST_ENTRIES)):
        tag, kind, count = read("HHQ" if is_big else "HHI")
        value = file.read(8 if is_big else 4)
        form = order + _NUMBERS.get(kind, "")
        if kind in _NUMBERS and kind != _DIRECTORY and len(value) >= struct.calcsize(form):
            yield TiffNumber(tag, kind, count, *struct.unpack_from(form, value))


class Directory:
    """The first directory of a file; raises ImageError where Pillow would warn and go on.

    Pillow reads what passes here without a warning, and reads the same. The tags `must_be_numbers` hold whole numbers,
    and stand there once at most. What other tags hold does not matter.
    """

    _SIZES: ClassVar = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}

    def __init__(self, data: bytes, must_be_numbers: Iterable[int]) -> None:
        self._must_be_numbers = frozenset(must_be_numbers)
        self._data = data
        self._order = "<" if data[:1] == b"I" else ">"
        self._big = 43 in data[2:4]
        self._tags: dict[int, tuple[int, int, int]] = {}  # tag: type, count, offset of the value
        self._next = 0
        self._walk(self._unpack("Q", 8) if self._big else self._unpack("I", 4))

    def numbers(self, tag: int) -> tuple[int, ...]:
        """Return the values of a tag that holds whole numbers; none if the tag is missing or of another type."""
        kind, count, at = self._tags.get(tag, (0, 0, 0))
        return struct.unpack_from(f"{self._order}{count}{_NUMBERS[kind]}", self._data, at) if count else ()

    def number(self, tag: int, default: T) -> int | T:
        """Return the one value of a tag, or the default; the first if there are several."""
        return next(iter(self.numbers(tag)), default)

    def next_pixels(self) -> int:
        """Return how many pixels the second page has; 0 if there is none, or if it cannot be read."""
        inline, entry_bytes = (8, 20) if self._big else (4, 12)
        sides = {}
        try:
            first = self._next + (8 if self._big else 2)
            entries = self._unpack("Q" if self._big else "H", self._next) if self._next else 0
            for at in range(first, first + min(entries, _MOST_ENTRIES) * entry_bytes, entry_bytes):
                if (tag := self._unpack("H", at)) in _SIDES:
                    sides[tag] = self._unpack(_NUMBERS[self._unpack("H", at + 2)], at + entry_bytes - inline)
        except (ImageError, KeyError):
            return 0
        return math.prod(sides.values()) if len(sides) == len(_SIDES) else 0

    def _walk(self, start: int) -> None:
        inline, entry_bytes = (8, 20) if self._big else (4, 12)
        entries = self._unpack("Q" if self._big else "H", start)
        first = start + (8 if self._big else 2)
        if first + entries * entry_bytes + inline > len(self._data):
            raise truncated()
        self._next = self._unpack("Q" if self._big else "I", first + entries * entry_bytes)
        if entries > _MOST_ENTRIES:
            raise damaged()
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
                    raise truncated()
            is_one = TiffTags.lookup(tag).length == 1 and (tag in self._must_be_numbers or tag in _ALSO_READ)
            if outside > len(self._data) or (is_one and count > 1 and kind not in (1, 2, 7)):
                raise damaged()
            if tag in self._must_be_numbers and (kind not in _NUMBERS or tag in self._tags):
                raise damaged()
            if kind in _NUMBERS and tag not in self._tags:
                self._tags[tag] = (kind, count, value)

    def _unpack(self, code: str, at: int) -> int:
        try:
            return int(struct.unpack_from(self._order + code, self._data, at)[0])
        except struct.error as error:
            raise truncated() from error
