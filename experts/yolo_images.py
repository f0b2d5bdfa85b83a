"""The images of a YOLO data set: folders or lists, relative to its `path`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coe.errors import ConfigError
from experts.labelled_folder import SUFFIXES


def images_of(root: Path, entry: Any, source: Path) -> list[Path]:
    """Return the images of an entry (`train` or `val`) of a data set: a folder, a list file, or several of these.

    Raises ConfigError, which names the data set's file `source`.
    """
    images: list[Path] = []
    for part in entry if isinstance(entry, list) else [entry]:
        place = root / str(part)
        if place.is_dir():
            images += sorted(path for path in place.rglob("*") if path.suffix.lower() in SUFFIXES)
        elif place.is_file():
            try:
                lines = place.read_text(encoding="utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"data set '{source}': '{place}' cannot be read as a list ({error})") from error
            images += [place.parent / line.strip() for line in lines if line.strip()]
        else:
            raise ConfigError(f"data set '{source}': '{place}' is neither a folder nor a list of images")
    return images
