"""What the pixels of a JPEG depend on. Law: no other bytes of its header reach a decoder.

Cameras and programs write much else, some of it wrongly: profiles in the wrong order, versions that never were,
comments that end early. libjpeg warns of that as it warns of damage, so it must not see it. What is put right or left
out here was seen in pictures of telephones, webcams and scanners; no pixel changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from coe.pictures.image_size import MOST_MARKS
from coe.pictures.picture_faults import damaged, truncated, unsupported

_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_READ_FRAMES = {0xC0, 0xC1, 0xC2, 0xC9, 0xCA}
"""Sequential and progressive pictures; the codes are Huffman's or arithmetic."""
_SEQUENTIAL = {0xC0, 0xC1, 0xC9}
_END, _SCAN, _JFIF, _EXIF, _ADOBE, _COMMENT = 0xD9, 0xDA, 0xE0, 0xE1, 0xEE, 0xFE
_PROGRAMS = {*range(0xE0, 0xF0), _COMMENT}
"""Segments that programs may fill as they like."""
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""Marks that no length follows."""
_FILL = re.compile(rb"\x00{0,65535}+\xff{1,65535}+")
"""What may stand in front of a mark: some programs fill up to whole words."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a header, from its 0xFF on; what follows begins at `end`."""

    mark: int
    data: bytes
    end: int


@dataclass(frozen=True, slots=True)
class PlainJpeg:
    """A JPEG without needless segments; the pixels of its first scan begin at `scan_at`."""

    data: bytes
    scan_at: int


def plain(data: bytes) -> PlainJpeg:
    """Return a JPEG with what its pixels and its orientation need; raises ImageError if its header is not whole."""
    kept: list[bytes | bytearray] = [data[:2]]
    jfif, exif, adobe, frame, inks = b"", b"", bytearray(), 0, 0
    for segment in _segments(data):
        mark, body = segment.mark, segment.data
        if mark in _FRAMES and len(body) > 9:
            frame, inks = mark, body[9]
            _expect_read(mark, body[4])
        if mark == _JFIF and body[4:9] == b"JFIF\0" and len(body) >= 18:
            jfif = jfif or body[:9] + b"\1\1" + body[11:]  # version 1.1: of others libjpeg warns
        elif mark == _EXIF and body[4:10] == b"Exif\0\0":
            exif = exif or body
        elif mark == _ADOBE and body[4:9] == b"Adobe" and len(body) >= 16:
            adobe = bytearray(body)
        elif mark == _SCAN:
            if adobe and adobe[15] != 0:
                # How colours are coded: 1 for three, 2 for four inks. libjpeg takes all else for these, and warns.
                adobe[15] = {3: 1, 4: 2}.get(inks, adobe[15])
            kept += [jfif, exif, adobe, _scan_of_all(body) if frame in _SEQUENTIAL else body]
            head = b"".join(kept)
            return PlainJpeg(b"".join((head, memoryview(data)[segment.end :])), len(head))
        elif mark not in _PROGRAMS:
            kept.append(body)
    raise damaged()


def _expect_read(frame: int, bits: int) -> None:
    """Raise UnsupportedImage for a picture of another kind, or of other than 8 bits a sample."""
    if frame == 0xF7:
        raise unsupported("a JPEG-LS picture")
    if frame not in _READ_FRAMES:
        raise unsupported("a lossless JPEG" if frame in (0xC3, 0xC7, 0xCB, 0xCF) else "a hierarchical JPEG")
    if bits != 8:
        raise unsupported(f"a JPEG of {bits} bits")


def _segments(data: bytes) -> Iterator[_Segment]:
    """Yield the segments up to the header of the first scan, or up to what is none."""
    at = 2
    try:
        for _ in range(MOST_MARKS):
            filled = _FILL.match(data, at)
            if filled is None and at < len(data):
                return
            start = filled.end() if filled is not None else at
            mark, at = data[start], start + 1
            if mark in (0, _END, 0xFF):
                return
            if mark not in _ALONE:
                length = int.from_bytes((data[at], data[at + 1]))
                if length < 2:
                    return
                at += length
                if at > len(data):
                    raise truncated()
            yield _Segment(mark, b"\xff" + data[start:at], at)
            if mark == _SCAN:
                return
    except IndexError as error:
        raise truncated() from error


def _scan_of_all(segment: bytes) -> bytes:
    """Return the header of a scan that holds all frequencies, as scans of this kind do whatever their header says.

    Telephones of several makers write 0 for the last one.
    """
    at = 5 + 2 * segment[4] if len(segment) > 4 else 0
    return segment[:at] + b"\0\x3f\0" if len(segment) == at + 3 else segment
