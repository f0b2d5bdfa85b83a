"""Arguments of the Python API that are no settings: each is refused by its name, and nothing else is used instead."""

import re
import threading

import numpy as np
import pytest

from coe import Inspector
from coe.errors import ConfigError, ImageError, shortened
from coe.pictures.array_images import copy_of
from coe.pictures.decoding import decode
from coe.testing import Experiment

NAN, INF = float("nan"), float("inf")


class Unwritable:
    def __repr__(self):
        raise RuntimeError("no")


HOSTILE = [
    *(("memory", value) for value in (0, -1, 1 << 70, 1.5, 2e9, True, NAN, b"1GiB", [1], "", "-1GiB", Unwritable())),
    *((name, value) for name in ("device_memory", "host_memory") for value in (0, 1.5, True, "much")),
    *(("search_kernels", value) for value in (0, None, "no", NAN)),
    *(("inbox", value) for value in (0, -1, 2.0, True, NAN, "8", None, 1 << 40, [8])),
    *(("inbox_bytes", value) for value in (0, 1.5, True, "1GiB", 1 << 80)),
    *(("threads", value) for value in (0, 1.5, True, "2", 1_000_000, 10**30)),
    *(("max_wait_s", value) for value in (0, NAN, INF, 1e308, "60s", True, [60], 10**400)),
    *(("disk_bandwidth", value) for value in (0, 0.5, NAN, True, "fast", "", "0MB/s", b"530MB/s", 1e308)),
    *(("executors", value) for value in (2, {"cpu": 2}, "", "cpu=0", "cpu=-1", "cpu=1e3", "cpu=65", "cpu,cpu", b"cpu")),
    *(("strategy", value) for value in (None, 3, "", "LINE", ["line"])),
    *(("precision", value) for value in (None, 32, "", "FP32", ["fp32"])),
    *(("on_full", value) for value in (None, "", "drop", True)),
    *(("board", value) for value in (None, 3, "", b"tiny")),
    *(("store", value) for value in (5, b"experts", "", True, ["experts"])),
    *(("experiment", value) for value in (None, 5, {}, {"keep_trace": True}, len)),
    *(("profile", value) for value in (3, b"profile", [])),
    *(("watchers", value) for value in (3, [3], "watch", None)),
    *(("say", value) for value in (None, "aloud")),
]


def named(value):
    return "unwritable" if isinstance(value, Unwritable) else f"{value!r:.20}"


@pytest.mark.parametrize(("name", "value"), HOSTILE, ids=[f"{name}={named(value)}" for name, value in HOSTILE])
def test_a_setting_that_is_none_is_refused_by_its_name(tiny, name, value):
    settings = {"board": tiny[0], "store": tiny[1], "profile": None, name: value}
    threads = threading.active_count()
    with pytest.raises(ConfigError) as refused:
        Inspector(**settings)
    sentence = str(refused.value)
    assert (name in sentence or name == "executors", "\n" in sentence, len(sentence) < 400) == (True, False, True)
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("loaded", value) for value in (0, 1e308, 1e-308, NAN, INF, True, "3", 10**400, [3])),
        *(("label_floor", value) for value in (NAN, "0.9", None, True, 1.1, -0.1)),
        *(("free_cores", value) for value in (0, 1.5, True, "2")),
    ],
    ids=repr,
)
def test_a_field_of_an_experiment_that_is_none_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=name):
        Experiment(**{name: value})


@pytest.fixture(scope="module")
def line(tiny):
    board, store = tiny
    with Inspector(board, store=store, profile=None) as line:
        yield line


PICTURE = np.random.default_rng(1).integers(0, 255, (40, 50, 3), dtype=np.uint8)


@pytest.mark.parametrize("timeout_s", [NAN, -1, "5", True, 1e308, INF])
def test_a_wait_that_is_no_time_is_refused(line, timeout_s):
    for wait in (line.ready, line.drain):
        with pytest.raises(ConfigError, match="timeout_s="):
            wait(timeout_s)


class Reshaping(np.ndarray):
    """An array that lies about its operators."""

    def __getitem__(self, place):
        return np.zeros((1, 1), np.uint8)


ARRAYS = [
    ("no axes", np.array(7, np.uint8), r"\(\)"),
    ("four axes", PICTURE[None], r"\(1, 40, 50, 3\)"),
    ("channels first", np.ascontiguousarray(PICTURE.transpose(2, 0, 1)), r"\(3, 40, 50\)"),
    ("no channel", PICTURE[..., :0], r"\(40, 50, 0\)"),
    ("two channels", PICTURE[..., :2], r"\(40, 50, 2\)"),
    ("no row", PICTURE[:0], "50 x 0"),
    ("no column", PICTURE[:, :0], "0 x 40"),
    ("floats", PICTURE / 255, "float64"),
    ("halves", PICTURE.astype(np.float16), "float16"),
    ("bools", PICTURE > 9, "bool"),
    ("objects", PICTURE.astype(object), "object"),
    ("complex", PICTURE.astype(complex), "complex128"),
    ("big-endian 16 bit", PICTURE.astype(">u2"), "uint16; .*bits"),
    ("signed", PICTURE.astype(np.int8), "int8"),
    ("texts", PICTURE.astype(str), "<U3"),
    ("records", np.zeros((40, 50), [("r", "u1"), ("g", "u1")]), "uint8"),
    ("dates", np.zeros((40, 50), "M8[s]"), "datetime64"),
    ("masked", np.ma.masked_less(PICTURE, 9), "masked"),
    ("more than there is memory", np.broadcast_to(np.uint8(0), (1_000_000, 1_000_000, 3)), "limit of 100"),
]


@pytest.mark.parametrize(("array", "says"), [case[1:] for case in ARRAYS], ids=[case[0] for case in ARRAYS])
def test_an_array_that_is_no_picture_gets_its_sentence(line, array, says):
    with pytest.raises(ImageError, match=says):
        decode(copy_of(array))
    failure = line.submit(array, "A").result(60).failure
    assert failure is not None
    assert re.search(says, failure.reason)


FORMS = {
    "every second pixel": (np.repeat(np.repeat(PICTURE, 2, 0), 2, 1)[::2, ::2], PICTURE),
    "part of a frame": (np.pad(PICTURE, ((9, 9), (9, 9), (0, 0)))[9:-9, 9:-9], PICTURE),
    "larger than what is copied in one go": (np.tile(PICTURE, (20, 20, 1)), np.tile(PICTURE, (20, 20, 1))),
    "turned round": (PICTURE[::-1, ::-1].copy()[::-1, ::-1], PICTURE),
    "columns first": (np.asfortranarray(PICTURE), PICTURE),
    "big-endian bytes": (PICTURE.astype(">u1"), PICTURE),
    "one grey channel": (PICTURE[..., :1], np.repeat(PICTURE[..., :1], 3, 2)),
    "a matrix": (PICTURE[..., 0].view(np.matrix), np.repeat(PICTURE[..., :1], 3, 2)),
    "a subclass that lies": (PICTURE.view(Reshaping), PICTURE),
    "read-only": (np.frombuffer(PICTURE.tobytes(), np.uint8).reshape(PICTURE.shape), PICTURE),
}


@pytest.mark.parametrize(("array", "shows"), FORMS.values(), ids=FORMS)
def test_an_array_is_taken_as_it_looks_whatever_its_form(array, shows):
    copy = copy_of(array)
    assert type(copy) is np.ndarray
    assert not np.shares_memory(copy, np.asarray(array))
    assert (decode(copy, order="RGB") == shows).all()
    assert (decode(array, order="RGB") == shows).all()


@pytest.mark.parametrize("length", [0, 1, 99, 100, 101, 5000, 10**6])
def test_a_text_is_cut_in_its_middle_and_says_how_long_it_was(length):
    text = ("begin" + "x" * (length - 8) + "end")[:length]
    short = shortened(text, 100)
    if length <= 100:
        assert short == text
    else:
        assert (len(short), short[:5], short[-3:]) == (100, "begin", "end")
        assert f"({length:,} " in short
