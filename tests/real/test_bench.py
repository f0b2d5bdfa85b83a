"""The benchmark command on a small synthetic board: real weights files, a real budget."""

from __future__ import annotations

import json
import sys

import pytest

from coe.cli import bench


def test_strategies_are_measured_side_by_side(tmp_path, monkeypatch, capsys):
    arguments = [
        *("run", "--experts", "4", "--kind", "resnet18", "--input", "32", "--requests", "24"),
        *("--strategy", "coserve,samba", "--work", str(tmp_path), "--json"),
    ]
    monkeypatch.setattr(sys, "argv", ["coe-bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code in (0, None)
    rows = json.loads(capsys.readouterr().out)
    assert [row["strategy"] for row in rows] == ["coserve", "samba"]
    for row in rows:
        assert row["images"] == 24
        assert row["errors"] == 0
        assert 0 < row["peak_reserved_bytes"] <= row["budget_bytes"]
        assert row["switches"] > 0
        assert row["switch_ratio"] > 0
    assert rows[0]["switches"] <= rows[1]["switches"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--strategy", "coserve,fast"), "no strategy 'fast'"),
        (("--board", "demo"), "--board needs --images"),
        (("--kind", "onnx"), "no skeleton"),
        (("--kind", "resnet9"), "not a kind"),
    ],
)
def test_wrong_usage_is_said(tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.setattr(sys, "argv", ["coe-bench", "run", "--work", str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
