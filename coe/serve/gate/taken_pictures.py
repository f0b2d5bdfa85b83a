"""Which pictures of a folder are those of boards that were handed in, until they are moved; also over a kill.

Before a board is handed in, a note says which pictures it takes. Afterwards the database says of each note whether its
board was accepted: then its pictures only have to be moved, else they are handed in as if nothing had been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from coe.errors import ConfigError, ImageError, LateImage, sentence_of
from coe.files import write_atomically
from coe.pictures.arriving import FileStamp
from coe.pictures.watched_folder import Listing, WatchedFolder
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.upload_routes import discard_views
from coe.timely import in_time


class TakenPictures:
    """The pictures of boards that are about to be handed in, or were, by the key of the board; notes lie in a folder.

    One thread at a time may use it.
    """

    def __init__(self, gate: Gate, folder: Path, watched: WatchedFolder) -> None:
        self._gate, self._folder, self._watched = gate, folder, watched
        self._recalled = False
        self._noted: dict[str, dict[str, FileStamp]] = {}
        self._accepted: dict[str, dict[str, FileStamp]] = {}

    def note(self, key: str, pictures: Mapping[str, FileStamp]) -> None:
        """Note which pictures a board takes that is about to be handed in; raises DiskFull, NotWritten or OSError."""
        self._noted[key] = dict(pictures)
        self._folder.mkdir(parents=True, exist_ok=True)
        files = {name: [stamp.bytes, stamp.modified_ns] for name, stamp in pictures.items()}
        write_atomically(self._path(key), [json.dumps(files)])

    def settle(self) -> None:
        """Find out of each note whether its board was accepted, and forget it if not.

        Raises DatabaseError, and ConfigError for a note of an earlier process that cannot be read.
        """
        if not self._recalled:
            self._noted = {path.stem: _read(path) for path in self._folder.glob("*.json")}
            self._recalled = True
        for key, pictures in list(self._noted.items()):
            # In one step: what was given up while the database did not answer may go on at this moment.
            if discard_views(self._gate, key):
                self._path(key).unlink(missing_ok=True)
            else:
                self._accepted[key] = pictures
            self._noted.pop(key, None)

    def holds(self, name: str, stamp: FileStamp) -> bool:
        """Return whether a picture, as it lies there, is one of these."""
        return any(pictures.get(name) == stamp for pictures in [*self._noted.values(), *self._accepted.values()])

    def put_away(self, listing: Listing) -> dict[str, str]:
        """Move the pictures of boards that were accepted; return why not, by their names. Raises LateImage."""
        troubles: dict[str, str] = {}
        for key, pictures in list(self._accepted.items()):
            for name, stamp in list(pictures.items()):
                try:
                    if self._is_moved(listing, name, stamp):
                        del pictures[name]
                except LateImage:
                    raise
                except (OSError, ImageError) as error:
                    troubles[name] = f"{name} was handed in, and cannot be moved: {sentence_of(error)}"
            if not pictures:
                self._path(key).unlink(missing_ok=True)
                del self._accepted[key]
        return troubles

    def _is_moved(self, listing: Listing, name: str, stamp: FileStamp) -> bool:
        """Move a picture; return whether it was moved, now or before, or another took its place."""
        seen = listing.files.get(name)
        if seen is None:  # it was moved before a kill, or its share is away
            return in_time(partial(self._watched.is_put_away, name, stamp))
        return seen.stamp != stamp or in_time(partial(self._watched.put_away, name, stamp))

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _read(path: Path) -> dict[str, FileStamp]:
    try:
        pictures = json.loads(path.read_text(encoding="utf-8"))
        return {name: FileStamp(*map(int, stamp)) for name, stamp in pictures.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} cannot be read ({error}), and names pictures that must not be handed in twice: if board "
            f"'{path.stem}' was accepted, move its pictures away; then remove the file"
        ) from None
