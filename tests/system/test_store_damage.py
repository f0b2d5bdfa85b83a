"""What others do to a store: odd things in the place of files, changes while a line runs, writers that are killed."""

import multiprocessing
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from odd_files import ODD, replace
from small_experts import COSTS, KINDS, LABELS, SIZE, edit, filled, prepare, put, put_filed, state

from coe import Inspector
from coe.cli import experts_command
from coe.core import Expert, Verdict
from coe.errors import StoreError
from coe.helpers import files
from coe.helpers.files import alone
from coe.runtime.cpu import CpuDevice
from coe.store import kinds, runnable_kinds, weights_file
from coe.store.store import Store
from coe.store.store_reader import MANIFEST, NoSuchExpert
from coe.testing import Experiment


@pytest.fixture(autouse=True)
def _small_kinds(monkeypatch):
    for module in (kinds, runnable_kinds):
        monkeypatch.setattr(module, "resolve", lambda name, allowed=(): KINDS[name])


@pytest.fixture
def found(tmp_path):
    return filled(tmp_path)


@pytest.fixture
def store(found):
    return found[1]


EVERY = pytest.mark.parametrize("odd", ODD)
NOT_A_FILE = r"it is a (pipe|folder|device|socket), not a file|levels of symbolic links|No such (file|device)|truncated"
DAMAGED = f"cannot be read|{NOT_A_FILE}|not a safetensors file|no expert"


@EVERY
def test_something_odd_in_the_place_of_a_manifest_is_that_experts_error(store, odd, call):
    replace(store.folder("t/a") / MANIFEST, odd)
    with pytest.raises(StoreError, match="t/a"):
        store.manifest("t/a")
    assert store.ids() == ["t/a", "t/b", "t/c"]
    listed = call("list", "--store", store.root, command=experts_command)
    assert (listed.status, "t/b" in listed.out, "t/c" in listed.out, "t/a" in listed.words) == (1, True, True, True)
    verified = call("verify", "--store", store.root, command=experts_command)
    assert (verified.status, "2 sound, 1 damaged" in verified.out) == (1, True)
    assert verified.err.count("error:") == 1


@EVERY
def test_a_file_that_its_kind_cannot_open_stops_no_line(store, odd):
    size = store.manifest("t/c").bytes
    replace(store.path("t/c"), odd)
    cost = CpuDevice(store, KINDS, 1).measure(Expert("c", "filed", LABELS, SIZE, "t/c"))
    assert cost.weights_bytes >= size


@EVERY
def test_something_odd_in_the_place_of_weights_is_that_experts_error(store, odd, call):
    replace(store.path("t/a"), odd)
    with pytest.raises(StoreError, match=DAMAGED):
        store.check("t/a")
    with pytest.raises(StoreError, match="weights"):
        store.load("t/a")
    found = call("verify", "--store", store.root, command=experts_command)
    assert (found.status, "2 sound, 1 damaged" in found.out, found.err.count("error:")) == (1, True, 1)
    # It can be put there again.
    put(store, "t/a")
    assert store.check("t/a")


@EVERY
def test_something_odd_in_the_place_of_a_blob_is_that_experts_error(store, odd):
    replace(prepare(store, "t/a"), odd)
    with pytest.raises(StoreError, match=f"{DAMAGED}|has [0-9,]+ bytes"):
        store.check("t/a")
    if odd != "folder":
        prepare(store, "t/a")
        assert store.check("t/a")


@EVERY
def test_something_odd_in_the_place_of_an_expert_or_beside_boards_stops_nobody(store, odd, call):
    shutil.rmtree(store.folder("t/a"))
    ODD[odd](store.folder("t/a"))
    ODD[odd](store.root / "beside")
    assert {"t/b", "t/c"} <= set(store.ids())
    with pytest.raises(StoreError):
        store.manifest("t/a")
    for name in ("t/b", "t/c"):
        store.check(name)
    assert "2 sound" in call("verify", "--store", store.root, command=experts_command).out


@EVERY
def test_something_odd_in_the_place_of_the_store_is_an_error(tmp_path, odd, call):
    ODD[odd](tmp_path / "store")
    found = call("verify", "--store", tmp_path / "store", command=experts_command)
    assert found.status == 2
    assert "holds no experts" in found.words or "cannot be read: Too many levels of symbolic" in found.words
    with pytest.raises(StoreError):
        Store(tmp_path / "store").manifest("t/a")


@pytest.mark.parametrize(
    ("refusing", "names", "said"),
    [
        ("t/a", ("lstat", "open", "listdir"), ["2 sound, 1 damaged", "Permission denied"]),
        ("t", ("listdir",), ["1 sound, 1 damaged"]),
    ],
)
def test_a_folder_that_refuses_to_be_looked_into_is_reported_and_stops_nobody(
    store, monkeypatch, call, refusing, names, said
):
    """As for a user who is not root."""
    if refusing == "t":
        put(store, "u/x")

    def refuse(real, is_meant):
        def look(path, *rest, **options):
            if is_meant(str(path)):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *rest, **options)

        return look

    inside = str(store.root / refusing)
    for name in names:
        is_meant = inside.__eq__ if refusing == "t" else lambda path: path.startswith(inside)
        monkeypatch.setattr(os, name, refuse(getattr(os, name), is_meant))
    found = call("verify", "--store", store.root, command=experts_command)
    assert found.status == 1
    assert [word for word in (*said, f"error: {refusing}: ") if word not in found.out + found.words] == []


def test_a_manifest_of_any_size_is_met(store):
    with (store.folder("t/a") / MANIFEST).open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(StoreError, match="larger than 16,777,216 bytes"):
        store.manifest("t/a")


@pytest.mark.parametrize("size", [-1, 0, 1, 2**31, 2**63, 10**30])
def test_a_manifest_that_lies_about_the_size_is_refused(store, size):
    edit(store, "t/a", bytes=size)
    edit(store, "t/c", bytes=size)
    for name in ("t/a", "t/c"):
        with pytest.raises(StoreError, match="truncated"):
            store.check(name)


def test_verify_names_each_damaged_expert_and_each_way_of_damage(store, call, monkeypatch):
    put(store, "t/d")
    put(store, "t/e")
    edit(store, "t/d", kind="raises")
    edit(store, "t/e", kind="exits")

    def resolve(name, allowed=()):
        if name == "raises":
            raise ValueError("no such thing")
        if name == "exits":
            raise SystemExit(7)
        return KINDS[name]

    monkeypatch.setattr(kinds, "resolve", resolve)
    monkeypatch.setattr(weights_file, "check", lambda path, manifest: None)
    replace(store.folder("t/a") / MANIFEST, "pipe")
    found = call("verify", "--store", store.root, command=experts_command)
    assert (found.status, "2 sound, 3 damaged" in found.out) == (1, True)
    for said in ("t/a: ", "t/d: ValueError: no such thing", "t/e: SystemExit: 7"):
        assert said in found.words


def test_prepare_goes_on_after_a_damaged_expert(store, call):
    replace(store.folder("t/a") / MANIFEST, "endless-device")
    found = call("prepare", "--variants", "fp32", "--store", store.root, command=experts_command)
    assert (found.status, "manifest" in found.words) == (1, True)
    assert set(store.manifest("t/b").variants) == {"fp32"}


def line_of(found):
    limits = {"memory": "8MiB", "inbox_bytes": 1 << 20, "executors": "cpu=1"}
    return Inspector(found[0], store=found[1], experiment=Experiment(costs=COSTS), **limits)


PIXELS = np.zeros((SIZE, SIZE, 3), np.uint8)


def verdicts(line, rounds=1):
    """Send an image to each expert in turn; return verdict and error of each component's last."""
    results = {}
    for _ in range(rounds):
        for component in "ABC":
            results[component] = line.submit(PIXELS, component).result(60)
    return results


CHANGES = {
    "labels": lambda store: put(store, "t/a", labels=("bad", "ok")),
    "input": lambda store: put(store, "t/a", input_size=16),
    "labels-and-input": lambda store: put(store, "t/a", labels=("bad", "ok"), input_size=16),
    "weights": lambda store: put(store, "t/a", "bad"),
    "kind": lambda store: put(store, "t/a", kind="filed"),
    "linked": lambda store: store.link("t/a", "t/b", labels=LABELS),
    "one-label-more": lambda store: put(store, "t/a", labels=("ok", "bad", "none")),
    "manifest-edited": lambda store: edit(store, "t/a", labels=["bad", "ok"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_running_line_refuses_an_expert_that_became_another(found, change):
    with line_of(found) as line:
        verdicts(line, 2)
        CHANGES[change](found[1])
        said = verdicts(line, 3)
    assert said["A"].verdict is not Verdict.OK
    assert "changed" in said["A"].error
    assert [said[name].error for name in "BC"] == [None, None]


def test_what_does_not_change_an_expert_does_not_stop_a_line(found):
    store = found[1]
    with line_of(found) as line:
        verdicts(line)
        prepare(store, "t/a", "fp32")
        prepare(store, "t/b", "fp16")
        # The very same weights again, under another name on the disk.
        put(store, "t/a")
        put(store, "t/new")
        said = verdicts(line, 3)
    assert [(result.verdict, result.error) for result in said.values()] == [
        (Verdict.OK, None),
        (Verdict.NG, None),
        (Verdict.OK, None),
    ]


def _in_place(path, change):
    raw = bytearray(path.read_bytes())
    change(raw)
    with path.open("rb+") as file:
        file.write(raw)
        file.truncate(len(raw))


def _flip(raw):
    raw[-1] ^= 1


GONE = {
    "deleted": lambda store, name: shutil.rmtree(store.folder(name)),
    "renamed": lambda store, name: store.folder(name).rename(store.root / "elsewhere"),
    "board-deleted": lambda store, name: shutil.rmtree(store.root / "t"),
    "manifest-deleted": lambda store, name: (store.folder(name) / MANIFEST).unlink(),
    "weights-deleted": lambda store, name: store.path(name).unlink(),
    "weights-cut": lambda store, name: os.truncate(store.path(name), 20),
    "weights-emptied": lambda store, name: os.truncate(store.path(name), 0),
    "weights-flipped": lambda store, name: _in_place(store.path(name), _flip),
    "weights-grown": lambda store, name: _in_place(store.path(name), lambda raw: raw.extend(bytes(99))),
    "manifest-noise": lambda store, name: (store.folder(name) / MANIFEST).write_bytes(b"\xff" * 99),
    "folder-of-another": lambda store, name: (
        shutil.rmtree(store.folder(name)),
        shutil.copytree(store.folder("t/b"), store.folder(name)),
    ),
    **{f"manifest-{odd}": lambda store, name, odd=odd: replace(store.folder(name) / MANIFEST, odd) for odd in ODD},
    **{f"weights-{odd}": lambda store, name, odd=odd: replace(store.path(name), odd) for odd in ODD},
}


@pytest.mark.parametrize("name", ["t/a", "t/c"])
@pytest.mark.parametrize("what", GONE)
def test_what_becomes_of_an_expert_during_a_run_costs_its_own_images_alone(found, what, name):
    own = name[-1].upper()
    with line_of(found) as line:
        verdicts(line, 2)
        GONE[what](found[1], name)
        said = verdicts(line, 3)
    assert said[own].error
    assert f"expert '{name[-1]}' cannot be loaded" in said[own].error
    assert said[own].verdict is not Verdict.OK
    others = [component for component in "ABC" if component != own and what != "board-deleted"]
    assert [said[component].error for component in others] == [None] * len(others)


def test_an_expert_that_is_overwritten_again_and_again_costs_no_image_its_row(found):
    """Images under way all the time while one expert changes: each gets one result, and the line ends."""
    store = found[1]
    over = threading.Event()

    def overwrite():
        turn = 0
        while not over.is_set():
            turn += 1
            put(store, "t/a", "bad" if turn % 2 else "ok", labels=LABELS if turn % 3 else ("bad", "ok"))

    with line_of(found) as line:
        writer = threading.Thread(target=overwrite)
        writer.start()
        futures = [line.submit(PIXELS, "ABC"[turn % 3], name=str(turn)) for turn in range(300)]
        results = [future.result(100) for future in futures]
        over.set()
        writer.join(60)
    assert [result.request.image for result in results] == [str(turn) for turn in range(300)]
    for result in results:
        expected = {"A": Verdict.OK, "B": Verdict.NG, "C": Verdict.OK}[result.request.component]
        if result.request.component == "A" and result.error:
            assert "expert 'a' cannot be loaded" in result.error
        else:
            assert (result.verdict, result.error) == (expected, None)


FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
"""The children copy files and leave torch alone; newer Pythons warn of any fork beside threads."""


def _write(root, over, label):
    store = Store(root)
    while not over.is_set():
        put(store, "t/a", label)
        if label == "bad":
            store.link("t/d", "t/a", labels=LABELS)


@FORKS
def test_no_reader_ever_finds_half_an_expert(store):
    """One process and one thread put an expert, again and again, while four threads read it."""
    context = multiprocessing.get_context("fork")
    over, failures, reads = context.Event(), [], [0] * 4

    def read(number):
        own = Store(store.root)
        while not over.is_set():
            try:
                own.check("t/a")
                own.manifest("t/a")
                assert set(own.load("t/a")) == {"fc.weight", "fc.bias"}
                assert "t/a" in own.ids()
            except Exception as error:
                failures.append(error)
            reads[number] += 1

    other = context.Process(target=_write_states, args=(store.root, over))
    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    writer = threading.Thread(target=_write, args=(store.root, over, "bad"))
    other.start()
    for thread in (*readers, writer):
        thread.start()
    while min(reads) < 60 and not failures:
        time.sleep(0.01)
    over.set()
    for thread in (*readers, writer, other):
        thread.join(60)
    assert (failures, other.exitcode) == ([], 0)
    for name in ("t/a", "t/d"):
        manifest = store.check(name)
        assert sorted(path.name for path in store.folder(name).glob("[!.]*")) == [MANIFEST, manifest.file]


def _write_states(root, over):
    """Put files rather than tensors: a forked process leaves torch alone."""
    source = Path(root) / "model.bin"
    source.write_bytes(b"x" * 100_000)
    store = Store(root)
    while not over.is_set():
        store.put("t/e", kind="filed", labels=LABELS, input_size=SIZE, file=source)
        store.link("t/f", "t/e", labels=LABELS)


@FORKS
@pytest.mark.parametrize("step", ["_place", "replacing", "alone"])
def test_what_a_killed_writer_leaves_is_swept_by_the_next(store, tmp_path, step):
    """Killed while it writes weights, when these are there and the manifest is not, and before it writes anything."""
    source = tmp_path / "model.bin"
    pid = os.fork()
    if pid == 0:
        # The child is killed at a step of its own, and nothing of its end runs.
        die = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        if step == "_place":
            os.fsync = die
        elif step == "replacing":
            store.rewrite = die
        else:
            files.lock_descriptor = die
        store.put("t/c", kind="filed", labels=LABELS, input_size=SIZE, file=source)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    before = store.manifest("t/c")
    store.check("t/c")
    put_filed(store, tmp_path, "bad")
    now = store.check("t/c")
    assert now.file != before.file
    assert sorted(path.name for path in store.folder("t/c").glob("[!.]*")) == [MANIFEST, now.file]


def test_a_writer_waits_for_the_writer_that_is_there_and_removes_nothing_of_it(store):
    half = store.folder("t/a") / ".weights-2.safetensors.tmp"
    with alone(store.folder("t/a")):
        half.write_bytes(b"half")
        writer = threading.Thread(target=put, args=(store, "t/a", "bad"))
        writer.start()
        writer.join(0.3)
        assert writer.is_alive()
        assert half.exists()
        # Another expert of the board is nobody's business.
        put(store, "t/b")
        assert half.exists()
    writer.join(60)
    assert not half.exists()
    assert store.load("t/a")["fc.bias"].tolist() == [0.0, 1.0]


def test_a_first_put_that_fails_leaves_no_folder(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"t/new.*No space left"):
        put(store, "t/new")
    assert not store.folder("t/new").exists()
    with pytest.raises(NoSuchExpert):
        store.manifest("t/new")
    with pytest.raises(StoreError, match="No space left"):
        put(store, "t/a", "bad")
    monkeypatch.undo()
    assert store.load("t/a")["fc.bias"].tolist() == state()["fc.bias"].tolist()
