"""What a service is made of: init, keys, backup and what docs/operations.md promises; which pictures go when."""

import json
import os
import re
import shutil
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import stations
import yaml
from full_disk import disk_of
from quick_line import QuickDevice
from serve_rows import NOON, answer, decide, decided, decision, late, ng, the
from serving import activated, config_of, hand_in, png, serving
from stations import DARK, LIGHT, accept, deciding, quick_opener
from tiny_line import TINY
from waiting import eventually

from coe.board import calibration_file
from coe.cli.common import Exit
from coe.core import Verdict
from coe.errors import CoeError, ConfigError
from coe.helpers.files import NotWritten, alone
from coe.serve import backup, processes, service_config
from coe.serve import command as serve
from coe.serve.backup import back_up
from coe.serve.clock import DAY_US, HOUR_US, now_us
from coe.serve.creation import Wanted, create
from coe.serve.database import audit, board_rows, event_log, keys, recipe_versions, views
from coe.serve.database.board_rows import Amendment
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import migrate
from coe.serve.database.tables import NewView
from coe.serve.enums import EventKind, Outcome, Role
from coe.serve.picture_folder import PARTS, Pictures
from coe.serve.retention import remove_strays, sweep
from coe.serve.service_config import Retention, ServeConfig


@pytest.fixture
def service(tmp_path, sqlite_template):
    """The config file of a service with an empty database."""
    path = tmp_path / "serve.yaml"
    text = "station: test\nlisten: {port: 0}\ndrain_s: 1\nlimits: {free_share: 0}\n"  # whatever disk tests run on
    path.write_text(text, encoding="utf-8")
    (tmp_path / "data").mkdir()
    shutil.copy(sqlite_template, tmp_path / "data" / "serve.db")
    return path


@pytest.fixture
def database(service):
    found = open_database(service_config.load(service).database_url)
    yield found
    found.close()


def test_init_makes_a_service_with_the_calibration_of_its_board_and_keys_for_its_owner_alone(own_tiny, call):
    board, store = own_tiny
    folder = board.parent / "service"
    text = "board: tiny\nexperts: {body-a: {temperature: 2}}\n"
    calibration_file.path_for(board).write_text(text)
    said = call("init", folder, "--board", board, "--store", store, "--memory", "100MB", command=serve)
    assert (said.status, "recipe 'tiny' is active" in said.out) == (0, True)
    made = service_config.load(folder / "serve.yaml")
    assert (made.line.store, made.line.options("b").memory) == (store, 100_000_000)
    assert (folder / "keys.json").stat().st_mode & 0o777 == 0o600
    assert (folder / "data" / "serve.db").stat().st_mode & 0o777 == 0o600  # it holds the hashes of PINs
    database = open_database(made.database_url)
    with database.reading() as connection:
        assert the(recipe_versions.active(connection, "tiny")).content["calibration"] == text
        assert {key.role for key in keys.all_keys(connection)} == set(Role)
    database.close()
    again = call("init", folder, "--board", board, "--store", store, command=serve)
    assert (again.status, "exists already" in again.words) == (2, True)
    for lost in ("serve.yaml", "keys.json"):
        (folder / lost).rename(board.parent / lost)
    again = call("init", folder, "--board", board, "--store", store, command=serve)
    assert (again.status, "to another station" in again.words, [*folder.iterdir()]) == (2, True, [folder / "data"])
    for lost in ("serve.yaml", "keys.json"):
        (board.parent / lost).rename(folder / lost)
    assert call("verify-audit", folder / "serve.yaml", command=serve).status == 0
    assert call("migrate", folder / "serve.yaml", command=serve).out == "the database has the newest schema\n"


def test_keys_are_made_listed_and_ended(service, database, call):
    key = call("add-key", service, "printer", "--role", "feeder", "--days", 3, command=serve).out.strip()
    held = database.read(keys.holder, key, now_us())
    assert (held.name, held.role, held.expires_us is not None) == ("printer", Role.FEEDER, True)
    assert key not in held.hash
    twice = call("add-key", service, "printer", "--role", "engineer", command=serve)
    assert (twice.status, "there is a key 'printer' already" in twice.words) == (2, True)
    assert call("list-keys", service, command=serve).out.startswith("printer  feeder  until 2")
    assert call("revoke-key", service, "printer", command=serve).status == 0
    assert call("revoke-key", service, "printer", command=serve).status == 2
    assert database.read(keys.holder, key, now_us()) is None
    assert call("verify-audit", service, command=serve).out.startswith("2 entries")


@pytest.mark.parametrize(
    ("kind", "allowed", "lacks"),
    [
        ("narrow", "", r"have no weights.* synth --board \S*tiny\.yaml"),
        ("line7:Own", "", "--allow-kind line7"),
        ("line7:Own", "line7", "no module line7 is installed"),
        ("line7.inner:Own", "line7", r"no module line7\.inner is installed"),
    ],
)
def test_a_board_that_cannot_run_makes_no_service(own_tiny, kind, allowed, lacks):
    board, store = own_tiny
    board.write_text(board.read_text().replace("kind: narrow,", f"kind: {kind},"))
    shutil.rmtree(store)
    with pytest.raises(CoeError, match=lacks):
        create(board.parent / "service", Wanted(str(board), store, allow_kinds=[allowed] if allowed else []))
    assert not (board.parent / "service").exists()


@pytest.mark.parametrize("wrong", [["--memory", "much"], ["--within", "-5"], ["--within", "nan"]])
def test_options_that_cannot_be_taken_leave_the_place_to_the_next_try(own_tiny, call, wrong):
    board, store = own_tiny
    given = ["init", board.parent / "line7", "--board", board, "--store", store]
    assert call(*given, *wrong, command=serve).status == 2
    assert call("init", board.parent / "line7", *wrong, command=serve).status == 2
    assert call(*given, command=serve).status == 0


def test_a_service_cannot_be_made_where_a_file_lies(own_tiny, call):
    board, store = own_tiny
    for place in (board, board / "line7"):
        assert call("init", place, "--board", board, "--store", store, command=serve).status == 4


def test_who_makes_a_service_waits_for_another_who_makes_one_there(own_tiny):
    board, store = own_tiny
    with ThreadPoolExecutor() as threads:
        with alone(board.parent):
            made = threads.submit(create, board.parent, Wanted(str(board), store))
            time.sleep(0.2)  # it would come to its end meanwhile
            (board.parent / "serve.yaml").touch()
        assert isinstance(made.exception(), ConfigError)


def test_nobody_else_can_read_the_keys_and_secrets_of_a_new_service_nor_while_they_are_written(own_tiny, monkeypatch):
    """With its secrets there, no page needs room on the disk."""
    seen, sync = {}, os.fsync

    def see(number):
        seen[Path(os.readlink(f"/proc/self/fd/{number}")).name] = stat.S_IMODE(os.fstat(number).st_mode)
        sync(number)

    monkeypatch.setattr(os, "fsync", see)
    board, store = own_tiny
    made = create(board.parent / "service", Wanted(str(board), store))
    assert {mode for name, mode in seen.items() if "keys.json" in name} == {0o600}
    kept = [made.keys, *service_config.load(made.config).data.glob("*.secret")]
    assert {path.name for path in kept} == {"keys.json", "session.secret", "archive.secret"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


@pytest.fixture
def filled(service, database):
    settings = service_config.load(service)
    recipe = activated(database, TINY)
    accept(settings, database, recipe.id, {"R1": LIGHT, "R2": DARK})
    return settings


COMMANDS = {
    serve.migrate: (),
    serve.list_keys: (),
    serve.verify_audit: (),
    serve.add_key: ("k", Role.ENGINEER, None),
    serve.revoke_key: ("k",),
    serve.backup: (Path("copy"),),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_not_there_or_none_is_named(service, command, monkeypatch):
    data = service.parent / "data"
    (data / "serve.db").write_text("This is no database, however long one reads in it.")
    with pytest.raises(CoeError, match=str(data / "serve.db")):
        command(service, *COMMANDS[command])
    shutil.rmtree(data)
    with pytest.raises(ConfigError, match=f"{data} does not exist"):
        command(service, *COMMANDS[command])
    monkeypatch.setattr(Path, "stat", Mock(side_effect=PermissionError(13, "Permission denied", str(data))))
    with pytest.raises(ConfigError, match=f"{data}; run this as the user of the service"):
        open_database(f"sqlite:///{data}/serve.db")


def test_commands_do_in_another_schema_what_is_the_same_there_and_name_it_else(service, database, capsys):
    with database.writing() as connection:
        keys.add(connection, "k", Role.ENGINEER, keys.generate(), now_us=1)
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = '0009'")
    serve.verify_audit(service)
    serve.revoke_key(service, "k")
    with pytest.raises(ConfigError, match="another version"):
        serve.migrate(service)
    with database.writing() as connection:
        connection.exec_driver_sql("ALTER TABLE api_key DROP COLUMN pin_hash")
    with pytest.raises(ConfigError, match="schema 0009"):
        serve.list_keys(service)


def test_a_backup_can_take_the_place_of_the_data(filled, database, tmp_path, monkeypatch):
    saved = set[int]()
    monkeypatch.setattr(os, "fsync", lambda number: saved.add(os.fstat(number).st_ino))
    with database.writing() as connection:
        key = keys.add(connection, "ann", Role.OPERATOR, keys.generate(), now_us=1)
        keys.begin_session(connection, key, "a", now_us=1, ends_us=10)
    (photo := filled.data / "teach" / "line7" / "photos" / "R10k" / "good" / "P1.png").parent.mkdir(parents=True)
    photo.write_bytes(LIGHT)
    made = backup.back_up(filled, tmp_path / "copy")
    assert saved >= {path.stat().st_ino for path in (tmp_path / "copy").rglob("*")}
    assert (tmp_path / "copy" / photo.relative_to(filled.data)).read_bytes() == LIGHT
    assert (made.pictures, made.missing) == (2, 0)
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) == 0o700  # it holds the hashes of PINs
    with database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM view")
    restored = config_of(tmp_path / "copy")
    copy = open_database(restored.database_url)
    with copy.reading() as connection:
        found = views.of_board(connection, "k1")
        # A person who signs out after the backup must not be signed in by it.
        assert keys.of_session(connection, "a", 1, 10) is None
    copy.close()
    assert [Pictures(restored.pictures).path(view.file).read_bytes() for view in found] == [LIGHT, DARK]
    with pytest.raises(ConfigError, match="exists already"):
        backup.back_up(filled, tmp_path / "copy")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ConfigError, match=r"elsewhere.serve\.db has no tables"):
        backup.back_up(config_of(tmp_path / "elsewhere"), tmp_path / "more")
    assert not list((tmp_path / "elsewhere").iterdir())
    with disk_of(50_000), pytest.raises(NotWritten):
        backup.back_up(filled, tmp_path / "more")
    with database.reading() as connection:
        page = connection.exec_driver_sql("SELECT rootpage FROM sqlite_master WHERE name = 'view'").scalar_one()
        size = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
    database.shorten_log()
    with (filled.data / "serve.db").open("rb+") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"?" * size)
    with pytest.raises(ConfigError, match=f"{filled.data / 'serve.db'} is damaged"):
        backup.back_up(filled, tmp_path / "more")
    assert not [path for path in tmp_path.iterdir() if "more" in path.name]


def test_pictures_go_after_their_time_and_none_while_it_is_needed(filled, database):
    pictures, keep = Pictures(filled.pictures), Retention(ok_days=1, review_days=2, ng_days=3, orphan_days=4)

    def left(days):
        sweep(database, pictures, keep, now_us() + round(days * DAY_US))
        return sum(path.is_file() for path in filled.pictures.rglob("*"))

    assert left(1000) == 2  # the board is not decided
    decide(database, "k1", ng("R1"), ng("R2"))
    for refdes in ("R1", "R2"):
        assert left(1000) == 2  # a call is open
        answer(database, 1, **{refdes: Outcome.CONFIRMED})
    assert left(2.5) == 2
    assert left(3.5) == 0


def test_a_board_whose_pictures_are_gone_is_not_looked_at_again(filled, database):
    decide(database, "k1")
    pictures, keep, later_us = Pictures(filled.pictures), Retention(ok_days=1), now_us() + 2 * DAY_US
    assert sweep(database, pictures, keep, now_us()) == 0
    assert len(database.read(views.expired, Verdict.OK, later_us, later_us, after_id=0, limit=9)) == 2
    assert sweep(database, pictures, keep, later_us) == 2
    with database.writing() as connection:
        # A sweep would remove this one, too, if it looked at the board.
        views.add(connection, NewView("k1", "R9", "00/late.png", "a" * 64, 10, 100, now_us()))
        assert views.expired(connection, Verdict.OK, later_us, later_us, after_id=0, limit=9) == []


def test_what_came_while_a_clock_was_not_set_or_ahead_is_as_old_as_what_came_next(service, database, monkeypatch):
    config, recipe = service_config.load(service), activated(database, TINY)
    pictures, keep = Pictures(config.pictures), Retention(ok_days=1, orphan_days=1)

    def come(key, at_us):
        monkeypatch.setattr(stations, "now_us", lambda: at_us)
        board = accept(config, database, recipe.id, {"R1": LIGHT}, key=key)
        with database.writing() as connection:
            assert board_rows.decide(connection, decision(board, at_us=at_us))
            views.add(connection, NewView(f"no-{key}", "R1", f"00/{key}.png", "a" * 64, 10, 100, at_us))

    def left(at_us, free_share=1.0, since_us=None):
        sweep(database, pictures, keep, at_us, since_us=since_us, free_share=lambda: free_share)
        with database.reading() as connection:
            return connection.exec_driver_sql("SELECT count(*) FROM view").scalar_one()

    set_us = now_us()
    for name, at_us in {"without": 1, "ahead": set_us + 9000 * DAY_US}.items():
        come(name, at_us)
    assert left(set_us) == 4, "they may have come a minute ago"
    come("with", set_us)
    assert left(set_us + HOUR_US) == 6
    assert left(set_us + DAY_US + 1, since_us=set_us + HOUR_US) == 0
    come("without a clock since", 9)
    assert left(DAY_US) == 2
    keep = Retention(free_share=0.5)
    assert left(set_us, free_share=0.1) == 1, "room is made of boards whose time nobody knows, too"


def test_pictures_without_a_board_since_the_last_sweep_and_of_aborted_boards_go(filled, database):
    pictures, keep = Pictures(filled.pictures), Retention(orphan_days=1)
    with database.writing() as connection:
        assert board_rows.abort(connection, the(board_rows.of_key(connection, "k1")), now_us(), reason="no")
        view = views.of_board(connection, "k1")[0]
    assert sweep(database, pictures, keep, now_us()) == 0
    assert sweep(database, pictures, keep, now_us() + 2 * DAY_US) == 2
    assert not pictures.path(view.file).exists()
    with database.writing() as connection:
        for name, came_us in (("R1", 0), ("R2", 10 * DAY_US)):
            views.add(connection, NewView("nobody", name, f"00/{name}.png", "a" * 64, 10, 100, came_us))
    assert sweep(database, pictures, keep, 20 * DAY_US, since_us=9 * DAY_US) == 1
    assert sweep(database, pictures, keep, 20 * DAY_US) == 1


def strays(database, pictures, moment_us):
    return sum(remove_strays(database, pictures, part, moment_us) for part in range(PARTS))


def test_what_a_crash_left_without_a_row_goes(filled, database):
    pictures = Pictures(filled.pictures)
    receiving = pictures.receive()
    receiving.write(LIGHT)
    stray = receiving.keep()
    (filled.pictures / "incoming" / "half").write_bytes(b"half")
    assert strays(database, pictures, now_us() + DAY_US - HOUR_US) == 0  # a younger file may be about to get its row
    assert strays(database, pictures, now_us() + DAY_US + HOUR_US) == 1
    assert not pictures.path(stray).exists()
    assert all(pictures.path(view.file).exists() for view in database.read(views.of_board, "k1"))
    pictures.prepare()
    assert list((filled.pictures / "incoming").iterdir()) == []


DOCS = Path(__file__).parents[2] / "docs"


def test_a_restored_backup_shows_boards_and_pictures_and_decides_what_was_waiting(served, tmp_path, tiny):
    hand_in(served.feeder, "decided", {"R1": "C", "R2": "C"})
    board = decide(served.database, "decided", ng("R1", view_id=1))
    with served.database.writing() as connection:
        keys.revoke(connection, "engineer", now_us())
        audit.append(connection, "console", "revoke key", "engineer", now_us=now_us())
    waiting = hand_in(served.feeder, "waiting", {"R1": "C"}).json()["board"]
    back_up(served.gate.config, tmp_path / "backup")
    hand_in(served.feeder, "later", {"R1": "C"})
    key, held = served.feeder.headers["authorization"], served.engineer.headers["authorization"]

    restored = config_of(Path(shutil.copytree(tmp_path / "backup", tmp_path / "restored")))
    database = open_database(restored.database_url)
    assert not migrate(database)
    with database.writing() as connection:
        connection.exec_driver_sql("DELETE FROM api_key WHERE name = 'engineer'")
        connection.exec_driver_sql("UPDATE api_key SET name = 'old ' || name")
    with serving(restored, database) as service, deciding(restored, database, quick_opener(tiny, QuickDevice())):
        eventually(lambda: service.operator.get(f"/api/v1/boards/{waiting}").json()["verdict"] == "OK")
        (call,) = service.operator.get(f"/api/v1/boards/{board.id}").json()["calls"]
        assert (call["refdes"], call["verdict"]) == ("R1", "NG")
        picture = service.operator.get("/api/v1/calls/1/picture")
        assert (picture.status_code, picture.content) == (200, png(0))
        assert service.nobody.get("/api/v1/boards/1", headers={"Authorization": key}).status_code == 200
        assert service.nobody.get("/api/v1/boards/1", headers={"Authorization": held}).status_code == 401
        assert hand_in(service.feeder, "later", {"R1": "C"}).status_code == 202
        assert database.read(audit.prove).broken_id is None
        eventually(lambda: service.operator.get(f"/api/v1/boards/{waiting + 1}").json()["verdict"])
        told = [event.kind for event in database.read(event_log.after, 0, board_id=waiting)]
        assert told.count(EventKind.BOARD_DECIDED) == 1
    database.close()


def test_systemd_and_compose_wait_as_long_as_each_process_needs():
    config = ServeConfig(station="a")
    compose = yaml.safe_load((DOCS / "operations" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name, most_s in (("web", 2 * processes.GRACE_S), ("worker", config.drain_s + processes.GRACE_S)):
        text = (DOCS / "operations" / f"coe-{name}.service").read_text(encoding="utf-8")
        unit = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        assert (unit["Type"], unit["Restart"]) == ("notify", "always")
        assert unit["ExecStart"] == f"/opt/coe/current/bin/coe-serve {name} /etc/coe/serve.yaml"
        assert float(unit["TimeoutStopSec"]) > most_s
        assert int(unit["SuccessExitStatus"]) == Exit.INTERRUPTED  # of a process that is stopped while it starts
        container = compose[name]
        assert (container["restart"], container["command"]) == ("always", [name, "/etc/coe/serve.yaml"])
        assert float(container["stop_grace_period"].removesuffix("s")) > most_s
    # A worker that starts has so long until it ends by itself, with a trace.
    assert float(unit["WatchdogSec"]) >= processes.STARTS_FOR * config.line.hangs_after_s


def test_the_dashboard_and_the_guide_show_every_metric_that_is_exported_and_no_other(served):
    exported = set(re.findall(r"^# HELP (coe_\w+)", served.operator.get("/metrics").text, re.MULTILINE))
    board = json.loads((DOCS / "grafana" / "coe.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable.get("definition", "") for variable in board["templating"]["list"]]
    assert {name for query in queries for name in re.findall(r"\bcoe_[a-z_]+\b", query)} == exported
    guide = (DOCS / "integration.md").read_text(encoding="utf-8").partition("### Prometheus and Grafana")[2]
    assert set(re.findall(r"^\| `(coe_\w+)", guide.partition("\n## ")[0], re.MULTILINE)) == exported


def test_no_amendment_makes_a_counter_fall(served):
    def counters():
        samples = (line.rsplit(" ", 1) for line in served.engineer.get("/metrics").text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in samples if name.partition("{")[0].endswith("_total")}

    board = served.database.write(decided, "k1", late("R1"))
    before = counters()
    assert before['coe_boards_decided_total{verdict="REVIEW"}'] == 1
    text = served.engineer.get("/metrics").text
    assert all(line in text for line in ("coe_calls_open 1.0", "coe_intake_open 1.0"))
    assert served.database.write(board_rows.amend, Amendment(board.id, NOON + 5, [ng("R1")]))
    after = counters()
    assert all(after[name] >= value for name, value in before.items())
