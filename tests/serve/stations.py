"""A station that decides boards of the tiny board's component C on a device that looks at brightness alone."""

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image
from quick_line import QuickDevice, quick
from serving import activated
from tiny_line import TINY
from waiting import eventually

from coe.board.parts_list import Side
from coe.serve.clock import Clocks, microseconds, now_us
from coe.serve.database import board_rows, call_rows, event_log, fault_log, row_types, views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board, Call, Fault, NewBoard, NewView, Recipe
from coe.serve.enums import EventKind
from coe.serve.picture_folder import Pictures
from coe.serve.request import BoardRequest, digest_of
from coe.serve.service_config import ServeConfig
from coe.serve.worker.product import Adjust, OpenLine
from coe.serve.worker.station import Station


def grey(level: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((50, 50, 3), level, np.uint8)).save(file, "png")
    return file.getvalue()


LIGHT, DARK = grey(200), grey(20)
"""Pictures that component C passes and rejects."""


def accept(
    config: ServeConfig,
    database: Database,
    recipe_id: int,
    pictures: Mapping[str, bytes],
    *,
    key: str = "k1",
    within_s: float | None = None,
) -> Board:
    """Accept a board of components C with these pictures by refdes, as the gate does."""
    shown = {refdes: {"refdes": refdes, "component": "C"} for refdes in pictures}
    return accept_request(config, database, recipe_id, pictures, {"views": shown}, key=key, within_s=within_s)


def accept_request(
    config: ServeConfig,
    database: Database,
    recipe_id: int,
    pictures: Mapping[str, bytes],
    said: Mapping[str, object],
    *,
    key: str = "k1",
    within_s: float | None = None,
) -> Board:
    """Accept a board with these pictures by the names of their views, and with what its request says of them."""
    folder = Pictures(config.pictures)
    folder.prepare()
    with database.writing() as connection:
        for name, content in pictures.items():
            receiving = folder.receive()
            receiving.write(content)
            kept = receiving.keep()
            views.add(connection, NewView(key, name, kept, receiving.sha256, receiving.size_bytes, 2500, now_us()))
        request = BoardRequest.model_validate({"recipe": "tiny", **said}).model_dump(mode="json")
        due_us = None if within_s is None else now_us() + microseconds(within_s)
        digest, number = digest_of(request), len(pictures)
        new = NewBoard(key, digest, recipe_id, key, "", Side.TOP, "", request, "feeder", now_us(), due_us, number)
        return board_rows.accept(connection, new)


def quick_opener(tiny: tuple[Path, Path], device: QuickDevice, **options: object) -> OpenLine:
    """Return a function that opens lines on a quick device."""
    return lambda boards: quick((boards, tiny[1]), device, **options)


@contextmanager
def deciding(
    config: ServeConfig,
    database: Database,
    open_line: OpenLine | None,
    clocks: Clocks | None = None,
    adjust: Adjust | None = None,
) -> Iterator[Station]:
    """Run a station on a thread until the block ends; None opens real lines, whose configs `adjust` may change."""
    station = Station(config, database, open_line=open_line, adjust=adjust, **({"clocks": clocks} if clocks else {}))
    errors: list[BaseException] = []

    def run() -> None:
        try:
            station.run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield station
    finally:
        station.end()
        thread.join()
    assert not errors, errors


def state_of(database: Database, id: int) -> Board:
    found = database.read(row_types.get, Board, id)
    assert found is not None
    return found


@dataclass
class Shop:
    """A service's config and database, its worker on a quick device, and the tiny board's recipe, which is active."""

    config: ServeConfig
    database: Database
    tiny: tuple[Path, Path]
    device: QuickDevice = field(default_factory=QuickDevice)

    @cached_property
    def recipe(self) -> Recipe:
        return activated(self.database, TINY)

    def accept(
        self,
        pictures: Mapping[str, bytes],
        *,
        recipe: Recipe | None = None,
        key: str = "k1",
        within_s: float | None = None,
    ) -> Board:
        """Accept a board of components C with these pictures by refdes, of the tiny recipe if none is given."""
        id = (recipe or self.recipe).id
        return accept(self.config, self.database, id, pictures, key=key, within_s=within_s)

    def deciding(self, clocks: Clocks | None = None, **options: object) -> AbstractContextManager[Station]:
        """Run a worker until the block ends."""
        return deciding(self.config, self.database, quick_opener(self.tiny, self.device, **options), clocks)

    def decide(self, *boards: Board) -> None:
        """Run a worker until these boards are decided, and what it says of them is written."""
        with self.deciding() as station:
            eventually(lambda: all(self.is_decided(board) for board in boards) and station.is_idle)

    def is_decided(self, board: Board) -> bool:
        return self.state(board).verdict is not None

    def state(self, board: Board) -> Board:
        return state_of(self.database, board.id)

    def calls(self, board: Board) -> list[Call]:
        return self.database.read(call_rows.of_board, board.id)

    def kinds(self, board: Board) -> list[EventKind]:
        """The kinds of the board's events."""
        with self.database.reading() as connection:
            return [event.kind for event in event_log.after(connection, 0, board_id=board.id)]

    def faults(self) -> list[Fault]:
        """The open faults."""
        return self.database.read(fault_log.open_faults)
