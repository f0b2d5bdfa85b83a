"""A station that decides boards of the tiny board's component C on a device that looks at brightness alone."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from quick_line import QuickDevice, quick

from coe.placement.dialects import Side
from coe.serve.clock import Clocks, microseconds, now_us
from coe.serve.database import board_rows, views
from coe.serve.database.board_rows import Board, NewBoard
from coe.serve.database.connecting import Database
from coe.serve.database.views import NewView
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
            views.add(connection, NewView(key, name, kept.file, kept.sha256, kept.size_bytes, 2500, now_us()))
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
    with database.reading() as connection:
        found = board_rows.get(connection, id)
    assert found is not None
    return found
