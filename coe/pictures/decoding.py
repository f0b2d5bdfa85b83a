"""Bytes to pixels. Law: for any bytes the result is either the whole picture or an `ImageError`.

Pillow decodes, except for JPEGs. `jpeg`, `png`, `bmp` and `tiff` refuse what it cannot read, or reads wrongly, and
`wide` says which bits of wide samples count. The plugins are called directly, because `Image.open` guesses among some
forty formats and warns of large pictures through global state.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile

from coe import config
from coe.errors import DamagedImage, ImageError, UnsupportedImage
from coe.pictures.bmp import Bmp
from coe.pictures.image_size import pixels_in
from coe.pictures.jpeg import Jpeg
from coe.pictures.orientation import ACROSS, AS_IT_LIES, turn_of, turned
from coe.pictures.picture_faults import damaged, invisible, truncated, unsupported, unwritten
from coe.pictures.picture_file import PictureFile
from coe.pictures.png import Png
from coe.pictures.tiff import Tiff
from coe.pictures.wide import ALL, Samples, counted_bits, expect_filled, is_filled, narrowed
from coe.timely import in_time

DecodedImage = NDArray[np.uint8]
Order = Literal["RGB", "BGR"]

_BAND_PIXELS = 1 << 18
_UNWRITTEN_SHARE = 32
"""An uncompressed picture is not whole if one in so many bytes is zero at its end."""
_LEAST_ALPHA = 13
"""A picture that is nowhere more opaque (a twentieth) shows nothing but the white behind it."""


def decode(
    image: bytes | str | Path | PictureFile | NDArray[np.generic],
    *,
    order: Order = "BGR",
    bits: int | None = None,
    limit_pixels: int | None = None,
    min_side: int = config.MIN_IMAGE_SIDE,
) -> DecodedImage:
    """Return the picture as (H, W, 3) uint8 RGB, contiguous.

    `image` is the bytes of a JPEG, PNG, BMP or TIFF file (its content counts, not its extension), the path of such a
    file, a `PictureFile` (which notices a change between two calls), or an array (H, W), (H, W, 1), (H, W, 3) or
    (H, W, 4) of uint8, or with `bits` of uint16, whose colours are in `order`; an RGB array may be returned as it is,
    without a copy. Grey becomes RGB, alpha is laid over white, an EXIF orientation is applied. Of several pages the
    first counts. Many threads may call this; the interpreter lock is free while pixels are decoded.

    `bits` (8 to 16) says how many low bits of 16-bit samples count; their eight highest are kept. Without it, what the
    file says counts (PNG's sBIT, ImageJ's range, TIFF's MaxSampleValue), else all 16, and a picture that fills the low
    bits alone is refused; with `wide.AS_FILLED` as many count as it fills. Samples of 8 bits stay as they are.

    Raises ImageError, one sentence without the image's name, if `image` is not a whole picture with at least `min_side`
    pixels a side and at most `limit_pixels` in all (None: `config.image_pixels()`), or if nothing of it is visible; the
    size is checked before any pixel is decoded. It is an UnsupportedImage for a file that may be whole, in a format or
    a form that is not read, a DamagedImage for one that is not whole, and a LateImage for one that is not read within
    `config.read_timeout_s()`, because its disk or share does not answer. An uncompressed file that ends in
    zeros counts as not whole, unless it has a stated SHA-256 or `config.black_ends()` is set.
    """
    if limit_pixels is None:
        limit_pixels = config.image_pixels()
    if isinstance(image, np.ndarray):
        _check_array(image, bits, limit_pixels, min_side)
        return _from_array(image, order, bits)
    if isinstance(image, str | Path):
        image = PictureFile(Path(image))
    written = config.black_ends()
    if isinstance(image, PictureFile):
        written = written or image.is_stated
        data = in_time(partial(image.read, 8 * limit_pixels + 2**24))  # the largest pixel has 8 bytes
    elif isinstance(image, bytes | bytearray | memoryview):
        data = bytes(image)
    else:
        raise ImageError(f"is a {type(image).__name__}; give a path, the bytes of a file or an array")
    if not data:
        raise DamagedImage("is empty (0 bytes); copy it again from the camera")
    try:
        return _from_bytes(data, bits, limit_pixels, min_side, written)
    except ImageError:
        raise
    except EOFError as error:
        raise truncated() from error
    except MemoryError as error:
        raise ImageError("does not fit into memory when decoded") from error
    except Exception as error:  # for hostile bytes, Pillow's plugins raise nearly anything
        raise _meaning(str(error).lower()) from error


def _from_bytes(data: bytes, bits: int | None, limit_pixels: int, min_side: int, written: bool) -> DecodedImage:
    open_ = next((open_ for magics, open_ in _FORMATS if data.startswith(magics)), None)
    if open_ is None:
        raise UnsupportedImage("is not a JPEG, PNG, BMP or TIFF picture, whatever its name says; save it as PNG")
    with open_(data) as picture:
        _check_size(*picture.size, limit_pixels, min_side)
        if picture.width * picture.height > (pixels_in(io.BytesIO(data)) or 0):
            # The memory was reserved by the size that `pixels_in` read: Pillow must not decode a larger picture.
            raise damaged()
        if not written:
            _check_written(picture, data)
        turn = None if isinstance(picture, Tiff) else turn_of(picture.info.get("exif"))  # Pillow turns TIFFs itself
        if isinstance(picture, Jpeg):
            pixels = picture.whole_pixels()
            if picture.mode != "CMYK":
                return turned(pixels, turn)
            # Programs store the four inks inverted.
            return _to_rgb(Image.frombuffer("CMYK", picture.size, np.invert(pixels, out=pixels)), turn)
        picture.load()
        if isinstance(picture, Png | Tiff) and picture.depth > 8:
            return turned(_from_wide(picture, data, bits), turn)
        return _to_rgb(picture, turn)


def _meaning(complaint: str) -> ImageError:
    """Return what a complaint of Pillow, in lower case, means for who sent the picture."""
    if "truncated" in complaint:
        return truncated()
    if any(word in complaint for word in ("unknown", "unsupported", "cannot handle")):
        return unsupported("a rare form of its format")
    return damaged()


def _to_rgb(picture: Image.Image, turn: Image.Transpose | None) -> DecodedImage:
    """Return Pillow's pixels as an array, turned. Bands keep memory low: at once there would be several full copies."""
    width, height = picture.size
    pixels = np.empty((width, height, 3) if turn in ACROSS else (height, width, 3), np.uint8)
    as_it_lies = pixels if turn is None else AS_IT_LIES[turn](pixels)
    visible = 0
    for top, bottom in _bands(height, width):
        band = picture if bottom - top == height else picture.crop((0, top, width, bottom))
        opaque, alpha = _opaque(band)
        as_it_lies[top:bottom], visible = np.asarray(opaque), max(visible, alpha)
    if visible < _LEAST_ALPHA:
        raise invisible()
    return pixels


def _from_wide(picture: Png | Tiff, data: bytes, asked: int | None) -> DecodedImage:
    """Return the pixels of a picture whose samples have 12 or 16 bits, as they lie in the file."""
    if picture.mode.startswith("I;16"):
        grey = np.asarray(picture)
        bits = counted_bits(lambda: [grey], asked, picture.said, picture.depth)
        return _grey(narrowed(grey, bits) ^ np.uint8(255 if picture.is_inverted else 0))
    tops = [np.asarray(picture.getchannel(band)).max() for band in picture.getbands() if band not in "Aa"]
    # Pillow gives the high bytes of colours. Little ink is bright.
    top = int(max(tops)) << 8 | 0xFF if picture.mode != "CMYK" else (1 << ALL) - 1
    if asked == ALL or (not asked and picture.said is None and (asked is None or is_filled(top))):
        if asked is None:
            expect_filled(top)
        return _to_rgb(picture, None)
    if picture.mode != "RGB":
        raise unsupported("a picture with alpha or of four inks, of which fewer than 16 bits count")
    with type(picture)(data) as again:
        again.give_low_bytes()
        again.load()
        width, height = picture.size

        def parts() -> Iterator[Samples]:
            for top, bottom in _bands(height, width):
                high, low = (np.asarray(bytes_.crop((0, top, width, bottom))) for bytes_ in (picture, again))
                yield high.astype(np.uint16) << 8 | low

        bits = counted_bits(parts, asked, picture.said, picture.depth)
        pixels = np.empty((height, width, 3), np.uint8)
        for (top, bottom), samples in zip(_bands(height, width), parts(), strict=True):
            pixels[top:bottom] = narrowed(samples, bits)
    return pixels


def _bands(height: int, width: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _BAND_PIXELS // width)
    return ((top, min(top + rows, height)) for top in range(0, height, rows))


def _opaque(picture: Image.Image) -> tuple[Image.Image, int]:
    """Return a picture as RGB, over white where it is transparent, and how opaque it is at most, 0 to 255."""
    visible = 255
    if picture.mode in ("La", "RGBa"):  # alpha is multiplied in; Pillow converts these only to the same mode with A
        picture = picture.convert(picture.mode[:-1] + "A")
    if picture.has_transparency_data:
        layers = picture.convert("RGBA")
        visible = int(np.asarray(layers.getchannel("A")).max())
        picture = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return picture if picture.mode == "RGB" else picture.convert("RGB"), visible


def kept(array: NDArray[Any], bits: int | None = None) -> NDArray[Any]:
    """Return a copy of an array, so that the caller may use it again; the array itself if `decode` will refuse it.

    An array can claim more pixels than there is memory (`np.broadcast_to`), so it is checked before it is copied.
    """
    try:
        _check_array(array, bits, config.image_pixels(), config.MIN_IMAGE_SIDE)
    except ImageError:
        return array
    return np.array(array, subok=False)


def _check_array(array: NDArray[np.generic], bits: int | None, limit_pixels: int, min_side: int) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise ImageError("is a masked array, whose hidden pixels nobody can judge; fill them first, with `filled`")
    if array.dtype.newbyteorder("=") == np.uint16 and bits is None:
        raise ImageError("is an array of uint16; say how many of its bits count, as bits=12, or give uint8")
    if array.dtype != np.uint8 and array.dtype.newbyteorder("=") != np.uint16:
        raise ImageError(f"is an array of {array.dtype}; give uint8, 0 to 255, or uint16 with bits=")
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"is an array of shape {array.shape}, with the colours first; give (H, W, 3): transpose(1, 2, 0)"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"is an array of shape {array.shape}; give (H, W, 3), (H, W, 4) or (H, W)")
    _check_size(array.shape[1], array.shape[0], limit_pixels, min_side)


def _from_array(array: NDArray[np.generic], order: Order, bits: int | None) -> DecodedImage:
    if order not in ("RGB", "BGR"):
        raise ImageError(f"has colours in the order '{order}'; name 'RGB' or 'BGR'")
    # A plain array: subclasses change operators, and a matrix always keeps two axes.
    if array.dtype == np.uint8:
        pixels: DecodedImage = np.asarray(array, np.uint8)
    else:
        samples = np.asarray(array, np.uint16)
        pixels = narrowed(samples, counted_bits(lambda: [samples], bits, None, ALL))
    if pixels.ndim == 2:
        return _grey(pixels)
    if pixels.shape[2] == 1:
        return _grey(pixels[..., 0])
    if pixels.shape[2] == 3:
        return np.ascontiguousarray(_swapped(pixels) if order == "BGR" else pixels, np.uint8)
    if pixels[..., 3].max() < _LEAST_ALPHA:
        raise invisible()
    over_white = np.empty((*pixels.shape[:2], 3), np.uint8)
    in_order = over_white[..., ::-1] if order == "BGR" else over_white
    for top, bottom in _bands(*pixels.shape[:2]):
        alpha = pixels[top:bottom, :, 3:].astype(np.uint16)
        in_order[top:bottom] = (pixels[top:bottom, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return over_white


def ordered(rgb: DecodedImage, order: Order) -> DecodedImage:
    """Return RGB pixels in an order; the array itself if that is RGB."""
    return rgb if order == "RGB" else _swapped(rgb)


def _swapped(pixels: DecodedImage) -> DecodedImage:
    # Commands that decode nothing, such as `--help`, do not import the library: it takes 0.1 s and 28 MiB.
    import cv2

    # Some fifty times as fast as a copy with a negative step.
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _grey(grey: DecodedImage) -> DecodedImage:
    return np.repeat(grey[..., None], 3, axis=2)


def _check_size(width: int, height: int, limit_pixels: int, min_side: int) -> None:
    if width * height > limit_pixels:
        raise ImageError(
            f"says that it has {width} x {height} pixels, over the limit of {limit_pixels / 1e6:g} megapixels"
        )
    if min(width, height) < min_side:
        raise ImageError(f"has {width} x {height} pixels; at least {min_side} x {min_side} are needed")


def _check_written(picture: ImageFile, data: bytes) -> None:
    """Refuse an uncompressed picture whose file ends in zeros: programs reserve a file first, and then write into it.

    Zeros may be white in a TIFF, or the paper of a drawing, as the first colour of a palette or of two. Then all pixels
    must be zero. Tiles of a TIFF are filled up with zeros: then all of the last tile must be.
    """
    if not isinstance(picture, Bmp | Tiff) or any(tile.codec_name != "raw" for tile in picture.tile):
        return
    paper = picture.mode in ("P", "1") or (isinstance(picture, Tiff) and picture.is_inverted)
    places = [tile.offset for tile in picture.tile] or [0]
    tail = len(data) - min(places) if paper else len(data) // _UNWRITTEN_SHARE
    if isinstance(picture, Tiff) and picture.is_tiled:
        tail = max(tail, len(data) - max(places))
    if data.count(0, len(data) - tail) == tail > 0:
        raise unwritten()


_FORMATS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[bytes], ImageFile]], ...] = (
    (b"\xff\xd8\xff", Jpeg),
    (b"\x89PNG\r\n\x1a\n", Png),
    (b"BM", Bmp),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), Tiff),
)
