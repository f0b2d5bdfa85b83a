"""Where the images of a run come from: a path, or a folder that fills; and which of them are whole boards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coe.board import photo_labels
from coe.board.completeness import check_references
from coe.board.rules import Rules
from coe.core import Failure, FailureKind, Result
from coe.errors import ConfigError, ImageError, readable
from coe.helpers.spelling import composed
from coe.pictures import finding, photographs
from coe.pictures.decoding import decode
from coe.pictures.filling import WatchedFolder
from coe.pictures.finding import serial_in
from coe.pictures.folder import EntryKind, FolderEntry, walk, why_no_file
from coe.pictures.image_source import Picture
from coe.pictures.photographs import Photograph, Skipped, natural, printable
from coe.pictures.picture_names import (
    RAW_BESIDE,
    goes_with_pictures,
    is_called_picture,
    other_format,
    raw_beside,
    unfinished,
)
from coe.placement.board_layout import Layout, Site
from coe.placement.board_pictures import BoardPicture, read_board, serial_of
from coe.placement.board_view import BoardView


class Source(Protocol):
    """The images of a run, and where their pixels come from; `skipped` are files that are no pictures."""

    @property
    def items(self) -> Sequence[Photograph]:
        """All images, in the order in which they are inspected."""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """The files that were left alone."""

    def feed(self, todo: Sequence[Photograph], within_s: float | None) -> Iterable[Picture | Result]:
        """Return for each item its picture, or its result if no expert can inspect it."""

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the pixels of an image by its name, (H, W, 3) uint8 RGB."""

    def view(self, serial: str) -> BoardView | None:
        """Return the picture of a whole board; None if there is none."""


class EachFile:
    """Files of which each shows one component."""

    def __init__(self, items: Sequence[Photograph], skipped: Sequence[Skipped], bits: int | None) -> None:
        self.items, self.skipped, self._bits = items, skipped, bits
        self._items = {item.name: item for item in items}

    def feed(self, todo: Sequence[Photograph], within_s: float | None) -> Sequence[Picture]:
        """Return the picture of each item: all are known, so the line may take them in any order."""
        return [
            Picture(
                item.file,
                item.component,
                item.serial,
                item.refdes,
                item.name,
                within_s=within_s,
                reference=item.reference,
                bits=self._bits,
            )
            for item in todo
        ]

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the pixels of a file."""
        return decode(self._items[name].file, bits=self._bits)

    def view(self, serial: str) -> BoardView | None:
        """Return None: no file shows a whole board."""
        return None


class WholeBoards:
    """The pictures of whole boards at a path, a folder or a single picture, and the crops of one layout.

    `items` are all components of all boards. A board's serial is what its code says, if the recipe has one and it can
    be read, else the name of its picture without the extension; an image has the name `<picture>/<refdes>`. `skipped`
    are files that are no pictures. Raises ConfigError if there is no picture, or if two have the same serial.
    """

    def __init__(self, layout: Layout, images_at: Path, bits: int | None = None, name: str = "") -> None:
        """`name` is that of a single picture in the results, where it is not that of its file."""
        self._layout, self._bits = layout, bits
        self._last: tuple[Path, BoardPicture] | None = None
        self._names: dict[Path, str] = {}
        self._serials: dict[str, str] = {}
        self._sites: dict[str, tuple[Path, Site]] = {}
        self.items: list[Photograph] = []
        self.skipped: list[Skipped] = []
        with readable(images_at):
            entries = sorted(_entries(images_at, name), key=lambda named: natural(named[1]))
            raw = raw_beside(entry.path for entry, _ in entries)
            for entry, called in entries:
                if entry.path in raw:
                    self.skipped.append(Skipped(entry.path, RAW_BESIDE))
                else:
                    self._add(entry, called)
        if not self.items:
            raise ConfigError(f"{images_at} holds no pictures of boards; give --images a folder of them")
        self._paths = {item.serial: item.path for item in self.items}

    def feed(self, todo: Sequence[Photograph], within_s: float | None) -> Iterator[Picture | Result]:
        """Yield for each item its crop, or its result if it has none, board by board; one picture is in memory."""
        for path, items in groupby(todo, key=lambda item: item.path):
            board, names = self._board(path), {item.name for item in items}
            yield from board.results(names)
            yield from board.pictures(names, within_s)

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the crop of an image, (H, W, 3) uint8 RGB; raises ImageError if it has none."""
        path, site = self._sites[name]
        return self._board(path).crop(site, "RGB")

    def view(self, serial: str) -> BoardView | None:
        """Return how the report shows a board; None if its picture cannot be read."""
        return self._board(self._paths[serial]).view(serial)

    def _board(self, path: Path) -> BoardPicture:
        """Read and locate the picture at a path; the last stays in memory."""
        if self._last is None or self._last[0] != path:
            self._last = None  # two pictures would be in memory
            self._last = path, read_board(path, self._layout, serial_in(path), name=self._names[path], bits=self._bits)
        return self._last[1]

    def _add(self, entry: FolderEntry, name: str) -> None:
        """Add the items of a picture, or note why a file is none. Every other file is a board: its name is a serial."""
        called = is_called_picture(entry.path.name)
        reason = entry.reason
        if entry.kind is EntryKind.UNREADABLE and not called and not entry.path.name.startswith("."):
            raise ConfigError(
                f"{entry.path} {reason}; it may hold pictures of boards: make it readable, or move it away"
            )
        if entry.kind is EntryKind.FILE and goes_with_pictures(entry.path):
            reason = f"'{printable(entry.path.suffix)}' is not the extension of an image"
        elif entry.kind is EntryKind.FILE and not called and entry.path.name.startswith("."):
            reason = "does not have a picture's name"
        if reason and (not called or entry.kind not in (EntryKind.SPECIAL, EntryKind.UNREADABLE)):
            self.skipped.append(Skipped(entry.path, reason))
            return
        if not reason and any(part.startswith(".") for part in name.split("/")[:-1]):
            reason = "is in a hidden folder; move it, or wait for it"
        reason = reason or unfinished(entry.path.name) or other_format(entry.path)
        self._names[entry.path] = name
        of_units = {unit: serial_of(serial_in(entry.path), unit) for unit in self._layout.units}
        if self._layout.codes and not reason:
            of_units = dict(self._board(entry.path).serials)
        for of_unit in of_units.values():
            before = self._serials.setdefault(of_unit, name)
            if before != name:
                both = f"{before!a} and {name!a}" if composed(before) == composed(name) else f"{before} and {name}"
                way = "remove one of them" if self._layout.codes else "rename one of them"
                raise ConfigError(f"two pictures have the serial '{of_unit}': {both}; {way}")
        failure = Failure(FailureKind.IMAGE, f"the picture of the board {reason}") if reason else None
        for site in self._layout.sites:
            image = f"{name}/{site.name}"
            self._sites[image] = entry.path, site
            of_unit = of_units[site.unit]
            self.items.append(Photograph(entry.path, site.component, of_unit, site.refdes, image, failure))


def _entries(images_at: Path, name: str) -> Iterator[tuple[FolderEntry, str]]:
    """Yield the entries of a folder, or a single file, with their names relative to it."""
    if images_at.is_dir():
        for entry in walk(images_at, hidden=True):
            yield entry, printable(entry.path.relative_to(images_at).as_posix())
    elif not name and not images_at.exists():
        raise ConfigError(f"{images_at}: there is no such folder or file; give --images a folder of pictures of boards")
    else:
        reason = why_no_file(images_at)
        yield (
            FolderEntry(images_at, EntryKind.SPECIAL if reason else EntryKind.FILE, reason or ""),
            name or images_at.name,
        )


def source_of(images_at: Path, board: Rules, layout: Layout | None, bits: int | None) -> Source:
    """Return the images at a path; with a layout its pictures show whole boards. Raises ConfigError.

    `bits` says how many low bits of their 16-bit samples count.
    """
    if layout is None:
        items, skipped = finding.find(images_at, photo_labels.known_to(board))
        check_references(items, board.components.values())
        return EachFile(items, skipped, bits)
    layout.check(board.components, board.board)
    boards = WholeBoards(layout, images_at, bits)
    check_references(boards.items, board.components.values())
    return boards


def pictures_of(board: Rules, images_at: Path) -> list[Picture]:
    """Return all pictures that can be inspected; raises ConfigError if there are none."""
    source = source_of(images_at, board, None, None)
    items = [item for item in source.items if item.failure is None]
    if not items:
        raise ConfigError(f"{images_at} holds no image of a component of board '{board.board}'")
    return [picture for picture in source.feed(items, None) if isinstance(picture, Picture)]


class ArrivingSource:
    """The images of files that came so far; with a layout each file is the picture of a whole board.

    `before` are images of an earlier process. Raises ConfigError if the folder cannot be watched.
    """

    def __init__(self, watched: WatchedFolder, board: Rules, layout: Layout | None, bits: int | None) -> None:
        if (watched.path / photographs.TABLE).exists():
            raise ConfigError(
                f"{watched.path} holds {photographs.TABLE}, but a table cannot list pictures that arrive later; "
                "inspect it with --images, or remove the table"
            )
        if given := [part.name for part in board.components.values() if part.is_given]:
            raise ConfigError(f"--watch: '{given[0]}' needs a reference with each picture; use --images")
        if layout is not None and layout.codes:
            raise ConfigError(
                "--watch identifies a board by the name of its picture; leave `serial` out of "
                f"{layout.recipe.path.name}, or use --images"
            )
        if layout is not None:
            layout.check(board.components, board.board)
        self.watched, self._board, self._layout, self._bits = watched, board, layout, bits
        self._known = photo_labels.known_to(board)
        self._sources: dict[str, Source] = {}
        self._of_image: dict[str, str] = {}
        self._serials: dict[str, str] = {}
        self._boards: dict[str, frozenset[str]] = {}
        self.skipped: list[Skipped] = []

    @property
    def items(self) -> list[Photograph]:
        """All images that came, in natural order of their names."""
        items = (item for source in self._sources.values() for item in source.items)
        return sorted(items, key=lambda item: natural(item.name))

    def resume(self, images: Iterable[Photograph]) -> None:
        """Take in images that an earlier process inspected."""
        files: dict[str, list[Photograph]] = {}
        for item in images:
            files.setdefault(self.file_of(item.name), []).append(item)
        for name, items in files.items():
            path = self.watched.place(name)
            source: Source = EachFile([replace(item, path=path) for item in items], [], self._bits)
            if self._layout is not None and path.is_file():
                source = WholeBoards(self._layout_(), path, self._bits, name)
                self._serials |= dict.fromkeys((item.serial for item in items), name)
            self._put(name, source)

    def file_of(self, image: str) -> str:
        """Return the name of the file that an image is of: with a layout, an image is a crop."""
        return image if self._layout is None else image.rpartition("/")[0]

    @property
    def images_per_file(self) -> int:
        """How many images each picture has."""
        return 1 if self._layout is None else len(self._layout.sites)

    def serials_of(self, name: str) -> frozenset[str]:
        """Return the boards that a file belongs to, by its name."""
        if name not in self._boards:
            path = self.watched.file(name)
            if self._layout is not None:
                serials = {serial_of(serial_in(path), unit) for unit in self._layout.units}
            else:
                item = finding.image_at(FolderEntry(path, EntryKind.FILE), self.watched.path, self._known)
                serials = set() if item is None else {item.serial}
            self._boards[name] = frozenset(serials - {""})
        return self._boards[name]

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
            self.skipped.append(Skipped(entry.path, "does not have a picture's name, or accompanies pictures"))
        else:
            self._put(name, source)
        return source

    def forget(self, name: str) -> None:
        """Leave the images of a file out."""
        source = self._sources.pop(name, None)
        for item in [] if source is None else source.items:
            self._of_image.pop(item.name, None)

    def images_of(self, name: str) -> Sequence[Photograph]:
        """Return the images of a file; none if it did not come yet."""
        return self._sources[name].items if name in self._sources else []

    def moved(self, name: str) -> None:
        """Note that a file was moved away once it was done."""
        if self._layout is None and name in self._sources:
            path = self.watched.place(name)
            self._sources[name] = EachFile([replace(i, path=path) for i in self.images_of(name)], [], self._bits)
        elif name in self._sources:
            self._sources[name] = WholeBoards(self._layout_(), self.watched.place(name), self._bits, name)

    def feed(self, todo: Sequence[Photograph], within_s: float | None) -> Iterable[Picture | Result]:
        """Return for each item, all of one file, its picture, or its result if no expert can inspect it."""
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
