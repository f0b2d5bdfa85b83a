"""The labels of a data set: its folders, or the `names` of the YAML of a YOLO data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coe.board import process_sheet
from coe.errors import ConfigError


def labels(data: Path) -> tuple[str, ...]:
    """Return the labels that a data set names; raises ConfigError."""
    if not data.is_dir():
        return names(read(data), data)
    try:
        root = data / "train" if (data / "train").is_dir() else data
        found = sorted(path for path in root.iterdir() if not path.name.startswith("."))
        if broken := [path for path in found if path.is_symlink() and not path.exists()]:
            raise ConfigError(f"{broken[0]}: this link leads nowhere; mend it or remove it")
        return tuple(path.name for path in found if path.is_dir())
    except OSError as error:
        raise ConfigError(f"{data}: cannot be read: {error.strerror or error}") from error


def read(path: Path) -> Mapping[str, Any]:
    """Read the YAML of a YOLO data set as plain words, as a board file is read; raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the YAML of a YOLO data set")
    found = process_sheet.read(path, "data set", "train and names").data
    if not isinstance(found, dict) or "train" not in found or "names" not in found:
        raise ConfigError(f"data set '{path}' needs at least the keys 'train' and 'names'")
    return found


def names(data: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the labels of a YOLO data set, in the order of their numbers; raises ConfigError."""
    given = data["names"]
    if isinstance(given, dict):
        if sorted(given) != sorted(map(str, range(len(given)))):
            raise ConfigError(f"data set '{path}': the keys of 'names' must be the numbers from 0 to {len(given) - 1}")
        given = [given[str(number)] for number in range(len(given))]
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"data set '{path}': 'names' must be a list of labels, or labels by number")
    return tuple(given)
