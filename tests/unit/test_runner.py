"""An executor's thread: what it tells of a batch that fails."""

import queue
import threading

import pytest

from coe.core import Batch, Expert, FailureKind, Finding, Stage
from coe.errors import ImageError
from coe.runtime import runner as runner_module
from coe.runtime.runner import Runner
from coe.scheduler.backlog import Backlog
from coe.scheduler.events import Event, Finished, Run, RunFailed
from coe.scheduler.executor import Executor
from coe.scheduler.plan import ExecutorSpec, PoolSpec
from coe.scheduler.pool import ModelPool


class Idle:
    """A device that is entered, and runs nothing."""

    def enter(self, executor):
        pass

    def launch(self, executor, pool, expert, images):
        raise AssertionError("no batch gets as far as this")


def told(prepared):
    """Return what is told of a batch whose pictures `prepared` gives."""
    heard = queue.SimpleQueue()
    executor = Executor(ExecutorSpec("cpu0", "cpu", "cpu0"), ModelPool(PoolSpec("cpu0", "cpu", 100, 0)), Backlog())
    experts = {"a": Expert("a", "k", ("ok", "bad"), 8, "board/a")}
    runner = Runner(executor, Idle(), experts, prepared=prepared, tell=heard.put)
    runner.put(Run("cpu0", Batch("a", (Stage(0, "a"),))))
    runner.close()
    runner.work()
    return heard.get()


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (ImageError("is gone"), RunFailed("cpu0", "is gone", FailureKind.IMAGE)),
        (ValueError("no such axis"), RunFailed("cpu0", "ValueError: no such axis", FailureKind.RUN)),
    ],
)
def test_a_batch_that_fails_says_whether_pictures_or_expert_are_to_blame(error, failed):
    def prepared(command):
        raise error

    assert told(prepared) == failed


class Deep(Idle):
    """A device that begins batches at once; each ends when its gate opens."""

    def __init__(self):
        self.gates = {}
        self.begun = queue.SimpleQueue()
        self.bad = set()

    def launch(self, executor, pool, expert, images):
        self.begun.put(expert.id)
        if expert.id in self.bad:
            raise ValueError(f"{expert.id} cannot begin")
        gate = self.gates.setdefault(expert.id, threading.Event())

        def findings():
            assert gate.wait(60)
            return [Finding(expert.id, "fp32", "ok", 1.0)]

        return findings


def deep_runner(device, prepared, heard, *batches):
    """Return the runner of an executor two batches deep, that is given a batch of each of these experts."""
    spec = ExecutorSpec("gpu0", "gpu", "gpu0", depth=2)
    executor = Executor(spec, ModelPool(PoolSpec("gpu0", "gpu", 100, 0)), Backlog())
    experts = {name: Expert(name, "k", ("ok", "bad"), 8, f"board/{name}") for name in batches}
    runner = Runner(executor, device, experts, prepared=prepared, tell=heard.put)
    for name in batches:
        runner.put(Run("gpu0", Batch(name, (Stage(0, name),))))
    return runner


@pytest.mark.parametrize("bad", [(), ("b",), ("a",)])
def test_a_deep_executor_begins_a_batch_before_it_waits_for_the_one_ahead_and_answers_in_order(bad):
    device, heard = Deep(), queue.SimpleQueue[Event]()
    device.bad.update(bad)
    runner = deep_runner(device, lambda run: [], heard, *"abc")
    functions = runner.thread_functions()
    assert sorted(functions) == ["coe-answers-gpu0", "coe-executor-gpu0"]
    # Daemons: if a batch waits for ever, the test fails and does not hang.
    threads = [threading.Thread(target=function, daemon=True) for function in functions.values()]
    for thread in threads:
        thread.start()
    # All begin, while none has been answered.
    assert [device.begun.get(timeout=60) for _ in "abc"] == ["a", "b", "c"]
    runner.close()
    for name in "cba":
        device.gates.setdefault(name, threading.Event()).set()
    told = [heard.get(timeout=60) for _ in "abc"]
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    reasons = [event.reason if isinstance(event, RunFailed) else event.findings[0].expert for event in told]
    assert reasons == [f"ValueError: {name} cannot begin" if name in bad else name for name in "abc"]


class Clock:
    """Stands for `time`; it goes on only when a test says so."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


class Timed(Idle):
    """A device whose batches take a second of the clock; those of "bad" fail after it."""

    def __init__(self, clock):
        self.clock = clock

    def launch(self, executor, pool, expert, images):
        def findings():
            self.clock.now += 1.0
            if expert.id == "bad":
                raise ValueError("no such axis")
            return [Finding(expert.id, "fp32", "ok", 1.0)]

        return findings


def test_the_time_of_a_batch_is_the_devices_alone(monkeypatch):
    """Neither the wait for its images counts, nor that for a batch ahead of it, though that failed."""
    clock, heard, waits_s = Clock(), queue.SimpleQueue[Event](), iter([50.0, 0.0, 0.0])
    monkeypatch.setattr(runner_module, "time", clock)

    def prepared(command):
        clock.now += next(waits_s)
        return []

    runner = deep_runner(Timed(clock), prepared, heard, "a", "bad", "a")
    runner.close()
    launch, answer = runner.thread_functions().values()
    launch()  # all three are on the device before the first has ended
    answer()
    told = [heard.get_nowait() for _ in range(3)]
    assert [event.took_s for event in told if isinstance(event, Finished)] == [1.0, 1.0]
    assert isinstance(told[1], RunFailed)
