"""Earlier versions of an expert or a reference, in the folder `.history` of its own folder: one folder a version.

A version holds its manifest and hard links to its files, so bytes that versions share lie on the disk once. It is made
beside the others and renamed into its place, so it is there whole or not at all. Call what writes only while the folder
of the expert or reference is locked.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from coe import config
from coe.errors import StoreError
from coe.helpers import system
from coe.helpers.files import TEMPORARY

FOLDER = ".history"
M = TypeVar("M")
_LITTLE_FREE = 0.1
"""Under this share of a disk that is free, one earlier version is kept."""


class VersionHistory:
    """The earlier versions of what lies in a folder; `manifest` is the name of its manifest."""

    def __init__(self, folder: Path, manifest: str) -> None:
        self.folder, self._home, self._manifest = folder, folder / FOLDER, manifest

    def versions(self) -> list[int]:
        """Return the numbers of the versions that are kept, ascending; raises OSError."""
        try:
            names = os.listdir(self._home)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def place(self, version: int) -> Path:
        """Return the folder of a version, which need not be there."""
        return self._home / str(version)

    def read(self, version: int, name: str, read: Callable[[Path], M]) -> M:
        """Read the manifest of a version of `name`; raises StoreError if none is kept, and what `read` raises."""
        try:
            return read(self.place(version) / self._manifest)
        except FileNotFoundError:
            kept = ", ".join(map(str, self.versions())) or "none"
            raise StoreError(f"{name} has no stored version {version} (stored: {kept})") from None

    def keep(self, version: int, files: Collection[str], most: int | None = None) -> None:
        """Keep what lies in the folder now, its manifest and these files, as a version; raises OSError.

        Where one of these is no file, nobody could go back to it, so it is not kept.
        Of the versions the newest are kept, `most` at most; None means `config.kept_versions`.
        """
        most = config.kept_versions() if most is None else most
        if most and all(self.folder.joinpath(name).is_file() for name in (*files, self._manifest)):
            self._home.mkdir(exist_ok=True)
            unfinished = self._home / f".{version}{TEMPORARY}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            try:
                for name in (*files, self._manifest):
                    link_or_copy(self.folder / name, unfinished / name)
                system.save_names(unfinished)
                shutil.rmtree(self.place(version), ignore_errors=True)  # of a replacement that did not come to its end
                unfinished.rename(self.place(version))
                system.save_names(self._home)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
        self.thin(most)

    def thin(self, most: int) -> None:
        """Remove all versions but the newest, `most` at most, and what a kill left unfinished; raises OSError."""
        versions = self.versions()
        if most > 1 and versions:
            disk = shutil.disk_usage(self._home)
            most = most if disk.free >= _LITTLE_FREE * disk.total else 1
        for version in versions[: max(0, len(versions) - most)]:
            # The manifest first: what has none is no version.
            (self.place(version) / self._manifest).unlink(missing_ok=True)
            shutil.rmtree(self.place(version), ignore_errors=True)
        if self._home.is_dir():
            for path in self._home.glob(f".*{TEMPORARY}"):
                shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                self._home.rmdir()


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where that is not possible; raises OSError."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy2(source, target)
        with open(target, "rb+") as file:
            os.fsync(file.fileno())


def take(source: Path, target: Path) -> None:
    """Give a file a second name, in the place of any file of that name; raises OSError."""
    if target.exists() and target.samefile(source):
        return
    temporary = target.with_name(f".{target.name}{TEMPORARY}")
    temporary.unlink(missing_ok=True)
    link_or_copy(source, temporary)
    system.replace(temporary, target)
