"""An image that was found."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coe.core import Failure
from coe.pictures.picture_file import FileStamp, PictureFile


@dataclass(frozen=True, slots=True)
class FoundImage:
    """One image that was found.

    `name` is its name in the results: its POSIX path relative to the given folder, unique within one `find`. In a name
    from the disk, a byte that is not UTF-8 stands as `\\xNN`, and a backslash is doubled, so that two files never share
    a name. `failure` is set if the image cannot be inspected whatever its pixels are (say, an unknown component);
    `path` may then not exist, or be a folder that cannot be read. `reference` is a picture of a good part, if the table
    names one, and `sha256` the checksum of the file, if it states one. `label` is what the folder of a label in that of
    the component is called (`coe.pictures.photographs`), "" without one.
    """

    path: Path
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    failure: Failure | None = None
    reference: Path | None = None
    sha256: str = ""
    label: str = ""

    @property
    def file(self) -> PictureFile:
        """The file to be read; with a checksum it is read only if that fits."""
        return PictureFile(self.path, self.sha256)

    def stamp(self) -> FileStamp | None:
        """Look by what the file is known now; None if there is none."""
        with suppress(OSError):
            return FileStamp.of(self.path.stat())
        return None

    @property
    def error(self) -> str | None:
        """The sentence that says why it cannot be inspected; None if it can."""
        return self.failure.reason if self.failure is not None else None


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that was left alone: a file that goes with pictures, an empty folder, a second link to a folder.

    `serial` is set for an empty folder that may be a board's: none of its pictures is there.
    """

    path: Path
    reason: str
    serial: str = ""


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key that reads runs of digits as numbers, so that R2 comes before R10; the name itself breaks ties."""
    key = []
    for at, part in enumerate(re.split(r"([0-9]+)", name)):
        digits = part.lstrip("0")
        key.append((0, len(digits), digits) if at % 2 else (1, 0, part))
    return [*key, (1, 0, name)]


def printable(name: str) -> str:
    """Return a file name as valid text, whatever its bytes on the disk are; different names stay different."""
    return os.fsencode(name).replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
