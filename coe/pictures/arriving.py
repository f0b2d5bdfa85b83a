"""Which pictures of a folder that fills may be judged, and when each is tried again.

It looks at listings of the folder, each at a time in seconds; it reads nothing and has no clock. A picture may be
judged once size and time of its file stood still, or once an upload's temporary name gave way to its own. What turns
out torn is tried again until it is whole; what is overwritten after its verdict is judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import PurePosixPath

from coe.pictures.picture_file import FileStamp
from coe.pictures.picture_names import stem

LONGEST_PAUSE_S = 30.0
"""The longest pause between two trials of a torn picture."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A file of a listing; `unfinished` says that its name is that of an upload under way."""

    stamp: FileStamp
    inode: int
    unfinished: bool = False


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
