"""Where the images of `coe-inspect` come from: files of one component each, or pictures of whole boards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from coe.board import photo_labels
from coe.board.completeness import check_references
from coe.board.rules import Rules
from coe.core import Failure, FailureKind, Result
from coe.errors import ConfigError, readable
from coe.pictures import finding
from coe.pictures.finding import FoundImage, Skipped, natural, printable, serial_in
from coe.pictures.folder import EntryKind, FolderEntry, walk, why_no_file
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
from coe.spelling import composed

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture


class Source(Protocol):
    """The images of a run, and where their pixels come from; `skipped` are files that are no pictures."""

    @property
    def items(self) -> Sequence[FoundImage]:
        """All images, in the order in which they are inspected."""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """The files that were left alone."""

    def feed(self, todo: Sequence[FoundImage], within_s: float | None) -> Iterator[Picture | Result]:
        """Yield for each item its picture, or its result if no expert can inspect it."""

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the pixels of an image by its name, (H, W, 3) uint8 RGB."""

    def view(self, serial: str) -> BoardView | None:
        """Return the picture of a whole board; None if there is none."""


class EachFile:
    """Files of which each shows one component."""

    def __init__(self, items: Sequence[FoundImage], skipped: Sequence[Skipped], bits: int | None) -> None:
        self.items, self.skipped, self._bits = items, skipped, bits
        self._items = {item.name: item for item in items}

    def feed(self, todo: Sequence[FoundImage], within_s: float | None) -> Iterator[Picture | Result]:
        """Yield the picture of each item."""
        from coe.inspector.inspector import Picture

        for item in todo:
            place = (item.component, item.serial, item.refdes, item.name)
            yield Picture(item.file, *place, within_s=within_s, reference=item.reference, bits=self._bits)

    def pixels(self, name: str) -> NDArray[np.uint8]:
        """Return the pixels of a file."""
        return finding.decode(self._items[name].file, bits=self._bits)

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
        self.items: list[FoundImage] = []
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

    def feed(self, todo: Sequence[FoundImage], within_s: float | None) -> Iterator[Picture | Result]:
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
                f"{entry.path} {reason}; it may hold pictures of boards: make it readable, or take it away"
            )
        if entry.kind is EntryKind.FILE and goes_with_pictures(entry.path):
            reason = f"'{printable(entry.path.suffix)}' is not the extension of an image"
        elif entry.kind is EntryKind.FILE and not called and entry.path.name.startswith("."):
            reason = "is not called a picture"
        if reason and (not called or entry.kind not in (EntryKind.SPECIAL, EntryKind.UNREADABLE)):
            self.skipped.append(Skipped(entry.path, reason))
            return
        if not reason and any(part.startswith(".") for part in name.split("/")[:-1]):
            reason = "lies in a hidden folder; take it away, or wait for it"
        reason = reason or unfinished(entry.path.name) or other_format(entry.path)
        self._names[entry.path] = name
        of_units = {unit: serial_of(serial_in(entry.path), unit) for unit in self._layout.units}
        if self._layout.codes and not reason:
            of_units = dict(self._board(entry.path).serials)
        for of_unit in of_units.values():
            before = self._serials.setdefault(of_unit, name)
            if before != name:
                both = f"{before!a} and {name!a}" if composed(before) == composed(name) else f"{before} and {name}"
                way = "take one of them away" if self._layout.codes else "rename one of them"
                raise ConfigError(f"two pictures have the serial '{of_unit}': {both}; {way}")
        failure = Failure(FailureKind.IMAGE, f"the picture of the board {reason}") if reason else None
        for site in self._layout.sites:
            image = f"{name}/{site.name}"
            self._sites[image] = entry.path, site
            of_unit = of_units[site.unit]
            self.items.append(FoundImage(entry.path, site.component, of_unit, site.refdes, image, failure))


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
