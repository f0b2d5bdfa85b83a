"""A folder that fills: its listings, also while its share does not answer, and pictures that are moved once done."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coe import config
from coe.errors import DamagedImage, ImageError, LateImage
from coe.helpers import regular, system
from coe.helpers.files import TEMPORARY
from coe.helpers.timely import answered, in_time
from coe.pictures.arriving import Sighting
from coe.pictures.folder import EntryKind, FolderEntry, walk
from coe.pictures.formats import Bmp, format_of
from coe.pictures.found_image import printable
from coe.pictures.picture_faults import unwritten
from coe.pictures.picture_file import FileStamp
from coe.pictures.picture_names import unfinished
from coe.pictures.tiff import Tiff

_TAIL_BYTES = 64
"""A file without an end mark whose last bytes are zeros may have been reserved, and be written yet."""
_PIECE_BYTES, _LEAST_BYTES = 512, 16
"""Files are written in multiples of so many bytes; the rest at the end counts as a tail from so many bytes on: there
are zeros at the end of many whole files, as that of a TIFF's directory and that of a row of a BMP."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a folder by name, the POSIX path in it as `printable`, and so the entries that are no files."""

    files: Mapping[str, Sighting] = field(default_factory=dict)
    odd: Mapping[str, FolderEntry] = field(default_factory=dict)

    @property
    def uploads(self) -> list[str]:
        """The names of uploads that are under way, or were left behind."""
        return [name for name, seen in self.files.items() if seen.unfinished]


class WatchedFolder:
    """A folder that is listed again and again; what is done is moved into `done`, if that is given."""

    def __init__(self, path: Path, done: Path | None = None) -> None:
        self.path, self.done = path, done
        self._inside: dict[str, Path] = {}
        self._late: LateImage | None = None

    def look(self) -> Listing | None:
        """Return what lies in the folder now; None if it cannot be listed, or does not answer in time."""
        if self._late is not None and not self._late.is_back():
            return None
        self._late = None
        try:
            return in_time(self._look)
        except LateImage as error:
            self._late = error
        except (OSError, ImageError):
            pass
        return None

    def _look(self) -> Listing:
        files: dict[str, Sighting] = {}
        odd: dict[str, FolderEntry] = {}
        for entry in walk(self.path, hidden=True):
            answered()
            inside = entry.path.relative_to(self.path)
            if entry.kind is EntryKind.FILE:
                with suppress(FileNotFoundError):
                    status = entry.path.stat()
                    under_way = bool(unfinished(inside.name)) or any(part.startswith(".") for part in inside.parts)
                    stamp = FileStamp.of(status)
                    files[self._name(inside)] = Sighting(stamp, status.st_ino, under_way)
            elif entry.kind in (EntryKind.SPECIAL, EntryKind.UNREADABLE):
                odd[self._name(inside)] = entry
        return Listing(files, odd)

    def _name(self, inside: Path) -> str:
        name = printable(inside.as_posix())
        if name != str(inside):
            self._inside[name] = inside
        return name

    def file(self, name: str) -> Path:
        """Return the path of a file of the folder by its name."""
        return self.path / self._inside.get(name, name)

    def stamp(self, name: str) -> FileStamp | None:
        """Return the stamp of a file as it is now; None if it is not to be seen."""
        try:
            status = in_time(self.file(name).stat)
        except (OSError, ImageError):
            return None
        return FileStamp.of(status)

    def check_end(self, name: str) -> None:
        """Raise DamagedImage if a file has no end mark and ends in zeros: nobody can tell whether it is written.

        Such are BMP and TIFF; `config.black_ends` allows them. A file that cannot be read passes: its reader says why.
        Raises LateImage.
        """
        if config.black_ends():
            return

        def ends() -> tuple[bytes, bytes]:
            with regular.opened(self.file(name)) as number:
                size = os.fstat(number).st_size
                rest = size % _PIECE_BYTES
                tail = rest if _LEAST_BYTES <= rest < _TAIL_BYTES else _TAIL_BYTES
                start, end = regular.read_at(number, 8, 0), regular.read_at(number, tail, max(0, size - tail))
                form = format_of(start)
                if not end.strip(b"\0") and form in (Bmp, Tiff):
                    os.lseek(number, 0, os.SEEK_SET)
                    end = _end_of_pixels(form, b"".join(regular.chunks(number)), tail)
                return start, end

        try:
            start, end = in_time(ends)
        except LateImage:
            raise
        except (OSError, ImageError):
            return
        if start and not start.strip(b"\0"):
            raise DamagedImage("begins with zeros, as a file that was reserved and is not written yet")
        if format_of(start) in (Bmp, Tiff) and not end.strip(b"\0"):
            raise unwritten()

    def place(self, name: str) -> Path:
        """Return where a picture lies that may have been moved."""
        path = self.file(name)
        if self.done is not None and not os.path.lexists(path):
            return self.done / self._inside.get(name, name)
        return path

    def is_put_away(self, name: str, stamp: FileStamp) -> bool:
        """Return whether a picture with this stamp lies in the folder for what is done; raises OSError."""
        assert self.done is not None
        place = self.done / self._inside.get(name, name)
        return place.exists() and FileStamp.of(place.stat()) == stamp

    def put_away(self, name: str, stamp: FileStamp) -> bool:
        """Move a picture that is done and still has this stamp into the folder for that; return whether it was moved.

        An earlier picture of the name stays there, as `name~1`. A move to another disk is a copy, which is on that disk
        before the picture goes. Raises OSError; then the picture lies where it lay.
        """
        if self.done is None or self.stamp(name) != stamp:
            return False
        source, target = self.file(name), self.done / self._inside.get(name, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and FileStamp.of(target.stat()) != stamp:
            system.replace(target, _free(target))
        try:
            os.replace(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            part = target.with_name(f".{target.name}{TEMPORARY}")
            shutil.copy2(source, part)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            if self.stamp(name) != stamp:
                part.unlink()
                return False
            system.replace(part, target)
            system.save_names(target.parent)
            source.unlink()
            return True
        if FileStamp.of(target.stat()) == stamp:
            return True
        if not os.path.lexists(source):  # it was replaced by another picture just before the move
            os.replace(target, source)
        return False


def _free(path: Path) -> Path:
    """Return a name for an earlier picture of a name, as R1~1.png."""
    number = 1
    while (other := path.with_name(f"{path.stem}~{number}{path.suffix}")).exists():
        number += 1
    return other


def _end_of_pixels(form: type[Bmp] | type[Tiff], data: bytes, tail: int) -> bytes:
    """Return the last bytes of the pixels in a file, behind which its block may be filled; b"" if nobody can tell."""
    try:
        end = min(form(data).pixels_end, len(data))
    except Exception:  # for bytes that are not written yet, Pillow raises nearly anything
        return b""
    return data[max(0, end - tail) : end]
