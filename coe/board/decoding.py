"""Bytes to pixels. Law: for any bytes the result is either the whole picture or an `ImageError`.

Pillow decodes, except for JPEGs. `jpeg`, `png` and `tiff` add the checks that Pillow lacks (cutting and flipping real
files showed them), and this file those for wide pixels. It calls the plugins directly, because `Image.open` guesses
among some forty formats and warns of large pictures through global state.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ImageFile import ImageFile
from PIL.TiffImagePlugin import TiffImageFile

from coe import config
from coe.board.image_size import pixels_in
from coe.board.jpeg import Jpeg
from coe.board.picture_faults import DAMAGED, TRUNCATED, UNSUPPORTED, UNWRITTEN
from coe.board.picture_file import PictureFile
from coe.board.png import open_png
from coe.board.tiff import open_tiff, orientation
from coe.errors import ImageError

Pixels = NDArray[np.uint8]
Order = Literal["RGB", "BGR"]

_BAND_PIXELS = 1 << 18
_UNWRITTEN_SHARE = 32
"""An uncompressed picture is not whole if one in so many bytes is zero at its end."""


def decode(
    image: bytes | str | Path | PictureFile | NDArray[np.generic],
    *,
    order: Order = "BGR",
    limit_pixels: int = config.MAX_IMAGE_PIXELS,
    min_side: int = config.MIN_IMAGE_SIDE,
) -> Pixels:
    """Return the picture as (H, W, 3) uint8 RGB, contiguous.

    `image` is the bytes of a JPEG, PNG, BMP or TIFF file (its content counts, not its extension), the path of such a
    file, a `PictureFile` (which notices a change between two calls), or an array (H, W), (H, W, 1), (H, W, 3) or
    (H, W, 4) of uint8 whose colours are in `order`; an RGB array may be returned as it is, without a copy. Grey becomes
    RGB, 16 bits become 8 (the high byte), alpha is laid over white, an EXIF orientation is applied. Of several pages
    the first counts. Many threads may call this; the interpreter lock is free while pixels are decoded.

    Raises ImageError, one sentence without the image's name, if `image` is not a whole picture with at least `min_side`
    pixels a side and at most `limit_pixels` in all; the size is checked before any pixel is decoded.
    """
    if isinstance(image, np.ndarray):
        _check_array(image, limit_pixels, min_side)
        return _from_array(image, order)
    if isinstance(image, str | Path):
        image = PictureFile(Path(image))
    if isinstance(image, PictureFile):
        data = image.read(8 * limit_pixels + 2**24)  # the largest pixel has 8 bytes
    elif isinstance(image, bytes | bytearray | memoryview):
        data = bytes(image)
    else:
        raise ImageError(f"is a {type(image).__name__}; give a path, the bytes of a file or an array")
    if not data:
        raise ImageError("is empty (0 bytes); copy it again from the camera")
    try:
        return _from_bytes(data, limit_pixels, min_side)
    except ImageError:
        raise
    except EOFError as error:
        raise ImageError(TRUNCATED) from error
    except MemoryError as error:
        raise ImageError("does not fit into memory when decoded") from error
    except Exception as error:  # for hostile bytes, Pillow's plugins raise nearly anything
        raise ImageError(_meaning(str(error).lower())) from error


def _from_bytes(data: bytes, limit_pixels: int, min_side: int) -> Pixels:
    open_ = next((open_ for magics, open_ in _FORMATS if data.startswith(magics)), None)
    if open_ is None:
        raise ImageError("is not a JPEG, PNG, BMP or TIFF picture, whatever its name says")
    with open_(data) as picture:
        if picture.format == "TIFF" and Image.MAX_IMAGE_PIXELS:  # Pillow warns of larger TIFFs while it decodes
            limit_pixels = min(limit_pixels, Image.MAX_IMAGE_PIXELS)
        _check_size(*picture.size, limit_pixels, min_side)
        if picture.width * picture.height > (pixels_in(io.BytesIO(data)) or 0):
            # The memory was reserved by the size that `pixels_in` read: Pillow must not decode a larger picture.
            raise ImageError(DAMAGED)
        if picture.format == "BMP":
            _check_rows(picture, data)
        _check_written(picture, data)
        turn = None if picture.format == "TIFF" else _turn_of(picture.info.get("exif"))  # Pillow turns TIFFs itself
        if isinstance(picture, Jpeg):
            pixels = picture.whole_pixels()
            if picture.mode != "CMYK":
                return _turned(pixels, turn)
            del pixels  # Pillow knows how programs store the four inks
        picture.load()
        return _to_rgb(picture, turn)


def _meaning(complaint: str) -> str:
    """Return what a complaint of Pillow, in lower case, means for who sent the picture."""
    if "truncated" in complaint:
        return TRUNCATED
    return UNSUPPORTED if any(word in complaint for word in ("unknown", "unsupported", "cannot handle")) else DAMAGED


def _to_rgb(picture: ImageFile, turn: Image.Transpose | None) -> Pixels:
    """Return Pillow's pixels as an array, turned. Bands keep memory low: at once there would be several full copies."""
    if picture.mode.startswith("I;16"):
        return _grey(_high_bits(picture if turn is None else picture.transpose(turn), picture))
    if picture.mode in ("I", "F"):
        raise ImageError("has 32-bit pixels, which say nothing of what is black and white; save it with 8 or 16 bits")
    width, height = picture.size
    pixels = np.empty((width, height, 3) if turn in _ACROSS else (height, width, 3), np.uint8)
    as_it_lies = pixels if turn is None else _AS_IT_LIES[turn](pixels)
    for top, bottom in _bands(height, width):
        band = picture if bottom - top == height else picture.crop((0, top, width, bottom))
        as_it_lies[top:bottom] = np.asarray(_opaque(band))
    return pixels


def _turned(pixels: Pixels, turn: Image.Transpose | None) -> Pixels:
    """Return decoded pixels, turned; without a turn the array itself."""
    if turn is None:
        return pixels
    height, width = pixels.shape[:2]
    turned = np.empty((width, height, 3) if turn in _ACROSS else (height, width, 3), np.uint8)
    _AS_IT_LIES[turn](turned)[:] = pixels
    return turned


def _bands(height: int, width: int) -> Iterator[tuple[int, int]]:
    rows = max(1, _BAND_PIXELS // width)
    return ((top, min(top + rows, height)) for top in range(0, height, rows))


def _opaque(picture: Image.Image) -> Image.Image:
    """Return a picture as RGB, over white where it is transparent."""
    if picture.mode in ("La", "RGBa"):  # alpha is multiplied in; Pillow converts these only to the same mode with A
        picture = picture.convert(picture.mode[:-1] + "A")
    if picture.has_transparency_data:
        layers = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", layers.size, "white"), layers)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _high_bits(picture: Image.Image, source: ImageFile) -> Pixels:
    tags = source.tag_v2 if isinstance(source, TiffImageFile) else {}
    bits = 12 if tags.get(258) in (12, (12,)) else 16
    grey = (np.asarray(picture) >> (bits - 8)).astype(np.uint8)
    return 255 - grey if tags.get(262) == 0 else grey  # white is zero: Pillow inverts only 8 bits


def kept(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of an array, so that the caller may use it again; the array itself if `decode` will refuse it.

    An array can claim more pixels than there is memory (`np.broadcast_to`), so it is checked before it is copied.
    """
    try:
        _check_array(array, config.MAX_IMAGE_PIXELS, config.MIN_IMAGE_SIDE)
    except ImageError:
        return array
    return np.array(array, subok=False)


def _check_array(array: NDArray[np.generic], limit_pixels: int, min_side: int) -> None:
    if isinstance(array, np.ma.MaskedArray):
        raise ImageError("is a masked array, whose hidden pixels nobody can judge; fill them first, with `filled`")
    if array.dtype != np.uint8:
        raise ImageError(f"is an array of {array.dtype}; give uint8, 0 to 255")
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"is an array of shape {array.shape}, with the colours first; give (H, W, 3): transpose(1, 2, 0)"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"is an array of shape {array.shape}; give (H, W, 3), (H, W, 4) or (H, W)")
    _check_size(array.shape[1], array.shape[0], limit_pixels, min_side)


def _from_array(array: NDArray[np.generic], order: Order) -> Pixels:
    if order not in ("RGB", "BGR"):
        raise ImageError(f"has colours in the order '{order}'; name 'RGB' or 'BGR'")
    # A plain array: subclasses change operators, and a matrix always keeps two axes.
    pixels: Pixels = np.asarray(array, np.uint8)
    if pixels.ndim == 2:
        return _grey(pixels)
    if pixels.shape[2] == 1:
        return _grey(pixels[..., 0])
    if pixels.shape[2] == 3:
        return np.ascontiguousarray(_swapped(pixels) if order == "BGR" else pixels, np.uint8)
    over_white = np.empty((*pixels.shape[:2], 3), np.uint8)
    in_order = over_white[..., ::-1] if order == "BGR" else over_white
    for top, bottom in _bands(*pixels.shape[:2]):
        alpha = pixels[top:bottom, :, 3:].astype(np.uint16)
        in_order[top:bottom] = (pixels[top:bottom, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return over_white


def ordered(rgb: Pixels, order: Order) -> Pixels:
    """Return RGB pixels in an order; the array itself if that is RGB."""
    return rgb if order == "RGB" else _swapped(rgb)


def _swapped(pixels: Pixels) -> Pixels:
    # Commands that decode nothing, such as `--help`, do not import the library: it takes 0.1 s and 28 MiB.
    import cv2

    # Some fifty times as fast as a copy with a negative step.
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _grey(grey: Pixels) -> Pixels:
    return np.repeat(grey[..., None], 3, axis=2)


def _check_size(width: int, height: int, limit_pixels: int, min_side: int) -> None:
    if width * height > limit_pixels:
        raise ImageError(
            f"says that it has {width} x {height} pixels, over the limit of {limit_pixels / 1e6:g} megapixels"
        )
    if min(width, height) < min_side:
        raise ImageError(f"has {width} x {height} pixels; at least {min_side} x {min_side} are needed")


def _open_bmp(data: bytes) -> ImageFile:
    return BmpImageFile(io.BytesIO(data))


def _check_rows(picture: ImageFile, data: bytes) -> None:
    """Refuse a BMP that lacks the padding of its last row; Pillow would not notice."""
    for tile in picture.tile:
        if tile.codec_name == "raw" and isinstance(tile.args, tuple):
            stride = tile.args[1]
            if tile.offset + stride * picture.height > len(data):
                raise ImageError(TRUNCATED)


def _check_written(picture: ImageFile, data: bytes) -> None:
    """Refuse an uncompressed picture whose file ends in zeros: programs reserve a file first, and then write into it.

    Zeros may be white in a TIFF, or the paper of a drawing, as the first colour of a palette or of two. Then all pixels
    must be zero.
    """
    if picture.format not in ("BMP", "TIFF") or any(tile.codec_name != "raw" for tile in picture.tile):
        return
    paper = picture.mode in ("P", "1") or (isinstance(picture, TiffImageFile) and picture.tag_v2.get(262) == 0)
    first = min((tile.offset for tile in picture.tile), default=0)
    tail = len(data) - first if paper else len(data) // _UNWRITTEN_SHARE
    if data.count(0, len(data) - tail) == tail > 0:
        raise ImageError(UNWRITTEN)


_FORMATS: tuple[tuple[bytes | tuple[bytes, ...], Callable[[bytes], ImageFile]], ...] = (
    (b"\xff\xd8\xff", Jpeg),
    (b"\x89PNG\r\n\x1a\n", open_png),
    (b"BM", _open_bmp),
    ((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), open_tiff),
)


_TURN = Image.Transpose
_ACROSS = (_TURN.TRANSPOSE, _TURN.TRANSVERSE, _TURN.ROTATE_90, _TURN.ROTATE_270)
_TURNS = {
    2: _TURN.FLIP_LEFT_RIGHT,
    3: _TURN.ROTATE_180,
    4: _TURN.FLIP_TOP_BOTTOM,
    5: _TURN.TRANSPOSE,
    6: _TURN.ROTATE_270,
    7: _TURN.TRANSVERSE,
    8: _TURN.ROTATE_90,
}
_AS_IT_LIES: dict[Image.Transpose, Callable[[Pixels], Pixels]] = {
    _TURN.FLIP_LEFT_RIGHT: lambda turned: turned[:, ::-1],
    _TURN.FLIP_TOP_BOTTOM: lambda turned: turned[::-1],
    _TURN.ROTATE_180: lambda turned: turned[::-1, ::-1],
    _TURN.TRANSPOSE: lambda turned: turned.swapaxes(0, 1),
    _TURN.TRANSVERSE: lambda turned: turned[::-1, ::-1].swapaxes(0, 1),
    _TURN.ROTATE_90: lambda turned: np.rot90(turned, -1),
    _TURN.ROTATE_270: np.rot90,
}
"""Views of a turned picture's array in which the picture lies as it does in its file."""


def _turn_of(exif: object) -> Image.Transpose | None:
    return _TURNS.get(orientation(exif.removeprefix(b"Exif\0\0"))) if isinstance(exif, bytes) else None
