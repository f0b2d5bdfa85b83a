"""What hangs on a line without any expert: a picture that is read for ever, a line that does not load its experts."""

import threading
import time

import pytest
from quick_line import QuickDevice
from serving import activated, embedded_database
from stations import LIGHT, accept_request, deciding, quick_opener, state_of
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, png

from coe.core import Verdict
from coe.pictures.picture_file import PictureFile
from coe.serve.clock import Clocks
from coe.serve.database import fault_log
from coe.serve.enums import FaultKind
from coe.serve.worker import locating
from coe.serve.worker import station as station_module
from coe.serve.worker.line_watch import LineHangs
from coe.serve.worker.station import Station

ONE = {"views": {"R1": {"refdes": "R1", "component": "C"}}}


database = embedded_database()


@pytest.fixture
def hasty(config):
    """A config by which all hangs after a second."""
    return config.model_copy(update={"line": config.line.model_copy(update={"hangs_after_s": 1.0})})


def hang_of(station):
    with pytest.raises(LineHangs) as hang:
        eventually(lambda: bool(station.step()))
    return str(hang.value)


def hung(database):
    with database.reading() as connection:
        return [fault.about for fault in fault_log.open_faults(connection) if fault.kind is FaultKind.EXPERT_HANGS]


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_picture_that_is_read_for_ever_ends_the_line_and_the_next_line_goes_on(
    hasty, database, tiny, monkeypatch, is_whole
):
    """As from a mount whose server is gone. Boards without a due time, and all boards after them, would wait."""
    answers = threading.Event()
    read, locate = PictureFile.read, locating.locate
    monkeypatch.setattr(PictureFile, "read", lambda self, limit: answers.wait() and read(self, limit))
    monkeypatch.setattr(locating, "locate", lambda *given: answers.wait() and locate(*given))
    recipe = activated(database, TINY, **({"whole": WHOLE} if is_whole else {}))
    picture, said = ({"top": png(BOARD)}, {"whole": "top"}) if is_whole else ({"R1": LIGHT}, ONE)
    board = accept_request(hasty, database, recipe.id, picture, said)
    station = Station(hasty, database, open_line=quick_opener(tiny, QuickDevice()))
    try:
        assert "a picture has been read for" in hang_of(station)
        assert hung(database) == [""]
        assert state_of(database, board.id).attempts == 1
    finally:
        answers.set()
        station.close()
    with deciding(hasty, database, quick_opener(tiny, QuickDevice())):
        eventually(lambda: state_of(database, board.id).verdict is not None)
    assert state_of(database, board.id).verdict is (Verdict.NG if is_whole else Verdict.OK)


def test_boards_whose_time_ends_hide_no_picture_that_is_read_for_ever(hasty, database, tiny, monkeypatch):
    """Each is decided when it is due, and its picture waits for the thread behind the first."""
    answers = threading.Event()
    locate = locating.locate
    monkeypatch.setattr(locating, "locate", lambda *given: answers.wait() and locate(*given))
    recipe = activated(database, TINY, whole=WHOLE)
    for number in range(8):
        key = f"k{number}"
        accept_request(
            hasty, database, recipe.id, {"top": png(BOARD)}, {"whole": "top"}, key=key, within_s=0.3 * (number + 1)
        )
    station = Station(hasty, database, open_line=quick_opener(tiny, QuickDevice()))
    try:
        assert "a picture has been read for" in hang_of(station)
    finally:
        answers.set()
        station.close()


def test_a_line_that_never_loads_its_first_experts_is_found(config, database, tiny, monkeypatch):
    answers, waits = threading.Event(), threading.Event()

    def load():
        waits.set()
        answers.wait()

    def opener(config, watch, adjust):
        return quick_opener(tiny, QuickDevice(load=[load] * 20), watchers=[watch])

    monkeypatch.setattr(station_module, "line_opener", opener)
    activated(database, TINY)
    ahead_s = 0.0
    station = Station(config, database, clocks=Clocks(now_s=lambda: time.monotonic() + ahead_s))
    try:
        eventually(lambda: bool(station.step()) or waits.is_set())
        ahead_s = 115.0
        station.step()
        ahead_s = 135.0
        assert "no load has ended for 1" in hang_of(station)
        assert len(hung(database)) == 1
    finally:
        answers.set()
        station.close()
