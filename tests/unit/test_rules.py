"""Board files that are right: what becomes of them."""

from pathlib import Path

import pytest

from coe.board import rules
from coe.board.steps import Step
from coe.core import Box, Finding, Verdict
from coe.errors import RulesError
from coe.testing import rules_from

HEAD = """
board: demo
experts:
  body: {kind: k, labels: [ok, missing], input: 64, reject: [missing]}
  joint: {kind: k, labels: [joint, bridge], input: 96, reject: [bridge], weights: shared/joint}
  polarity: {kind: k, labels: [mark, reversed], input: 64, reject: [reversed]}
"""


def says(expert: str, label: str, score: float = 1.0) -> Finding:
    return Finding(expert, "fp32", label, score)


def experts_after(board: rules.Rules, step: Step, label: str, score: float = 1.0) -> list[str] | Verdict:
    decision = board.router.next(step, says(step.expert, label, score))
    assert (decision.verdict is None) == bool(decision.steps)
    return decision.verdict or [step.expert for step in decision.steps]


def test_an_expert_has_what_the_file_says_and_weights_of_its_board() -> None:
    board = rules_from(HEAD + "components: {R1: {inspect: body, then: {ok: [joint, polarity]}}}")
    body, joint = board.experts["body"], board.experts["joint"]
    assert (body.kind, body.labels, body.input_size) == ("k", ("ok", "missing"), 64)
    assert (body.weights, joint.weights) == ("demo/body", "shared/joint")
    assert (body.reject, board.board) == (frozenset({"missing"}), "demo")
    board = rules_from(
        "{board: b, experts: {e: {kind: k, labels: [no, 1e3, 0x10, ~x, 2024-01-01], input: 8, reject: [no],"
        " temperature: 1.5, ignore_under: {no: 0.4}}}, components: {R1: {inspect: e}}}"
    )
    expert = board.experts["e"]
    assert expert.labels == ("no", "1e3", "0x10", "~x", "2024-01-01"), "words, whatever YAML makes of them"
    assert (expert.temperature, expert.ignore_under) == (1.5, {"no": 0.4})


def test_a_label_without_a_rule_is_ng_if_rejected_and_ok_otherwise_and_what_follows_nothing_is_never_assumed() -> None:
    board = rules_from(HEAD + "components: {R1: {inspect: body, then: {missing: joint, ok: polarity}}}")
    root = board.components["R1"].root
    (joint,) = board.router.next(root, says("body", "missing")).steps
    assert experts_after(board, joint, "bridge") is Verdict.NG
    assert experts_after(board, joint, "joint") is Verdict.OK
    (joint,) = board.router.next(board.components["R1"].root, says("body", "missing")).steps
    with pytest.raises(RulesError, match="expert 'joint' saw nothing, and no rule says what follows; write `none: REV"):
        board.router.next(joint, says("joint", "none"))
    with pytest.raises(RulesError) as caught:
        board.check_detectors(["body", "joint"])
    assert str(caught.value) == (
        "board.yaml:4: 'body' may see nothing, and not all of its steps say what follows then; add "
        "`then: {none: REVIEW}` here (or NG, or OK where a picture without any finding is good)"
    )
    board.check_detectors([])


@pytest.mark.parametrize(
    "entry", ["reject: [bridge], then: {none: REVIEW}", "then: {joint: OK, bridge: NG, none: REVIEW}"]
)
def test_a_step_says_of_each_label_what_its_experts_entry_says_unless_it_says_otherwise(entry: str) -> None:
    board = rules_from(
        "{board: b, experts: {d: {kind: k, labels: [joint, bridge], input: 8, " + entry + "},"
        " p: {kind: k, labels: [mark], input: 8, then: {mark: OK}}}, components: {R1: {inspect: d, then: {joint: p}}}}"
    )
    root = board.components["R1"].root
    assert experts_after(board, root, "joint") == ["p"]
    assert experts_after(board, root, "bridge") is Verdict.NG
    assert experts_after(board, root, "none") is Verdict.REVIEW
    board.check_detectors(["d"])


@pytest.mark.parametrize(("score", "verdict"), [(0.79, "REVIEW"), (0.8, "OK"), (float("nan"), "REVIEW")])
def test_a_score_under_the_threshold_means_review_whatever_the_label(score: float, verdict: str) -> None:
    board = rules_from(
        "{board: b, experts: {e: {kind: k, labels: [ok, bad], input: 8}},"
        " components: {R1: {inspect: e, min_score: 0.8, then: {ok: OK, bad: NG}}}}"
    )
    root = board.components["R1"].root
    assert experts_after(board, root, "ok", score) is Verdict[verdict]
    assert experts_after(board, root, "bad", 0.5) is Verdict.REVIEW


def test_a_component_overrides_its_experts_defaults_and_only_those_it_names() -> None:
    board = rules_from("""
board: b
experts:
  e: {kind: k, labels: [ok, bad], input: 8, min_score: 0.6, shares: {ok: 0.9}, then: {ok: OK, bad: NG}}
components:
  plain: {inspect: e}
  strict: {inspect: e, min_score: 0.95}
  lenient: {inspect: e, then: {ok: OK, bad: REVIEW}, shares: {ok: 0.5}}
""")
    plain, strict, lenient = (board.components[name].root for name in ("plain", "strict", "lenient"))
    assert (plain.min_score, strict.min_score, lenient.min_score) == (0.6, 0.95, 0.6)
    assert plain.shares["ok"] == strict.shares["ok"] == 0.9
    assert lenient.shares["ok"] == 0.5
    assert experts_after(board, strict, "bad") is Verdict.NG
    assert experts_after(board, lenient, "bad") is Verdict.REVIEW


def test_an_expert_that_is_named_as_a_next_step_brings_its_own_defaults() -> None:
    board = rules_from("""
board: b
experts:
  first: {kind: k, labels: [ok], input: 8, then: {ok: second}}
  second: {kind: k, labels: [ok], input: 8, min_score: 0.7, then: {ok: third}}
  third: {kind: k, labels: [ok], input: 8, then: {ok: REVIEW}}
components: {R1: {inspect: first}}
""")
    assert sorted(board.graph.digraph.edges) == [("first", "second"), ("second", "third")]
    (second,) = board.router.next(board.components["R1"].root, says("first", "ok")).steps
    assert experts_after(board, second, "ok", 0.69) is Verdict.REVIEW
    assert experts_after(board, second, "ok", 0.7) == ["third"]


def test_a_nested_step_may_differ_from_one_place_to_the_next() -> None:
    board = rules_from(
        HEAD
        + """
components:
  R1: {inspect: body, then: {ok: {inspect: joint, min_score: 0.9, then: {bridge: REVIEW}}}}
  R2: {inspect: body, then: {ok: [joint, {inspect: polarity, then: {reversed: OK}}]}}
"""
    )
    (nested,) = board.router.next(board.components["R1"].root, says("body", "ok")).steps
    plain, polarity = board.router.next(board.components["R2"].root, says("body", "ok")).steps
    assert experts_after(board, nested, "bridge", 0.95) is Verdict.REVIEW
    assert experts_after(board, plain, "bridge", 0.1) is Verdict.NG
    assert experts_after(board, polarity, "reversed") is Verdict.OK


@pytest.mark.parametrize("depth", [1, 2, 30, 120])
def test_a_chain_may_be_of_any_depth(depth: int) -> None:
    lines = ["board: b", "experts:"]
    lines += [f"  e{i}: {{kind: k, labels: [ok], input: 8, then: {{ok: e{i + 1}}}}}" for i in range(depth)]
    lines += [f"  e{depth}: {{kind: k, labels: [ok], input: 8, then: {{ok: OK}}}}", "components: {R1: {inspect: e0}}"]
    board = rules_from("\n".join(lines))
    step, seen = board.components["R1"].root, ["e0"]
    while (decision := board.router.next(step, says(step.expert, "ok"))).steps:
        (step,) = decision.steps
        seen.append(step.expert)
    assert decision.verdict is Verdict.OK
    assert seen == [f"e{i}" for i in range(depth + 1)]
    assert [board.router.order("R1")[f"e{i}"] for i in range(depth + 1)] == list(range(depth + 1))


def test_branches_that_meet_again_in_layers_do_not_grow_into_a_tree() -> None:
    lines = ["board: b", "experts:"]
    for layer in range(40):
        following = f"[l{layer + 1}, r{layer + 1}]" if layer < 39 else "OK"
        lines += [f"  {side}{layer}: {{kind: k, labels: [ok], input: 8, then: {{ok: {following}}}}}" for side in "lr"]
    board = rules_from("\n".join([*lines, "components: {R1: {inspect: l0}, R2: {inspect: r0}}"]))
    assert board.graph.digraph.number_of_edges() == 39 * 4
    assert board.graph.probability("l39") == pytest.approx(1.0)
    assert len(repr(board.components["R1"].root)) < 200


def test_the_boards_that_ship_are_read_and_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    board = rules.load("A")
    assert (len(board.components), len(board.experts)) == (352, 372)
    assert board.digest == rules.load("board_a").digest
    text = HEAD + "components: {R1: {inspect: body, then: {ok: [joint, polarity]}}}"
    (path := tmp_path / "b.yaml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert rules.load(path).board == "demo", "a file may begin with a byte order mark"
    # The probabilities of the first experts of all components add up to 1: each image has one component.
    first = {component.root.expert for component in board.components.values()}
    assert sum(board.graph.probability(expert) for expert in first) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("label", "score", "verdict"),
    [("ok", 0.89, "REVIEW"), ("ok", 0.9, "OK"), ("bad", 0.89, "NG"), ("bad", 0.49, "REVIEW"), ("odd", 0.7, "REVIEW")],
)
def test_a_label_must_reach_its_own_score_and_that_of_all_labels(label: str, score: float, verdict: str) -> None:
    board = rules_from("""
board: b
experts:
  e: {kind: k, labels: [ok, bad, odd], input: 8, min_scores: {ok: 0.9, odd: 0.6}, then: {ok: OK, bad: NG, odd: NG}}
components: {R1: {inspect: e, min_score: 0.5, min_scores: {odd: 0.8}}}
""")
    assert experts_after(board, board.components["R1"].root, label, score) is Verdict[verdict]


def test_of_labels_with_the_same_outcome_one_that_is_sure_is_enough() -> None:
    board = rules_from(
        "{board: b, experts: {e: {kind: k, labels: [a, b], input: 8, reject: [a, b], min_scores: {a: 0.9},"
        " then: {none: OK}}}, components: {R1: {inspect: e}}}"
    )
    root = board.components["R1"].root
    boxes = (Box("a", 0.8, (0, 0, 1, 1)), Box("b", 0.3, (0, 0, 1, 1)))
    assert board.router.next(root, Finding("e", "fp32", "a", 0.8, boxes)).verdict is Verdict.NG
    assert board.router.next(root, Finding("e", "fp32", "a", 0.8, boxes[:1])).verdict is Verdict.REVIEW
