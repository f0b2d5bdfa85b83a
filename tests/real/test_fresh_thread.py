"""Nothing runs operators on the thread that opens a line: its OpenMP threads would slow every batch later on."""

from __future__ import annotations

import threading

import pytest
import torch

from coe.core import Expert
from coe.runtime.cpu import CpuDevice
from coe.runtime.processor import on_fresh_thread
from coe.store import kinds
from coe.store.store import Store


@pytest.mark.usefixtures("measures_itself")
def test_measuring_and_preparing_run_on_threads_that_end(tmp_path, monkeypatch) -> None:
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


def test_an_executor_keeps_its_threads_whatever_another_sets_before_its_first_batch(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("OMP_THREAD_LIMIT", raising=False)

    def executor() -> int:
        CpuDevice(Store(tmp_path), {}, threads=3).enter("one")
        on_fresh_thread(lambda: torch.set_num_threads(1))
        return torch.get_num_threads()

    before = torch.get_num_threads()
    try:
        assert on_fresh_thread(executor) == 3
    finally:
        torch.set_num_threads(before)
