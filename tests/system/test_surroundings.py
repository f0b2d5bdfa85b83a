"""The surroundings of a service: nobody reads, a device is full, an encoding is foreign, nobody is logged in, Ctrl-C.

A few things only a process shows, and each costs the import of torch; what a function shows is asked of the function.
"""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from lamp import lamp_board, picture
from tiny_line import TINY, fill

from coe.board import rules
from coe.cli import common, start
from coe.cli.common import Exit, guarded
from coe.cli.start import Steady, steady
from coe.errors import CoeError, ConfigError, ImageError, RulesError, StoreError
from coe.helpers import ending, surroundings
from coe.helpers.files import DiskFull
from coe.inspector import profile, settings
from coe.store.store import Store

ROOT = Path(__file__).parents[2]


class Failing(io.TextIOWrapper):
    """A stream in memory whose device says no, at once or when it is flushed."""

    def __init__(self, number, *, at="write", encoding="utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, write_through=True)
        self.number, self.at, self.asked = number, at, 0

    def write(self, text):
        if self.at == "write":
            self._refuse()
        return super().write(text)

    def flush(self):
        if self.at == "flush" and not self.closed:
            self._refuse()
        super().flush()

    def close(self):
        self.at = ""
        super().close()

    def _refuse(self):
        self.asked += 1
        raise OSError(self.number, os.strerror(self.number))


GONE = [errno.EPIPE, errno.ECONNRESET, errno.ESHUTDOWN]
BROKEN = [errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EAGAIN]
names = {"ids": lambda value: errno.errorcode.get(value, str(value)) if isinstance(value, int) else str(value)}


def speaking(status):
    def command():
        common.out.print("a table")
        sys.stdout.write("a line\n")
        common.err.print("a complaint")
        return status

    return command


def gone(at, numbers=GONE):
    return [Failing(number, at=at) for number in numbers]


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4, 130])
def test_a_reader_who_has_gone_and_streams_that_were_never_there_change_no_status(monkeypatch, status):
    pairs = [
        *((out, err) for at in ("write", "flush") for out, err in zip(gone(at), gone(at), strict=True)),
        # Complaints that cannot be written.
        *((io.StringIO(), err) for err in gone("write", [*GONE, *BROKEN])),
        *((None, None), (None, io.StringIO()), (io.StringIO(), None)),
    ]
    for out, err in pairs:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            assert guarded(speaking(status)) == status


@pytest.mark.parametrize("at", ["write", "flush"])
@pytest.mark.parametrize("number", BROKEN, **names)
@pytest.mark.parametrize(("status", "ends"), [(0, 4), (1, 4), (3, 4), (2, 2), (4, 4), (130, 130)])
def test_output_that_was_asked_for_and_lost_is_status_4_and_told(monkeypatch, number, status, ends, at):
    told = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Failing(number, at=at))
        patch.setattr(sys, "stderr", told)
        assert guarded(speaking(status)) == ends
    told_of = "standard output cannot be written" in told.getvalue()
    assert told_of == (status in (0, 1, 3))


def test_a_stream_that_failed_is_not_asked_again():
    behind = Failing(errno.ENOSPC)
    stream = Steady(behind)
    for _ in range(3):
        assert stream.write("text") == 4
    assert behind.asked == 1
    assert stream.lost == "No space left on device"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "cp1252", "utf-8", "shift_jis", "koi8-r"])
@pytest.mark.parametrize("text", ["Prüfung µ …", "基板 SN1", "a\udcffb", "─│ · —", "\U0001f600"])
def test_letters_that_an_encoding_lacks_are_escaped(monkeypatch, encoding, text):
    behind = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", behind)
        with steady() as stream:
            common.out.print(text)
            sys.stdout.write(text)
            assert stream.lost is None
    written = behind.buffer.getvalue().decode(encoding)
    assert written.count("\n") == 1
    assert all(letter in written or "\\" in written for letter in text)


class Unspeakable(Exception):
    def __str__(self):
        raise OSError


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (ConfigError("a budget"), Exit.USAGE, "a budget"),
        (RulesError("x.yaml:1: a rule"), Exit.USAGE, "a rule"),
        (StoreError("an expert"), Exit.USAGE, "an expert"),
        (DiskFull("no room"), Exit.NOT_WRITTEN, "no room"),
        (ImageError("a picture"), Exit.NOT_INSPECTED, "a picture"),
        (CoeError("something"), Exit.NOT_INSPECTED, "something"),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "interrupted"),
        (RuntimeError("boom"), Exit.NOT_INSPECTED, "RuntimeError: boom"),
        (KeyError("k"), Exit.NOT_INSPECTED, "KeyError: 'k'"),
        (Unspeakable(), Exit.NOT_INSPECTED, "Unspeakable"),
        (MemoryError(), Exit.NOT_INSPECTED, "MemoryError"),
        (BrokenPipeError(errno.EPIPE, "a child's"), Exit.NOT_INSPECTED, "BrokenPipeError"),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("text"), 1, ""),
        (ImportError("libGL.so.1: cannot open shared object file", name="cv2"), 2, "libGL.so.1"),
        (ImportError("cannot import name 'x'", name="coe.core"), 3, "cannot import name 'x'"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_ends_a_command_ends_in_a_line_and_a_status_that_says_one_thing(
    monkeypatch, capsys, error, status, says
):
    def command():
        raise error

    streams = sys.stdout, sys.stderr
    assert guarded(command) == status
    said = " ".join(capsys.readouterr().err.split())
    assert (says in said, "Traceback" in said) == (True, False)
    assert (sys.stdout, sys.stderr) == streams
    monkeypatch.setenv("COE_TRACEBACK", "1")
    guarded(command)
    is_fault = status == Exit.NOT_INSPECTED and not isinstance(error, CoeError | SystemExit)
    said = capsys.readouterr().err
    assert ("Traceback" in said, Path(__file__).name in said) == (is_fault, is_fault), "whose code failed"
    assert "\\x0a" not in said, "a traceback has lines"


def test_a_user_without_a_home_or_with_one_that_may_not_be_looked_into_has_no_profile(monkeypatch):
    monkeypatch.delenv("COE_PROFILE")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(ConfigError, match=r"no home folder .*\$COE_PROFILE"):
        profile.place()
    assert settings._find(settings.AUTO, lambda sentence: None) is None
    monkeypatch.setenv("COE_PROFILE", "/somewhere/profile.json")

    def refuse(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert settings._find(settings.AUTO, lambda sentence: None) is None


ALL_KINDS = (
    TINY.replace("body-a: {kind: narrow", "body-a: {kind: resnet18")
    .replace("joint: {kind: narrow_boxes", "joint: {kind: yolov5n")
    .replace("components:", "  lamp: {kind: onnx, labels: [dark, bright], input: 32, weights: lamps/lamp}\ncomponents:")
    + "  L: {inspect: lamp, then: {dark: NG, bright: joint}}\n"
)


@pytest.fixture(scope="module")
def line(small_line):
    """Arguments of a board with experts of resnet18, narrow, yolov5n and onnx, whose pictures are all OK."""
    store, board = Path(small_line[3]), Path(small_line[1]).with_name("tiny.yaml")
    board.write_text(ALL_KINDS, encoding="utf-8")
    experts = {id: expert for id, expert in rules.load(board).experts.items() if expert.kind != "onnx"}
    fill(Store(store), SimpleNamespace(experts=experts))
    return ["--board", str(board), *small_line[2:]]


@pytest.fixture(scope="module")
def small_line(tmp_path_factory):
    """Arguments of a board with one expert, of onnx, whose pictures are all OK."""
    folder = tmp_path_factory.mktemp("service")
    board, store = lamp_board(folder)
    for name in ("SN1/R1__L.png", "SN1/R2__L.png"):
        picture(folder / "images" / name, 230)
    given = ("--board", board, "--store", store, "--images", folder / "images", "--memory", "100MB")
    return [str(one) for one in given]


RUN = "import sys; from coe.cli import start; sys.argv[0] = 'coe'; getattr(start, sys.argv.pop(1))()"


def environment(**variables):
    """What a service has: no HOME, no user, no terminal; and the way to the code."""
    given = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'installed'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**given, "OMP_NUM_THREADS": "1", **variables}


NAMELESS = """
import pwd

def getpwuid(number):
    raise KeyError(f"getpwuid(): uid not found: {number}")

pwd.getpwuid = getpwuid
"""
WATCHED = """
import json, os, sys
allowed = [os.path.realpath(one) for one in json.loads(os.environ.pop("ALLOWED"))]
seen = []

def watch(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        seen.append(f"{event} {given[1:]}")
    elif event in ("os.mkdir", "os.rename", "os.symlink", "os.link"):
        note(given[-2] if event == "os.mkdir" and not isinstance(given[0], (str, bytes)) else given[0], event)
    elif event == "open" and isinstance(given[0], (str, bytes)) and (given[2] or 0) & (os.O_WRONLY | os.O_RDWR):
        note(given[0], event)

def note(path, event):
    place = os.path.realpath(os.fsdecode(path))
    if not any(place.startswith(one) for one in [*allowed, "/dev/", "/proc/"]):
        seen.append(f"{event} {place}")

sys.addaudithook(watch)
commands, statuses = json.loads(os.environ.pop("COMMANDS")), []
from coe.cli import start
for name, *arguments in commands:
    sys.argv = ["coe", *arguments]
    try:
        getattr(start, name)()
    except SystemExit as ended:
        statuses.append(int(ended.code or 0))
with open(os.path.join(allowed[0], "seen.json"), "w") as file:
    json.dump({"seen": seen, "statuses": statuses}, file)
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["inspect", "all"])
def test_nothing_is_written_outside_what_the_user_named_and_nothing_calls_out(request, tmp_path, everything):
    line = request.getfixturevalue("line" if everything else "small_line")
    homes = {name: tmp_path / name for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR")}
    for folder in homes.values():
        folder.mkdir()
    work, named = tmp_path / "work", tmp_path / "named"
    work.mkdir()
    named.mkdir()
    chance = np.random.default_rng(0)
    for label in ("dark", "light"):
        (named / "data" / label).mkdir(parents=True)
        for index in range(6):
            pixels = chance.integers(0, 120, (32, 32, 3), dtype=np.uint8) + (100 if label == "light" else 0)
            cv2.imwrite(str(named / "data" / label / f"{index}.png"), pixels)
    store = line[line.index("--store") + 1]
    commands = [
        ["inspect", *line, "--out", str(named / "out")],
        ["experts", "verify", "lamps/lamp", "tiny/joint", "--store", store],
        [
            *("experts", "train", "t/light", "--data", str(named / "data"), "--kind", "resnet18", "--input", "32"),
            *("--epochs", "1", "--batch", "4", "--threads", "1", "--store", str(named / "store")),
        ],
        ["bench", "sim", "--task", "A1", "--strategy", "late-binding", "--json", str(named / "run.json")],
    ]
    if not everything:
        del commands[1:]
    allowed = [str(named), str(homes["TMPDIR"])]
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS + WATCHED],
        cwd=work,
        env=environment(
            **{name: str(folder) for name, folder in homes.items()},
            ALLOWED=json.dumps(allowed),
            COMMANDS=json.dumps(commands),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((named / "seen.json").read_text(encoding="utf-8"))
    assert told["statuses"] == [0] * len(commands), done.stderr
    assert told["seen"] == []
    if everything:  # with what onnxruntime did to make int8
        assert Store(named / "store").manifest("t/light").variants.keys() == {"fp32", "q8", "int8"}
    for folder in (*homes.values(), work):
        assert list(folder.rglob("*")) == [], f"{folder.name} holds what nobody named"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("redirection", "status"), [(">/dev/full 2>/dev/full", 4), (">&- 2>&- <&-", 0), ("2>&1 | true", 0)]
)
def test_a_run_that_nobody_can_read_ends_with_its_verdicts_status(small_line, tmp_path, redirection, status):
    command = ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash", sys.executable, "-c", RUN, "inspect"]
    done = subprocess.run(
        [*command, *small_line, "--out", str(tmp_path / "out")],
        env=environment(TMPDIR=str(tmp_path), HOME=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "Traceback" in done.stderr + done.stdout) == (status, False), done.stderr
    rows = [json.loads(row) for row in (tmp_path / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["verdict"] for row in rows] == ["OK", "OK"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_user_without_a_name_and_a_home_inspects(line, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS + RUN, "inspect", *line, "--out", str(tmp_path / "out")],
        cwd=tmp_path,
        env=environment(TMPDIR=str(tmp_path), PYTHONIOENCODING="ascii", LC_ALL="POSIX", TERM="dumb"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("inspect", signal.SIGINT),
        ("inspect", signal.SIGTERM),
        *(pytest.param(one, signal.SIGINT, marks=pytest.mark.slow) for one in ("experts", "bench", "profile")),
    ],
)
def test_a_signal_while_libraries_are_imported_is_one_line_and_130(tmp_path, command, number):
    slow = tmp_path / "typer"  # as a library that is under import for a long time, and swallows what it can
    slow.mkdir()
    (slow / "__init__.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'importing')!r}).touch()\n"
        "while True:\n"
        "    try:\n"
        "        time.sleep(60)\n"
        "    except BaseException:\n"
        "        pass\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, command, "--help"],
        env=environment(PYTHONPATH=f"{tmp_path}:{ROOT}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "importing").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate()
    assert (process.returncode, *said) == (130, "", "interrupted\n")


def test_a_folder_that_is_gone_is_said_before_a_library_ends_the_process(tmp_path):
    (gone := tmp_path / "gone").mkdir()
    script = f"import os; os.rmdir({str(gone)!r})\n{RUN}"
    command = [sys.executable, "-c", script, "inspect", "--help"]
    done = subprocess.run(command, check=False, env=environment(), cwd=gone, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("error: the current folder")) == (2, "", 1)


@pytest.mark.parametrize("name", ["inspect", "experts", "bench", "profile"])
def test_an_interruption_anywhere_in_a_command_is_one_line_and_130(monkeypatch, capsys, name):
    def interrupted(*given, **named):
        try:
            os.kill(os.getpid(), signal.SIGTERM if name == "experts" else signal.SIGINT)
        finally:  # as `timeout` does, which sends it to a process and to its group
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(ending, "SAME_SIGNAL_S", 1e9)
    monkeypatch.setattr(Store, "__init__", interrupted)
    monkeypatch.setattr(rules, "load", interrupted)
    monkeypatch.setattr("coe.scheduler.strategies.strategy", interrupted)
    given = {
        "inspect": ["--board", "demo", "--images", "x"],
        "experts": ["list"],
        "bench": ["scale"],
        "profile": ["--board", "demo"],
    }
    monkeypatch.setattr(sys, "argv", ["coe", *given[name]])
    with pytest.raises(SystemExit) as ended:
        getattr(start, name)()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert (ended.value.code, capsys.readouterr().err) == (130, "interrupted\n")


def test_without_a_place_for_temporary_files_kinds_are_found_all_the_same(monkeypatch):
    def refuse(*_, **__):
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(surroundings, "folder", refuse)
    surroundings.quiet_torch()
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ


def test_folders_of_killed_processes_go_with_the_next_one_and_those_of_living_ones_stay(tmp_path):
    """They are older than what was made just now, and may hold files."""
    make = "from coe.helpers.surroundings import folder; (folder() / 'inductor').mkdir(); print(folder(), flush=True)"
    wait = f"{make}; input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    folders = []
    with ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", wait], env=environment, stdin=-1, stdout=-1, text=True)
            )
            folders.append(Path(process.stdout.readline().strip()))
            os.utime(folders[-1], (0, 0))
        process.kill()
        process.wait()
        said = subprocess.run([sys.executable, "-c", make], env=environment, capture_output=True, text=True, check=True)
        assert [path.exists() for path in (*folders, Path(said.stdout.strip()))] == [True, False, False]
    assert list(tmp_path.iterdir()) == []
