"""Images of other libraries (Pillow, torch, whatever has `__array__` or DLPack) as arrays or the bytes of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile

from coe.errors import ConfigError

_ENCODED = ("JPEG", "MPO", "PNG", "BMP", "TIFF")
"""The formats of Pillow whose files `decode` reads itself, with proofs that Pillow lacks."""
_COLOURED = 3
"""An array with this many axes has colours, if its last axis is longer than 1."""


class SupportsArray(Protocol):
    """What numpy can make an array of: a torch tensor in host memory, an image of another library."""

    def __array__(self, dtype: Any = None, /) -> NDArray[Any]: ...


class SupportsDlpack(Protocol):
    """What hands its memory over by DLPack."""

    def __dlpack__(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """The pixels of an image in `order`, not copied yet; or the bytes of its file, which say their order."""

    image: NDArray[Any] | bytes
    order: Literal["RGB", "BGR"]


def frame_of(image: object, order: Literal["RGB", "BGR"] | None) -> Frame | None:
    """Return an image of another library as a frame; None if it is none.

    A Pillow image has its colours in RGB. If it was opened and not loaded yet, its file counts, so that a damaged
    picture is found; else its EXIF orientation is applied, as for a file. Anything else with `__dlpack__` or
    `__array__`, such as a torch tensor, does not say its order: raises ConfigError if it has colours and `order` is
    None, or if a Pillow image is given as BGR. Raises TypeError if it cannot become an array.
    """
    if isinstance(image, Image.Image):
        if order == "BGR":
            raise ConfigError("a Pillow image has its colours in the order RGB; leave `order` out")
        return Frame(_file_of(image) or _pixels_of(image), "RGB")
    if isinstance(image, np.generic) or not (hasattr(image, "__dlpack__") or hasattr(image, "__array__")):
        return None
    name = f"{type(image).__module__.partition('.')[0]}.{type(image).__name__}"
    try:
        array: NDArray[Any] = np.from_dlpack(image) if hasattr(image, "__dlpack__") else np.asarray(image)
    except Exception as error:  # another library's code
        raise TypeError(
            f"a {name} cannot become a numpy array ({error}); hand in an array (H, W, 3) or (H, W) uint8 in the "
            "memory of the host, as `tensor.detach().cpu().numpy()`"
        ) from error
    if order is None and array.ndim == _COLOURED and array.shape[-1] > 1:
        raise ConfigError(f"a {name} does not say the order of its colours; give order='RGB' or order='BGR'")
    return Frame(array, order or "RGB")


def _file_of(image: Image.Image) -> bytes | None:
    """Return the file of an image that Pillow has opened and not decoded yet; None if there is none.

    Pillow fills what a damaged JPEG lacks with grey. Raises TypeError if `decode` does not read this format.
    """
    if not isinstance(image, ImageFile) or not image.tile or image.fp is None or image.fp.closed or image.tell():
        return None
    if image.format not in _ENCODED:
        raise TypeError(f"the Pillow image of a {image.format} file is not loaded yet; call its `load()` first")
    image.fp.seek(0)
    return image.fp.read()


def _pixels_of(image: Image.Image) -> NDArray[Any]:
    """Return the pixels of a loaded image, turned as its EXIF block says; raises TypeError for other pixels."""
    from PIL import ImageOps

    if isinstance(image, ImageFile) and image.tile and (image.fp is None or image.fp.closed):
        raise TypeError("a Pillow image was not loaded before its file was closed; call its `load()` first")
    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("L", "RGB") and not turned.has_transparency_data:
        return np.asarray(turned)
    if turned.mode == "RGBA" or turned.mode.startswith("I;16"):
        return np.asarray(turned)
    if turned.mode in ("1", "L", "P", "PA", "LA", "RGB"):
        return np.asarray(turned.convert("RGBA" if turned.has_transparency_data else "RGB"))
    raise TypeError(f"a Pillow image of the mode {image.mode} is not taken; convert it first: image.convert('RGB')")
