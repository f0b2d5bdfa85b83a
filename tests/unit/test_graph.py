"""The graph of experts: order by probability, neighbours, orphans."""

import pytest

from coe.board.graph import ExpertGraph
from coe.core import Expert


def experts(names: str) -> list[Expert]:
    return [Expert(name, "k", ("ok",), 8, name) for name in names]


@pytest.fixture
def diamond() -> ExpertGraph:
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    return ExpertGraph(experts("dcba"), edges, {"a": 1.0, "b": 0.5, "c": 0.5})


def test_experts_are_ordered_by_falling_probability_then_by_name(diamond: ExpertGraph) -> None:
    assert diamond.by_probability == ("a", "b", "c", "d")
    assert diamond.probability("d") == 0.0


def test_neighbours_are_those_of_the_edges(diamond: ExpertGraph) -> None:
    assert diamond.predecessors("d") == {"b", "c"}
    assert diamond.predecessors("a") == frozenset()
    assert sorted(diamond.successors("a")) == ["b", "c"]


def test_what_a_component_begins_with_waits_for_nobody() -> None:
    graph = ExpertGraph(experts("ab"), [("a", "b")], {"a": 0.03, "b": 0.97}, first=["a", "b"])
    assert not graph.waits_for_others("b")


def test_a_first_step_that_is_no_expert_is_refused() -> None:
    with pytest.raises(ValueError, match=r"first steps name unknown experts: \['z'\]"):
        ExpertGraph(experts("ab"), [], {}, first="z")


def test_a_circle_is_refused() -> None:
    with pytest.raises(ValueError, match="in a circle"):
        ExpertGraph(experts("ab"), [("a", "b"), ("b", "a")], {})


def test_an_edge_to_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown experts: \['z'\]"):
        ExpertGraph(experts("ab"), [("a", "z")], {})


def test_its_repr_is_a_status_line(diamond: ExpertGraph) -> None:
    assert repr(diamond) == "<ExpertGraph 4 experts, 4 edges>"
