"""When the pictures of a folder that fills are judged: as timetables, of listings and seconds."""

import os
from itertools import pairwise

from coe.core import Request, Result, Verdict
from coe.pictures.filling import LONGEST_PAUSE_S, Arrivals, Sighting, WatchedFolder
from coe.pictures.picture_file import FileStamp
from coe.results.closing_boards import ClosingBoards

FEW = 10


def seen(size, inode=1, *, upload=False, modified=0):
    return Sighting(FileStamp(size, modified), inode, upload)


def test_a_picture_is_judged_once_it_and_its_time_stood_still_and_few_at_a_time_the_oldest_first():
    arrivals = Arrivals(2, 60)
    table = [(0.0, 10, []), (1.0, 20, []), (2.0, 20, []), (2.9, 20, []), (3.0, 20, ["a.png"]), (4.0, 20, [])]
    for now, size, ready in table:
        assert arrivals.look({"a.png": seen(size)}, now, FEW) == ready, now
    assert arrivals.judged("a.png", FileStamp(20, 0))
    assert not list(arrivals.open())
    arrivals = Arrivals(2, 60)
    for now in range(5):
        assert arrivals.look({"a.png": seen(99, modified=now)}, now, FEW) == []
    assert arrivals.look({"a.png": seen(99, modified=4)}, 6.0, FEW) == ["a.png"]
    arrivals = Arrivals(1, 60)
    files = {f"{n}.png": seen(10, inode=n, modified=9 - n) for n in range(5)}
    arrivals.look(files, 0.0, FEW)
    assert arrivals.look(files, 1.0, 2) == ["4.png", "3.png"]
    assert arrivals.look(files, 1.1, FEW) == ["2.png", "1.png", "0.png"]


def test_an_upload_is_judged_at_once_when_that_very_file_got_the_name_of_the_picture():
    for name in ("SN1/R1__A.png.part", "SN1/.R1__A.png.x7", "SN1/.in.R1__A.png", ".tmp/R1__A.png"):
        arrivals = Arrivals(2, 60)
        assert arrivals.look({name: seen(10, upload=True)}, 0.0, FEW) == []
        assert arrivals.look({"SN1/R1__A.png": seen(20)}, 0.1, FEW) == ["SN1/R1__A.png"]
    for other in ({"b.png": seen(20)}, {"a.png": seen(20, inode=2)}):
        arrivals = Arrivals(2, 60)
        arrivals.look({"a.png.part": seen(10, upload=True)}, 0.0, FEW)
        assert arrivals.look(other, 0.1, FEW) == []


def test_nothing_stands_still_while_nobody_sees_it_nor_is_a_file_waited_for_under_its_first_name():
    arrivals = Arrivals(2, 60)
    arrivals.look({"a.png": seen(10)}, 0.0, FEW)
    arrivals.lose_sight()
    assert arrivals.look({"a.png": seen(10)}, 60.0, FEW) == []
    arrivals.look({}, 61.0, FEW)  # the mount point without its share
    assert arrivals.look({"a.png": seen(10)}, 70.0, FEW) == []
    assert arrivals.look({"a.png": seen(10)}, 72.0, FEW) == ["a.png"]
    arrivals = Arrivals(2, 60)
    arrivals.look({"a.png": seen(10)}, 0.0, FEW)
    arrivals.look({"b.png": seen(10)}, 1.0, FEW)
    assert list(arrivals.open()) == ["b.png"]
    arrivals.look({}, 2.0, FEW)
    assert list(arrivals.open()) == ["b.png"]


def test_a_verdict_holds_for_the_very_file_that_was_judged():
    arrivals = Arrivals(2, 60)
    for now in (0.0, 2.0):
        arrivals.look({"a.png": seen(10)}, now, FEW)
    assert not arrivals.judged("a.png", FileStamp(11, 0))
    for now in (3.0, 5.0):
        ready = arrivals.look({"a.png": seen(11)}, now, FEW)
    assert ready == ["a.png"]
    arrivals.look({"a.png": seen(12)}, 6.0, FEW)  # the listing knew before the file was asked
    assert not arrivals.judged("a.png", FileStamp(11, 0))
    assert not arrivals.judged("a.png", None)
    assert list(arrivals.open()) == ["a.png"]
    arrivals = Arrivals(2, 60, {"a.png": FileStamp(10, 0)})
    for now in (0.0, 5.0):
        assert arrivals.look({"a.png": seen(10)}, now, FEW) == []
    assert arrivals.is_done("a.png", FileStamp(10, 0))
    for now in (6.0, 8.0):
        ready = arrivals.look({"a.png": seen(10, modified=6)}, now, FEW)
    assert ready == ["a.png"]


def test_a_torn_picture_is_tried_more_and_more_seldom_and_given_up_unless_its_share_was_away():
    arrivals, tried = Arrivals(2, 60), []
    for now in range(200):
        if arrivals.look({"a.png": seen(10)}, now, FEW):
            tried.append(now)
            if arrivals.torn("a.png", now):
                break
    assert tried == [2, 4, 8, 16, 32, 62]
    assert max(b - a for a, b in pairwise(tried)) <= LONGEST_PAUSE_S
    assert arrivals.look({"a.png": seen(11)}, 300, FEW) == []
    assert arrivals.look({"a.png": seen(11)}, 302, FEW) == ["a.png"]
    arrivals = Arrivals(2, 60)
    for now in (0.0, 2.0):
        arrivals.look({"a.png": seen(10)}, now, FEW)
    assert not arrivals.torn("a.png", 2.0)
    arrivals.lose_sight()
    for now in (100.0, 102.0):
        ready = arrivals.look({"a.png": seen(10)}, now, FEW)
    assert ready == ["a.png"]
    assert not arrivals.torn("a.png", 102.0)


# Pictures that are done are moved; boards of a folder that fills are closed once they are quiet


def test_a_picture_that_is_replaced_as_it_is_moved_stays(tmp_path, monkeypatch):
    watched, path = WatchedFolder(tmp_path / "in", tmp_path / "done"), tmp_path / "in" / "R1__L.png"
    path.parent.mkdir()
    path.write_bytes(b"first")
    stamp, rename = watched.stamp("R1__L.png"), os.replace

    def late(source, target):
        path.write_bytes(b"taken again")
        monkeypatch.setattr(os, "replace", rename)
        rename(source, target)

    monkeypatch.setattr(os, "replace", late)
    assert not watched.put_away("R1__L.png", stamp)
    assert path.read_bytes() == b"taken again", "the watch will see it"


def test_no_board_is_quiet_while_its_share_is_away():
    boards = ClosingBoards(None, quiet_s=30.0)
    boards.open.come("SN1", 0.0)
    boards.take(Result(Request(1, "L", "R1.png", "SN1"), Verdict.OK, (), 0.1), 1.0)
    for now in (10.0, 40.0, 70.0):
        boards.open.lose_sight(now)
    assert not list(boards.close(71.0, ()))
    assert [board.closed for board in boards.close(100.0, ())] == ["quiet"]
