"""What the dashboard and the guide say of the metrics is what the gate exports."""

from __future__ import annotations

import json
import re
from pathlib import Path

from serve_rows import NOON, decided, late, ng, write
from serving import Served

from coe.serve.database import decisions
from coe.serve.database.decisions import Amendment

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"\bcoe_[a-z_]+\b")


def exported(served: Served) -> set[str]:
    answer = served.operator.get("/metrics")
    assert answer.status_code == 200
    return set(re.findall(r"^# HELP (coe_\w+)", answer.text, re.MULTILINE))


def test_every_metric_of_the_dashboard_is_exported_and_every_exported_one_is_shown(served: Served) -> None:
    board = json.loads((DOCS / "grafana" / "coe.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [variable.get("definition", "") for variable in board["templating"]["list"]]
    named = {name for query in queries for name in NAME.findall(query)}
    assert named == exported(served)


def test_panels_do_not_overlap_and_stay_on_the_board() -> None:
    board = json.loads((DOCS / "grafana" / "coe.json").read_text(encoding="utf-8"))
    cells: set[tuple[int, int]] = set()
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


def test_the_guide_lists_the_metrics(served: Served) -> None:
    guide = (DOCS / "integration.md").read_text(encoding="utf-8").partition("### Prometheus and Grafana")[2]
    rows = re.findall(r"^\| `(coe_\w+)", guide.partition("\n## ")[0], re.MULTILINE)
    assert set(rows) == exported(served)


def test_no_amendment_makes_a_counter_fall(served: Served) -> None:
    def counters() -> dict[str, float]:
        samples = (line.rsplit(" ", 1) for line in served.admin.get("/metrics").text.splitlines() if line[0] != "#")
        return {name: float(value) for name, value in samples if name.partition("{")[0].endswith("_total")}

    board = write(served.database, decided, "k1", late("R1"))
    before = counters()
    assert before['coe_boards_decided_total{verdict="REVIEW"}'] == 1
    assert write(served.database, decisions.amend, Amendment(board.id, NOON + 5, [ng("R1")], []))
    after = counters()
    assert all(after[name] >= value for name, value in before.items())
