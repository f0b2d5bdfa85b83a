"""A sink of a user's own: the example of the docs, in a package outside of ours, told by a real bridge."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from bridging import RELAY
from serve_rows import NOON, decided, ng
from waiting import eventually

from coe.serve.database import event_log

DOCS = Path(__file__).resolve().parents[2] / "docs" / "integration.md"


def test_the_example_of_the_docs_is_told_by_its_path_and_by_its_entry_point(sqlite_database, tmp_path):
    section = DOCS.read_text(encoding="utf-8").partition("### A sink of your own")[2].partition("\n### ")[0]
    code, config, entry = re.findall(r"```(?:python|yaml|toml)\n(.*?)```", section, re.S)
    theirs = tmp_path / "theirs"
    (theirs / "plant_log-1.dist-info").mkdir(parents=True)
    (theirs / "plant_log.py").write_text(code)
    (theirs / "plant_log-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plant-log\nVersion: 1\n")
    points = entry.replace("project.entry-points.", "").replace('"', "")
    (theirs / "plant_log-1.dist-info" / "entry_points.txt").write_text(points)
    file = tmp_path / "serve.yaml"
    file.write_text(f"station: aoi-1\ndata: .\n{config}  plant-log:\n    night: {{file: night.jsonl}}\n")
    with sqlite_database.writing() as connection:
        event_log.register_sinks(connection, ["day", "night"], NOON)
        decided(connection, "k1", ng())
    bridge = subprocess.Popen(
        [sys.executable, "-c", RELAY, str(file)],
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(theirs)},
    )
    logs = [tmp_path / f"{sink}.jsonl" for sink in ("day", "night")]
    try:
        eventually(lambda: all(log.exists() and "board.decided" in log.read_text() for log in logs))
    finally:
        bridge.communicate()
    for log in logs:
        told = [json.loads(line) for line in log.read_text().splitlines()]
        assert [one["kind"] for one in told] == ["board.accepted", "board.decided"]
        assert {one["station"] for one in told} == {"aoi-1"}
    assert bridge.returncode == 0
