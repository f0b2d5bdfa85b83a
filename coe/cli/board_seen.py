"""The pictures of whole boards that a first board is made from, and the overlays drawn into them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from coe.errors import ConfigError

if TYPE_CHECKING:
    from coe.pictures.array_images import DecodedImage
    from coe.placement import Layout

MOST_PICTURES = 5
"""So many pictures of boards are looked at."""


def refuse_beside_pixels(units: str | None, outline: Path | None, side: str, images: Path | None) -> None:
    """Raise ConfigError for what means nothing where places are pixels of pictures."""
    if images is None:
        raise ConfigError("--in-pixels needs --images, the pictures whose pixels the placement file means")
    given = [name for name, is_given in (("--outline", outline), ("--side", side != "top")) if is_given]
    if units not in {None, "mm"}:
        given.append(f"--units {units}")
    if given:
        raise ConfigError(f"--in-pixels says where parts lie in the pictures; leave {', '.join(given)} out")


def read_pictures(images: Path) -> dict[Path, DecodedImage]:
    """Return a few pictures of a folder, or one picture, (H, W, 3) uint8 RGB; raises ConfigError."""
    from coe.errors import ImageError
    from coe.pictures.finding import EXTENSIONS
    from coe.pictures.image_source import ImageSource

    if images.is_dir():
        paths = sorted(path for path in images.iterdir() if path.suffix.lower() in EXTENSIONS)[:MOST_PICTURES]
    else:
        paths = [images]
    if not paths:
        raise ConfigError(f"{images} holds no pictures of boards ({' '.join(sorted(EXTENSIONS))})")
    try:
        return {path: ImageSource.of(path, None, None).decode() for path in paths}
    except ImageError as error:
        raise ConfigError(f"{images}: a picture {error}; take it out, or save it again") from None


def overlay_of(pixels: DecodedImage, layout: Layout) -> tuple[bytes, str]:
    """Return the overlay picture of a board as PNG, and how the board lies in it, as words."""
    from PIL import Image

    from coe.placement import locate, overlay

    location = locate(pixels, layout)
    file = BytesIO()
    Image.fromarray(overlay(pixels, layout, location)).save(file, "PNG")
    if layout.recipe.held and location.fit is not None:
        return file.getvalue(), "cut where the recipe says; look at the overlay"
    if location.fit is None:
        return file.getvalue(), f"not registered: {location.why}"
    return file.getvalue(), f"registered, fiducials within {location.residual_um:.0f} um"
