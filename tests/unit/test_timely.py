"""A disk or share that does not answer costs its own pictures, and holds up no `stop` and no `close`."""

import contextlib
import gc
import threading

import cv2
import numpy as np
import pytest
from waiting import eventually

from coe import FailureKind, Inspector
from coe.errors import ConfigError, ImageError, LateImage
from coe.helpers import timely
from coe.pictures import picture_file
from coe.pictures.decoding import decode
from coe.pictures.picture_file import PictureFile
from coe.runtime.inputs import Workers

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
    with pytest.raises(ImageError, match="No such file"):
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
            failure = future.result(60).failure
            assert failure.kind is FailureKind.LATE
        assert line.longest_decoding_s() < 60


def test_stop_answers_what_is_being_read_and_close_does_not_wait_for_it(tiny, pictures, answers):
    line = Inspector(tiny[0], store=tiny[1], **OPTIONS)
    lost = [line.submit(pictures[1], "A") for _ in range(9)]
    eventually(lambda: line.longest_decoding_s() > 0.05)
    line.stop()
    for future in lost:
        failure = future.result(20).failure
        assert failure.kind is FailureKind.STOPPED
    line.close()
    answers.set()


def test_close_stops_in_time(tiny, pictures, answers):
    line = Inspector(tiny[0], store=tiny[1], **OPTIONS)
    done = line.submit(pictures[0], "A").result(30)
    lost = line.submit(pictures[1], "A")
    assert not line.close(timeout_s=0.1)
    assert done.verdict is not None
    failure = lost.result(0).failure
    assert failure.kind is FailureKind.STOPPED
    with Inspector(tiny[0], store=tiny[1], **OPTIONS) as line:
        line.submit(pictures[0], "A")
        assert line.close(timeout_s=60)


@pytest.mark.parametrize(
    ("name", "value"), [("COE_READ_TIMEOUT", "0s"), ("COE_READ_TIMEOUT", "soon"), ("COE_MAX_MEGAPIXELS", "many"),
                        ("COE_MAX_MEGAPIXELS", "0"), ("COE_MAX_MEGAPIXELS", "-3")],
)  # fmt: skip
def test_limits_that_are_none_are_refused_that_of_pixels_before_a_line_opens(name, value, tiny, pictures, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError):
        decode(pictures[0])
    if name == "COE_MAX_MEGAPIXELS":
        with pytest.raises(ConfigError, match=name):
            Inspector(tiny[0], store=tiny[1], **OPTIONS)
    monkeypatch.delenv(name)
    monkeypatch.setenv("COE_MAX_MEGAPIXELS", "0.001")
    with pytest.raises(ImageError, match=r"over the limit of 0\.001 megapixels"):
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
