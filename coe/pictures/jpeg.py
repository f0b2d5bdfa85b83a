"""JPEG bytes to pixels. A JPEG at which libjpeg warns is refused, because a part is missing or damaged.

libjpeg goes on behind damage: what it cannot read becomes grey, or is shifted, and a warning says so. Pillow and OpenCV
drop that warning, so a picture that lost a piece on its way from the camera would be judged with its grey part.
simplejpeg makes an error of each warning, and is quicker than both. Pixels are the same.

libjpeg also warns of what cameras and programs write wrongly beside the pixels: profiles in the wrong order, versions
that never were, comments that end early. So only the segments on which pixels depend reach a decoder. What is put right
or left out here was seen in pictures of telephones, webcams and scanners; no pixel changes.

A JPEG has no checksum: behind a few wrong bytes its codes fall into step again, and libjpeg may warn of nothing. Of 64
bytes that became zero a quarter to three fifths pass. Only a checksum beside the picture, or PNG, is proof.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import BinaryIO, ClassVar, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL.JpegImagePlugin import JpegImageFile

from coe.errors import ImageError
from coe.pictures.picture_faults import damaged, truncated, unsupported

_CHANNELS = {"RGB": 3, "L": 3, "CMYK": 4}
"""The bytes of a decoded pixel, by Pillow's mode; grey is decoded to RGB."""

_LAST = b"\xff\xd9"
_PADDED = re.compile(rb"\x00\xff++[\xd0-\xd7\xd9]")
_PADDING = re.compile(rb"(?<!\x00)\x00++(?=\xff++[\xd0-\xd7\xd9])")
"""Zeros in front of a mark at which a scan restarts or ends."""
_MOST_RESTARTS = 100_000

_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_READ_FRAMES = {0xC0, 0xC1, 0xC2}
"""Sequential and progressive pictures of Huffman codes. Arithmetic codes that end early decode as if zeros followed."""
_OTHER_FRAMES = {0xC9: "an arithmetic", 0xCA: "an arithmetic"} | dict.fromkeys((0xC3, 0xC7, 0xCB, 0xCF), "a lossless")
_SEQUENTIAL = {0xC0, 0xC1}
_END, _SCAN, _JFIF, _EXIF, _ADOBE, _COMMENT = 0xD9, 0xDA, 0xE0, 0xE1, 0xEE, 0xFE
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_PROGRAMS = {*range(0xE0, 0xF0), _COMMENT}
"""Segments that programs may fill as they like."""
_ALONE = {0x01, *range(0xD0, 0xD9)}
"""Marks that no length follows."""
_NEXT = re.compile(rb"\xff++([^\x00\x01\xd0-\xd7])")
"""A mark behind a scan that is not in the middle of it."""
_FREQUENCIES = 64
_FILL, _MOST_FILL = re.compile(rb"\x00{0,9000}+\xff{1,65535}+"), 1 << 17
"""What may stand in front of a mark, as some programs fill up to whole words; more bytes than that."""
_MISCOUNTED = re.compile(_FILL.pattern + rb"|[^\xff]{1,32}+\xff{1,65535}+")
"""The same behind a segment of a program, the length of which a few telephones and programs state too short."""
_MOST_SEGMENTS = 10_000
"""Real pictures have dozens."""


class Jpeg(JpegImageFile):
    """A JPEG as Pillow opens it: size, mode and EXIF block; no pixel is decoded."""

    signatures: ClassVar = (b"\xff\xd8\xff",)

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what Pillow raises."""
        self.plain = plain(data)
        super().__init__(io.BytesIO(self.plain.data))

    @staticmethod
    def pixels_in(file: BinaryIO) -> int | None:
        """Return the largest size that a frame header states; None if no scan follows. Raises ImageError."""
        pixels: int | None = None
        for segment in _segments(file):
            if segment.mark == _SCAN:
                return pixels
            if segment.mark in _FRAMES and len(segment.data) > 9:
                pixels = max(pixels or 0, _pixels_of(segment.data))
        return None

    def _read_dpi_from_exif(self) -> None:
        """Skip the resolution, which nobody needs: damaged EXIF would warn."""

    def whole_pixels(self) -> NDArray[np.uint8]:
        """Return the pixels as they lie in the file: (H, W, 3) uint8 RGB.

        If `mode` is CMYK, they are (H, W, 4) in the file's own four inks. The size is
        that of the header that Pillow read, so no more memory is taken than was booked. The interpreter lock is free
        while pixels are decoded. Raises ImageError.
        """
        pixels = np.empty((self.height, self.width, _CHANNELS[self.mode]), np.uint8)
        try:
            return self._decoded(self.plain.data, pixels)
        except ValueError as error:
            complaint = error
        # Webcams fill scans up to whole words. Only zeros may go: what else stands there may be a piece of the picture.
        if "extraneous" not in str(complaint) or (unpadded := self.unpadded()) is None:
            raise self._meaning(complaint) from complaint
        try:
            return self._decoded(unpadded, pixels)
        except ValueError as error:
            raise self._meaning(error) from error

    def unpadded(self) -> bytes | None:
        """Return the JPEG without zeros in front of its marks; None if there are none."""
        data, scan_at = self.plain.data, self.plain.scan_at
        end = data.find(_LAST, scan_at) + len(_LAST)
        if _PADDED.search(data, scan_at, end) is None:
            return None
        return data[:scan_at] + _PADDING.sub(_stuffed, data[scan_at:end], count=_MOST_RESTARTS)

    def _decoded(self, data: bytes, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        decoded = simplejpeg.decode_jpeg(data, "CMYK" if self.mode == "CMYK" else "RGB", buffer=pixels)
        if decoded.shape != pixels.shape:
            raise damaged()
        return pixels

    def _meaning(self, error: ValueError) -> ImageError:
        """Return what a complaint of libjpeg means for who sent the picture."""
        complaint = str(error).lower()
        if "premature end of jpeg file" in complaint:
            return truncated()
        if any(words in complaint for words in ("unsupported color", "unsupported jpeg process", "invalid sos")):
            return unsupported("a JPEG of a rare kind")
        # The same complaint stands for all faults of a header.
        if "subsampling" in complaint and not self._is_sampled_as_usual():
            return unsupported("a JPEG whose colours are sampled in rare steps")
        return damaged()

    def _is_sampled_as_usual(self) -> bool:
        """Tell whether simplejpeg knows the steps in which the colours are sampled."""
        steps = [(across, down) for _, across, down, _ in self.layer]
        first, colours, black = steps[0], set(steps[1:3]), steps[3:]
        fine = first in {(2, 1), (1, 2), (2, 2), (4, 1), (1, 4)} and colours == {(1, 1)} and black in ([], [first])
        return fine or len(set(steps)) == 1


def _stuffed(zeros: re.Match[bytes]) -> bytes:
    """Return what stays of zeros: one behind 0xFF, which is a byte of the picture with it."""
    return b"\0" if zeros.string[zeros.start() - 1 : zeros.start()] == b"\xff" else b""


class _Segment(NamedTuple):
    """A part of a header, from its 0xFF on."""

    mark: int
    data: bytes


class PlainJpeg(NamedTuple):
    """A JPEG without needless segments; the pixels of its first scan begin at `scan_at`.

    `pixels` is the largest size that a frame header states, as `Jpeg.pixels_in` returns it.
    """

    data: bytes
    scan_at: int
    pixels: int


def _pixels_of(frame: bytes) -> int:
    return int.from_bytes(frame[5:7]) * int.from_bytes(frame[7:9])


def plain(data: bytes) -> PlainJpeg:
    """Return a JPEG with what its pixels and its orientation need; raises ImageError if its header is not whole."""
    kept: list[bytes | bytearray] = [data[:2]]
    jfif, exif, xmp, adobe, frame, pixels = b"", b"", b"", bytearray(), bytes(10), 0
    file = io.BytesIO(data)
    for segment in _segments(file):
        mark, body = segment.mark, segment.data
        if mark in _FRAMES and len(body) > 9:
            frame, pixels = body, max(pixels, _pixels_of(body))
            _expect_read(mark, body[4])
        if mark == _JFIF and body[4:9] == b"JFIF\0" and len(body) >= 18:
            jfif = jfif or body[:9] + b"\1\1" + body[11:]  # version 1.1: of others libjpeg warns
        elif mark == _EXIF and body[4:10] == b"Exif\0\0":
            exif = exif or body
        elif mark == _EXIF and body[4:].startswith(_XMP):
            xmp = xmp or body
        elif mark == _ADOBE and body[4:9] == b"Adobe" and len(body) >= 16:
            adobe = bytearray(body)
        elif mark == _SCAN:
            if adobe and adobe[15] != 0:
                # How colours are coded: 1 for three, 2 for four inks. libjpeg takes all else for these, and warns.
                adobe[15] = {3: 1, 4: 2}.get(frame[9], adobe[15])
            _expect_all_scans(frame, body, data, file.tell())
            kept += [jfif, exif, xmp, adobe, _scan_of_all(body) if frame[1] in _SEQUENTIAL else body]
            head = b"".join(kept)
            return PlainJpeg(b"".join((head, memoryview(data)[file.tell() :])), len(head), pixels)
        elif mark not in _PROGRAMS:
            kept.append(body)
    raise damaged()


def _expect_read(frame: int, bits: int) -> None:
    """Raise UnsupportedImage for a picture of another kind, or of other than 8 bits a sample."""
    if frame == 0xF7:
        raise unsupported("a JPEG-LS picture")
    if frame not in _READ_FRAMES:
        raise unsupported(f"{_OTHER_FRAMES.get(frame, 'a hierarchical')} JPEG")
    if bits != 8:
        raise unsupported(f"a JPEG of {bits} bits")


def _expect_all_scans(frame: bytes, scan: bytes, data: bytes, at: int) -> None:
    """Raise DamagedImage if scans are missing, from the one whose codes begin at a place on: libjpeg warns of none.

    Each frequency of each component must have come down to its last bit. Without the last scans of a progressive
    picture it would be judged blurred; without those of a component, in other colours.
    """
    components = frame[10 : 10 + 3 * frame[9] : 3]
    lacking = {component: bytearray(b"\xff" * _FREQUENCIES) for component in components}
    while True:
        spectrum = 5 + 2 * scan[4]
        first, last, bits = scan[spectrum : spectrum + 3] if frame[1] not in _SEQUENTIAL else (0, _FREQUENCIES - 1, 0)
        for component in scan[5:spectrum:2]:
            if component in lacking and first <= last < _FREQUENCIES:
                lacking[component][first : last + 1] = bytes([bits & 15]) * (last + 1 - first)
        if not any(map(any, lacking.values())):
            return
        found = None
        while found is None or found[1][0] != _SCAN:
            found = _NEXT.search(data, at)
            if found is None:
                return  # libjpeg warns of a missing end
            if found[1][0] == _END:
                raise damaged()
            at = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2]))
        scan = data[found.end() - 2 : at]


def _segments(file: BinaryIO) -> Iterator[_Segment]:
    """Yield the segments up to the header of the first scan, or up to what is none; raises ImageError."""
    file.seek(2)
    fill = _FILL
    for _ in range(_MOST_SEGMENTS):
        mark = _next_mark(file, fill)
        if mark in (None, 0, _END, 0xFF):
            return
        start = bytes((0xFF, mark))
        if mark not in _ALONE:
            length = _whole(file, 2)
            if (size := int.from_bytes(length)) < 2:
                return
            start += length + _whole(file, size - 2)
        yield _Segment(mark, start)
        if mark == _SCAN:
            return
        # A small JPEG in such a segment would be judged in the place of the picture.
        holds_jpeg = b"\xff\xd8" in start or start.endswith(b"\xff")
        fill = _MISCOUNTED if mark in _PROGRAMS and not holds_jpeg else _FILL


def _whole(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise truncated()
    return data


def _next_mark(file: BinaryIO, fill: re.Pattern[bytes]) -> int | None:
    """Read the next mark and what fills up in front of it; None if it is something else. Raises ImageError."""
    ahead = file.read(2)
    if len(ahead) == 2 and ahead[0] == 0xFF != ahead[1]:
        return ahead[1]
    at = file.tell() - len(ahead)
    file.seek(at)
    ahead = file.read(_MOST_FILL)
    filled = fill.match(ahead)
    if filled is None and ahead:
        return None
    end = filled.end() if filled else 0
    if end == len(ahead):
        raise truncated()
    file.seek(at + end + 1)
    return ahead[end]


def _scan_of_all(segment: bytes) -> bytes:
    """Return the header of a scan that holds all frequencies, as scans of this kind do whatever their header says."""
    # Telephones of several makers write 0 for the last one.
    at = 5 + 2 * segment[4] if len(segment) > 4 else 0
    return segment[:at] + b"\0\x3f\0" if len(segment) == at + 3 else segment
