"""The images of `coe-inspect --watch`: they come to the source one file at a time, in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coe.board import photo_labels
from coe.board.rules import Rules
from coe.cli.inspect_source import EachFile, Source, WholeBoards
from coe.core import Failure, FailureKind, Result
from coe.errors import ConfigError, ImageError
from coe.pictures import finding
from coe.pictures.finding import FoundImage, Skipped, natural, serial_in
from coe.pictures.folder import EntryKind, FolderEntry
from coe.pictures.watched_folder import WatchedFolder
from coe.placement.board_layout import Layout
from coe.placement.board_pictures import serial_of
from coe.placement.board_view import BoardView

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture


class ArrivingSource:
    """The images of files that came so far; with a layout each file is the picture of a whole board.

    `before` are images of an earlier process. Raises ConfigError if the folder cannot be watched.
    """

    def __init__(self, watched: WatchedFolder, board: Rules, layout: Layout | None, bits: int | None) -> None:
        if (watched.path / finding.TABLE).exists():
            raise ConfigError(
                f"{watched.path} holds {finding.TABLE}, and a table that may not be finished says nothing of pictures "
                "that come later; inspect it with --images, or take the table away"
            )
        if given := [part.name for part in board.components.values() if part.is_given]:
            raise ConfigError(f"--watch: '{given[0]}' needs a reference with each picture; use --images")
        if layout is not None and layout.codes:
            raise ConfigError(
                f"--watch knows a board by the name of its picture; leave `serial` out of {layout.recipe.path.name}, "
                "or use --images"
            )
        if layout is not None:
            layout.check(board.components, board.board)
        self.watched, self._board, self._layout, self._bits = watched, board, layout, bits
        self._known = photo_labels.known_to(board)
        self._sources: dict[str, Source] = {}
        self._of_image: dict[str, str] = {}
        self._serials: dict[str, str] = {}
        self.skipped: list[Skipped] = []

    @property
    def items(self) -> list[FoundImage]:
        """All images that came, in natural order of their names."""
        items = (item for source in self._sources.values() for item in source.items)
        return sorted(items, key=lambda item: natural(item.name))

    def resume(self, images: Iterable[FoundImage]) -> None:
        """Take in images that an earlier process inspected."""
        files: dict[str, list[FoundImage]] = {}
        for item in images:
            files.setdefault(self.file_of(item.name), []).append(item)
        for name, items in files.items():
            path = self.watched.place(name)
            self._put(name, EachFile([replace(item, path=path) for item in items], [], self._bits))

    def file_of(self, image: str) -> str:
        """Return the name of the file that an image is of: with a layout, an image is a crop."""
        return image if self._layout is None else image.rpartition("/")[0]

    @property
    def images_per_file(self) -> int:
        """How many images each picture has."""
        return 1 if self._layout is None else len(self._layout.sites)

    def serials_of(self, name: str) -> frozenset[str]:
        """Return the boards that a file belongs to, by its name."""
        if images := self.images_of(name):
            return frozenset(item.serial for item in images)
        path = self.watched.file(name)
        if self._layout is None:
            item = finding.image_at(FolderEntry(path, EntryKind.FILE), self.watched.path, self._known)
            return frozenset() if item is None else frozenset({item.serial})
        return frozenset(serial_of(serial_in(path), unit) for unit in self._layout.units)

    def arrive(self, name: str, entry: FolderEntry | None = None) -> Source | None:
        """Take in a file by its name in the folder, again if it came before; None if it is no picture."""
        entry = entry or FolderEntry(self.watched.file(name), EntryKind.FILE)
        self.forget(name)
        if self._layout is None:
            item = finding.image_at(entry, self.watched.path, self._known)
            source: Source | None = None if item is None else EachFile([item], [], self._bits)
        else:
            source = self._whole(name, entry)
        if source is None:
            self.skipped.append(Skipped(entry.path, "is not called a picture, or goes with pictures"))
        else:
            self._put(name, source)
        return source

    def forget(self, name: str) -> None:
        """Leave the images of a file out."""
        source = self._sources.pop(name, None)
        for item in [] if source is None else source.items:
            self._of_image.pop(item.name, None)

    def images_of(self, name: str) -> Sequence[FoundImage]:
        """Return the images of a file; none if it did not come yet."""
        return self._sources[name].items if name in self._sources else []

    def moved(self, name: str) -> None:
        """Note that a file was moved away once it was done."""
        if self._layout is None and name in self._sources:
            path = self.watched.place(name)
            self._sources[name] = EachFile([replace(i, path=path) for i in self.images_of(name)], [], self._bits)
        elif name in self._sources:
            self._sources[name] = WholeBoards(self._layout_(), self.watched.place(name), self._bits, name)

    def feed(self, todo: Sequence[FoundImage], within_s: float | None) -> Iterator[Picture | Result]:
        """Yield for each item, all of one file, its picture, or its result if no expert can inspect it."""
        return self._sources[self._of_image[todo[0].name]].feed(todo, within_s)

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the pixels of an image; raises ImageError if there are none."""
        if name not in self._of_image:
            raise ImageError("is gone")
        return self._sources[self._of_image[name]].pixels(name)

    def view(self, serial: str) -> BoardView | None:
        """Return the picture of a whole board; None if there is none."""
        name = self._serials.get(serial)
        source = self._sources.get(name) if name is not None else None
        return None if source is None else source.view(serial)

    def _put(self, name: str, source: Source) -> None:
        self._sources[name] = source
        self._of_image |= dict.fromkeys((item.name for item in source.items), name)

    def _whole(self, name: str, entry: FolderEntry) -> Source | None:
        try:
            source = WholeBoards(self._layout_(), entry.path, self._bits, name)
        except ConfigError:
            return None  # a note
        others = {self._serials.setdefault(item.serial, name) for item in source.items} - {name}
        if others:
            why = f"two pictures have one serial: {min(others)} and {name}; rename one of them"
            failure = Failure(FailureKind.RULES, why)
            return EachFile([replace(item, failure=failure) for item in source.items], [], self._bits)
        return source

    def _layout_(self) -> Layout:
        assert self._layout is not None
        return self._layout
