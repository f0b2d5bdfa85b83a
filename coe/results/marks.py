"""What a person says of pictures of a run: `marks.jsonl`, a line for each word; the last word on a picture counts.

The report of a run, an export of the station and `coe-experts learn --mark` write it, and `learn` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from coe.errors import ConfigError, first_line
from coe.helpers import regular
from coe.helpers.files import write_atomically
from coe.helpers.strict_model import StrictModel

MARKS = "marks.jsonl"
_MOST_BYTES = 1 << 28


class PictureMark(StrictModel):
    """A word on a picture: a label, or good or bad; "" takes an earlier word back.

    `image` is its name in the results, or its path beside the file. `expert` says whose label it is, "" where
    `component` and the rules tell that. `by` and `at` are who said it, and when.
    """

    image: str
    label: str
    component: str = ""
    expert: str = ""
    by: str = ""
    at: str = ""


def read(folder: Path) -> list[PictureMark]:
    """Return the last word on each picture, in the order of the first; none without a file.

    Raises ConfigError for a line that is none; a last line without its end, as a kill leaves it, is passed over.
    """
    path = folder / MARKS
    try:
        *lines, _ = regular.read(path, _MOST_BYTES).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from error
    marks: dict[tuple[str, str], PictureMark] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                mark = PictureMark.model_validate(json.loads(line))
            except (ValueError, ValidationError, RecursionError) as error:
                raise ConfigError(f"{path}:{number}: not a mark ({first_line(error)}); correct or remove it") from error
            marks[mark.image, mark.expert] = mark
    return [mark for mark in marks.values() if mark.label]


def write(folder: Path, marks: Iterable[PictureMark]) -> None:
    """Write the file as a whole; raises DiskFull, NotWritten."""
    write_atomically(folder / MARKS, (mark.model_dump_json(exclude_defaults=True) + "\n" for mark in marks))


def add(folder: Path, mark: PictureMark) -> None:
    """Add a word, which counts from now on; raises ConfigError, DiskFull, NotWritten."""
    kept = [one for one in read(folder) if (one.image, one.expert) != (mark.image, mark.expert)]
    write(folder, [*kept, *([mark] if mark.label else [])])
