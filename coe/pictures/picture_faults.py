"""What can be wrong with the bytes of a picture, in sentences that say what to do."""

from __future__ import annotations

from coe import config
from coe.errors import DamagedImage, ImageError, UnsupportedImage

UNWRITTEN_SHARE = 32
"""An uncompressed picture is not whole if one in so many bytes is zero at its end."""


def truncated() -> DamagedImage:
    """Return the error of a file that ends too early."""
    return DamagedImage("is truncated: the file ends before the picture does; copy it again from the camera")


def damaged() -> DamagedImage:
    """Return the error of a file whose bytes contradict each other."""
    return DamagedImage("is damaged: its bytes do not form a picture; copy it again from the camera")


def unsupported(form: str) -> UnsupportedImage:
    """Return the error of a file that may be whole; `form` names what it is, as "a planar RGB TIFF of 16 bits"."""
    return UnsupportedImage(f"is {form}, which is not supported; save it as PNG with 8 or 16 bits a channel")


def invisible() -> ImageError:
    """Return the error of a picture that is transparent everywhere."""
    return ImageError("is completely transparent; save it without its alpha channel")


def unwritten() -> DamagedImage:
    """Return the error of a file that was reserved and, it seems, not written to its end."""
    return DamagedImage(
        "ends in zeros, like a file that was not written to its end; copy it again, or if it is black "
        f"there, save it as PNG, state its SHA-256, or set {config.BLACK_ENDS_VARIABLE}=1"
    )
