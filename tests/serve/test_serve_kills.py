"""kill -9 at labelled points: what was accepted is decided once, and as if nothing had happened."""

from __future__ import annotations

import math
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from killed import KILLED, decide_late, run_line, serve_gate, start, status_of
from serving import activated, client_of, config_of, put
from stations import DARK, LIGHT, accept
from tiny_line import TINY

from coe.core import Verdict
from coe.serve.clock import DAY_US, now_us
from coe.serve.database import board_rows, call_rows, event_log, keys, views
from coe.serve.database.connecting import Database, open_database
from coe.serve.enums import EventKind, Role
from coe.serve.failpoints import Failpoint
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays
from coe.serve.service_config import ServeConfig

LINE_POINTS = (Failpoint.BOARD_BEGUN, Failpoint.SUBMITTED, Failpoint.FOUND, Failpoint.DECIDING, Failpoint.DECIDED)
GATE_POINTS = (
    Failpoint.VIEW_RECEIVED,
    Failpoint.VIEW_KEPT,
    Failpoint.VIEW_COMMITTED,
    Failpoint.BOARD_CHECKED,
    Failpoint.BOARD_ACCEPTED,
)
Decided = dict[str, tuple[Verdict | None, tuple[tuple[str, Verdict, str], ...]]]


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    return config_of(tmp_path / "service")


@pytest.fixture
def database(config: ServeConfig, sqlite_template: Path) -> Iterator[Database]:
    found = new_database(config, sqlite_template)
    yield found
    found.close()


def new_database(config: ServeConfig, template: Path) -> Database:
    config.data.mkdir()
    shutil.copy(template, config.data / "serve.db")
    return open_database(config.database_url)


def decisions(database: Database) -> Decided:
    with database.reading() as connection:
        return {
            board.key: (
                board.verdict,
                tuple((call.refdes, call.verdict, call.label) for call in call_rows.of_board(connection, board.id)),
            )
            for board in reversed(board_rows.newest(connection, limit=10_000))
        }


def check_one_decision_each(database: Database) -> None:
    with database.reading() as connection:
        told = Counter(
            event.board_id
            for event in event_log.after(connection, 0, limit=100_000)
            if event.kind is EventKind.BOARD_DECIDED
        )
        assert board_rows.count_undecided(connection) == 0
        assert told == Counter(board.id for board in board_rows.newest(connection, limit=10_000))


def test_a_line_that_is_killed_decides_as_one_that_is_not(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path]
) -> None:
    recipe, expected = activated(database, TINY), {}
    for number, point in enumerate(LINE_POINTS):
        for name, pictures in (("light", (LIGHT, LIGHT)), ("dark", (LIGHT, DARK))):
            accept(config, database, recipe.id, dict(zip(("R1", "R2"), pictures, strict=True)), key=f"{number} {name}")
        expected |= {f"{number} light": (Verdict.OK, ()), f"{number} dark": (Verdict.NG, (("R2", Verdict.NG, "bad"),))}
        assert run_line(config, tiny, point, nth=2) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    assert decisions(database) == expected


def test_a_kill_during_an_amendment_leaves_the_decision(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path]
) -> None:
    recipe = activated(database, TINY)
    board = accept(config, database, recipe.id, {"R1": DARK}, within_s=500)
    assert status_of(start(decide_late, config, tiny, Failpoint.AMENDED)) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    with database.reading() as connection:
        found = board_rows.get(connection, board.id)
    assert found is not None
    assert (found.verdict, found.late, found.revision) == (Verdict.REVIEW, True, 0)


def free_port() -> int:
    """Return a port at which nobody listens, below those that the system gives to clients.

    A client that tries such a port again and again may connect to itself, and then the gate cannot have it.
    """
    for port in Random().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Feeder(threading.Thread):
    """Does what a feeder does: hands a board in from the beginning until 202 is said, whichever gate says it."""

    def __init__(self, address: str, api_key: str, board: str, pictures: Mapping[str, bytes], body: object) -> None:
        super().__init__(daemon=True)
        self._client = client_of(address, api_key)
        self._board, self._pictures, self._body = board, pictures, body

    def run(self) -> None:
        with self._client:
            while not self._is_accepted():
                time.sleep(0.05)  # the gate that is to come needs the processor

    def _is_accepted(self) -> bool:
        with suppress(httpx.TransportError):
            put_all = [put(self._client, self._board, name, content) for name, content in self._pictures.items()]
            path = f"/api/v1/boards/{self._board}"
            return all(answer.is_success for answer in put_all) and (
                self._client.post(path, json=self._body).status_code == 202
            )
        return False


def views_of(pictures: Mapping[str, bytes]) -> dict[str, object]:
    return {refdes: {"refdes": refdes, "component": "C"} for refdes in pictures}


def add_feeder(database: Database) -> str:
    """Add a feeder's key, and return it."""
    key = keys.generate()
    with database.writing() as connection:
        keys.add(connection, "feeder", Role.FEEDER, key, now_us=now_us())
    return key


def hand_in_while_the_gate_is_killed(config: ServeConfig, feeder: Feeder, kills: Sequence[Failpoint]) -> None:
    """Let a board be accepted by the last of several gates; each of the others is killed at its point."""
    feeder.start()
    for point in kills:
        assert status_of(start(serve_gate, config, point, 1)) == KILLED
    last = start(serve_gate, config, None, 1)
    feeder.join()
    last.terminate()
    status_of(last)


def check_pictures(config: ServeConfig, database: Database) -> None:
    """Check that each picture of each board is on the disk, and that nothing else stays there."""
    pictures = Pictures(config.pictures)
    with database.reading() as connection:
        for board in board_rows.newest(connection, limit=10_000):
            shown = views.of_board(connection, board.key)
            assert shown
            assert all(pictures.path(view.file).stat().st_size == view.size_bytes for view in shown)
        for part in range(PARTS):
            remove_strays(database, pictures, part, now_us() + 2 * DAY_US)
        left = {name for part in range(PARTS) for name in pictures.older_than(math.inf, part)}
        assert left == views.files(connection)


def test_what_a_killed_gate_has_accepted_is_on_the_disk_and_nothing_else_is(
    tmp_path: Path, sqlite_template: Path
) -> None:
    """A gate is killed at each point, and the next gate goes on with the same board."""
    config = config_of(tmp_path / "service", listen={"port": free_port()})
    database = new_database(config, sqlite_template)
    activated(database, TINY)
    pictures = {"R1": LIGHT, "R2": DARK}
    address, body = f"http://127.0.0.1:{config.listen.port}", {"recipe": "tiny", "views": views_of(pictures)}
    feeder = Feeder(address, add_feeder(database), "k1", pictures, body)
    hand_in_while_the_gate_is_killed(config, feeder, GATE_POINTS)
    with database.reading() as connection:
        (board,) = board_rows.newest(connection)
        assert [view.name for view in views.of_board(connection, board.key)] == ["R1", "R2"]
    check_pictures(config, database)
    database.close()
