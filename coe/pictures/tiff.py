"""TIFF files, which Pillow decodes: what passes here is whole, and of a form that was proved against tifffile.

A TIFF says in a dozen tags what its numbers mean, and Pillow also decodes combinations that it reads wrongly: noise
from 16-bit planes, white from planes of grey and alpha. So the forms that are decoded are listed, all others refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
from dataclasses import dataclass
from functools import cache, partial
from typing import BinaryIO, ClassVar

from PIL import _imaging
from PIL.TiffImagePlugin import TiffImageFile

from coe.pictures.picture_faults import damaged, truncated, unsupported
from coe.pictures.tiff_directory import Directory, numbers_in
from coe.pictures.wide import ALL, LEAST, StatedBits

_SUBFILE, _OLD_SUBFILE, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 254, 255, 256, 257, 258, 259, 262
_FILL_ORDER, _DESCRIPTION, _SAMPLES, _ROWS, _PLANAR, _PREDICTOR, _COLOURS = 266, 270, 277, 278, 284, 317, 320
_TILE_WIDTH, _TILE_HEIGHT, _EXTRA, _FORMAT, _DEPTH = 322, 323, 338, 339, 32997
_TOP, _TURN = 281, 274
"""The largest sample, and the orientation, by the file."""
_STRIPS, _TILES = (273, 279), (324, 325)
"""The tags of offsets and sizes."""
_MEANINGS = (
    *(_SUBFILE, _OLD_SUBFILE, _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER, _SAMPLES, _ROWS),
    *(_PLANAR, _PREDICTOR, _COLOURS, _TILE_WIDTH, _TILE_HEIGHT, _EXTRA, _FORMAT, _DEPTH, _TOP, *_STRIPS, *_TILES),
)
"""The tags on which the meaning of the pixels depends."""

_WHITE_IS_ZERO, _BLACK_IS_ZERO, _RGB, _PALETTE, _CMYK = 0, 1, 2, 3, 5
_RAW, _LZW, _DEFLATE, _OLD_DEFLATE, _PACK_BITS, _LZMA, _ZSTD = 1, 5, 8, 32946, 32773, 34925, 50000
_FAX = (2, 3, 4)
_PREDICTED = (_LZW, _DEFLATE, _OLD_DEFLATE, _LZMA, _ZSTD)
_PROVEN_COMPRESSIONS = (_RAW, _PACK_BITS, *_PREDICTED)
_PROVEN = frozenset(
    {
        *((grey, (bits,), ()) for grey in (_WHITE_IS_ZERO, _BLACK_IS_ZERO) for bits in (1, 2, 4, 8, 16)),
        (_BLACK_IS_ZERO, (12,), ()),
        *((_BLACK_IS_ZERO, (8, 8), (extra,)) for extra in (0, 1, 2)),
        *((_RGB, (bits,) * 3, ()) for bits in (8, 16)),
        *((_RGB, (bits,) * 4, extra) for bits in (8, 16) for extra in ((), (0,), (1,), (2,))),
        *((_PALETTE, (bits,), ()) for bits in (1, 2, 4, 8)),
        *((_CMYK, (bits,) * 4, ()) for bits in (8, 16)),
    }
)
"""Photometric interpretation, bits of each sample, and what extra samples are (0: unsaid, 1: alpha that is multiplied
in, 2: alpha), of pixels whose samples are unsigned and lie together. OpenCV's files with alpha do not name it."""
_PROVEN_PLANAR = frozenset({(_RGB, (8,) * 3, ())})
"""The same, of files in which each sample has a plane of its own."""

_COLOUR_NAMES = {0: "grey", 1: "grey", 2: "RGB", 3: "palette", 4: "mask", 5: "CMYK", 6: "YCbCr", 8: "CIELab"}
_COLOUR_NAMES |= {32803: "raw Bayer", 32844: "LogL", 32845: "LogLuv", 34892: "raw linear"}
_FORMAT_NAMES = {2: "signed ", 3: "floating-point ", 4: "undefined ", 5: "complex signed ", 6: "complex "}
_COMPRESSION_NAMES = {2: "CCITT RLE", 3: "fax group 3", 4: "fax group 4", 6: "old JPEG", 7: "JPEG", 22610: "JPEG XR"}
_COMPRESSION_NAMES |= {33003: "JPEG 2000", 33005: "JPEG 2000", 34712: "JPEG 2000", 34887: "LERC", 34933: "PNG"}
_COMPRESSION_NAMES |= {34934: "JPEG XR", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL"}


@dataclass(frozen=True, slots=True)
class _TiffForm:
    """What a file says of its pixels; `str` gives its name for people."""

    colours: int | None
    bits: tuple[int, ...]
    format: int
    extra: tuple[int, ...]
    is_planar: bool
    compression: int
    predictor: int
    fill_order: int

    @classmethod
    def of(cls, directory: Directory) -> _TiffForm:
        """Read the form from a directory; raises ImageError if it contradicts itself."""
        samples = directory.number(_SAMPLES, 1)
        bits, formats = directory.numbers(_BITS) or (1,), {*directory.numbers(_FORMAT)} or {1}
        if len(bits) == 1:  # some programs write it once for all samples
            bits *= min(samples, 100)
        if len(bits) != samples and directory.number(_COMPRESSION, _RAW) in _PROVEN_COMPRESSIONS:
            raise damaged()  # raw files of cameras do not say the samples of their previews
        return cls(
            directory.number(_PHOTOMETRIC, None),
            bits,
            max(formats),
            directory.numbers(_EXTRA),
            samples > 1 and directory.number(_PLANAR, 1) != 1,
            directory.number(_COMPRESSION, _RAW),
            directory.number(_PREDICTOR, 1),
            directory.number(_FILL_ORDER, 1),
        )

    @property
    def is_proven(self) -> bool:
        """Whether Pillow decodes this form as tifffile does."""
        compressions: tuple[int, ...] = _PROVEN_COMPRESSIONS
        if self.bits in ((1,), (12,)):
            compressions = (*compressions, *_FAX) if self.bits == (1,) else (_RAW, _LZW, _DEFLATE)
        predicted = self.predictor == 2 and self.compression in _PREDICTED and self.bits[0] in (8, 16)
        return (
            (self.colours, self.bits, self.extra) in (_PROVEN_PLANAR if self.is_planar else _PROVEN)
            and self.format == 1
            and self.compression in compressions
            and (self.predictor == 1 or predicted)
            and (self.fill_order == 1 or self.compression in _FAX)
        )

    def __str__(self) -> str:
        kind = "uncoloured" if self.colours is None else _COLOUR_NAMES.get(self.colours, f"colour {self.colours}")
        bits = " and ".join(str(number) for number in sorted(set(self.bits)))
        planar, signed = "planar " if self.is_planar else "", _FORMAT_NAMES.get(self.format, "")
        samples = f"{len(self.bits)} {signed}sample{'s' if len(self.bits) > 1 else ''}"
        article = "an" if kind == "RGB" and not planar else "a"
        said = [f"{article} {planar}{kind} TIFF of {samples} of {bits} bits"]
        if self.compression not in _PROVEN_COMPRESSIONS:
            said.append(f"compressed as {_COMPRESSION_NAMES.get(self.compression, f'scheme {self.compression}')}")
        if self.predictor != 1:
            said.append(f"predicted by scheme {self.predictor}")
        if self.fill_order != 1:
            said.append("its bits in reverse order")
        return ", ".join(said)


class Tiff(TiffImageFile):
    """A TIFF as Pillow opens it: size and mode; no pixel is decoded.

    `depth` is the bits of a sample, `said` how many of them count by the file; `is_inverted` if 0 is white. `turn` is
    the orientation, by which its pixels are not turned. `pixels_end` is the place in the file behind the last pixel.
    """

    signatures: ClassVar = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
    depth = 8
    said: StatedBits | None = None
    is_inverted = is_tiled = False

    def __init__(self, data: bytes) -> None:
        """Raises ImageError, and what Pillow raises."""
        if data.startswith(b"MM\0+"):  # before its directory is read: Pillow does not know this header
            raise unsupported("a big-endian BigTIFF")
        directory = Directory(data, _MEANINGS)
        form = _TiffForm.of(directory)
        if not form.is_proven:
            raise unsupported(str(form))
        if directory.number(_SUBFILE, 0) & 1 or directory.number(_OLD_SUBFILE, 1) == 2:
            raise unsupported("a TIFF that begins with a thumbnail")
        if directory.numbers(_TILE_WIDTH) and not directory.numbers(_TILES[0]) and directory.numbers(_STRIPS[0]):
            raise unsupported("a TIFF whose tiles stand in the tags of strips")
        if directory.number(_DEPTH, 1) != 1:
            raise unsupported("a TIFF of a volume")
        if form.colours == _PALETTE and max(directory.numbers(_COLOURS), default=0) < 256:
            raise unsupported("a palette TIFF whose colours have 8 bits instead of 16")
        offsets, sizes = (directory.numbers(tag) for tag in (_TILES if directory.numbers(_TILES[0]) else _STRIPS))
        self.pixels_end = max(map(sum, zip(offsets, sizes, strict=False)), default=0)
        self._prove = partial(_check_places, directory, form, len(data))
        _silence_libtiff()
        try:
            super().__init__(io.BytesIO(data))
        except SyntaxError as error:
            if "unknown pixel mode" not in str(error):  # known in one byte order alone
                raise
            raise unsupported(str(form)) from error
        if directory.next_pixels() > self.width * self.height:
            raise unsupported("a TIFF whose first page is smaller than the next, as a thumbnail is")
        self.is_tiled = bool(directory.numbers(_TILES[0]))
        self.depth, self.is_inverted = form.bits[0], form.colours == _WHITE_IS_ZERO
        self.turn, self._size = directory.number(_TURN, 1), self._tile_size
        top = max(directory.numbers(_TOP), default=0) or _imagej_top(self.tag_v2.get(_DESCRIPTION))
        bits = top.bit_length()
        # A range from 0 to such a number is how programs say it; any other range was chosen to look well.
        if top == (1 << bits) - 1 and LEAST <= bits < self.depth == ALL:
            self.said = StatedBits(bits)

    @staticmethod
    def pixels_in(file: BinaryIO) -> int | None:
        """Return width x height by the first directory; None without them. Raises struct.error if it is not whole."""
        sides = {_WIDTH: 0, _HEIGHT: 0}
        for entry in numbers_in(file):
            if entry.tag in sides:
                sides[entry.tag] = max(entry.value, sides[entry.tag])
        return sides[_WIDTH] * sides[_HEIGHT] or None

    def give_low_bytes(self) -> None:
        """Let `load` give the low bytes of colours of 16 bits instead of the high ones."""
        swapped = {";16L": ";16B", ";16B": ";16L", ";16N": ";16B" if sys.byteorder == "little" else ";16L"}
        tiles = []
        for tile in self.tile:
            assert isinstance(tile.args, tuple)
            form, *others = tile.args
            tiles.append(tile._replace(args=(form[:-4] + swapped[form[-4:]], *others)))
        self.tile = tiles

    def load_prepare(self) -> None:
        """Prove that the file is whole, and make room for its pixels; raises ImageError.

        The size was checked: of large pictures Pillow would warn by a limit of its own.
        """
        self._prove()
        if self._im is None:
            self.im = _imaging.new(self.mode, self._tile_size)
        super().load_prepare()

    def load_end(self) -> None:
        """Leave the pixels as they lie: to turn them, Pillow reads all of EXIF, and warns of what is damaged there."""


def _imagej_top(description: object) -> int:
    """Return the end of the range that ImageJ shows, if it begins at 0; 0 if it does not, or if there is none."""
    if not isinstance(description, str) or not description.startswith("ImageJ="):
        return 0
    lines = dict(line.split("=", 1) for line in description.splitlines() if "=" in line)
    try:
        least, top = float(lines["min"]), float(lines["max"])
    except (KeyError, ValueError):
        return 0
    return int(top) if least == 0 and 0 < top < 1 << ALL else 0


def _check_places(directory: Directory, form: _TiffForm, file_bytes: int) -> None:
    """Raise ImageError if a strip or tile is missing, lies outside the file, or is shorter than its pixels."""
    width, height = directory.number(_WIDTH, 0), directory.number(_HEIGHT, 0)
    tiled = bool(directory.numbers(_TILES[0]))
    offsets, sizes = (directory.numbers(tag) for tag in (_TILES if tiled else _STRIPS))
    across = directory.number(_TILE_WIDTH, 0) if tiled else width
    down = directory.number(_TILE_HEIGHT, 0) if tiled else min(directory.number(_ROWS, height), height)
    if (tiled and directory.numbers(_STRIPS[0])) or not (width and height and across and down):
        raise damaged()
    planes = len(form.bits) if form.is_planar else 1
    pieces = -(-width // across) * -(-height // down)
    if len(offsets) != planes * pieces or len(sizes) != len(offsets):
        raise damaged()
    row_bytes = -(-across * sum(form.bits) // planes // 8)
    for number, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        if offset + size > file_bytes:
            raise truncated()
        rows = down if tiled else min(down, height - down * (number % pieces))
        if form.compression == _RAW and size < rows * row_bytes:
            raise damaged()


@cache
def _silence_libtiff() -> None:
    """Let the libtiff that Pillow brings write nothing to stderr: what it says of damage is raised as an error."""
    with contextlib.suppress(OSError, AttributeError):  # in some builds its functions cannot be found
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)
