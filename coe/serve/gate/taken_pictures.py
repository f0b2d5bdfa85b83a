"""Which pictures of a folder are one board, and which are those of boards that were handed in; also over a kill.

Before a board is handed in, a note says which pictures it takes. Afterwards the database says of each note whether its
board was accepted: then its pictures only have to be moved, else they are handed in as if nothing had been.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from coe.errors import ConfigError, ImageError, LateImage, sentence_of
from coe.files import write_atomically
from coe.pictures.arriving import FileStamp
from coe.pictures.found_image import Components, FoundImage
from coe.pictures.watched_folder import Listing, WatchedFolder
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.upload_routes import discard_views
from coe.serve.recipe_content import RecipeContent
from coe.timely import in_time

_WHOLE = "board"
"""The name of the view that shows a whole board."""


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


@dataclass(frozen=True, slots=True)
class FolderGroup:
    """Which pictures are one board: those of a serial; a picture that names neither serial nor place is one alone."""

    serial: str
    alone: str = ""

    @classmethod
    def of(cls, item: FoundImage) -> FolderGroup:
        """Return that of a picture."""
        return cls(item.serial, "" if item.serial or item.refdes else item.name)

    def __str__(self) -> str:
        return self.alone or f"board '{self.serial}'"


@dataclass(slots=True)
class FolderBoard:
    """The pictures of a board that lie in the folder, and until when it is let alone."""

    last_s: float
    again_s: float = 0.0
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FolderRecipe:
    """The recipe whose boards the pictures are."""

    name: str
    id: int
    content: RecipeContent
    known: Components

    def request(self, group: FolderGroup, items: Mapping[str, FoundImage]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the request of a board of these pictures, by name, and their names by the views that it names.

        Raises ConfigError for pictures that cannot be one board.
        """
        asked: dict[str, Any] = {"recipe": self.name, "serial": group.serial}
        if self.content.whole is not None:
            names = list(items)
            if len(names) > 1:
                raise ConfigError(f"{names[0]} and {names[1]} have one serial; take one of them away")
            side = self.content.whole.layout.recipe.side.value
            return asked | {"whole": _WHOLE, "side": side}, {_WHOLE: names[0]}
        by_view: dict[str, str] = {}
        for name, item in items.items():
            view = item.refdes or item.component
            if by_view.setdefault(view, name) != name:
                raise ConfigError(f"{by_view[view]} and {name} show one part; take one of them away")
        shown = {view: {"refdes": view, "component": items[name].component} for view, name in by_view.items()}
        return asked | {"views": shown}, by_view

    def is_complete(self, group: FolderGroup, items: Sequence[FoundImage]) -> bool:
        """Return whether no picture of a board can be missing."""
        parts = self.content.parts
        return bool(self.content.whole or group.alone or (parts and {item.refdes for item in items} >= parts.keys()))
