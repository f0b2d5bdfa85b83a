"""The search for layers that stay float: which are found, and how many networks are measured for it."""

from __future__ import annotations

from collections.abc import Callable

from coe.prepare.layer_search import MOST_FLOAT, Harm, Layers, search

LAYERS = tuple("abcdefghijklmnopqrst")
ENDS = frozenset("at")


class Network:
    """A tenth of the findings differ for each layer of `harmful` that is not float; `asked` is what was run."""

    def __init__(self, harmful: str) -> None:
        self.harmful = frozenset(harmful)
        self.asked: list[Layers] = []

    def __call__(self, in_float: Layers) -> Harm:
        self.asked.append(in_float)
        return Harm(len(self.harmful - in_float) / 10, 0.0, 0.01)


def found(network: Callable[[Layers], Harm], in_time: Callable[[], bool] = lambda: True) -> str:
    return "".join(sorted(search(LAYERS, ENDS, network, most_again=1 / 16, in_time=in_time)))


def test_a_network_that_says_the_same_stays_whole() -> None:
    assert (found(network := Network("")), len(network.asked)) == ("", 1)


def test_float_ends_are_tried_first_and_given_back_where_they_do_nothing() -> None:
    assert found(Network("a")) == "a"
    assert found(Network("at")) == "at"


def test_the_layers_that_do_harm_are_found_wherever_they_lie() -> None:
    for harmful in ("h", "gh", "ck", "bs", "aeq"):
        assert found(Network(harmful)) == harmful


def test_second_looks_count_as_harm() -> None:
    def network(in_float: Layers) -> Harm:
        return Harm(0.0, 0.01 if "k" in in_float else 0.5, 0.0)

    assert found(network) == "k"


def test_layers_that_another_network_keeps_in_float_are_taken_if_they_do() -> None:
    def asked(harmful: str, first: str) -> tuple[str, int]:
        network = Network(harmful)
        kept = search(LAYERS, ENDS, network, most_again=1 / 16, first=frozenset(first))
        return "".join(sorted(kept)), len(network.asked)

    assert asked("gh", "gh") == ("gh", 2)
    assert asked("", "gh") == ("", 1)
    assert asked("gh", "ck")[0] == "gh"
    assert asked("gh", "z")[0] == "gh"


def test_nothing_is_measured_twice() -> None:
    assert found(network := Network("bjs")) == "bjs"
    assert len(network.asked) == len(set(network.asked))


def test_half_of_the_layers_may_stay_float_and_no_more() -> None:
    kept = found(network := Network("abcdefghijklmnop"))
    assert len(kept) <= MOST_FLOAT * len(LAYERS)
    assert max(map(len, network.asked)) <= MOST_FLOAT * len(LAYERS)


def test_what_helps_nothing_is_not_kept() -> None:
    assert found(lambda in_float: Harm(0.5, 0.5, 0.1)) == ""


def test_the_search_ends_with_its_time() -> None:
    answers = iter([True, True, True])
    assert found(network := Network("h"), lambda: next(answers, False)) in ("", "at")
    assert len(network.asked) == 4
    assert (found(network := Network("h"), lambda: False), len(network.asked)) == ("", 2)
    assert (found(network := Network("at"), lambda: False), len(network.asked)) == ("at", 2)
