"""A folder that fills, as `coe-inspect --watch` and the station see it: which pictures may be judged, and when.

`WatchedFolder` lists the folder, also while its share does not answer, and moves pictures that are done. `Arrivals`
looks at listings, each at a time in seconds; it reads nothing and has no clock. A picture may be judged once size and
time of its file stayed unchanged, or once an upload's temporary name gave way to its own. An incomplete one is tried
again until it is whole; one that is overwritten after its verdict is judged again. `FillingFolder` is both, and knows
since when no picture of a board came.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path, PurePosixPath
from typing import Generic, TypeVar

from coe import config
from coe.errors import DamagedImage, ImageError, LateImage
from coe.helpers import regular, system
from coe.helpers.files import TEMPORARY
from coe.helpers.timely import answered, in_time
from coe.pictures.folder import EntryKind, FolderEntry, walk
from coe.pictures.formats import Bmp, format_of
from coe.pictures.photographs import printable
from coe.pictures.picture_faults import unwritten
from coe.pictures.picture_file import FileStamp
from coe.pictures.picture_names import stem, unfinished
from coe.pictures.tiff import Tiff

GIVE_UP_S = 60.0
"""A picture that stays incomplete for so long gets an error; it is judged all the same once it changes."""
LONGEST_PAUSE_S = 30.0
"""The longest pause between two trials of a torn picture."""


_TAIL_BYTES = 64
"""A file without an end mark whose last bytes are zeros may have been reserved, and be written yet."""
_PIECE_BYTES, _LEAST_BYTES = 512, 16
"""Files are written in multiples of so many bytes; the rest at the end counts as a tail from so many bytes on: there
are zeros at the end of many whole files, as that of a TIFF's directory and that of a row of a BMP."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A file of a listing; `unfinished` says that its name is that of an upload under way."""

    stamp: FileStamp
    inode: int
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a folder by name, the POSIX path in it as `printable`, and so the entries that are no files."""

    files: Mapping[str, Sighting] = field(default_factory=dict)
    odd: Mapping[str, FolderEntry] = field(default_factory=dict)

    @property
    def uploads(self) -> list[str]:
        """The names of uploads that are under way, or were left behind."""
        return [name for name, seen in self.files.items() if seen.unfinished]


class _State(Enum):
    WAITS = auto()
    RUNS = auto()
    TORN = auto()
    DONE = auto()


@dataclass(slots=True)
class _Arriving:
    stamp: FileStamp
    inode: int
    state: _State = _State.WAITS
    still_since: float | None = None
    """When it was first seen as it is now; None if it was out of sight since."""
    renamed: bool = False
    handed: FileStamp | None = None
    torn_since: float | None = None
    pause_s: float = 0.0
    again_at: float = 0.0


class Arrivals:
    """The pictures of a folder by name, its POSIX path in the folder.

    A picture may be judged after it stood still for `settle_s`, in listings that all showed it. One that is torn is
    given up `give_up_s` after the first trial, unless it changes. `done` are pictures that have a verdict already.
    """

    def __init__(self, settle_s: float, give_up_s: float, done: Mapping[str, FileStamp] | None = None) -> None:
        self._settle_s, self._give_up_s = settle_s, give_up_s
        self._files = {name: _Arriving(stamp, 0, _State.DONE) for name, stamp in (done or {}).items()}
        self._uploads: dict[int, str] = {}

    def look(self, listing: Mapping[str, Sighting], now: float, most: int) -> list[str]:
        """Take in a listing; return the names of at most so many pictures to be judged now, which then are under way.

        The oldest come first.
        """
        uploads = {seen.inode: stem(_last(name)) for name, seen in listing.items() if seen.unfinished}
        for name, seen in listing.items():
            if not seen.unfinished:
                self._see(name, seen, now)
        self._uploads = uploads
        known = {(seen.inode, seen.stamp) for seen in listing.values()}
        for name in [name for name in self._files if name not in listing]:
            file = self._files[name]
            file.still_since = None
            if file.state in (_State.WAITS, _State.TORN) and (file.inode, file.stamp) in known:
                del self._files[name]  # it has another name now
        ready = [name for name in listing if name in self._files and self._is_ready(self._files[name], now)]
        ready.sort(key=lambda name: listing[name].stamp.modified_ns)
        for name in ready[:most]:
            file = self._files[name]
            file.state, file.handed = _State.RUNS, file.stamp
        return ready[:most]

    def lose_sight(self) -> None:
        """Note that the folder cannot be listed: nothing stands still while nobody looks."""
        for file in self._files.values():
            file.still_since = file.torn_since = None

    def judged(self, name: str, stamp: FileStamp | None) -> bool:
        """Return whether a verdict holds: the file, now with this stamp (None: out of sight), is what was judged.

        If so the picture is done, else it is waited for again.
        """
        file = self._files[name]
        if file.stamp == file.handed == stamp:
            file.state = _State.DONE
            return True
        file.state, file.still_since, file.renamed = _State.WAITS, None, False
        return False

    def torn(self, name: str, now: float) -> bool:
        """Note that a picture could not be read whole; return whether to give it up as it is."""
        file = self._files[name]
        if file.stamp != file.handed:
            file.state = _State.WAITS
            return False
        if file.torn_since is None:
            file.torn_since, file.pause_s = now, self._settle_s
        if file.still_since is not None and now - file.torn_since >= self._give_up_s:
            file.state = _State.DONE
            return True
        file.state, file.again_at = _State.TORN, now + file.pause_s
        file.pause_s = min(2 * file.pause_s, LONGEST_PAUSE_S)
        return False

    def put_back(self, name: str) -> None:
        """Note that a picture that was under way got no result."""
        self._files[name].state = _State.WAITS

    def stamp(self, name: str) -> FileStamp:
        """Return the stamp with which a picture was last handed out."""
        file = self._files[name]
        assert file.handed is not None
        return file.handed

    def is_done(self, name: str, stamp: FileStamp) -> bool:
        """Return whether a picture has been answered as it lies there."""
        file = self._files.get(name)
        return file is not None and file.state is _State.DONE and file.stamp == stamp

    def open(self) -> Iterator[str]:
        """Yield the names of the pictures that have no answer yet."""
        return (name for name, file in self._files.items() if file.state is not _State.DONE)

    def _see(self, name: str, seen: Sighting, now: float) -> None:
        file = self._files.get(name)
        if file is None or file.stamp != seen.stamp:
            renamed = self._uploads.get(seen.inode) == stem(_last(name))
            new = _Arriving(seen.stamp, seen.inode, still_since=now, renamed=renamed)
            if file is not None and file.state is _State.RUNS:
                new.state, new.handed = _State.RUNS, file.handed
            self._files[name] = new
            return
        file.inode = seen.inode
        if file.still_since is None:
            file.still_since = now

    def _is_ready(self, file: _Arriving, now: float) -> bool:
        if file.state is _State.TORN:
            return file.still_since is not None and now >= max(file.again_at, file.still_since + self._settle_s)
        if file.state is not _State.WAITS or file.still_since is None:
            return False
        return file.renamed or now - file.still_since >= self._settle_s


def _last(name: str) -> str:
    return PurePosixPath(name).name


class WatchedFolder:
    """A folder that is listed again and again; what is done is moved into `done`, if that is given."""

    def __init__(self, path: Path, done: Path | None = None) -> None:
        self.path, self.done = path, done
        self._inside: dict[str, Path] = {}
        self.late: LateImage | None = None
        """A read that does not come back; while it does not, the next one would not either."""

    def look(self) -> Listing | None:
        """Return what lies in the folder now; None if it cannot be listed, or does not answer in time."""
        if self.late is not None and not self.late.is_back():
            return None
        self.late = None
        try:
            return in_time(self._look)
        except LateImage as error:
            self.late = error
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
            raise DamagedImage("begins with zeros, like a file whose space was reserved but is not written yet")
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


Board = TypeVar("Board", bound=Hashable)


class QuietBoards(Generic[Board]):
    """Since when no picture of a board came; times are seconds of one clock."""

    def __init__(self, quiet_s: float) -> None:
        self._quiet_s = quiet_s
        self._last_s: dict[Board, float] = {}

    def come(self, board: Board, now: float) -> None:
        """Note that a picture of a board came, or came again; the board is open now."""
        self._last_s[board] = now

    def lose_sight(self, now: float) -> None:
        """Note that nobody sees what comes: no board is quiet meanwhile."""
        self._last_s = dict.fromkeys(self._last_s, now)

    def close(self, board: Board) -> None:
        """Forget a board until a picture of it comes again."""
        self._last_s.pop(board, None)

    def __iter__(self) -> Iterator[Board]:
        """Yield the boards that are open."""
        return iter(list(self._last_s))

    def __contains__(self, board: Board) -> bool:
        return board in self._last_s

    def is_quiet(self, board: Board, now: float) -> bool:
        """Tell whether no picture of a board came for so long; one that was closed is open from now."""
        return now - self._last_s.setdefault(board, now) >= self._quiet_s


class FillingFolder(Generic[Board]):
    """A folder that fills: `arrivals` of its pictures, by the last `listing`, and the `boards` that they belong to.

    `boards_of` says which boards a picture belongs to, by its name. `done` are pictures that have a verdict already.
    """

    def __init__(
        self,
        watched: WatchedFolder,
        settle_s: float,
        boards: QuietBoards[Board],
        boards_of: Callable[[str], Iterable[Board]],
        done: Mapping[str, FileStamp] | None = None,
    ) -> None:
        self.watched, self.boards, self._boards_of = watched, boards, boards_of
        self.arrivals = Arrivals(settle_s, GIVE_UP_S, done)
        self.listing = Listing()
        self.odd: list[str] = []
        """What is no file and lies there for two looks, with the reason; for one look alone it was being moved."""
        self.away = ""
        """Why nobody sees the folder; "" while it is seen."""

    def look(self, now: float) -> Listing | None:
        """Return what lies in the folder now, for `take_in`; None while it cannot be seen.

        Meanwhile nothing stays unchanged, and no board is quiet.
        """
        seen = self.watched.look()
        self.away = "" if seen is not None else f"{self.watched.path} does not answer; waiting for it"
        if seen is None:
            self.lose_sight(now)
        return seen

    def lose_sight(self, now: float) -> None:
        """Note that nobody looks: nothing stays unchanged, and no board is quiet meanwhile."""
        self.arrivals.lose_sight()
        self.boards.lose_sight(now)

    def take_in(self, seen: Listing, now: float) -> list[str]:
        """Make this the listing; return the names of what is new or changed, whose boards are not quiet."""
        before = {name: (file.stamp, file.unfinished) for name, file in self.listing.files.items()}
        new = [name for name, file in seen.files.items() if before.get(name) != (file.stamp, file.unfinished)]
        for name in new:
            for board in self._boards_of(name):
                self.boards.come(board, now)
        self.odd = [f"{name} {odd.reason}" for name, odd in seen.odd.items() if name in self.listing.odd]
        self.listing = seen  # at the end: what has gone wrong on the way is new once more
        return new

    def ready(self, now: float, most: int) -> list[str]:
        """Return the names of at most so many pictures to be judged now, which then are under way; the oldest first."""
        return self.arrivals.look(self.listing.files, now, most)

    def holds(self, name: str, now: float, *, torn: bool = False) -> bool:
        """Return whether what was found out of a picture holds: else it is tried again.

        A `torn` one could not be read whole; it is given up after a while.
        """
        if torn:
            return self.arrivals.torn(name, now)
        return self.arrivals.judged(name, self.watched.stamp(name))
