"""Images in memory: arrays, those of other libraries (Pillow, torch, `__array__`, DLPack), and samples of 16 bits."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.ImageFile import ImageFile

from coe import config
from coe.errors import ConfigError, ImageError
from coe.pictures.exif import known, orientation, upright
from coe.pictures.picture_faults import invisible

Order = Literal["RGB", "BGR"]
DecodedImage = NDArray[np.uint8]
"""A picture as (H, W, 3) uint8 RGB."""
Samples = NDArray[np.uint16]
LEAST, ALL = config.MIN_SAMPLE_BITS, config.MAX_SAMPLE_BITS
AS_FILLED = 0
"""Asks for as many bits as the samples fill, where a picture is not judged, but shown or measured with."""
_LEAST_TOP = 1 << 14
"""16-bit samples that are all smaller are taken for those of a camera of fewer bits."""
LEAST_ALPHA = 13
"""A picture that is nowhere more opaque (a twentieth) shows nothing but the white behind it."""
_BAND_PIXELS = 1 << 18
_QUICK_BYTES = 1 << 19
"""Up to this size a copy takes less time (some 20 us) than waiting for the interpreter's lock again on a busy line."""
_ENCODED = ("JPEG", "MPO", "PNG", "BMP", "TIFF")
"""The formats of Pillow whose files `decode` reads itself, with proofs that Pillow lacks."""
_AS_ARRAYS = ("__dlpack__", "__array__", "__array_interface__")
RAW_FRAME = "np.frombuffer(frame, np.uint8).reshape(height, width), with 3 behind them for colours"
"""How the bytes of a camera without a header become an array."""
_COLOURED = 3
"""An array with this many axes has colours, if its last axis is longer than 1."""


class SupportsArray(Protocol):
    """What numpy can make an array of: a torch tensor in host memory, an image of another library."""

    def __array__(self, dtype: Any = None, /) -> NDArray[Any]: ...


class SupportsDlpack(Protocol):
    """What hands its memory over by DLPack."""

    def __dlpack__(self) -> Any: ...


def encoded(picture: Image.Image | DecodedImage, form: str = "PNG", **options: Any) -> bytes:
    """Return a picture as the bytes of a file in a format of Pillow, which the options are for."""
    file = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(file, form, **options)
    return file.getvalue()


def taken_from(image: object, order: Order | None) -> NDArray[Any] | bytes | None:
    """Return an image of another library as an array, not copied yet, or as the bytes of a file; None if it is none.

    Without `order`, the colours of the array are in RGB, as those of a Pillow image. If that was opened and not loaded
    yet, its file counts, so that a damaged picture is found; else its EXIF orientation is applied, as for a file.
    Anything else that numpy makes an array of, such as a torch tensor or a memoryview, does not say its order: raises
    ConfigError if it has colours and `order` is None, or if a Pillow image is given as BGR. Raises TypeError if it
    cannot become an array.
    """
    if isinstance(image, Image.Image):
        if order == "BGR":
            raise ConfigError("a Pillow image has its colours in the order RGB; leave `order` out")
        return _file_of(image) or _pixels_of(image)
    is_array = isinstance(image, memoryview) or any(hasattr(image, name) for name in _AS_ARRAYS)
    if isinstance(image, np.generic) or not is_array:
        return None
    name = f"{type(image).__module__.partition('.')[0]}.{type(image).__name__}"
    try:
        array: NDArray[Any] = np.from_dlpack(image) if hasattr(image, "__dlpack__") else np.asarray(image)
    except Exception as error:  # another library's code
        raise TypeError(
            f"a {name} cannot become a numpy array ({error}); pass an array (H, W, 3) or (H, W) uint8 in the "
            "memory of the host, as `tensor.detach().cpu().numpy()`"
        ) from error
    if order is None and array.ndim == _COLOURED and array.shape[-1] > 1:
        raise ConfigError(f"a {name} does not state the order of its colours; give order='RGB' or order='BGR'")
    return array


def _file_of(image: Image.Image) -> bytes | None:
    """Return the file of an image that Pillow has opened and not decoded yet; None if there is none."""
    # Pillow fills what a damaged JPEG lacks with grey. Raises TypeError if `decode` does not read this format.
    if not isinstance(image, ImageFile) or not image.tile or image.fp is None or image.fp.closed or image.tell():
        return None
    if image.format not in _ENCODED:
        raise TypeError(f"the Pillow image of a {image.format} file is not loaded yet; call its `load()` first")
    image.fp.seek(0)
    return image.fp.read()


def _pixels_of(image: Image.Image) -> NDArray[Any]:
    """Return the pixels of a loaded image, turned as its EXIF block says; raises TypeError for other pixels."""
    if isinstance(image, ImageFile) and image.tile and (image.fp is None or image.fp.closed):
        raise TypeError("a Pillow image was not loaded before its file was closed; call its `load()` first")
    turn = known(orientation(image.info))
    if turn == 1:  # Pillow knows what was set in memory as well
        image = ImageOps.exif_transpose(image)
    if image.mode in ("1", "P", "PA", "LA") or (image.mode in ("L", "RGB") and image.has_transparency_data):
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if image.mode in ("L", "RGB", "RGBA") or image.mode.startswith("I;16"):
        return upright(np.asarray(image), turn)
    way = "convert it first: image.convert('RGB')"
    if image.mode in ("I", "F"):  # Pillow would cut off what is above 255
        way = "give its values as an array of uint8, or of uint16 with bits="
    raise TypeError(f"a Pillow image of the mode {image.mode} is not supported; {way}")


def copy_of(array: NDArray[Any], bits: int | None = None) -> NDArray[Any]:
    """Return a copy of an array, so that the caller may use it again; the array itself if `decode` will refuse it.

    An array can claim more pixels than there is memory (`np.broadcast_to`), so it is checked before it is copied.
    """
    try:
        check_array(array, bits, config.image_pixels(), config.MIN_IMAGE_SIDE)
    except ImageError:
        return array
    plain = np.asarray(array)
    # The pages of a memmap may lie on a share that does not answer.
    if plain.nbytes > _QUICK_BYTES or isinstance(array, np.memmap) or not plain[0].flags.c_contiguous:
        return np.array(plain)
    # Python copies a buffer without giving the interpreter's lock away; row by row if the array is a part of a frame.
    return np.frombuffer(bytearray(plain.reshape(plain.shape[0], -1)), plain.dtype).reshape(plain.shape)


def check_array(array: NDArray[np.generic], bits: int | None, limit_pixels: int, min_side: int) -> None:
    """Raise ImageError for an array that is no picture of such a size."""
    if isinstance(array, np.ma.MaskedArray):
        raise ImageError("is a masked array, whose hidden pixels cannot be judged; fill them first, with `filled`")
    if array.dtype.newbyteorder("=") == np.uint16 and bits is None:
        raise ImageError(
            "is an array of uint16; state how many of its bits are significant, e.g. bits=12, or give uint8"
        )
    if array.dtype != np.uint8 and array.dtype.newbyteorder("=") != np.uint16:
        raise ImageError(f"is an array of {array.dtype}; give uint8, 0 to 255, or uint16 with bits=")
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"is an array of shape {array.shape}, with the colours first; give (H, W, 3): transpose(1, 2, 0)"
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"is an array of shape {array.shape}; give (H, W, 3), (H, W, 4) or (H, W)")
    check_size(array.shape[1], array.shape[0], limit_pixels, min_side)


def from_array(
    array: NDArray[np.generic],
    order: Order,
    bits: int | None,
    limit_pixels: int | None = None,
    min_side: int = config.MIN_IMAGE_SIDE,
) -> DecodedImage:
    """Return an array as (H, W, 3) uint8 RGB, as `coe.pictures.decoding.decode` does; raises ImageError."""
    check_array(array, bits, config.image_pixels() if limit_pixels is None else limit_pixels, min_side)
    if order not in ("RGB", "BGR"):
        raise ImageError(f"has colours in the order '{order}'; give 'RGB' or 'BGR'")
    # A plain array: subclasses change operators, and a matrix always keeps two axes.
    if array.dtype == np.uint8:
        pixels: DecodedImage = np.asarray(array, np.uint8)
    else:
        samples = np.asarray(array, np.uint16)
        pixels = narrow(samples, counted_bits(lambda: [samples], bits, None, ALL))
    if pixels.ndim == 2:
        return grey_rgb(pixels)
    if pixels.shape[2] == 1:
        return grey_rgb(pixels[..., 0])
    if pixels.shape[2] == 3:
        return np.ascontiguousarray(_swapped(pixels) if order == "BGR" else pixels, np.uint8)
    return over_white(pixels[..., 2::-1] if order == "BGR" else pixels[..., :3], pixels[..., 3:])


def over_white(colours: NDArray[np.uint8], alpha: NDArray[np.uint8], multiplied: bool = False) -> DecodedImage:
    """Return colours (H, W, 3) or (H, W, 1) as RGB over white where alpha (H, W, 1) lets it through.

    `multiplied` says that alpha is multiplied in. Raises ImageError if nothing is visible.
    """
    if alpha.max() < LEAST_ALPHA:
        raise invisible()
    over = np.empty((*colours.shape[:2], 3), np.uint8)
    for top, bottom in bands(*colours.shape[:2]):
        colour, opaque = colours[top:bottom].astype(np.uint16), alpha[top:bottom].astype(np.uint16)
        if multiplied:
            over[top:bottom] = np.minimum(colour + (255 - opaque), 255)
        else:
            over[top:bottom] = (colour * opaque + 255 * (255 - opaque) + 127) // 255
    return over


def ordered(rgb: DecodedImage, order: Order) -> DecodedImage:
    """Return RGB pixels in an order; the array itself if that is RGB."""
    return rgb if order == "RGB" else _swapped(rgb)


def _swapped(pixels: DecodedImage) -> DecodedImage:
    # Commands that decode nothing, such as `--help`, do not import the library: it takes 0.1 s and 28 MiB.
    import cv2

    # Some fifty times as fast as a copy with a negative step. To make the array itself, OpenCV would wait for the
    # interpreter's lock once more, and in the middle of its work.
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB, dst=np.empty(pixels.shape, np.uint8)), np.uint8)


def grey_rgb(grey: NDArray[np.uint8]) -> DecodedImage:
    """Return grey (H, W) as RGB."""
    return np.repeat(grey[..., None], 3, axis=2)


def check_size(width: int, height: int, limit_pixels: int, min_side: int) -> None:
    """Raise ImageError for a picture with too many pixels, or too few."""
    if width * height > limit_pixels:
        raise ImageError(f"declares {width} x {height} pixels, over the limit of {limit_pixels / 1e6:g} megapixels")
    if min(width, height) < min_side:
        raise ImageError(f"has {width} x {height} pixels; at least {min_side} x {min_side} are needed")


def bands(height: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield top and bottom of parts of a picture, in which it is converted: at once there would be several copies."""
    rows = max(1, _BAND_PIXELS // width)
    return ((top, min(top + rows, height)) for top in range(0, height, rows))


# Samples of more than 8 bits become 8. Which of their bits count is asked for, said by the file, or all of them.
# Cameras of 10, 12 and 14 bits use the low bits of 16: with the high byte alone a picture would be nearly black.


@dataclass(frozen=True, slots=True)
class StatedBits:
    """How many bits count by what a file says; `stretched` if its format asks to stretch them to 16."""

    bits: int
    stretched: bool = False


def counted_bits(parts: Callable[[], Iterable[Samples]], asked: int | None, said: StatedBits | None, depth: int) -> int:
    """Return how many low bits count of samples of `depth` bits, which `parts` gives as often as it is called.

    Raises ImageError if a sample has more bits than are asked for or said, or if neither is known and all samples are
    so small that the low bits alone are probably meant.
    """
    top = max(int(part.max()) for part in parts())
    if asked:
        bits = min(depth, asked)
    elif said is not None:
        stretched = said.stretched and (top >> said.bits or _is_stretched(parts(), said.bits))
        bits = depth if stretched else said.bits
    elif depth == ALL and not is_filled(top):
        if asked is None:
            expect_filled(top)
        bits = max(LEAST, top.bit_length())
    else:
        bits = depth
    if top >> bits:
        raise ImageError(
            f"has samples up to {top}, more than {bits} bits hold, as {'set' if asked else 'the file states'}; state "
            "the number of significant low bits, 16 for all (`bits` of the board file, --bits, bits=)"
        )
    return bits


def is_filled(top: int) -> bool:
    """Tell whether 16-bit samples, the largest of which is `top`, are too large for the low bits alone to be meant."""
    return top >= _LEAST_TOP


def expect_filled(top: int) -> None:
    """Raise ImageError if the largest of 16-bit samples is so small that the low bits alone are probably meant."""
    if not is_filled(top):
        raise ImageError(
            f"has 16-bit samples of at most {top}, as written by a camera of {max(10, top.bit_length())} bits, and "
            "would be nearly black; state the significant bits (`bits: 12` in the board file, --bits 12, bits=12), 16 "
            "if the picture is meant to be so dark"
        )


def narrow(samples: Samples, bits: int) -> NDArray[np.uint8]:
    """Return the eight highest of the `bits` bits that count, of samples that have no more."""
    return np.right_shift(samples, bits - LEAST, out=np.empty(samples.shape, np.uint8), casting="unsafe")


def _is_stretched(parts: Iterable[Samples], bits: int) -> bool:
    """Tell whether samples, all below 2 to the power `bits`, are those of a dark picture that was stretched to 16."""
    seen = np.unique(np.concatenate([np.unique(part) for part in parts])).astype(np.int64)
    top, full = (1 << bits) - 1, (1 << ALL) - 1
    shifted = seen >> (ALL - bits) << (ALL - bits)
    stretched = np.rint(np.rint(seen * top / full) * full / top)
    return bool((seen == shifted).all() or (seen == stretched).all())
