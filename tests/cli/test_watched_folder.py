"""`coe-inspect --watch`: slow copies, reserved files, renames, retaken pictures, moves, restarts; real files."""

import json
import os
import signal
import threading
import time

import cv2
import numpy as np
import pytest
from lamp import lamp_board

from coe.cli import inspect as inspect_cli
from coe.pictures.filling import WatchedFolder

BRIGHT, DARK = 230, 20
PATIENT = ("--settle", "200ms", "--quiet-time", "0.3", "--until-idle", "1s")
"""For a folder that changes while it is watched."""


def picture(level, *, seed=0, ending=".png", side=48):
    noise = np.random.default_rng(seed).integers(-9, 9, (side, side, 3))
    done, data = cv2.imencode(ending, (noise + level).astype(np.uint8))
    assert done
    return data.tobytes()


@pytest.fixture(scope="module")
def lamps(tmp_path_factory):
    """A board that says NG to dark pictures and OK to bright ones, and its store."""
    return lamp_board(tmp_path_factory.mktemp("lamps"))


@pytest.fixture
def into(tmp_path):
    (tmp_path / "in" / "SN1").mkdir(parents=True)
    return tmp_path / "in"


@pytest.fixture
def watch(lamps, into, tmp_path, call):
    board, store = lamps

    def run(*more):
        options = ("--settle", "50ms", "--quiet-time", "0.1", "--until-idle", "0.1", "--out", tmp_path / "out")
        line = ("--store", store, "--memory", "100MB", "--profile", "none")
        return call("--board", board, "--watch", into, *options, *line, *more, command=inspect_cli).status

    return run


def rows(out, name="results.jsonl"):
    return [json.loads(line) for line in (out / name).read_text(encoding="utf-8").splitlines()]


def verdicts(out):
    found = {row["image"]: row["verdict"] for row in rows(out)}
    assert len(found) == len(rows(out))
    return found


@pytest.fixture
def writer():
    threads = []

    def start(work):
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def test_slow_copies_reserved_files_and_renames_are_judged_once_they_are_whole(watch, into, tmp_path, writer):
    slow, reserved, renamed = (picture(level, seed=level) for level in (DARK, DARK + 1, BRIGHT))

    def write():
        with (into / "SN1" / "R1__L.png").open("wb", buffering=0) as file:
            for at in range(0, len(slow), len(slow) // 8):
                file.write(slow[at : at + len(slow) // 8])
                time.sleep(0.05)
        with (into / "SN1" / "R2__L.png").open("wb", buffering=0) as file:
            file.truncate(len(reserved))
            time.sleep(0.3)  # it stands still, and is not written
            file.write(reserved)
        (into / "SN1" / "R3__L.png.part").write_bytes(renamed)
        os.replace(into / "SN1" / "R3__L.png.part", into / "SN1" / "R3__L.png")

    writer(write)
    assert watch(*PATIENT) == 1
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.png": "NG", "SN1/R2__L.png": "NG", "SN1/R3__L.png": "OK"}
    closed = rows(tmp_path / "out", "boards.jsonl")[-1]
    assert (closed["serial"], closed["verdict"], closed["pictures"]) == ("SN1", "NG", 3)
    assert {(row["taken"]["bytes"]) for row in rows(tmp_path / "out")} == {len(slow), len(reserved), len(renamed)}


def test_a_picture_without_an_end_mark_that_ends_in_zeros_is_not_judged(watch, into, tmp_path, monkeypatch):
    monkeypatch.setattr("coe.pictures.filling.GIVE_UP_S", 0.3)
    whole = picture(BRIGHT, ending=".bmp", side=200)
    (into / "SN1" / "R1__L.bmp").write_bytes(whole[:-90] + bytes(90))  # far less than what a run alone refuses
    (into / "SN1" / "R2__L.bmp").write_bytes(whole)
    (into / "SN1" / "R3__L.bmp").write_bytes(whole + bytes(512))  # a block that was filled up
    assert watch() == 3
    judged = {"SN1/R2__L.bmp": "OK", "SN1/R3__L.bmp": "OK"}
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.bmp": None, **judged}
    (into / "SN1" / "R1__L.bmp").write_bytes(whole)
    assert watch() == 0
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.bmp": "OK", **judged}


def test_a_watch_goes_on_where_it_was_and_judges_what_was_taken_again(watch, into, tmp_path):
    for number, level in enumerate((BRIGHT, BRIGHT, DARK)):
        (into / "SN1" / f"R{number}__L.png").write_bytes(picture(level, seed=number))
    assert watch() == 1
    first = (tmp_path / "out" / "boards.jsonl").read_text(encoding="utf-8")
    assert watch() == 1
    assert (tmp_path / "out" / "boards.jsonl").read_text(encoding="utf-8") == first
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["timed_images"] == 3, "nothing was judged again"
    (into / "SN1" / "R2__L.png").write_bytes(picture(BRIGHT, seed=9))
    assert watch() == 0
    assert set(verdicts(tmp_path / "out").values()) == {"OK"}
    assert [row["verdict"] for row in rows(tmp_path / "out", "boards.jsonl")] == ["NG", "OK"]


def test_what_is_done_is_moved_and_an_earlier_picture_of_the_name_stays(watch, into, tmp_path):
    done = tmp_path / "done"
    for level in (BRIGHT, DARK):
        (into / "SN1" / "R1__L.png").write_bytes(picture(level, seed=level))
        watch("--done", done)
        assert not list(into.rglob("*.png"))
    assert (done / "SN1" / "R1__L.png").read_bytes() == picture(DARK, seed=DARK)
    assert (done / "SN1" / "R1__L~1.png").read_bytes() == picture(BRIGHT, seed=BRIGHT)
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.png": "NG"}
    assert "data:image" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8"), "from where it was moved"


def test_what_cannot_be_moved_now_is_moved_later(watch, into, tmp_path, writer, monkeypatch):
    monkeypatch.setattr("coe.runs.watch.MOVE_AGAIN_S", 0.1)
    done = tmp_path / "done"
    done.write_text("a disk that is not there yet")
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT))

    def mount():
        while not (tmp_path / "out" / "boards.jsonl").exists() or not rows(tmp_path / "out", "boards.jsonl"):
            time.sleep(0.02)
        done.unlink()

    writer(mount)
    assert watch("--done", done, *PATIENT) == 0
    assert (done / "SN1" / "R1__L.png").exists()


@pytest.mark.slow
def test_a_picture_that_was_judged_as_its_share_went_is_moved_once_it_is_back(
    watch, into, tmp_path, writer, monkeypatch
):
    away, put_away, tried = tmp_path / "away", WatchedFolder.put_away, []

    def gone(watched, name, stamp):
        if not tried:
            tried.append(name)
            os.replace(into, away)
            writer(lambda: (time.sleep(0.5), os.replace(away, into)))
        return put_away(watched, name, stamp)

    monkeypatch.setattr(WatchedFolder, "put_away", gone)
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT))
    assert watch("--done", tmp_path / "done", *PATIENT) == 0
    assert tried
    assert (tmp_path / "done" / "SN1" / "R1__L.png").exists()


def test_a_board_is_closed_by_its_parts_list_and_lacks_what_never_came(watch, into, tmp_path):
    (tmp_path / "parts.csv").write_text("refdes,component\nR1,L\nR2,L\n", encoding="utf-8")
    (into / "SN2").mkdir()
    for name in ("SN1/R1", "SN1/R2", "SN2/R1"):
        (into / f"{name}__L.png").write_bytes(picture(BRIGHT, seed=len(name)))
    assert watch("--parts", tmp_path / "parts.csv") == 1
    boards = {row["serial"]: row for row in rows(tmp_path / "out", "boards.jsonl")}
    assert (boards["SN1"]["closed"], boards["SN1"]["verdict"]) == ("complete", "OK")
    assert (boards["SN2"]["closed"], boards["SN2"]["verdict"], boards["SN2"]["lacking"]) == ("quiet", "REVIEW", ["R2"])


@pytest.mark.slow
def test_a_folder_that_goes_away_and_comes_back_is_gone_on_with(watch, into, tmp_path, writer):
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT, seed=1))

    def vanish():
        time.sleep(0.1)
        os.replace(into, tmp_path / "away")
        time.sleep(0.6)
        (tmp_path / "away" / "SN1" / "R2__L.png").write_bytes(picture(DARK, seed=2))
        os.replace(tmp_path / "away", into)

    writer(vanish)
    assert watch(*PATIENT) == 1
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.png": "OK", "SN1/R2__L.png": "NG"}


def test_a_watch_goes_on_while_its_folder_is_away_and_though_the_link_to_it_leads_elsewhere(
    watch, into, tmp_path, writer
):
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT, seed=1))
    link, other = tmp_path / "link", tmp_path / "other"
    link.symlink_to(into)
    assert watch("--watch", into / ".." / "link") == 0
    link.unlink()

    def come_back():
        time.sleep(0.5)
        (other / "SN2").mkdir(parents=True)
        (other / "SN2" / "R1__L.png").write_bytes(picture(DARK, seed=2))
        link.symlink_to(other)

    writer(come_back)
    assert watch("--watch", link, *PATIENT) == 1
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.png": "OK", "SN2/R1__L.png": "NG"}


def test_uploads_that_never_end_notes_and_odd_things_are_told_at_the_end(watch, into, tmp_path):
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT))
    (into / "SN1" / "R2__L.png.part").write_bytes(b"half")
    (into / "SN1" / "notes.txt").write_text("of the shift", encoding="utf-8")
    (into / "SN1" / "R3__X.png").write_bytes(picture(BRIGHT))
    assert watch() == 3
    found = verdicts(tmp_path / "out")
    assert found == {"SN1/R1__L.png": "OK", "SN1/R2__L.png.part": None, "SN1/R3__X.png": None}
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["left_alone"] == ["SN1/notes.txt"]


def test_a_board_is_not_closed_as_good_beside_what_cannot_be_inspected(watch, into, tmp_path):
    (into / "SN1" / "R1__L.png").write_bytes(picture(BRIGHT))
    (into / "SN1" / "R2__L.png").symlink_to(tmp_path / "nowhere")
    (into / "SN2").mkdir()
    (into / "SN2" / "R1__L.png").write_bytes(picture(BRIGHT))
    (into / "SN2" / "R2__L.png.part").write_bytes(picture(DARK)[:-40])
    assert watch("--until-idle", "0.5") == 3
    closed = [(row["serial"], row["verdict"], row["not_inspected"]) for row in rows(tmp_path / "out", "boards.jsonl")]
    assert sorted(closed) == [("SN1", "REVIEW", 1), ("SN2", "REVIEW", 1)]


def test_what_is_not_whole_as_the_watch_is_ended_has_its_error(watch, into, tmp_path, writer):
    whole = picture(BRIGHT)
    (into / "SN1" / "R1__L.png").write_bytes(whole)
    (into / "SN2").mkdir()
    (into / "SN2" / "R1__L.png").write_bytes(whole[:-40])
    (into / "L").mkdir()
    (into / "L" / "1.png").write_bytes(whole[:-40])
    (into / "SN3").mkdir()
    (into / "SN3" / "R1__L.png").write_bytes(whole[:-40])

    def end():
        out = tmp_path / "out" / "boards.jsonl"
        while not (out.is_file() and "SN1" in out.read_text(encoding="utf-8")):
            time.sleep(0.02)
        (into / "SN3" / "R1__L.png").unlink()
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    writer(end)
    assert watch() == 3
    torn = dict.fromkeys(["L/1.png", "SN2/R1__L.png", "SN3/R1__L.png"])
    assert verdicts(tmp_path / "out") == {"SN1/R1__L.png": "OK", **torn}
    last = {row["serial"]: row["verdict"] for row in rows(tmp_path / "out", "boards.jsonl")}
    assert last == {"SN1": "OK", "SN2": "REVIEW", "SN3": "REVIEW"}
    for name in torn:
        (into / name).write_bytes(whole)
    assert watch() == 0
    assert set(verdicts(tmp_path / "out").values()) == {"OK"}


@pytest.mark.parametrize("more", [("--images", "."), ("--done", "{into}/done"), ("--watch", "{into}/none"), ()])
def test_what_does_not_go_together_is_refused(watch, into, tmp_path, more):
    if not more:
        (into / "images.csv").write_text("path,component\n", encoding="utf-8")
    assert watch(*(word.format(into=into) for word in more)) == 2
    assert not (tmp_path / "out").exists()
