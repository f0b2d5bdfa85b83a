"""How lines end that nobody closes: their devices are closed too, after the last batch and the last copy."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from coe import Inspector
from coe.errors import CoeError
from coe.runtime import line_engine
from coe.runtime.cpu import CpuDevice

PICTURE = np.zeros((32, 32, 3), np.uint8)
AT_DEVICES = ("coe-executor", "coe-answers", "coe-lane", "coe-disk")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """For each device that was closed: which threads of its line still worked at devices then."""
    seen: list[set[str]] = []
    close = CpuDevice.close

    def recorded(device: CpuDevice) -> None:
        seen.append({thread.name for thread in threading.enumerate() if thread.name.startswith(AT_DEVICES)})
        close(device)

    monkeypatch.setattr(CpuDevice, "close", recorded)
    return seen


def ended(threads: Collection[threading.Thread]) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), thread.name


def test_a_line_that_is_dropped_closes_its_devices(tiny: tuple[Path, Path], closed: list[set[str]]) -> None:
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    future, threads = line.submit(PICTURE, "A"), line._engine.line_threads.threads
    future.result()
    del line, future
    gc.collect()
    ended(threads)
    assert closed == [set()]


def test_a_line_that_is_open_at_exit_closes_its_devices(
    tiny: tuple[Path, Path], closed: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_engine, "_OPEN", weakref.WeakSet())
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    threads, futures = line._engine.line_threads.threads, [line.submit(PICTURE, "A") for _ in range(4)]
    line_engine._end_all()
    ended(threads)
    assert closed == [set()]
    assert all(future.done() for future in futures)
    line.close()
    assert closed == [set()], "a device is closed once"


def test_a_line_that_is_closed_closes_its_devices_for_its_caller(
    tiny: tuple[Path, Path], closed: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Inspector(tiny[0], store=tiny[1], profile=None)

    def lost(device: CpuDevice) -> None:
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


def test_what_a_device_raises_when_a_dropped_line_closes_it_reaches_nobody(
    tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tried = []

    def lost(device: CpuDevice) -> None:
        tried.append(device)
        raise CoeError("the device fell off")

    monkeypatch.setattr(CpuDevice, "close", lost)
    line = Inspector(tiny[0], store=tiny[1], profile=None)
    threads = line._engine.line_threads.threads
    del line
    gc.collect()
    ended(threads)
    assert len(tried) == 1
    assert "Traceback" not in capfd.readouterr().err
