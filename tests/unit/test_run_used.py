"""A run carries what it was made with: board file, thresholds, and the versions of experts and references."""

from __future__ import annotations

import json
from pathlib import Path

from lamp import lamp, picture
from tiny_line import Call

from coe.cli import inspect as inspect_cli
from coe.store.store import Store

BOARD = """
board: lamps  # <b>as written</b>
experts:
  lamp: {kind: onnx, labels: [dark, bright], input: 32}
components:
  L: {inspect: lamp, then: {dark: NG, bright: OK}}
"""


def test_a_run_and_its_report_carry_board_thresholds_and_versions(tmp_path: Path, call: Call) -> None:
    (tmp_path / "lamps.yaml").write_text(BOARD, encoding="utf-8")
    thresholds = "board: lamps\nexperts:\n  lamp: {temperature: 2.0}\n"
    (tmp_path / "lamps.calibration.yaml").write_text(thresholds, encoding="utf-8")
    lamp(tmp_path / "lamp.onnx")
    store = Store(tmp_path / "store")
    for source in ("first", "second"):
        made = store.put("lamps/lamp", kind="onnx", labels=["dark", "bright"], input_size=32,
                         file=tmp_path / "lamp.onnx", source=source)  # fmt: skip
    picture(tmp_path / "images" / "L" / "a.png", 240)
    at = ("--store", store.root, "--memory", "100MB", "--profile", "none", "--out", tmp_path / "run")
    said = call("--board", tmp_path / "lamps.yaml", "--images", tmp_path / "images", *at, command=inspect_cli)
    assert said.status in (0, 1), said.words
    used = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["used"]
    assert (used["rules"], used["calibration"]) == (BOARD, thresholds)
    (expert,) = used["experts"]
    assert (expert["id"], expert["version"], expert["source"]) == ("lamps/lamp", 2, "second")
    assert expert["checksum"] == made.checksum
    report = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert made.checksum in report
    assert "temperature: 2.0" in report
    assert "<b>as written" not in report
    assert "\\x0a" not in report, "lines are lines"
    assert "\nboard: lamps  # " in report
