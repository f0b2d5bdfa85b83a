"""Pictures that come: when those of a folder are judged, and how long a share is waited for."""

import contextlib
import gc
import os
import threading
from itertools import pairwise

import cv2
import numpy as np
import pytest
from waiting import eventually

from coe import FailureKind, Inspector
from coe.core import Request, Result, Verdict
from coe.errors import ConfigError, ImageError, LateImage
from coe.helpers import timely
from coe.pictures import picture_file
from coe.pictures.decoding import decode
from coe.pictures.filling import LONGEST_PAUSE_S, Arrivals, Sighting, WatchedFolder
from coe.pictures.picture_file import FileStamp, PictureFile
from coe.results.closing_boards import ClosingBoards
from coe.runtime.inputs import Workers

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


OPTIONS = {"memory": "200MB", "executors": "cpu=1", "profile": None}


@pytest.fixture
def pictures(tmp_path):
    """A picture, and one whose share is `dead`."""
    for name in ("good.png", "dead.png"):
        assert cv2.imwrite(str(tmp_path / name), np.full((40, 50, 3), 99, np.uint8))
    return tmp_path / "good.png", tmp_path / "dead.png"


@pytest.fixture
def answers(monkeypatch):
    answers, read = threading.Event(), PictureFile.read

    def waits(self, limit_bytes):
        if self.path.name == "dead.png":
            answers.wait()
        return read(self, limit_bytes)

    monkeypatch.setattr(PictureFile, "read", waits)
    yield answers
    answers.set()


def test_a_read_is_given_up_and_its_thread_ends_with_it(pictures, answers, monkeypatch):
    good, dead = pictures
    before = threading.active_count()
    monkeypatch.setenv("COE_READ_TIMEOUT", "50ms")
    with pytest.raises(LateImage) as late:
        decode(dead)
    assert late.value.failure == "late"
    monkeypatch.setenv("COE_READ_TIMEOUT", "30s")
    assert decode(good).shape == (40, 50, 3)
    monkeypatch.setattr(timely, "MOST_LOST", 1)
    with pytest.raises(LateImage, match="1 pictures before it"):
        decode(good)
    answers.set()

    def is_read_again():
        with contextlib.suppress(LateImage):
            return decode(good).shape == (40, 50, 3)
        return False

    eventually(is_read_again)
    eventually(lambda: threading.active_count() <= before + 1)


def test_a_slow_share_that_answers_is_waited_for(pictures, answers, monkeypatch):
    """A share gives a picture in pieces, each in time, all together not."""
    monkeypatch.setattr(picture_file, "PIECE_BYTES", pictures[1].stat().st_size // 4)
    monkeypatch.setenv("COE_READ_TIMEOUT", "1.5s")
    answers.set()
    heard, waits = timely.answered, threading.Event()

    def slowly():
        waits.wait(0.5)
        heard()

    monkeypatch.setattr(picture_file, "answered", slowly)
    assert decode(pictures[1]).shape == (40, 50, 3)


def test_a_helper_ends_with_its_thread_and_hands_errors_on(pictures):
    before = threading.active_count()
    thread = threading.Thread(target=decode, args=(pictures[0],))
    thread.start()
    thread.join()
    gc.collect()
    eventually(lambda: threading.active_count() <= before)
    with pytest.raises(ImageError):
        decode(pictures[0].with_name("gone.png"))

    def raises():
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        timely.in_time(raises)


def test_images_of_a_dead_share_get_their_own_failure(tiny, pictures, answers, monkeypatch):
    good, dead = pictures
    monkeypatch.setenv("COE_READ_TIMEOUT", "300ms")
    with Inspector(tiny[0], store=tiny[1], **OPTIONS) as line:
        lost = [line.submit(dead, "A") for _ in range(9)]
        assert line.submit(good, "A").result(60).verdict is not None
        for future in lost:
            assert future.result(60).failure.kind is FailureKind.LATE
        assert line.longest_decoding_s() < 60
        assert line.close(timeout_s=60), "in time"


@pytest.mark.parametrize("end", [lambda line: line.stop(), lambda line: line.close(timeout_s=0.1)])
def test_an_end_answers_what_is_being_read_and_close_does_not_wait_for_it(tiny, pictures, answers, end):
    line = Inspector(tiny[0], store=tiny[1], **OPTIONS)
    lost = [line.submit(pictures[1], "A") for _ in range(9)]
    eventually(lambda: line.longest_decoding_s() > 0.05)
    assert not end(line)
    for future in lost:
        assert future.result(20).failure.kind is FailureKind.STOPPED
    line.close()
    answers.set()


def test_limits_that_are_none_are_refused_that_of_pixels_before_a_line_opens(tiny, pictures, monkeypatch):
    wrong = {"COE_READ_TIMEOUT": ("0s", "soon", "-5s"), "COE_MAX_MEGAPIXELS": ("many", "0", "-3")}
    for name, values in wrong.items():
        for value in values:
            monkeypatch.setenv(name, value)
            with pytest.raises(ConfigError, match=name):
                decode(pictures[0])
        if name == "COE_MAX_MEGAPIXELS":
            with pytest.raises(ConfigError, match=name):
                Inspector(tiny[0], store=tiny[1], **OPTIONS)
        monkeypatch.delenv(name)
    monkeypatch.setenv("COE_MAX_MEGAPIXELS", "0.001")
    with pytest.raises(ImageError, match=r"0\.001 megapixels"):
        decode(pictures[0])


def test_a_worker_that_ends_leaves_no_helper():
    before = set(threading.enumerate())
    workers = Workers(24, "decode")
    for thread in workers.threads:
        thread.start()
    assert [workers.submit(lambda: timely.in_time(threading.get_ident)).result(20) for _ in range(96)]
    workers.close()
    for thread in workers.threads:
        thread.join(20)
    assert set(threading.enumerate()) <= before
