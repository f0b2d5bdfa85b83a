"""The strategies of the engine: how often they switch, and what their decisions cost."""

import random

import pytest
from lines import ENGINE, board, cost, inspect, line_of

from coe.board.rules import Rules


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


@pytest.mark.parametrize("name", ENGINE)
def test_costs_of_nothing_are_divided_by_nowhere(name: str) -> None:
    nothing = cost(per_image_s=0.0, base_s=0.0, load_s=0.0, weights_bytes=0, activation_bytes=0, max_batch=1)
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 14, strategy=name, costs={"a": nothing})
    inspect(line, (10.0, "ABCABC"))
    assert [result.error for result in line.results.values()] == [None] * 6
