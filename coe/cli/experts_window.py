"""`coe-experts window`: where a marking stands on a part, found in a few pictures of good ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer

from coe.allowed_text import pattern_fault
from coe.cli.common import Exit, counting, out, point_out
from coe.cli.options import AllowKindOption, StoreOption
from coe.errors import ConfigError
from coe.files import replacing, writing
from coe.pictures import finding
from coe.pictures.image_source import ImageSource
from coe.prepare.window_search import FoundWindow, WindowSearch
from coe.store import kinds
from coe.store.kinds import Image
from coe.store.store import Store

_MOST_PICTURES = 12
_SIDE = 240


def window(
    id: Annotated[str, typer.Argument(help="The expert of the store that reads, as readers/marking.")],
    images_at: Annotated[
        Path, typer.Option("--images", help=f"A folder of pictures of good parts; the first {_MOST_PICTURES} count.")
    ],
    text: Annotated[str, typer.Option(help="What stands on these parts.")],
    to: Annotated[Path, typer.Option("--out", help="Where the picture goes that shows the window on each part.")],
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Find the window in which a marking stands, and print it for the board file.

    Look at the picture before you use it. Exit status 1 if no window shows the text in all pictures.

    Example: coe-experts window readers/marking --images photos/R0402-10K --text 103 --out window.png
    """
    if fault := pattern_fault(text):
        raise ConfigError(f"--text: {fault}")
    shelf = Store(store)
    kind = kinds.resolve(shelf.manifest(id).kind, allow_kind or ())
    if not os.path.isdir(images_at):
        raise ConfigError(f"{images_at}: there is no such folder; give --images a folder of pictures of good parts")
    paths = sorted(path for path in images_at.rglob("*") if path.suffix.lower() in finding.EXTENSIONS)
    if not paths:
        raise ConfigError(f"{images_at} holds no pictures")
    images = [np.asarray(ImageSource.of(path).decode(), np.uint8) for path in paths[:_MOST_PICTURES]]
    search = WindowSearch(shelf, id, kind, text)
    with counting("reading") as bar:
        found = search.find(images, bar.track)
    if found is None:
        point_out(
            "not found",
            f"no window shows '{text}' in all of {len(images)} pictures; are they all of this part, the same way up, "
            "and is the text at least 8 pixels high?",
        )
        raise typer.Exit(Exit.NOT_GOOD)
    with writing(to), replacing(to) as file:
        from PIL import Image as pillow

        pillow.fromarray(_sheet(images, found)).save(file, "PNG")
    shares = ", ".join(f"{share:g}" for share in found.window)
    out.print(f"reads: {{window: [{shares}], allowed: [{text!r}]}}", markup=False)
    out.print(f"read in all of {len(images)} pictures with a score of {found.least:.2f} at least; look at {to}")


def _sheet(images: list[Image], found: FoundWindow) -> Image:
    """Return the pictures side by side, (H, W, 3) uint8, each with its window and what is read in it."""

    tiles = []
    for image, one in zip(images, found.findings, strict=True):
        scale = _SIDE / max(image.shape[:2])
        size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
        tile = np.full((_SIDE + 24, _SIDE, 3), 255, np.uint8)
        tile[: size[1], : size[0]] = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else 2)
        left, top, width, height = found.window
        corner = round(left * size[0]), round(top * size[1])
        other = round((left + width) * size[0]), round((top + height) * size[1])
        cv2.rectangle(tile, corner, other, (255, 0, 200), 2)
        cv2.putText(tile, f"{one.read} {one.score:.2f}", (4, _SIDE + 17), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1)
        tiles.append(tile)
    return np.hstack(tiles)
