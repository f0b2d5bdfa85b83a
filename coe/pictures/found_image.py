"""An image that was found, and the components that names are compared with."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coe.core import Failure
from coe.errors import did_you_mean, list_few
from coe.pictures.arriving import FileStamp
from coe.pictures.label_folders import is_undecided, says_label, words
from coe.pictures.picture_file import PictureFile


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


_MOST_NAMED = 6


class Components:
    """The board's components, and the labels of its experts, which name folders in those of components.

    In the folders of components of `faults`, whatever is not undecided names what is wrong with a part. Each unknown
    word is compared with them once, not once for each image.
    """

    def __init__(self, components: Collection[str], labels: Collection[str] = (), faults: Collection[str] = ()) -> None:
        self._components, self.labels, self._faults = frozenset(components), frozenset(labels), frozenset(faults)
        self._hints: dict[str, str] = {}
        self._folded = {component.casefold(): component for component in sorted(components, reverse=True)}

    def __contains__(self, word: str) -> bool:
        return word in self._components

    def say_label(self, component: str, folders: Sequence[str]) -> bool:
        """Tell whether folders, one in the other in that of a component, have names of labels, and none its own."""
        if not folders or any(name in self for name in folders):
            return False
        if all(says_label(name, self.labels) for name in folders):
            return True
        own = words(folders, self.labels)  # without dates
        return component in self._faults and len(own) == 1 and not is_undecided(own[0])

    def spelt(self, text: str) -> str | None:
        """Return the component that a part of a file name names, ignoring upper and lower case; None if none."""
        return text if text in self._components else self._folded.get(text.strip().casefold())

    def unknown(self, word: str) -> str:
        """Return the sentence about a word that is not a component."""
        known = f", which has {list_few(sorted(self._components), _MOST_NAMED)}"
        return f"'{word}' is not a component of the board{self.hint(word) or known}"

    def hint(self, word: str) -> str:
        """Return a question that names a component much like a word; "" if there is none."""
        if word not in self._hints:
            self._hints[word] = did_you_mean(word, self._components)
        return self._hints[word]


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
