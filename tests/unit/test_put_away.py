"""Pictures that are done are moved; boards of a folder that fills are closed once they are quiet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coe.core import Request, Result, Verdict
from coe.pictures.watched_folder import WatchedFolder
from coe.results.closing_boards import ClosingBoards


def test_a_picture_that_is_replaced_as_it_is_moved_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched, path = WatchedFolder(tmp_path / "in", tmp_path / "done"), tmp_path / "in" / "R1__L.png"
    path.parent.mkdir()
    path.write_bytes(b"first")
    stamp, rename = watched.stamp("R1__L.png"), os.replace
    assert stamp is not None

    def late(source: Path, target: Path) -> None:
        path.write_bytes(b"taken again")
        monkeypatch.setattr(os, "replace", rename)
        rename(source, target)

    monkeypatch.setattr(os, "replace", late)
    assert not watched.put_away("R1__L.png", stamp)
    assert path.read_bytes() == b"taken again", "the watch will see it"


def test_no_board_is_quiet_while_its_share_is_away() -> None:
    boards = ClosingBoards(None, quiet_s=30.0)
    boards.come("SN1", 0.0)
    boards.take(Result(Request(1, "L", "R1.png", "SN1"), Verdict.OK, (), 0.1), 1.0)
    for now in (10.0, 40.0, 70.0):
        boards.lose_sight(now)
    assert not list(boards.close(71.0, ()))
    assert [board.closed for board in boards.close(100.0, ())] == ["quiet"]
