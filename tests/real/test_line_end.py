"""How lines open beside others, on which threads they work, how a run replays, and how lines end that nobody closes."""

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from coe import Inspector
from coe.core import Expert
from coe.errors import CoeError
from coe.runtime import cpu, line_engine, trial
from coe.runtime.cpu import CpuDevice
from coe.runtime.processor import on_fresh_thread
from coe.runtime.trial import MeasuredOnce
from coe.store import kinds
from coe.store.store import Store

PICTURE = np.zeros((32, 32, 3), np.uint8)
AT_DEVICES = ("coe-executor", "coe-answers", "coe-lane", "coe-disk")


@pytest.fixture
def closed(monkeypatch):
    """For each device that was closed: which threads of its line still worked at devices then."""
    seen = []
    close = CpuDevice.close

    def recorded(device):
        seen.append({thread.name for thread in threading.enumerate() if thread.name.startswith(AT_DEVICES)})
        close(device)

    monkeypatch.setattr(CpuDevice, "close", recorded)
    return seen


def ended(threads):
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), thread.name


def test_a_line_that_is_dropped_closes_its_devices(tiny, closed):
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    future, threads = line.submit(PICTURE, "A"), line._engine.line_threads.threads
    future.result()
    del line, future
    gc.collect()
    ended(threads)
    assert closed == [set()]


def test_a_line_that_is_open_at_exit_closes_its_devices(tiny, closed, monkeypatch):
    monkeypatch.setattr(line_engine, "_OPEN", weakref.WeakSet())
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    threads, futures = line._engine.line_threads.threads, [line.submit(PICTURE, "A") for _ in range(4)]
    line_engine._end_all()
    ended(threads)
    assert closed == [set()]
    assert all(future.done() for future in futures)
    line.close()
    assert closed == [set()], "a device is closed once"


def test_a_line_that_is_closed_closes_its_devices_for_its_caller(tiny, closed, monkeypatch):
    line = Inspector(tiny[0], store=tiny[1], profile=None)

    def lost(device):
        raise CoeError("the device fell off")

    with monkeypatch.context() as patch:
        patch.setattr(CpuDevice, "close", lost)
        with pytest.raises(CoeError, match="fell off"):
            line.close()
    ended(line._engine.line_threads.threads)
    assert not line._engine.devices
    with Inspector(tiny[0], store=tiny[1], profile=None):
        pass
    assert closed == [set()]


# Lines that are opened in several threads, or beside one that runs


LINES = 3
MEMORY = "17MB"
"""Enough for each line, and far less than what all of them grow by."""


@pytest.fixture
def measured(measures_itself, monkeypatch):
    """What nobody has measured yet."""
    fresh = MeasuredOnce()
    monkeypatch.setattr(cpu.CpuDevice.__init__, "__kwdefaults__", {"measured": fresh})
    return fresh


@pytest.fixture
def batches(monkeypatch):
    """The sizes of all batches whose memory is measured, in order."""
    sizes = []
    measure = trial.Trial.batch_bytes

    def count(self, images):
        sizes.append(images)
        return measure(self, images)

    monkeypatch.setattr(trial.Trial, "batch_bytes", count)
    return sizes


def test_lines_of_one_board_that_open_at_once_measure_once(tiny, pictures, measured, batches):
    board, store = tiny

    def inspect(_):
        with Inspector(board, store=store, memory=MEMORY) as line:
            return [result.verdict for result in line.stream(pictures[:3])]

    with ThreadPoolExecutor(LINES) as pool:
        verdicts = list(pool.map(inspect, range(LINES)))
    assert all(len(each) == 3 and None not in each for each in verdicts)
    # Two networks, each with one image and with several.
    assert len(batches) == 4
    assert repr(measured) == "<MeasuredOnce 2 results>"


@pytest.mark.slow
def test_a_line_opens_while_another_runs(tiny, pictures, measured):
    board, store = tiny
    ended = threading.Event()

    def endless():
        for picture in itertools.cycle(pictures):
            if ended.is_set():
                return
            yield picture

    with Inspector(board, store=store, memory=MEMORY, inbox=4) as busy, ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: sum(result.error is None for result in busy.stream(endless())))
        try:
            measured._results.clear()
            with Inspector(board, store=store, memory=MEMORY) as line:
                assert all(result.error is None for result in line.stream(pictures[:3]))
        finally:
            ended.set()
        assert running.result() > 0


# Nothing runs operators on the thread that opens a line


@pytest.mark.usefixtures("measures_itself")
def test_measuring_and_preparing_run_on_threads_that_end(tmp_path, monkeypatch):
    kind = kinds.resolve("narrow")
    expert = Expert("e", "narrow", ("ok", "bad"), 32, "e")
    store = Store(tmp_path)
    store.put(
        "e", kind="narrow", labels=expert.labels, input_size=32, state=kind.skeleton(expert).state_dict(), source="test"
    )
    threads = set()

    def noting(method):
        def call(*arguments):
            threads.add(threading.current_thread())
            return method(*arguments)

        return call

    monkeypatch.setattr(type(kind), "forward", noting(type(kind).forward))
    monkeypatch.setattr(type(kind), "skeleton", noting(type(kind).skeleton))
    device = CpuDevice(store, {"narrow": kind}, threads=2)
    device.measure(expert)
    device.prepare([expert])
    assert threads
    assert threading.main_thread() not in threads
    assert not any(thread.is_alive() for thread in threads)


def test_an_executor_keeps_its_threads_whatever_another_sets_before_its_first_batch(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)

    def executor():
        CpuDevice(Store(tmp_path), {}, threads=3).enter("one")
        on_fresh_thread(lambda: torch.set_num_threads(1))
        return torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        assert on_fresh_thread(executor) == 3
    finally:
        torch.set_num_threads(before)


# What the engine did on the machine, a fresh controller does again, command by command
