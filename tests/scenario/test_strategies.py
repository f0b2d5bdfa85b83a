"""The strategies of the engine: how often they switch, and what their decisions cost."""

import random
import sys

import pytest
from lines import ENGINE, arrive, board, cost, line_of

from coe.board.rules import Rules
from coe.scheduler.events import Command, Event


def long_tail(seed: int) -> Rules:
    """Twelve components with a long tail of counts; every third goes on to one of two shared experts."""
    names = "ABCDEFGHIJKL"
    counts = {name: 24 / (1 + index) for index, name in enumerate(names)}
    follows = {name.lower(): "yz"[index % 2] for index, name in enumerate(names) if index % 3 == seed % 3}
    return board(counts, follows)


def switches(name: str, seed: int) -> int:
    """Loads after the start, for 300 images that come faster than they can be inspected."""
    rules, random_ = long_tail(seed), random.Random(seed)
    line = line_of(rules, 54, executors=2, strategy=name)
    counts = [component.count for component in rules.components.values()]
    for index, component in enumerate(random_.choices([*rules.components], counts, k=300)):
        line.arrive(20.0 + index * 0.05, component)
    line.run()
    assert len(line.results) == 300
    return line.switches


@pytest.mark.parametrize(("seed", "known"), [(1, (25, 14)), (2, (27, 17)), (3, (16, 18)), (4, (24, 16))])
def test_switches_are_known_and_late_binding_has_fewer(seed: int, known: tuple[int, int]) -> None:
    """Not on every small board: it makes room ahead, so that the disk need not wait, and that may be a load more."""
    assert tuple(switches(name, seed) for name in ENGINE) == known


def steps(name: str, images: int, capacity: int) -> int:
    """Calls of functions that a burst of images costs the controller; the same on every machine."""
    line = line_of(long_tail(1), capacity, executors=2, strategy=name)
    arrive(line, 20.0, "ABCDEFGHIJKL" * (images // 12))
    handle, calls = line.controller.handle, 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def counted(event: Event, now: float) -> list[Command]:
        sys.setprofile(count)
        try:
            return handle(event, now)
        finally:
            sys.setprofile(None)

    line.controller.handle = counted  # type: ignore[method-assign]
    line.controller.check = lambda **_: None  # type: ignore[method-assign]
    line.run()
    return calls


@pytest.mark.parametrize("capacity", [54, 1000], ids=["half of the experts fit", "all fit"])
@pytest.mark.parametrize("name", ENGINE)
def test_the_work_for_a_burst_does_not_grow_with_its_square(name: str, capacity: int) -> None:
    assert steps(name, 480, capacity) < 2.5 * steps(name, 240, capacity)


@pytest.mark.parametrize("name", ENGINE)
def test_costs_of_nothing_are_divided_by_nowhere(name: str) -> None:
    nothing = cost(per_image_s=0.0, base_s=0.0, load_s=0.0, weights_bytes=0, activation_bytes=0, max_batch=1)
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 14, strategy=name, costs={"a": nothing})
    arrive(line, 10.0, "ABCABC")
    line.run()
    assert [result.error for result in line.results.values()] == [None] * 6
