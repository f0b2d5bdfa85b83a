"""Where the images of `coe-inspect` come from: files of one component each, or pictures of whole boards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from coe.board.completeness import check_references
from coe.board.rules import Rules
from coe.core import Result
from coe.pictures import finding
from coe.pictures.finding import FoundImage, Skipped
from coe.placement.board_view import BoardView

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture
    from coe.placement import Layout


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


def source_of(images_at: Path, board: Rules, layout: Layout | None, bits: int | None) -> Source:
    """Return the images at a path; with a layout its pictures show whole boards. Raises ConfigError.

    `bits` says how many low bits of their 16-bit samples count.
    """
    if layout is None:
        items, skipped = finding.find(images_at, board.components)
        check_references(items, board.components.values())
        return EachFile(items, skipped, bits)
    from coe.cli.whole_boards import WholeBoards

    layout.check(board.components, board.board)
    boards = WholeBoards(layout, images_at, bits)
    check_references(boards.items, board.components.values())
    return boards
