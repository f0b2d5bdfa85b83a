"""kill -9 at labelled points: what was accepted is decided once, and as if nothing had happened."""

from __future__ import annotations

import math
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import httpx
import pytest
from killed import KILLED, decide_late, run_line, serve_gate, start, status_of
from serving import activated, config_of, hand_in
from stations import DARK, LIGHT, accept
from tiny_line import TINY

from coe.core import Verdict
from coe.serve.config import ServeConfig
from coe.serve.database import boards, calls, events, keys, views
from coe.serve.database.opening import Database, open_database
from coe.serve.database.recipes import Recipe
from coe.serve.moments import DAY_US, now_us
from coe.serve.pictures import PARTS, Pictures
from coe.serve.points import Point
from coe.serve.retention import remove_strays
from coe.serve.words import EventKind, Role

LINE_POINTS = (Point.BOARD_BEGUN, Point.SUBMITTED, Point.FOUND, Point.DECIDING, Point.DECIDED)
GATE_POINTS = (
    Point.VIEW_RECEIVED,
    Point.VIEW_KEPT,
    Point.VIEW_COMMITTED,
    Point.BOARD_CHECKED,
    Point.BOARD_ACCEPTED,
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


def feed(config: ServeConfig, database: Database, recipe: Recipe, chance: Random, name: str) -> None:
    """Accept two boards with pictures that chance chooses."""
    for number in range(2):
        pictures = {f"R{n}": chance.choice([LIGHT, LIGHT, DARK]) for n in range(3)}
        accept(config, database, recipe.id, pictures, key=f"{name}-{number}")


def decisions(database: Database) -> Decided:
    with database.reading() as connection:
        return {
            board.key: (
                board.verdict,
                tuple((call.refdes, call.verdict, call.label) for call in calls.of_board(connection, board.id)),
            )
            for board in reversed(boards.newest(connection, limit=10_000))
        }


def undisturbed(folder: Path, template: Path, tiny: tuple[Path, Path], seed: int, names: list[str]) -> Decided:
    """Return the decisions of a line that nobody kills."""
    config = config_of(folder)
    database = new_database(config, template)
    recipe, chance = activated(database, TINY), Random(seed)
    for name in names:
        feed(config, database, recipe, chance, name)
    assert run_line(config, tiny) == 0
    decided = decisions(database)
    database.close()
    return decided


def check_one_decision_each(database: Database) -> None:
    with database.reading() as connection:
        told = Counter(
            event.board_id
            for event in events.after(connection, 0, limit=100_000)
            if event.kind is EventKind.BOARD_DECIDED
        )
        assert boards.count_undecided(connection) == 0
        assert told == Counter(board.id for board in boards.newest(connection, limit=10_000))


def test_a_line_that_is_killed_decides_as_one_that_is_not(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path], sqlite_template: Path, tmp_path: Path
) -> None:
    recipe, chance = activated(database, TINY), Random(1)
    for point in LINE_POINTS:
        feed(config, database, recipe, chance, point.value)
        assert run_line(config, tiny, point, nth=2) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    names = [point.value for point in LINE_POINTS]
    assert decisions(database) == undisturbed(tmp_path / "calm", sqlite_template, tiny, 1, names)


def test_a_kill_during_an_amendment_leaves_the_decision(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path]
) -> None:
    recipe = activated(database, TINY)
    board = accept(config, database, recipe.id, {"R1": DARK}, within_s=500)
    assert status_of(start(decide_late, config, tiny, Point.AMENDED)) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    with database.reading() as connection:
        found = boards.get(connection, board.id)
    assert found is not None
    assert (found.verdict, found.late, found.revision) == (Verdict.REVIEW, True, 0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_kills_of_the_line_change_no_decision(
    config: ServeConfig, database: Database, tiny: tuple[Path, Path], sqlite_template: Path, tmp_path: Path
) -> None:
    recipe, chance, kills = activated(database, TINY), Random(2), Random(3)
    names = [f"b{number}" for number in range(200)]
    for number, name in enumerate(names, start=1):
        feed(config, database, recipe, chance, name)
        assert run_line(config, tiny, kills.choice(LINE_POINTS), nth=kills.randint(1, 2)) == KILLED
        # A board with which the line ends five times is REVIEW; three kills in a row are less.
        if number % 3 == 0 or number == len(names):
            assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    assert decisions(database) == undisturbed(tmp_path / "calm", sqlite_template, tiny, 2, names)


def free_port() -> int:
    """Return a port at which nobody listens, below those that the system gives to clients.

    A client that tries such a port again and again may connect to itself, and then the gate cannot have it.
    """
    for port in Random().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def hand_in_again_and_again(client: httpx.Client, key: str) -> None:
    """Do what a feeder does: hand the board in from the beginning until 202 is said."""
    while True:
        try:
            if hand_in(client, key, {"R1": "C", "R2": "C"}).status_code == 202:
                return
        except httpx.TransportError:
            time.sleep(0.05)  # the gate that is to come needs the processor


def kill_the_gate(config: ServeConfig, database: Database, kills: list[Point]) -> None:
    """Hand a board in for each kill, while the gate is killed and started again; then check what was promised."""
    key = keys.generate()
    with database.writing() as connection:
        keys.add(connection, "feeder", Role.FEEDER, key, now_us=now_us())
    address = f"http://127.0.0.1:{config.listen.port}"
    client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=20)
    for number, point in enumerate([*kills, None]):
        process = start(serve_gate, config, point, 1)
        if point is not None:
            feeder = start(_feed_until_accepted, address, key, f"k{number}")
            assert status_of(process) == KILLED
            process = start(serve_gate, config, None, 1)
            assert status_of(feeder) == 0
        hand_in_again_and_again(client, f"k{number}")
        process.terminate()
        status_of(process)
    client.close()
    pictures = Pictures(config.pictures)
    with database.reading() as connection:
        found = boards.newest(connection, limit=10_000)
        assert len(found) == len(kills) + 1
        for board in found:
            shown = views.of_board(connection, board.key)
            assert [view.name for view in shown] == ["R1", "R2"]
            assert all(pictures.path(view.file).stat().st_size == view.size_bytes for view in shown)
        for part in range(PARTS):
            remove_strays(database, pictures, part, now_us() + 2 * DAY_US)
        left = {name for part in range(PARTS) for name in pictures.older_than(math.inf, part)}
        assert left == views.files(connection)


def _feed_until_accepted(address: str, key: str, board: str) -> None:
    with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=20) as client:
        hand_in_again_and_again(client, board)


def test_what_a_killed_gate_has_accepted_is_on_the_disk_and_nothing_else_is(
    tmp_path: Path, sqlite_template: Path
) -> None:
    config = config_of(tmp_path / "service", listen={"port": free_port()})
    database = new_database(config, sqlite_template)
    activated(database, TINY)
    kill_the_gate(config, database, list(GATE_POINTS))
    database.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills_of_the_gate_lose_nothing(tmp_path: Path, sqlite_template: Path) -> None:
    config = config_of(tmp_path / "service", listen={"port": free_port()})
    database = new_database(config, sqlite_template)
    activated(database, TINY)
    chance = Random(4)
    kill_the_gate(config, database, [chance.choice(GATE_POINTS) for _ in range(50)])
    database.close()
