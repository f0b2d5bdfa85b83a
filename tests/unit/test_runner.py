"""An executor's thread: what it tells of a batch that fails."""

import queue
from collections.abc import Callable

import pytest

from coe.core import Batch, Expert, FailureKind, Stage
from coe.errors import ImageError
from coe.runtime.runner import Runner
from coe.scheduler.backlog import Backlog
from coe.scheduler.events import Event, Run, RunFailed
from coe.scheduler.executor import Executor
from coe.scheduler.plan import ExecutorSpec, PoolSpec
from coe.scheduler.pool import ModelPool


class Idle:
    """A device that is entered, and runs nothing."""

    def enter(self, executor: str) -> None:
        pass

    def run(self, executor: str, pool: str, expert: Expert, images: object) -> None:
        raise AssertionError("no batch gets as far as this")


def told(prepared: Callable[[Run], list[object]]) -> Event:
    """Return what is told of a batch whose pictures `prepared` gives."""
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    executor = Executor(ExecutorSpec("cpu0", "cpu", "cpu0"), ModelPool(PoolSpec("cpu0", "cpu", 100, 0)), Backlog())
    experts = {"a": Expert("a", "k", ("ok", "bad"), 8, "board/a")}
    runner = Runner(executor, Idle(), experts, prepared=prepared, tell=heard.put)  # type: ignore[arg-type]
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
def test_a_batch_that_fails_says_whether_its_pictures_or_its_expert_are_to_blame(
    error: Exception, failed: RunFailed
) -> None:
    def prepared(command: Run) -> list[object]:
        raise error

    assert told(prepared) == failed
