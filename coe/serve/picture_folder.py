"""The folder of pictures. A picture has its name only once it is whole and on the disk; we generate all names.

A name that a client gives never becomes part of a path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from coe.helpers import system

INCOMING = "incoming"  # pictures that are being received; what a crash left there is removed at the start
PARTS = 256  # folders divide the pictures, by the first two characters of their names


class Pictures:
    """The folder of pictures; several threads may use it at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._incoming = folder / INCOMING
        self._made: set[Path] = set()
        self._making = threading.Lock()
        self._is_prepared = False

    def prepare(self) -> None:
        """Make the folder, write its name to the disk, and remove what was left half received; raises OSError."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        for folder in (self.folder, self.folder.parent):
            system.save_names(folder)
        for left in self._incoming.iterdir():
            left.unlink()
        self._is_prepared = True

    def prove(self) -> None:
        """Write and remove a file where pictures come in; raises OSError if no picture can be received now."""
        if not self._is_prepared:
            self.prepare()
        path = self._incoming / "proof"
        path.write_bytes(b".")
        path.unlink()

    def receive(self) -> Receiving:
        """Return a picture to be received; nothing of it is on the disk yet."""
        return Receiving(self._incoming / secrets.token_hex(16), self)

    def folder_of(self, name: str) -> Path:
        """Return the folder for a picture of this name; its own name is on the disk. Raises OSError."""
        folder = self.folder / name[:2]
        with self._making:
            if folder not in self._made:
                folder.mkdir(exist_ok=True)
                system.save_names(self.folder)
                self._made.add(folder)
        return folder

    def path(self, file: str) -> Path:
        """Return the path of a picture by the name that `Receiving.keep` gave it."""
        return self.folder / file

    def remove(self, files: Iterable[str]) -> None:
        """Remove pictures; one that is gone already is no error. Raises OSError."""
        for file in files:
            self.path(file).unlink(missing_ok=True)

    def older_than(self, moment_s: float, part: int) -> list[str]:
        """Return the pictures of a part, 0 to PARTS - 1, written before a time of the wall clock; raises OSError."""
        folder = f"{part:02x}"
        try:
            with os.scandir(self.folder / folder) as files:
                return [f"{folder}/{file.name}" for file in files if file.stat().st_mtime < moment_s]
        except FileNotFoundError:
            return []


class Receiving:
    """A picture that is being received. One thread at a time; another may drop it."""

    def __init__(self, path: Path, pictures: Pictures) -> None:
        self._path, self._pictures = path, pictures
        self._digest = hashlib.sha256()
        self.size_bytes = 0
        self._file: BinaryIO | None = None
        self._busy = threading.Lock()
        self.is_kept = False

    def write(self, part: bytes) -> None:
        """Append bytes; raises OSError."""
        with self._busy:
            if self._file is None:
                self._file = self._path.open("xb")
            self._file.write(part)
            self._digest.update(part)
            self.size_bytes += len(part)

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes so far."""
        return self._digest.hexdigest()

    def opened(self) -> BinaryIO:
        """Return the bytes so far as a file to read; raises OSError."""
        assert self._file is not None, "nothing was written"
        self._file.flush()
        return self._path.open("rb")

    def keep(self) -> str:
        """Write the picture and its name to the disk, and return its generated name; raises OSError."""
        assert self._file is not None, "nothing was written"
        name = self._path.name
        folder = self._pictures.folder_of(name)
        with self._busy:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._path.rename(folder / name)
            system.save_names(folder)
            self.is_kept = True
        return f"{name[:2]}/{name}"

    def drop(self) -> None:
        """Forget the picture, unless it was kept."""
        with self._busy:
            if self._file is None or self.is_kept:
                return
            with suppress(OSError):
                self._file.close()
            self._path.unlink(missing_ok=True)
