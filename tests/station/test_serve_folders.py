"""A folder that fills as a feeder: each board is handed in once, of whole pictures, whenever the gate is killed."""

import asyncio
import hashlib
import os
from functools import partial

import cv2
import numpy as np
import pytest
from killed import GATE_POINTS
from serving import activated, png
from tiny_line import TINY
from waiting import eventually
from whole_boards import WHOLE, layout_of, picture_of
from whole_boards import png as png_of

from coe.errors import ConfigError
from coe.pictures import filling
from coe.pictures.filling import GIVE_UP_S, WatchedFolder
from coe.pictures.picture_file import PictureFile
from coe.serve import failpoints
from coe.serve.clock import now_us
from coe.serve.database import board_rows, fault_log, states, views
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind
from coe.serve.enums import FaultKind, Intake, Subject
from coe.serve.gate import folder_feeder
from coe.serve.gate.board_routes import hand_in
from coe.serve.gate.folder_feeder import AGAIN_S, NOTES, FolderFeeder
from coe.serve.gate.problems import Problem
from coe.serve.gate.upload_routes import discard_views
from coe.serve.service_config import FolderSection

PARTS = {"R1": "A", "R2": "B"}


class Killed(BaseException):
    """The gate ends here."""


class Camera:
    """A folder that is looked at now and then, on a clock that the test turns; `begin_again` is another process."""

    def __init__(self, served, folder):
        self.served, self.into, self.done, self.now_s = served, folder / "in", folder / "done", 0.0
        self.into.mkdir()
        self.begin_again()

    def begin_again(self):
        if hasattr(self, "feeder"):
            self.feeder.close()
        section = FolderSection(path=self.into, done=self.done, recipe="tiny", settle_s=2, quiet_s=30)
        self.feeder = FolderFeeder(self.served.gate, "camera", section, lambda: self.now_s)

    def write(self, name, content):
        path = self.into / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def write_all(self, serial="SN1", seed=1):
        for number, (refdes, component) in enumerate(PARTS.items(), seed):
            self.write(f"{serial}/{refdes}__{component}.png", png(number))

    def look(self, seconds=0.0):
        """Look each second for so long, and at once; return all boards that were accepted."""

        async def turns():
            for _ in range(int(seconds) + 1):
                await self.feeder.turn()
                await self.feeder.tell()
                self.now_s += 1

        asyncio.run(turns())
        return sorted(self.served.database.read(board_rows.newest), key=lambda board: board.id)

    @property
    def left(self):
        return sorted(path.name for path in self.into.rglob("[!.]*") if path.is_file())

    def faults(self):
        faults = self.served.database.read(fault_log.open_faults)
        return [fault.message for fault in faults if (fault.kind, fault.about) == (FaultKind.FOLDER, "camera")]


@pytest.fixture
def camera(served, tmp_path):
    """A folder of the tiny board, whose recipe does not say which parts there are."""
    return Camera(served, tmp_path)


@pytest.fixture
def counted(camera):
    activated(camera.served.database, TINY, parts=PARTS)
    return camera


def shown(camera, board):
    return {view.name: view.sha256[:8] for view in camera.served.database.read(views.of_board, board.key)}


def test_a_board_is_handed_in_once_its_parts_are_there_and_moved(counted):
    counted.write("SN1/R1__A.png", png(1))
    assert counted.look(5) == []
    counted.write("SN1/R2__B.png", png(2))
    (board,) = counted.look(3)
    assert (board.serial, board.fed_by) == ("SN1", "folder camera")
    assert shown(counted, board).keys() == {"R1", "R2"}
    assert counted.left == []
    assert (counted.done / "SN1" / "R2__B.png").read_bytes() == png(2)
    assert counted.look(40) == [board]
    assert counted.faults() == []


def test_a_board_without_a_parts_list_is_handed_in_once_it_is_quiet(camera):
    for number in (1, 2):
        camera.write(f"SN1/R{number}__A.png", png(number))
        assert camera.look(20) == []
    camera.write("Bräd 2/R1__A.png", png(3))
    boards = camera.look(40)
    assert [(board.serial, board.components) for board in boards] == [("SN1", 2), ("Bräd 2", 1)]


def test_a_picture_that_is_taken_again_is_a_board_of_its_own(counted):
    counted.write_all()
    assert len(counted.look(4)) == 1
    counted.write("SN1/R1__A.png", png(9))
    again = counted.look(40)
    assert [board.components for board in again] == [2, 1], "R2 of the second is REVIEW, because nobody has seen it"
    assert (counted.done / "SN1" / "R1__A~1.png").read_bytes() == png(1)


def test_a_torn_picture_is_waited_for_and_then_told(camera):
    camera.write("SN1/R1__A.png", png(1))
    camera.write("SN1/R2__A.png", png(2)[:-90])
    assert camera.look(GIVE_UP_S + 60) == [], "without a parts list nobody would miss R2"
    assert "R2__A.png" in camera.faults()[0]
    camera.write("SN1/R2__A.png", png(2))
    (board,) = camera.look(40)
    assert board.components == 2
    assert camera.faults() == []


def test_what_may_be_a_picture_and_is_none_holds_its_board(camera):
    camera.write("SN1/R1__A.png", png(1))
    (camera.into / "SN1" / "R2__A.png").symlink_to("nowhere.png")
    camera.write("SN2/R1__A.png", png(1))
    camera.write("SN2/R2__A.png.part", png(2)[:90])  # an upload that does not end
    os.mkfifo(camera.into / "pipe.png")
    assert camera.look(GIVE_UP_S + 60) == [], "without a parts list nobody would miss R2"
    assert all(name in camera.faults()[0] for name in ("SN1/R2__A.png", "SN2/R2__A.png.part", "pipe.png"))
    (camera.into / "pipe.png").unlink()
    (camera.into / "SN1" / "R2__A.png").unlink()
    camera.write("SN1/R3__A.png", png(2))
    (camera.into / "SN2" / "R2__A.png.part").rename(camera.into / "SN2" / "R2__A.png")
    camera.write("SN2/R2__A.png", png(2))
    assert [board.components for board in camera.look(40)] == [2, 2]
    assert camera.faults() == []


def test_a_part_whose_picture_stays_torn_has_no_view(counted):
    counted.write("SN1/R1__A.png", png(1))
    counted.write("SN1/R2__B.png", png(2)[:-90])
    assert counted.look(40) == []
    (board,) = counted.look(GIVE_UP_S)
    assert shown(counted, board).keys() == {"R1"}
    assert counted.left == ["R2__B.png"]


def test_a_part_whose_picture_is_none_has_no_view(counted):
    counted.write("SN1/R1__A.png", png(1))
    counted.write("SN1/R2__B.png", b"a note on R2")
    (board,) = counted.look(40)
    assert (shown(counted, board).keys(), counted.left) == ({"R1"}, ["R2__B.png"])
    assert "R2__B.png" in counted.faults()[0]


def test_what_cannot_be_handed_in_is_told_and_tried_again(counted):
    counted.write("SN1/R1__Q.png", png(1))
    assert counted.look(40) == []
    assert "R1__Q.png" in counted.faults()[0], "the recipe knows no such component"
    (counted.into / "SN1" / "R1__Q.png").unlink()
    counted.write("SN1/R1__A.png", png(1))
    counted.write("SN1/R2__A.png", png(2))  # by the recipe R2 is a B
    assert counted.look(5) == []
    assert "R2" in counted.faults()[0]
    activated(counted.served.database, TINY, parts={"R1": "A", "R2": "A"})
    (board,) = counted.look(AGAIN_S + 5)
    assert (board.components, counted.left, counted.faults()) == (2, [], [])


def test_pictures_wait_while_the_service_is_drained(counted):
    database = counted.served.database
    database.write(states.change, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=now_us())
    counted.write_all()
    assert counted.look(20) == []
    assert (len(counted.left), counted.faults()) == (2, [])
    database.write(states.change, Subject.INTAKE, Intake.OPEN, by="ann", now_us=now_us())
    assert len(counted.look(AGAIN_S + 2)) == 1


def test_a_share_that_goes_away_is_told_and_its_time_does_not_count(camera, tmp_path):
    camera.write("SN1/R1__A.png", png(1))
    assert camera.look(5) == []
    os.replace(camera.into, tmp_path / "away")
    assert camera.look(60) == []
    assert str(camera.into) in camera.faults()[0]
    os.replace(tmp_path / "away", camera.into)
    assert camera.look(20) == []
    assert camera.faults() == []
    assert len(camera.look(20)) == 1


def bmp(width, height):
    """Return a picture in which no byte is zero, but those of its header and at the end of its rows."""
    pixels = np.random.default_rng(0).integers(1, 255, (height, width, 3), np.uint8)
    return cv2.imencode(".bmp", pixels)[1].tobytes()


@pytest.mark.parametrize(("width", "height"), [(128, 128), (50, 37), (40, 50)])
def test_a_picture_that_waits_for_its_last_piece_is_not_handed_in(camera, width, height):
    """Its file has its full size, and stands still, as while a network stalls."""
    data = bmp(width, height)
    written = len(data) // 512 * 512
    assert 16 <= len(data) - written < 512
    camera.write("SN1/R1__A.bmp", data[:written] + bytes(len(data) - written))
    assert camera.look(40) == []
    camera.write("SN1/R1__A.bmp", data)
    assert len(camera.look(40)) == 1
    assert camera.faults() == []


@pytest.mark.parametrize(("owner", "name"), [(PictureFile, "read"), (filling, "walk")])
def test_a_share_that_answers_again_later_is_asked_once_and_costs_no_picture(camera, answers, monkeypatch, owner, name):
    answer, asked = getattr(owner, name), list[object]()

    def waits(*given, **more):
        asked.append(given)
        answers.wait()
        return answer(*given, **more)

    monkeypatch.setattr(owner, name, waits)
    camera.write("SN1/R1__A.png", png(1))
    camera.write("SN1/R2__A.png", png(2))
    assert camera.look(2 * GIVE_UP_S) == []
    assert ("does not answer" if name == "read" else str(camera.into)) in camera.faults()[0]
    assert len(asked) == 1, "what waits is not asked again and again"
    answers.set()
    monkeypatch.setenv("COE_READ_TIMEOUT", "30s")
    eventually(lambda: len(camera.look(40)) == 1)
    assert camera.faults() == []


def test_a_picture_that_is_replaced_before_it_is_handed_in_is_looked_at_again(counted):
    """Also if size and time of the file are the same, as those of a copy that keeps its times."""
    one, other = sorted((png(number) for number in (1, 2)), key=len)
    path = counted.into / "SN1" / "R1__A.png"
    counted.write("SN1/R1__A.png", one + bytes(len(other) - len(one)))
    counted.look(5)
    before = path.stat()
    path.write_bytes(other)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    counted.write("SN1/R2__B.png", png(3))
    (board,) = counted.look(AGAIN_S + 10)
    assert shown(counted, board)["R1"] == hashlib.sha256(other).hexdigest()[:8]
    assert (counted.left, counted.faults()) == ([], [])


def test_of_two_services_on_one_folder_one_hands_in(camera, tmp_path):
    camera.write("SN1/R1__A.png", png(1))
    first = camera.feeder
    camera.look()
    del camera.feeder
    camera.begin_again()
    assert camera.look(60) == []
    assert "another station" in camera.faults()[0]
    first.close()
    assert len(camera.look(60)) == 1
    assert camera.faults() == []


def test_what_cannot_be_moved_is_not_handed_in_again(counted):
    counted.done.write_text("a disk that is not there yet")
    counted.write_all()
    assert len(counted.look(40)) == 1
    assert len(counted.left) == 2
    assert "R1__A.png" in counted.faults()[0]
    counted.begin_again()
    assert len(counted.look(40)) == 1
    counted.done.unlink()
    assert len(counted.look(2)) == 1
    assert (counted.left, counted.faults()) == ([], [])


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", [*GATE_POINTS, None])
def test_each_board_is_handed_in_once_whenever_the_gate_is_killed(counted, monkeypatch, point, nth):
    passed = []

    def kill(at):
        passed.append(at)
        if at is point and passed.count(at) == nth:
            raise Killed

    def before_move(watched, name, stamp):
        kill(None)
        return put_away(watched, name, stamp)

    put_away = WatchedFolder.put_away
    monkeypatch.setattr(failpoints, "hook", kill)
    monkeypatch.setattr(WatchedFolder, "put_away", before_move)
    for seed, serial in ((1, "SN1"), (3, "SN2")):
        counted.write_all(serial, seed)
    with pytest.raises(Killed):
        counted.look(5)
    counted.write("SN3/R1__A.png", png(7))  # what a killed process had noted is another thing
    counted.begin_again()
    boards = counted.look(6)
    assert sorted(board.serial for board in boards) == ["SN1", "SN2"]
    assert all(shown(counted, board).keys() == PARTS.keys() for board in boards)
    assert counted.left == ["R1__A.png"]
    assert not list((counted.served.gate.config.data / "folders").rglob("*.json"))


def test_a_disk_that_does_not_take_notes_and_what_goes_wrong_while_a_picture_is_looked_at_leave_it_to_the_next_look(
    counted, monkeypatch
):
    counted.write_all()
    files = counted.served.gate.files
    files.is_silent = True
    with pytest.raises(Problem):
        counted.look()
    files.is_silent = False
    with monkeypatch.context() as patch:
        patch.setattr(PictureFile, "read", lambda *_: 1 / 0)
        patch.setattr("coe.serve.gate.folder_feeder.decode", lambda file, **_: file.read(9))
        with pytest.raises(ZeroDivisionError):
            counted.look(5)
    assert [board.serial for board in counted.look(6)] == ["SN1"]


def test_a_board_that_is_accepted_after_its_request_was_given_up_is_handed_in_once(counted, monkeypatch):
    handed = []

    async def give_up(*asked):
        handed.append(partial(hand_in, *asked))
        raise DatabaseError(DatabaseErrorKind.LOST, "it does not answer")

    def discard(*asked):
        asyncio.run(handed[0]())  # it goes on at this moment
        return discard_views(*asked)

    monkeypatch.setattr(folder_feeder, "hand_in", give_up)
    monkeypatch.setattr(folder_feeder, "discard_views", discard)
    counted.write_all()
    (board,) = counted.look(6)
    monkeypatch.undo()
    assert counted.look(int(AGAIN_S) + 6) == [board]
    assert shown(counted, board).keys() == PARTS.keys()
    assert counted.left == []


@pytest.mark.parametrize("text", ["{", "[]", '{"SN1/R1__A.png": [1]}', '{"SN1/R1__A.png": ["a", "b"]}'])
def test_a_note_that_cannot_be_read_stops_its_folder_and_no_process(counted, text):
    note = counted.served.gate.config.data / NOTES / "camera" / "camera-1.json"
    note.parent.mkdir(parents=True)
    note.write_text(text)
    counted.write_all()
    counted.begin_again()
    for _ in range(2):
        with pytest.raises(ConfigError, match="camera-1"):
            counted.look(5)
    assert counted.left == ["R1__A.png", "R2__B.png"]
    note.unlink()
    assert [board.serial for board in counted.look(5)] == ["SN1"]


def test_a_picture_of_a_whole_board_is_a_board(camera):
    activated(camera.served.database, TINY, whole=WHOLE)
    camera.write("SN7.png", png_of(picture_of(layout_of(WHOLE), [])))
    assert camera.look(1) == []
    (board,) = camera.look(3)
    assert (board.serial, board.request["whole"], camera.left) == ("SN7", "board", [])
    camera.write("SN8.png", png_of(picture_of(layout_of(WHOLE), ["A1"])))
    camera.write("SN8.jpg", png_of(picture_of(layout_of(WHOLE), ["A2"])))
    assert camera.look(5) == [board]
    assert "SN8.jpg" in camera.faults()[0], "which of them counts, a person must say"
    (camera.into / "SN8.jpg").unlink()
    assert [board.serial for board in camera.look(AGAIN_S)] == ["SN7", "SN8"]
    assert camera.faults() == []
