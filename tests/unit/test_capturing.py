"""Captures run on a thread that lives on; its caller keeps its locks until they end, and errors keep nothing alive."""

import gc
import signal
import sys
import threading
import time
import weakref
from contextlib import suppress

import pytest
import torch

from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.torch_driver import on_capture_thread
from coe.runtime.inputs import Workers


def here() -> tuple[str, int]:
    assert threading.current_thread().daemon, "a capture that hangs does not hold up the interpreter's exit"
    return threading.current_thread().name, torch.get_num_threads()


def test_captures_with_a_search_and_without_have_a_thread_each_which_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: dict[bool, Workers] = {}
    monkeypatch.setattr(torch_driver, "_threads", threads)
    before = torch.get_num_threads()
    torch.set_num_threads(2)  # what new threads inherit, on one core, too
    try:
        searched = [on_capture_thread(here, searches=True) for _ in range(2)]
        unsearched = [on_capture_thread(here, searches=False) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
        for workers in threads.values():
            workers.close()
    assert searched[0] == searched[1] != unsearched[0] == unsearched[1]
    assert searched[0][1] == unsearched[0][1] == 1, "a thread that lives on keeps no team"


def test_an_interrupt_comes_after_the_capture() -> None:
    log: list[str] = []
    main = threading.get_ident()

    def capture() -> None:
        while sys._current_frames()[main].f_code.co_name != "wait":
            time.sleep(0.001)
        # To the caller's thread: a signal to this one would not wake that before the capture has ended.
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.3)
        log.append("captured")

    with pytest.raises(KeyboardInterrupt):
        on_capture_thread(capture, searches=False)
    assert log == ["captured"]


class Tensors:
    pass


def test_an_error_that_was_dealt_with_keeps_nothing_of_what_failed() -> None:
    kept: list[weakref.ref[Tensors]] = []

    def fails() -> None:
        tensors = Tensors()
        kept.append(weakref.ref(tensors))
        raise ValueError("no memory")

    on_capture_thread(lambda: None, searches=False)
    gc.disable()
    try:
        with suppress(ValueError):
            on_capture_thread(fails, searches=False)
        # The next work drops what the thread still holds of the last.
        on_capture_thread(lambda: None, searches=False)
        assert kept[0]() is None
    finally:
        gc.enable()
