"""An executor begins as many batches as its depth lets it, and ends them in their order."""

import pytest

from coe.core import Batch, Stage
from coe.scheduler.backlog import Backlog
from coe.scheduler.executor import Executor, Flight
from coe.scheduler.plan import ExecutorSpec, PoolSpec
from coe.scheduler.pool import ModelPool


def test_an_executor_begins_what_its_depth_lets_it_and_ends_it_in_order():
    pool = ModelPool(PoolSpec("cpu0", "cpu", 100, 10))
    executor = Executor(ExecutorSpec("cpu0", "cpu", "cpu0"), pool, Backlog())
    batch = Batch("a", (Stage(0, "a"), Stage(1, "a")))
    with pytest.raises(ValueError, match=r"<Executor cpu0 idle, 0 waiting> has no batch to end"):
        executor.end()
    executor.begin(batch, 7, 3.0)
    assert (executor.flights, executor.remaining_s(1.0)) == ((Flight(batch, 7, 3.0),), 2.0)
    with pytest.raises(ValueError, match=r"<Executor cpu0 running a x2, 0 waiting> cannot begin another batch"):
        executor.begin(batch, 7, 3.0)
    assert executor.end() == Flight(batch, 7, 3.0)
    assert (executor.batch, executor.flights, executor.remaining_s(1.0)) == (None, (), 0.0)
    pool = ModelPool(PoolSpec("gpu0", "gpu", 100, 10))
    executor = Executor(ExecutorSpec("gpu0", "gpu", "gpu0", depth=2), pool, Backlog())
    first, second = Batch("a", (Stage(0, "a"),)), Batch("b", (Stage(1, "b"),))
    executor.begin(first, 1, 3.0)
    assert (executor.is_free, executor.idle_from_s(1.0)) == (True, 3.0)
    executor.begin(second, 2, 5.0)
    assert (executor.is_free, executor.batch, executor.remaining_s(1.0)) == (False, first, 4.0)
    with pytest.raises(ValueError, match=r"running a x1 and b x1, 0 waiting> cannot begin another batch"):
        executor.begin(first, 1, 6.0)
    assert [executor.end().batch, executor.end().batch] == [first, second]
