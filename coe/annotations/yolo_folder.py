"""A YOLO data set as a folder: images/, labels/ with a line for each box, and data.yaml."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml

from coe.annotations.marked import MarkedPicture, MarkedSet
from coe.errors import ConfigError
from coe.files import writing
from coe.spelling import composed

DATA = "data.yaml"
_HALF = ".unfinished"


def write(marked: MarkedSet, root: Path, to: Path, *, tick: Callable[[], None] = lambda: None) -> Path:
    """Copy the pictures and write their boxes into the new folder `to`, whole or not at all; return its data.yaml.

    A picture keeps its name, with those of its folders below `root` before it where two pictures have one name. A good
    picture has an empty file of labels. Raises ConfigError if `to` is there, NotWritten if it cannot be written.
    """
    check_new(to)
    names = names_of(marked, root)
    half = to.with_name(to.name + _HALF)
    with writing(half):
        shutil.rmtree(half, ignore_errors=True)  # a kill may have left it
        try:
            (half / "images").mkdir(parents=True)
            (half / "labels").mkdir()
            for picture in marked.pictures:
                name = names[picture.path]
                shutil.copyfile(picture.path, half / "images" / name)
                lines = "".join(_lines(picture, marked.labels))
                (half / "labels" / name).with_suffix(".txt").write_text(lines, encoding="utf-8")
                tick()
            content = {"path": ".", "train": "images", "names": list(marked.labels)}
            (half / DATA).write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")
            os.rename(half, to)
        finally:
            shutil.rmtree(half, ignore_errors=True)
    return to / DATA


def check_new(to: Path) -> None:
    """Raise ConfigError if a folder is there already: what is in it may be edited by hand."""
    if os.path.lexists(to):
        raise ConfigError(f"--to: {to} is there already; name a new folder, or delete it")


def names_of(marked: MarkedSet, root: Path) -> dict[Path, str]:
    """Return the name of each picture in the data set: those without their endings differ, also in upper case."""
    paths = [picture.path for picture in marked.pictures]
    stems = Counter(composed(path.stem).casefold() for path in paths)
    names: dict[Path, str] = {}
    for path in paths:
        is_alone = stems[composed(path.stem).casefold()] == 1
        names[path] = path.name if is_alone else "__".join(path.relative_to(root).parts)
    counts = Counter(composed(Path(name).stem).casefold() for name in names.values())
    if same := [str(path) for path, name in names.items() if counts[composed(Path(name).stem).casefold()] > 1]:
        raise ConfigError(f"these pictures would share a file of labels: {', '.join(same)}; rename all but one")
    return names


def _lines(picture: MarkedPicture, labels: tuple[str, ...]) -> list[str]:
    """Return the lines of a picture: the number of the label, then centre and size as shares of the picture."""
    return [
        f"{labels.index(composed(box.label))} "
        f"{(box.left + box.right) / 2 / picture.width:.6f} {(box.top + box.bottom) / 2 / picture.height:.6f} "
        f"{(box.right - box.left) / picture.width:.6f} {(box.bottom - box.top) / picture.height:.6f}\n"
        for box in picture.boxes
    ]
