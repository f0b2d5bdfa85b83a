"""Pictures of good parts in a folder."""

from __future__ import annotations

from pathlib import Path

from coe.board.decoding import decode
from coe.errors import ConfigError, ImageError
from coe.store.kinds import Image
from experts.labelled_folder import SUFFIXES


def paths(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its folders, sorted; raises ConfigError if it is none."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: give a folder with images of good parts")
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)


def pixels(path: Path) -> Image:
    """Return a picture, (H, W, 3) uint8 RGB; raises ConfigError if it cannot be read."""
    try:
        return decode(path)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it from the folder of good parts") from error
