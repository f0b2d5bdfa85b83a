"""kill -9 at labelled points: what was accepted is decided once, and as if nothing had happened."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from killed import (
    ALL,
    GATE_POINTS,
    KILLED,
    LEAST_KILLS,
    Feeder,
    add_feeder,
    begin_forks,
    check_one_decision_each,
    decide_late,
    decisions,
    free_port,
    hand_in_while_the_gate_is_killed,
    run_line,
    serve_gate,
    start,
    status_of,
    told_to,
    views_of,
)
from serve_rows import files_of_views
from serving import activated, config_of, embedded
from stations import DARK, LIGHT, accept, accept_request, grey
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, png

from coe.core import Verdict
from coe.serve.clock import DAY_US, now_us
from coe.serve.database import audit, board_rows, call_rows, event_log, row_types, verifications, views
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Board, NewVerification, Verification
from coe.serve.enums import UNDECIDED, Outcome
from coe.serve.failpoints import Failpoint
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays, sweep
from coe.serve.service_config import Retention, ServeConfig

LINE_POINTS = (Failpoint.BOARD_BEGUN, Failpoint.SUBMITTED, Failpoint.FOUND, Failpoint.DECIDING, Failpoint.DECIDED)


@pytest.fixture
def config(tmp_path, database):
    """A service on either database, whose `web` tells a file what happens."""
    (folder := tmp_path / "service").mkdir()
    begin_forks()  # it loads torch, which is no part of a test's time
    url, sinks = database.url.render_as_string(hide_password=False), told_to(tmp_path / "told")
    return config_of(folder, database=url, listen={"port": free_port()}, sinks=sinks)


@pytest.mark.slow
def test_a_line_that_is_killed_decides_as_one_that_is_not(config, database, tiny):
    recipe, expected = activated(database, TINY), {}
    for number, point in enumerate(LINE_POINTS):
        for name, pictures in (("light", (LIGHT, LIGHT)), ("dark", (LIGHT, DARK))):
            accept(config, database, recipe.id, dict(zip(("R1", "R2"), pictures, strict=True)), key=f"{number} {name}")
        expected |= {f"{number} light": (Verdict.OK, ()), f"{number} dark": (Verdict.NG, (("R2", Verdict.NG, "bad"),))}
        assert run_line(config, tiny, point, nth=2) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    assert decisions(database) == expected


def test_a_kill_during_an_amendment_leaves_the_decision(config, database, tiny):
    recipe = activated(database, TINY)
    board = accept(config, database, recipe.id, {"R1": DARK}, within_s=500)
    assert status_of(start(decide_late, config, tiny, Failpoint.AMENDED)) == KILLED
    assert run_line(config, tiny) == 0
    check_one_decision_each(database)
    found = database.read(row_types.get, Board, board.id)
    assert (found.verdict, found.late, found.revision) == (Verdict.REVIEW, True, 0)


def check_pictures(config, database):
    """Check that each picture of each board is on the disk, and that nothing else stays there."""
    pictures = Pictures(config.pictures)
    with database.reading() as connection:
        for board in board_rows.newest(connection, limit=ALL):
            shown = views.of_board(connection, board.key)
            assert shown
            assert all(pictures.path(view.file).stat().st_size == view.size_bytes for view in shown)
        for part in range(PARTS):
            remove_strays(database, pictures, part, now_us() + 2 * DAY_US)
        left = {name for part in range(PARTS) for name in pictures.older_than(math.inf, part)}
        assert left == files_of_views(connection)


def test_what_a_killed_gate_has_accepted_is_on_the_disk_and_nothing_else_is(config, database):
    """A gate is killed at a point, and the next gate goes on with the same board."""
    activated(database, TINY)
    pictures = {"R1": LIGHT, "R2": DARK}
    address, body = f"http://127.0.0.1:{config.listen.port}", {"recipe": "tiny", "views": views_of(pictures)}
    feeder = Feeder(address, add_feeder(database), "k1", pictures, body)
    hand_in_while_the_gate_is_killed(config, feeder, (Failpoint.VIEW_KEPT, Failpoint.BOARD_CHECKED))
    with database.reading() as connection:
        (board,) = board_rows.newest(connection)
        assert [view.name for view in views.of_board(connection, board.key)] == ["R1", "R2"]
    check_pictures(config, database)


# 200 times kill -9 of `web` and the worker, at every labelled point: the guarantees of docs/serve.md hold


WHOLE_LINE_POINTS = (
    Failpoint.LOCATING,
    Failpoint.LOCATED,
    Failpoint.BOARD_BEGUN,
    Failpoint.SUBMITTED,
    Failpoint.FOUND,
    Failpoint.DECIDING,
    Failpoint.DECIDED,
)
OTHERS = (Failpoint.AMENDED, Failpoint.SINK_TOLD)
IN_A_ROW = 3
"""A board with which the line ends five times is REVIEW; so many kills in a row are less."""


@dataclass
class Service:
    """The folder of a service, and what was handed in to it."""

    config: ServeConfig
    database: Database
    tiny: tuple[Path, Path]
    handed_in: list[tuple[str, dict[str, bytes] | None]] = field(default_factory=list)
    answered: dict[int, Verification] = field(default_factory=dict)

    def __post_init__(self):
        self.parts = activated(self.database, TINY)
        self.whole = activated(self.database, TINY, "whole", whole=WHOLE)

    def accept(self, key, pictures):
        """Accept a board with pictures of its parts, or a whole board."""
        self.handed_in.append((key, pictures))
        if pictures is None:
            said = {"recipe": "whole", "whole": "top"}
            accept_request(self.config, self.database, self.whole.id, {"top": png(BOARD)}, said, key=key)
        else:
            accept(self.config, self.database, self.parts.id, pictures, key=key)

    def kill_line(self, names, chance):
        """Kill the line at each point, with new boards before each kill; return how many kills that were."""
        for number, point in enumerate(chance.sample(WHOLE_LINE_POINTS, len(WHOLE_LINE_POINTS)), 1):
            for name in names:
                self.accept(f"{name} {number}", None if name.endswith("whole") else chosen(chance))
            nth = 1 if point in (Failpoint.LOCATING, Failpoint.LOCATED) else chance.randint(1, 2)
            assert run_line(self.config, self.tiny, point, nth) == KILLED
            self.tidy()
            if number % IN_A_ROW == 0 or number == len(WHOLE_LINE_POINTS):
                assert run_line(self.config, self.tiny) == 0
        return len(WHOLE_LINE_POINTS)

    def kill_gate(self, key, api_key, chance):
        """Kill the gate at each point while a board is handed in; return how many kills that were."""
        pictures = chosen(chance)
        self.handed_in.append((key, pictures))
        address, body = f"http://127.0.0.1:{self.config.listen.port}", {"recipe": "tiny", "views": views_of(pictures)}
        feeder = Feeder(address, api_key, key, pictures, body)
        # In their order: a board does not pass a point again once it is beyond it.
        hand_in_while_the_gate_is_killed(self.config, feeder, GATE_POINTS)
        board = self.database.read(board_rows.of_key, key)
        assert board is not None, "202 was said"
        self.tidy()
        return len(GATE_POINTS)

    def kill_others(self, key, chance):
        """Kill the line while it amends a late board, and `web` while it tells a sink; return the number of kills."""
        accept(self.config, self.database, self.parts.id, {"R1": DARK}, key=key, within_s=500)
        assert status_of(start(decide_late, self.config, self.tiny, Failpoint.AMENDED)) == KILLED
        assert run_line(self.config, self.tiny) == 0
        assert status_of(start(serve_gate, self.config, Failpoint.SINK_TOLD, chance.randint(1, 9))) == KILLED
        return len(OTHERS)

    def tidy(self):
        """Remove what may go; the pictures of undecided boards and of open calls stay."""
        pictures, keep = Pictures(self.config.pictures), Retention(ok_days=0, review_days=0, ng_days=0, orphan_days=1)
        sweep(self.database, pictures, keep, now_us() + DAY_US // 2)
        with self.database.reading() as connection:
            for board in board_rows.newest(connection, limit=ALL):
                if board.state in UNDECIDED or any(
                    one.verification_id is None for one in call_rows.of_board(connection, board.id)
                ):
                    for view in views.of_board(connection, board.key):
                        assert pictures.path(view.file).stat().st_size == view.size_bytes

    def answer(self, chance):
        with self.database.writing() as connection:
            for call in chance.sample(found := call_rows.open_calls(connection), len(found) // 2):
                word = NewVerification(chance.choice(list(Outcome)), now_us(), "ann")
                given = verifications.record_verification(connection, call, word)
                self.answered[given.id] = given


def chosen(chance):
    return {f"R{number}": grey(chance.choice([200, 200, 20]) + number) for number in range(3)}


def undisturbed(folder, template, tiny, service):
    """Return the decisions of a service with the same boards that nobody kills."""
    config = config_of(folder)
    config.data.mkdir()
    with embedded(config, template) as database:
        calm = Service(config, database, tiny)
        for key, pictures in service.handed_in:
            calm.accept(key, pictures)
        assert run_line(config, tiny) == 0
        return decisions(database)


def check_told(service, file):
    """Let `web` tell the rest; check that the sink got each event, for the first time in order, with the same id."""
    last = start(serve_gate, service.config, None, 1)
    eventually(lambda: not any(queue.waiting for queue in service.database.read(event_log.queues)))
    happened = [(one.uuid, one.kind.value, one.id) for one in service.database.read(event_log.after, 0, limit=10**6)]
    last.terminate()
    status_of(last)
    told = [tuple(json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    assert list(dict.fromkeys(told))[: len(happened)] == happened


@pytest.mark.stress
@pytest.mark.timeout(3600)
def test_two_hundred_kills_break_no_guarantee(config, database, tmp_path, sqlite_template, tiny):
    chance = Random(7)
    database.write(event_log.register_sinks, config.sinks.names, now_us())
    service = Service(config, database, tiny)
    api_key, kills, turn, late = add_feeder(database), 0, 0, []
    while kills < LEAST_KILLS:
        turn += 1
        kills += service.kill_gate(f"{turn} gate", api_key, chance)
        kills += service.kill_line([f"{turn} parts", f"{turn} whole"], chance)
        late.append(f"{turn} late")
        kills += service.kill_others(late[-1], chance)
        service.answer(chance)
    print(f"{kills} kills in {turn} turns, {len(service.handed_in) + len(late)} boards")
    check_one_decision_each(database)
    decided = decisions(database)
    assert {key: decided.pop(key)[0] for key in late} == dict.fromkeys(late, Verdict.REVIEW)
    assert decided == undisturbed(tmp_path / "calm", sqlite_template, tiny, service)
    check_told(service, tmp_path / "told")
    with database.reading() as connection:
        assert {id: row_types.get(connection, Verification, id) for id in service.answered} == service.answered
        assert audit.prove(connection).broken_id is None
        for part in range(PARTS):
            remove_strays(database, Pictures(config.pictures), part, now_us() + 2 * DAY_US)
        on_disk = {f"{path.parent.name}/{path.name}" for path in config.pictures.glob("??/*")}
        assert on_disk == files_of_views(connection)
