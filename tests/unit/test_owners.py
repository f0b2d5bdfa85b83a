"""One owner: residency, and what an executor runs, change in one place; no module writes another's fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from coe.core import Batch, Stage
from coe.scheduler.backlog import Backlog
from coe.scheduler.executor import Executor, Flight
from coe.scheduler.history import History
from coe.scheduler.host_cache import HostCache
from coe.scheduler.plan import ExecutorSpec, PoolSpec
from coe.scheduler.pool import ModelPool

PACKAGE = Path(__file__).parents[2] / "coe"
SCHEDULER = PACKAGE / "scheduler"

POOL_WRITERS = {
    *("tell", "plan", "to_reserve", "reserve", "cancel", "commit", "abandon", "leave", "release"),
    *("pin", "unpin", "lies_in"),
}
CACHE_WRITERS = {"hold", "fetch", "leave", "forget", "begin_fill", "end_fill"}
HISTORY_WRITERS = {"arrived", "found", "answered"}
FLOATS = {"seconds", "speed", "rate", "rates", "share", "shares", "usage", "probability"}
"""Words in the names of floats."""
OWNERS = {"scheduler/pool.py", "scheduler/host_cache.py", "scheduler/residency.py"}


def trees(path: Path, *words: str) -> Iterator[ast.AST]:
    """Yield the tree of a module if one of the words stands in it: to parse all modules takes a second."""
    text = path.read_text(encoding="utf-8")
    if any(word in text for word in words):
        yield ast.parse(text)


def written_elsewhere(tree: ast.AST) -> Iterator[str]:
    """Yield the calls by which a module changes a pool, or the copies in host memory."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method not in POOL_WRITERS | CACHE_WRITERS:
                continue
            owner = ast.unparse(node.func.value)
            if ("pool" in owner and method in POOL_WRITERS) or ("cache" in owner and method in CACHE_WRITERS):
                yield f"line {node.lineno}: {owner}.{method}(...)"


def rounded_sums(tree: ast.AST) -> Iterator[str]:
    """Yield the sums of floats, told by their names, that are not computed by `core.added`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function, words = ast.unparse(node.func), set(re.split(r"\W+", ast.unparse(node)))
            named = {word for word in words if word.endswith("_s") or {*word.split("_")} & FLOATS}
            if function in ("math.fsum", "fsum") or (function == "sum" and named):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def fields_of_others(tree: ast.AST) -> Iterator[str]:
    """Yield the fields that a module writes though no class of its own has them."""
    written = [
        node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del)
    ]
    own = {node.attr for node in written if ast.unparse(node.value) == "self"}
    own |= {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in written:
        if node.attr not in own:
            yield f"line {node.lineno}: {ast.unparse(node)} = ..."


def test_the_writers_are_methods_that_there_are() -> None:
    assert all(callable(getattr(ModelPool, name)) for name in POOL_WRITERS)
    assert all(callable(getattr(HostCache, name)) for name in CACHE_WRITERS)
    assert all(callable(getattr(History, name)) for name in HISTORY_WRITERS)


def test_pools_and_copies_in_host_memory_change_through_the_residency_alone() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}, {call}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).as_posix() not in OWNERS
        for tree in trees(path, "pool", "cache")
        for call in written_elsewhere(tree)
    ]
    assert not wrong, "; ".join(wrong) + ": give coe.scheduler.residency a method for it"


def test_the_controller_alone_writes_the_history() -> None:
    writers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for tree in trees(path, "history")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in HISTORY_WRITERS and "history" in ast.unparse(node.func.value)
    }
    assert writers == {"scheduler/controller.py"}


def test_sums_of_floats_in_the_scheduler_round_alike_on_every_version_of_python() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}, {total}"
        for path in sorted(SCHEDULER.rglob("*.py"))
        for tree in trees(path, "sum(")
        for total in rounded_sums(tree)
    ]
    assert not wrong, "; ".join(wrong) + ": use coe.core.added"


def test_no_module_of_the_scheduler_writes_the_fields_of_another() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}, {field}"
        for path in sorted(SCHEDULER.rglob("*.py"))
        for field in fields_of_others(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert not wrong, "; ".join(wrong) + ": give the class a method that says what happens"


def test_a_write_from_outside_would_be_noticed() -> None:
    tree = ast.parse("executor.batch = None\nexecutor.pool.unpin('a', 1)\nself.cache.forget('a')\ndel group.open")
    assert list(written_elsewhere(tree)) == ["line 2: executor.pool.unpin(...)", "line 3: self.cache.forget(...)"]
    rounded = ast.parse("sum(cost.load_s for cost in costs)\nsum(sizes)\nmath.fsum(sizes)\nadded(shares)")
    assert [sum_.partition(":")[0] for sum_ in rounded_sums(rounded)] == ["line 1", "line 3"]
    assert list(fields_of_others(tree)) == ["line 1: executor.batch = ...", "line 4: group.open = ..."]


def test_an_executor_begins_one_batch_at_a_time_and_ends_what_it_began() -> None:
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


def test_a_deeper_executor_ends_its_batches_in_the_order_in_which_they_began() -> None:
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
