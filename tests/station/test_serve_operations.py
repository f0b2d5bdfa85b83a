"""What docs/operations.md promises: a restored backup is a whole service; systemd and containers get what fits."""

import json
import re
import shutil
import tomllib
from pathlib import Path

import yaml
from quick_line import QuickDevice
from serve_rows import NOON, decided, decision, late, ng, the
from serving import config_of, hand_in, png, serving
from stations import deciding, quick_opener
from waiting import eventually

from coe.cli.common import Exit
from coe.serve import processes
from coe.serve.backup import back_up
from coe.serve.clock import now_us
from coe.serve.database import audit, board_rows, event_log, keys, views
from coe.serve.database.board_rows import Amendment
from coe.serve.database.connecting import open_database
from coe.serve.database.migration import migrate
from coe.serve.enums import EventKind
from coe.serve.service_config import ServeConfig

FOLDER = Path(__file__).parents[2] / "docs" / "operations"


def test_a_restored_backup_shows_boards_and_pictures_and_decides_what_was_waiting(served, tmp_path, tiny):
    hand_in(served.feeder, "decided", {"R1": "C", "R2": "C"})
    with served.database.writing() as connection:
        board = the(board_rows.of_key(connection, "decided"))
        (first, _) = views.of_board(connection, "decided")
        board_rows.decide(connection, decision(board, ng("R1", view_id=first.id), at_us=now_us()))
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
        eventually(lambda: all(one["verdict"] for one in rows_of(service, waiting, waiting + 1)))
        told = [kind for kind in kinds_of(service, waiting) if kind is EventKind.BOARD_DECIDED]
        assert len(told) == 1
    database.close()


def rows_of(service, *ids):
    return [service.operator.get(f"/api/v1/boards/{id}").json() for id in ids]


def kinds_of(service, id):
    with service.database.reading() as connection:
        return [event.kind for event in event_log.after(connection, 0, board_id=id)]


def test_systemd_and_compose_wait_as_long_as_each_process_needs():
    config = ServeConfig(station="a")
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for name, most_s in (("web", 2 * processes.GRACE_S), ("worker", config.drain_s + processes.GRACE_S)):
        text = (FOLDER / f"coe-{name}.service").read_text(encoding="utf-8")
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


def test_the_container_is_made_of_what_the_guide_makes():
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    guide = (FOLDER.parent / "operations.md").read_text(encoding="utf-8")
    assert "cp requirements.lock wheelhouse/" in guide
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]
    assert set(re.findall(r"--no-deps ([\w-]+)$", guide + text, re.MULTILINE)) == {project}
    assert "--requirement /wheelhouse/requirements.lock" in text
    assert all("--no-index" in part and "--no-deps" in part for part in re.findall(r"pip install[^&]*", text))
    assert (FOLDER.parents[1] / "requirements.lock").is_file()


# What the dashboard and the guide say of the metrics is what the gate exports


DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\bcoe_[a-z_]+\b")


def exported(served):
    answer = served.operator.get("/metrics")
    assert answer.status_code == 200
    return set(re.findall(r"^# HELP (coe_\w+)", answer.text, re.MULTILINE))


def test_every_metric_of_the_dashboard_is_exported_and_every_exported_one_is_shown(served):
    board = json.loads((DOCS / "grafana" / "coe.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable.get("definition", "") for variable in board["templating"]["list"]]
    named = {name for query in queries for name in NAME.findall(query)}
    assert named == exported(served)


def test_panels_do_not_overlap_and_stay_on_the_board():
    board = json.loads((DOCS / "grafana" / "coe.json").read_text(encoding="utf-8"))
    cells = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert max(x for x, _ in own) < 24
        cells |= own


def test_the_guide_lists_the_metrics(served):
    guide = (DOCS / "integration.md").read_text(encoding="utf-8").partition("### Prometheus and Grafana")[2]
    rows = re.findall(r"^\| `(coe_\w+)", guide.partition("\n## ")[0], re.MULTILINE)
    assert set(rows) == exported(served)


def test_no_amendment_makes_a_counter_fall(served):
    def counters():
        samples = (line.rsplit(" ", 1) for line in served.engineer.get("/metrics").text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in samples if name.partition("{")[0].endswith("_total")}

    board = served.database.write(decided, "k1", late("R1"))
    before = counters()
    assert before['coe_boards_decided_total{verdict="REVIEW"}'] == 1
    assert served.database.write(board_rows.amend, Amendment(board.id, NOON + 5, [ng("R1")]))
    after = counters()
    assert all(after[name] >= value for name, value in before.items())
