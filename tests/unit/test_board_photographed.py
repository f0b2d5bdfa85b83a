"""`coe-board new --photos`: a first board file from photographs, what a person must decide, and the next commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_photo_split import save
from tiny_line import Call

from coe.board import rules
from coe.cli import board_command


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(6):
        save(Path("photos/R1/good") / f"{number}.png", number)
        save(Path("photos/R1/cracked") / f"{number}.png", 50 + number)
        save(Path("photos/R1/NG") / f"{number}.png", 70 + number)
        save(Path("photos/U2/gut") / f"{number}.png", 100 + number)
        save(Path("photos/V3/10K") / f"{number}.png", 150 + number)
        save(Path("photos/V3/47K") / f"{number}.png", 200 + number)
    return tmp_path / "photos"


def test_a_board_file_is_made_of_what_is_shown(photos: Path, call: Call) -> None:
    said = call("new", "line7", "--photos", "photos", command=board_command)
    assert said.status == 0, said.err
    board = rules.load("routing_rules/line7.yaml")
    assert set(board.components) == {"R1", "U2", "V3"}
    assert board.experts["R1"].labels == ("good", "NG", "cracked")
    assert {label: str(outcome) for label, outcome in board.components["R1"].root.outcomes.items()} == {
        "good": "OK",
        "NG": "NG",
        "cracked": "REVIEW",
    }
    assert board.components["U2"].reference == "line7/U2"
    assert set(board.components["V3"].root.outcomes.values()) == {board.components["R1"].root.outcomes["cracked"]}
    decided = [line for line in said.out.splitlines() if line.startswith("to decide")]
    assert [line.partition("#")[0].split()[-2] for line in decided] == ["10K:", "47K:"], "nobody knows which is good"
    assert "coe-experts evaluate routing_rules/line7.yaml --images photos" in " ".join(said.out.split())
    again = call("new", "line7", "--photos", "photos", command=board_command)
    assert again.status == 2, "what is there is never replaced"


def test_nothing_is_run_while_something_is_to_decide(photos: Path, call: Call) -> None:
    assert call("new", "line7", "--photos", "photos", "--run", command=board_command).status == 1
    assert not (photos / "split.csv").exists()


def test_pictures_in_no_folder_are_refused(photos: Path, call: Call) -> None:
    save(photos / "loose.png", 1)
    said = call("new", "line7", "--photos", "photos", command=board_command)
    assert (said.status, "loose.png" in said.err) == (2, True)
    assert not Path("routing_rules").exists()
