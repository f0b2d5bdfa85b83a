"""From findings to the next steps, and from counts and shares to probabilities worked out by hand."""

import math
import pickle

import pytest

from coe.board.graph import ExpertGraph, follows
from coe.board.router import Router
from coe.board.steps import Escalation
from coe.core import Box, Expert, Finding, Verdict, worst
from coe.errors import RulesError
from coe.testing import rules_from


def board(experts, components):
    return rules_from(f"board: b\nexperts:\n{experts}\ncomponents:\n{components}")


def probabilities(rules):
    return {expert: round(rules.graph.probability(expert), 9) for expert in rules.graph.by_probability}


E = "{kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {ok: OK}}"
CHAIN = (
    "  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad], shares: {ok: 0.5}, then: {ok: b}}\n"
    f"  b: {{kind: k, labels: [ok, bad], input: 8, reject: [bad], shares: {{ok: 0.2}}, then: {{ok: c}}}}\n  c: {E}"
)


@pytest.mark.parametrize(
    ("experts", "components", "expected"),
    [
        (f"  a: {E}\n  b: {E}", "  R1: {count: 30, inspect: a}\n  R2: {count: 10, inspect: b}", {"a": 0.75, "b": 0.25}),
        (  # an expert of several components gathers their counts
            f"  a: {E}\n  b: {E}",
            "  R1: {count: 3, inspect: a}\n  R2: {count: 1, inspect: b}\n  R3: {count: 4, inspect: b}",
            {"b": 0.625, "a": 0.375},
        ),
        (  # a follower is needed by the shares of the labels that lead to it: 0.8 * (0.9 + 0.06) + 0.2 * 0.5
            f"  a: {{kind: k, labels: [ok, bad, odd], input: 8}}\n  j: {E}",
            "  R1: {count: 8, inspect: a, shares: {ok: 0.9, odd: 0.06, bad: 0.04}, then: {ok: j, odd: j, bad: NG}}\n"
            "  R2: {count: 2, inspect: a, shares: {ok: 0.5}, then: {ok: j, bad: NG, odd: NG}}",
            {"a": 1.0, "j": 0.868},
        ),
        (CHAIN, "  R1: {inspect: a}", {"a": 1.0, "b": 0.5, "c": 0.1}),
        (  # branches that meet again are never likelier than the component, and nor is what follows
            "  a: {kind: k, labels: [ok], input: 8, then: {ok: [b, c]}}\n"
            "  b: {kind: k, labels: [ok], input: 8, then: {ok: d}}\n"
            "  c: {kind: k, labels: [ok], input: 8, then: {ok: d}}\n"
            f"  d: {{kind: k, labels: [ok, bad], input: 8, reject: [bad], shares: {{ok: 0.3}}, then: {{ok: e}}}}\n"
            f"  e: {E}",
            "  R1: {count: 1, inspect: a}\n  R2: {count: 1, inspect: e}",
            {"e": 0.65, "a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5},
        ),
    ],
)
def test_the_probability_of_an_expert(experts, components, expected):
    assert probabilities(board(experts, components)) == expected


def test_shares_and_order_of_what_follows_with_second_looks_and_labels_without_a_share():
    rules = board(
        f"  a: {{kind: k, labels: [ok, bad, odd], input: 8, reject: [bad]}}\n  x: {E}\n  y: {E}\n  z: {E}",
        "  R1: {inspect: a, shares: {ok: 0.8}, then: {ok: x, odd: y, none: z}}",
    )
    assert rules.components["R1"].root.shares == pytest.approx({"ok": 0.8, "bad": 0.1, "odd": 0.1})
    assert probabilities(rules) == {"a": 1.0, "x": 0.8, "y": 0.1, "z": 0.0}
    rules = board(CHAIN, "  R1: {inspect: a}")
    components = rules.components.values()
    assert follows(components) == {"a": {"b": 0.5, "c": 0.1}, "b": {"c": 0.2}, "c": {}}
    assert follows(components, {"b": Escalation(below=0.3, share=0.1)}) == {
        "a": {"b": 0.5, "b@fp32": 0.05, "c": 0.1},
        "b": {"b@fp32": 0.1, "c": 0.2},
        "b@fp32": {"c": 0.2},
        "c": {},
    }
    rules = board(
        f"  a: {{kind: k, labels: [ok], input: 8, then: {{ok: [b, c]}}}}\n"
        f"  b: {{kind: k, labels: [ok], input: 8, then: {{ok: d}}}}\n  c: {E}\n  d: {E}",
        "  R1: {inspect: a}",
    )
    assert rules.router.order("R1") == {"a": 0, "b": 1, "d": 2, "c": 3}
    assert rules.router.order("R9") == {}


def test_what_no_rule_and_no_component_covers_is_refused_by_name():
    rules = board(f"  a: {E}", "  R0402: {inspect: a}")
    with pytest.raises(RulesError, match=r"'R0403'.*'R0402'"):
        rules.router.first("R0403")
    with pytest.raises(RulesError, match="''"):
        Router({}).first("")
    with pytest.raises(RulesError, match=r"'a' .*'odd'"):
        rules.router.next(rules.router.first("R0402"), Finding("a", "fp32", "odd", 0.0))
    assert worst([Verdict.OK, Verdict.NG, Verdict.REVIEW]) is Verdict.NG
    assert worst([Verdict.OK, Verdict.REVIEW]) is Verdict.REVIEW
    assert worst([]) is Verdict.OK


def test_a_finding_in_doubt_goes_to_a_person_unless_it_is_bad_and_nothing_follows_it():
    rules = board(
        f"  a: {{kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {{none: OK, ok: b}}}}\n  b: {E}",
        "  R1: {inspect: a}",
    )
    root = rules.components["R1"].root
    decisions = [
        rules.router.next(root, Finding("a", "fp32", label, 1.0, doubt=doubt))
        for label in ("ok", "bad", "none")
        for doubt in ("", "it does not fit")
    ]
    expected = [None, Verdict.REVIEW, Verdict.NG, Verdict.NG, Verdict.OK, Verdict.REVIEW]
    assert [decision.verdict for decision in decisions] == expected
    assert [len(decision.steps) for decision in decisions] == [1, 0, 0, 0, 0, 0]


def test_only_components_have_a_reference_and_the_word_given_is_no_name():
    given = ["gold", "given", "[two, one]", "[one]"]
    rows = [f"  R{number}: {{inspect: a, reference: {words}}}" for number, words in enumerate(given)]
    rules = board(f"  a: {E}", "\n".join([*rows, "  R9: {inspect: a}"]))
    own = [("b/gold",), (), ("b/two", "b/one"), ("b/one",), ()]
    assert [one.references for one in rules.components.values()] == own
    assert rules.references == ("b/gold", "b/one", "b/two")
    assert [one.is_given for one in rules.components.values()] == [False, True, False, False, False]
    with pytest.raises(RulesError, match="'reference' is not a key"):
        board(f"  a: {E}\n  c: {E}", "  R1: {inspect: a, then: {ok: {inspect: c, reference: gold}}}")


@pytest.mark.parametrize("label", ["ok", "odd", "bad"])
@pytest.mark.parametrize("score", [0.0, 0.4, 0.6, 1.0, math.nan])
def test_a_box_of_the_label_that_decides_changes_nothing(label, score):
    rules = board(
        f"  a: {{kind: k, labels: [ok, bad, odd], input: 8, reject: [bad]}}\n  x: {E}\n  y: {E}",
        "  R1: {inspect: a, min_score: 0.5, then: {ok: [x, y], odd: OK, bad: NG}}",
    )
    step = rules.router.first("R1")
    decision = rules.router.next(step, Finding("a", "fp32", label, score))
    assert decision == rules.router.next(step, Finding("a", "fp32", label, score, (Box(label, score, (0, 0, 1, 1)),)))
    believed = {"ok": None, "odd": Verdict.OK, "bad": Verdict.NG}[label]
    assert decision.verdict == (believed if score >= 0.5 else Verdict.REVIEW)
    assert [following.expert for following in decision.steps] == (["x", "y"] if label == "ok" and score >= 0.5 else [])


def test_rules_travel_to_another_process_and_say_the_same_there():
    here = board(
        "  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {ok: x}}\n"
        "  x: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}",
        "  A: {count: 5, inspect: a}",
    ).router

    def said(router, label):
        found = router.next(router.first("A"), Finding("a", "fp32", label, 1.0))
        return found.verdict, [step.expert for step in found.steps]

    assert said(here, "ok") == (None, ["x"])
    there = pickle.loads(pickle.dumps(here))
    assert [said(there, label) for label in ("ok", "bad")] == [(None, ["x"]), (Verdict.NG, [])]


@pytest.mark.parametrize(
    ("score", "boxes", "again"),
    [
        (0.95, (), False),
        (0.82, (), True),  # the least score that counts is 0.8
        (0.78, (), True),
        (0.5, (), False),  # sure enough that it does not count
        (math.nan, (), True),
        (0.95, (Box("bad", 0.82, (0, 0, 1, 1)),), True),
        (0.95, (Box("bad", 0.82, (0, 0, 1, 1)), Box("bad", 0.95, (0, 0, 1, 1))), False),  # the best box counts
        (0.95, (Box("bad", 0.31, (0, 0, 1, 1)),), False),
    ],
)
def test_a_score_near_to_the_least_that_counts_is_in_doubt(score, boxes, again):
    rules = board(
        "  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}",
        "  R1: {inspect: a, min_score: 0.8, then: {ok: OK, bad: NG}}",
    )
    doubting = Router(rules.router.components, {"a": Escalation(below=0.2, share=0.1)})
    finding = Finding(expert="a", variant="int8", label="ok", score=score, boxes=boxes, margin=1.0)
    assert doubting.judge("a", finding) == ("a@fp32" if again else "a")
    assert Router(rules.router.components).judge("a", finding) == "a"


def experts(names):
    return [Expert(name, "k", ("ok",), 8, name) for name in names]


def test_experts_are_ordered_by_falling_probability_then_by_name_and_know_their_neighbours():
    edges = [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    diamond = ExpertGraph(experts("dcba"), edges, {"a": 1.0, "b": 0.5, "c": 0.5}, first="ac")
    assert [diamond.waits_for_others(expert) for expert in "abcd"] == [False, True, False, True]
    assert diamond.by_probability == ("a", "b", "c", "d")
    assert diamond.probability("d") == 0.0
    assert diamond.predecessors("d") == {"b", "c"}
    assert diamond.predecessors("a") == frozenset()
    assert sorted(diamond.successors("a")) == ["b", "c"]
    measured = diamond.using({"d": 0.7})
    assert measured.by_probability == ("a", "d", "b", "c")
    assert [measured.waits_for_others(expert) for expert in "abcd"] == [False, True, False, True]


@pytest.mark.parametrize(
    ("edges", "first", "says"),
    [
        ([], "z", r"first steps name unknown experts: \['z'\]"),
        ([("a", "b"), ("b", "a")], "", "in a circle"),
        ([("a", "z")], "", r"unknown experts: \['z'\]"),
    ],
)
def test_edges_and_first_steps_of_no_graph_are_refused(edges, first, says):
    with pytest.raises(ValueError, match=says):
        ExpertGraph(experts("ab"), edges, {}, first=first)
