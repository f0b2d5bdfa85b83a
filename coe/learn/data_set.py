"""The labels of a data set: its folders, or the `names` of the YAML of a YOLO data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coe.errors import ConfigError, readable
from coe.helpers import strict_yaml
from coe.helpers.spelling import composed
from coe.pictures import folder
from coe.pictures.formats import EXTENSIONS
from coe.pictures.label_folders import GOOD, TO_CHOOSE, letters

STRANGE = "strange"
"""The one label of a kind that learns from good parts alone."""


def labels(data: Path, *, good_only: bool = False) -> tuple[str, ...]:
    """Return the labels that a data set names, or that of a kind that learns from good parts; raises ConfigError."""
    if not data.is_dir():
        return names(read(data), data)
    with readable(data):
        root = data / "train" if (data / "train").is_dir() else data
        paths = [path for path in sorted(root.iterdir()) if not path.name.startswith(".")]
    if broken := [path for path in paths if path.is_symlink() and not path.exists()]:
        raise ConfigError(f"{broken[0]}: this link is broken; correct it or remove it")
    found = tuple(composed(path.name) for path in paths if path.is_dir())
    return tuple(label for label in found if letters(label) not in GOOD) or (STRANGE,) if good_only and found else found


def read(path: Path) -> Mapping[str, Any]:
    """Read the YAML of a YOLO data set by the rules of a board file; raises ConfigError."""
    if path.suffix.lower() not in (".yaml", ".yml") or not path.is_file():
        raise ConfigError(
            f"{path} is not the YAML of a YOLO data set, such as data.yaml; for an export without one (YOLO 1.1 of "
            "CVAT, Label Studio, LabelImg) write it: `train: FOLDER` of the pictures, and `names: [...]`, the lines of "
            "obj.names or classes.txt"
        )
    entries = strict_yaml.read(path, "data set", "train and names").data
    if not isinstance(entries, dict) or "train" not in entries or "names" not in entries:
        raise ConfigError(f"data set '{path}' needs at least the keys 'train' and 'names'")
    if "kpt_shape" in entries:  # their lines would be read as polygons
        raise ConfigError(f"data set '{path}' has key points ('kpt_shape'), which no kind can learn; export only boxes")
    return entries


def names(data: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """Return the labels of a YOLO data set, in the order of their numbers; raises ConfigError."""
    labels = data["names"]
    if isinstance(labels, dict):
        if sorted(labels) != sorted(map(str, range(len(labels)))):
            raise ConfigError(f"data set '{path}': the keys of 'names' must be the numbers from 0 to {len(labels) - 1}")
        labels = [labels[str(number)] for number in range(len(labels))]
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise ConfigError(f"data set '{path}': 'names' must be a list of labels, or labels by number")
    if (count := str(data.get("nc") or len(labels))) != str(len(labels)):
        raise ConfigError(f"data set '{path}': 'nc' says {count} labels, and 'names' has {len(labels)}")
    return tuple(map(composed, labels))


def root_of(data: Path) -> Path:
    """Return the folder in which the images of a YOLO data set lie, unless a list names others; raises ConfigError."""
    return (data.parent / str(read(data).get("path") or ".")).resolve()


def samples_of(data: Path) -> tuple[list[Path], str]:
    """Return the images of a data set, only the held-out ones if a folder "val" holds them; and in words which."""
    root = data if data.is_dir() else root_of(data)  # it may be another folder than that of the YAML
    files = [entry.path for entry in folder.walk(root) if entry.kind is folder.EntryKind.FILE] if root.is_dir() else []
    places = {path: path.relative_to(root).parts for path in sorted(files) if path.suffix.lower() in EXTENSIONS}
    is_split = any("train" in place for place in places.values())
    names = {*TO_CHOOSE} if is_split else {"val"}  # a label may be called valid
    held = [path for path, place in places.items() if not names.isdisjoint(place)]
    return held or [*places], f"the {'held-out ' if held else ''}pictures of its training"
