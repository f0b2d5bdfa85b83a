"""A station that decides boards of the tiny board's component C on a device that looks at brightness alone."""

import io
import threading
from contextlib import contextmanager
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
from coe.serve.clock import microseconds, now_us
from coe.serve.database import board_rows, call_rows, event_log, fault_log, row_types, views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board, NewBoard, NewView
from coe.serve.picture_folder import Pictures
from coe.serve.request import BoardRequest, digest_of
from coe.serve.service_config import ServeConfig
from coe.serve.worker.station import Station


def grey(level, side=50):
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(file, "png")
    return file.getvalue()


LIGHT, DARK = grey(200), grey(20)
"""Pictures that component C passes and rejects."""


def accept(config, database, recipe_id, pictures, *, key="k1", within_s=None):
    """Accept a board of components C with these pictures by refdes, as the gate does."""
    shown = {refdes: {"refdes": refdes, "component": "C"} for refdes in pictures}
    return accept_request(config, database, recipe_id, pictures, {"views": shown}, key=key, within_s=within_s)


def accept_request(config, database, recipe_id, pictures, said, *, key="k1", within_s=None):
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


def quick_opener(tiny, device, **options):
    return lambda boards: quick((boards, tiny[1]), device, **options)


@contextmanager
def deciding(config, database, open_line, clocks=None):
    station = Station(config, database, open_line=open_line, **({"clocks": clocks} if clocks else {}))
    errors = []

    def run():
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


def state_of(database, id):
    return database.read(row_types.get, Board, id)


@dataclass
class Shop:
    """A service's config and database, its worker on a quick device, and the tiny board's recipe, which is active."""

    config: ServeConfig
    database: Database
    tiny: tuple[Path, Path]
    device: QuickDevice = field(default_factory=QuickDevice)

    @cached_property
    def recipe(self):
        return activated(self.database, TINY)

    def accept(self, pictures, said=None, *, recipe=None, **more):
        """Accept a board of components C with these pictures by refdes, or as a request says, of the recipe."""
        at = self.config, self.database, (recipe or self.recipe).id, pictures
        return accept(*at, **more) if said is None else accept_request(*at, said, **more)

    def deciding(self, clocks=None, **options):
        return deciding(self.config, self.database, quick_opener(self.tiny, self.device, **options), clocks)

    def decide(self, *boards):
        """Run a worker until these boards are decided, and what it says of them is written."""
        with self.deciding() as station:
            eventually(lambda: all(self.is_decided(board) for board in boards) and station.is_idle)

    def is_decided(self, board):
        return self.verdict(board) is not None

    def verdict(self, board):
        return self.state(board).verdict

    def state(self, board):
        return state_of(self.database, board.id)

    def calls(self, board):
        return self.database.read(call_rows.of_board, board.id)

    def kinds(self, board):
        return [event.kind for event in self.database.read(event_log.after, 0, board_id=board.id)]

    def faults(self):
        return self.database.read(fault_log.open_faults)
