"""Bytes to pixels: for any bytes the result is either the whole picture or an `ImageError`.

Pillow decodes, except for JPEGs. The classes of `coe.pictures.formats` refuse what it cannot read, or reads wrongly;
`wide` says which bits of wide samples count.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coe import config
from coe.errors import DamagedImage, ImageError, UnsupportedImage
from coe.helpers.timely import in_time
from coe.pictures.array_images import (
    ALL,
    LEAST_ALPHA,
    DecodedImage,
    Order,
    Samples,
    bands,
    check_size,
    counted_bits,
    expect_filled,
    from_array,
    grey_rgb,
    is_filled,
    narrow,
)
from coe.pictures.exif import ACROSS, AS_IT_LIES, known, orientation, upright
from coe.pictures.formats import Bmp, Png, format_of, pixels_in
from coe.pictures.jpeg import Jpeg
from coe.pictures.picture_faults import damaged, invisible, truncated, unsupported, unwritten
from coe.pictures.picture_file import PictureFile
from coe.pictures.tiff import Tiff

NO_PICTURE = "is not a JPEG, PNG, BMP or TIFF picture, whatever its name says; save it as PNG"


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
    bits alone is refused; with `AS_FILLED` as many count as it fills. Samples of 8 bits stay as they are.

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
        return from_array(image, order, bits, limit_pixels, min_side)
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
    form = format_of(data[:8])
    if form is None:
        raise UnsupportedImage(NO_PICTURE)
    picture = form(data)
    check_size(*picture.size, limit_pixels, min_side)
    stated = picture.plain.pixels if isinstance(picture, Jpeg) else pixels_in(io.BytesIO(data))
    if picture.width * picture.height > (stated or 0):
        # The memory was reserved by the size that `pixels_in` read: a larger picture must not be decoded.
        raise damaged()
    if isinstance(picture, Bmp | Tiff) and not written:
        _check_written(data, min(picture.pixels_end, len(data)), picture.tail_bytes)
    if isinstance(picture, Tiff):
        pixels, turn = picture.pixels(bits), known(picture.turn)
        return _to_rgb(Image.fromarray(pixels, "CMYK"), turn) if picture.is_inked else upright(pixels, turn)
    if isinstance(picture, Jpeg):
        pixels, turn = picture.whole_pixels(), known(orientation(picture.info))
        if picture.mode != "CMYK":
            return upright(pixels, turn)
        # Programs store the four inks inverted.
        return _to_rgb(Image.frombuffer("CMYK", picture.size, np.invert(pixels, out=pixels)), turn)
    picture.load()
    turn = known(orientation(picture.info))
    if isinstance(picture, Png) and picture.depth > 8:
        return upright(_from_wide(picture, data, bits), turn)
    return _to_rgb(picture, turn)


def _meaning(complaint: str) -> ImageError:
    """Return what a complaint of Pillow, in lower case, means for who sent the picture."""
    if "truncated" in complaint:
        return truncated()
    if any(word in complaint for word in ("unknown", "unsupported", "cannot handle")):
        return unsupported("a rare form of its format")
    return damaged()


def _to_rgb(picture: Image.Image, turn: int) -> DecodedImage:
    """Return Pillow's pixels as an array, turned. Bands keep memory low: at once there would be several full copies."""
    width, height = picture.size
    pixels = np.empty((width, height, 3) if turn >= ACROSS else (height, width, 3), np.uint8)
    as_it_lies = AS_IT_LIES[turn](pixels)
    visible = 0
    for top, bottom in bands(height, width):
        band = picture if bottom - top == height else picture.crop((0, top, width, bottom))
        opaque, alpha = _opaque(band)
        as_it_lies[top:bottom], visible = np.asarray(opaque), max(visible, alpha)
    if visible < LEAST_ALPHA:
        raise invisible()
    return pixels


def _from_wide(picture: Png, data: bytes, asked: int | None) -> DecodedImage:
    """Return the pixels of a picture whose samples have 12 or 16 bits, as they lie in the file."""
    if picture.mode.startswith("I;16"):
        grey = np.asarray(picture)
        return grey_rgb(narrow(grey, counted_bits(lambda: [grey], asked, picture.said, picture.depth)))
    tops = [np.asarray(picture.getchannel(band)).max() for band in picture.getbands() if band not in "Aa"]
    top = int(max(tops)) << 8 | 0xFF  # Pillow gives the high bytes of colours
    if asked == ALL or (not asked and picture.said is None and (asked is None or is_filled(top))):
        if asked is None:
            expect_filled(top)
        return _to_rgb(picture, 1)
    if picture.mode != "RGB":
        raise unsupported("a picture with alpha and fewer than 16 significant bits")
    with Png(data) as again:
        again.give_low_bytes()
        again.load()
        width, height = picture.size

        def parts() -> Iterator[Samples]:
            for top, bottom in bands(height, width):
                high, low = (np.asarray(bytes_.crop((0, top, width, bottom))) for bytes_ in (picture, again))
                yield high.astype(np.uint16) << 8 | low

        bits = counted_bits(parts, asked, picture.said, picture.depth)
        pixels = np.empty((height, width, 3), np.uint8)
        for (top, bottom), samples in zip(bands(height, width), parts(), strict=True):
            pixels[top:bottom] = narrow(samples, bits)
    return pixels


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


def _check_written(data: bytes, end: int, tail: int) -> None:
    """Refuse an uncompressed picture whose pixels end in zeros: programs reserve a file, and then write into it."""
    # Behind the pixels lies another page, or what fills a block of the disk.
    if data.count(0, end - tail, end) == tail > 0:
        raise unwritten()
