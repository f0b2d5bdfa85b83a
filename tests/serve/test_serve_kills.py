"""kill -9 at labelled points: what was accepted is decided once, and as if nothing had happened."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from killed import (
    GATE_POINTS,
    KILLED,
    Feeder,
    add_feeder,
    check_one_decision_each,
    decide_late,
    decisions,
    free_port,
    hand_in_while_the_gate_is_killed,
    new_database,
    run_line,
    start,
    status_of,
    views_of,
)
from serve_rows import files_of_views
from serving import activated, config_of
from stations import DARK, LIGHT, accept
from tiny_line import TINY

from coe.core import Verdict
from coe.serve.clock import DAY_US, now_us
from coe.serve.database import board_rows, row_types, views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board
from coe.serve.failpoints import Failpoint
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays
from coe.serve.service_config import ServeConfig

LINE_POINTS = (Failpoint.BOARD_BEGUN, Failpoint.SUBMITTED, Failpoint.FOUND, Failpoint.DECIDING, Failpoint.DECIDED)


@pytest.fixture
def config(tmp_path: Path) -> ServeConfig:
    return config_of(tmp_path / "service")


@pytest.fixture
def database(config: ServeConfig, sqlite_template: Path) -> Iterator[Database]:
    found = new_database(config, sqlite_template)
    yield found
    found.close()


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
    found = database.read(row_types.get, Board, board.id)
    assert (found.verdict, found.late, found.revision) == (Verdict.REVIEW, True, 0)


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
        assert left == files_of_views(connection)


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
