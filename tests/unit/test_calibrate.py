"""Calibration: verified pictures, honest scores, thresholds for a wanted rate, and their entries in a board file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from coe.board import rules
from coe.board.scores import adjusted, honest
from coe.calibrate import edit, verified
from coe.calibrate.answers import Answer, Answers, BoardExperts
from coe.calibrate.draw_thresholds import draw
from coe.calibrate.edit import RulesEntry
from coe.calibrate.honest import Said, calibrated, error, temperature
from coe.calibrate.result import Calibrated, StatedScores, calibrate, unreached, warnings
from coe.calibrate.thresholds import Goal, Use, WantedRate, choose, curve_of
from coe.cli.experts_calibrate import _put
from coe.core import Box, Expert, Finding, Verdict
from coe.errors import ConfigError
from coe.rates import Rate
from coe.store.store import Store
from coe.testing import rules_from

CLASSIFIER = Expert("body", "k", ("ok", "bad"), 64, "b/body", frozenset({"bad"}))
DETECTOR = Expert("seen", "k", ("hole",), 64, "b/seen", frozenset({"hole"}))


def classified(*pairs: tuple[str, str, float]) -> Answers:
    """Return the answers of a classifier: truth, label and score of each picture."""
    answers = [Answer(truth, Finding("body", "fp32", label, score)) for truth, label, score in pairs]
    return Answers(CLASSIFIER, False, tuple(answers), {})


def detected(*pairs: tuple[str, float]) -> Answers:
    """Return the answers of a detector that sees boxes from a score of 0.5: truth and best score of each picture."""
    answers = []
    for truth, score in pairs:
        boxes = (Box("hole", score, (0, 0, 1, 1)),) if score >= 0.5 else ()
        label, said = ("hole", score) if boxes else ("none", 1 - score)
        answers.append(Answer(truth, Finding("seen", "fp32", label, said, boxes)))
    return Answers(DETECTOR, True, tuple(answers), {})


def drawn(hot: float, count: int = 400) -> list[Said]:
    """Return answers whose true odds are those of their scores at a temperature."""
    chance = np.random.default_rng(1)
    scores = chance.uniform(0.5, 0.999, count)
    return [Said(float(score), bool(chance.random() < honest(float(score), hot))) for score in scores]


def test_the_temperature_of_answers_is_found_again() -> None:
    pairs = drawn(2.5)
    assert temperature(pairs) == pytest.approx(2.5, rel=0.25)
    assert error([Said(honest(pair.score, 2.5), pair.right) for pair in pairs]) < error(pairs) / 2


def test_honest_scores_stay_as_they_are_and_few_answers_tell_nothing() -> None:
    answers = [Answer("ok", Finding("body", "fp32", "ok" if said.right else "bad", said.score)) for said in drawn(1.0)]
    honesty = calibrated(answers)
    assert honesty is not None
    assert honesty.temperature == pytest.approx(1.0, rel=0.25)
    assert honesty.after <= honesty.before
    assert calibrated(answers[:19]) is None


def test_an_expert_that_was_always_right_is_not_believed_without_end() -> None:
    assert temperature([Said(0.9, True)] * 30) > 0.3


def test_a_classifiers_threshold_sends_bad_parts_that_it_calls_good_to_review() -> None:
    answers = classified(
        *[("ok", "ok", 0.90 + place / 1000) for place in range(60)],
        *[("bad", "bad", 0.9)] * 58,
        ("bad", "ok", 0.70),
        ("bad", "ok", 0.925),
    )
    curve = curve_of(answers, 1.0, Goal.ESCAPES)
    assert curve is not None
    assert (curve.labels, curve.use) == (("ok",), Use.REVIEW_UNDER)

    lenient = choose(curve, answers, 1.0, WantedRate(Goal.ESCAPES, 0.10))
    assert lenient is not None
    assert lenient.proven
    assert (lenient.point.escapes.events, lenient.point.false_calls.events) == (1, 0)  # type: ignore[union-attr]
    assert 0.70 < lenient.point.threshold < 0.90

    strict = choose(curve, answers, 1.0, WantedRate(Goal.ESCAPES, 0.05))
    assert strict is not None
    assert strict.proven
    assert strict.point.escapes.events == 0  # type: ignore[union-attr]
    assert 0.925 < strict.point.threshold < 0.926


def test_a_threshold_that_too_few_pictures_prove_is_told_and_written_only_if_asked_for() -> None:
    answers = classified(*[("ok", "ok", 0.9)] * 20, *[("bad", "bad", 0.9)] * 10)
    wanted = WantedRate(Goal.ESCAPES, 0.01)
    outcome = calibrate(answers, wanted)
    assert outcome.choice is not None
    assert not outcome.choice.proven
    assert outcome.written is None
    assert "min_scores" not in outcome.entries()
    assert outcome.entries(StatedScores(1.0, {"ok": 0.5}))["min_scores"], "what was written before stays"
    for told in (outcome.comment("2026-11-22"), unreached(outcome)):
        assert "escapes 0 of 10 (at most 25.89%)" in told
        assert "not proven: that needs 299 parts without an event" in told
    asked = calibrate(answers, wanted, unproven=True)
    assert asked.written is not None
    assert asked.entries()["min_scores"] == {"ok": asked.written.point.threshold}
    assert unreached(asked), "it is still not proven"


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.sampled_from(["ok", "fine", "bad"]), st.sampled_from(["ok", "fine", "bad"]), st.floats(0, 1)),
        min_size=1,
        max_size=60,
    ),
    st.lists(st.floats(0, 1), min_size=2, max_size=6),
    st.sampled_from(Goal),
)
def test_a_higher_wanted_rate_never_gives_a_lower_bound(
    pictures: list[tuple[str, str, float]], rates: list[float], goal: Goal
) -> None:
    answers = classified(*pictures)
    expert = replace(CLASSIFIER, labels=("ok", "fine", "bad"))
    bounds, proofs = [], []
    for rate in sorted(rates):
        choice = calibrate(replace(answers, expert=expert), WantedRate(goal, rate)).choice
        if choice is None:
            continue
        held = choice.point.rate(goal)
        assert held is not None
        bounds.append(held.upper())
        proofs.append(choice.proven)
        assert choice.proven == (held.upper() <= rate)
    assert bounds == sorted(bounds)
    assert proofs == sorted(proofs), "what is proven for a rate is proven for a higher rate"


def test_the_rate_holds_for_an_expert_as_a_whole_and_not_for_each_label_alone() -> None:
    """Each of two labels could let 30 of 3,000 pass; together they may let no more pass."""
    chance = np.random.default_rng(3)
    answers = [Answer("ok", Finding("body", "fp32", "ok", float(s))) for s in chance.uniform(0.9, 1.0, 300)]
    answers += [Answer("bad", Finding("body", "fp32", "bad", 0.9))] * 2900
    answers += [
        Answer("bad", Finding("body", "fp32", label, float(s)))
        for label in ("ok", "fine")
        for s in chance.uniform(0.5, 1.0, 50)
    ]
    expert = replace(CLASSIFIER, labels=("ok", "fine", "bad"))
    outcome = calibrate(Answers(expert, False, tuple(answers), {}), WantedRate(Goal.ESCAPES, 0.01))
    assert outcome.written is not None
    least = outcome.entries()["min_scores"]
    assert isinstance(least, Mapping)
    assert set(least) == {"ok", "fine"}
    passed = sum(a.truth == "bad" and adjusted_score(a, outcome) >= least.get(a.finding.label, 2) for a in answers)
    assert passed == outcome.written.point.escapes.events  # type: ignore[union-attr]
    assert Rate(passed, 3000).upper() <= 0.01


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ok", "bad"]), st.sampled_from(["ok", "bad"]), st.sampled_from([0.0, 0.3, 0.9, 1.0])
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(Goal),
)
def test_at_each_threshold_the_rules_pass_and_call_what_the_curve_says(
    pictures: list[tuple[str, str, float]], goal: Goal
) -> None:
    answers = classified(*pictures)
    curve = curve_of(answers, 1.0, goal)
    assert curve is not None
    for point in curve.points:
        passed = {"ok": 0, "bad": 0}
        for truth, label, score in pictures:
            passed[truth] += label == "ok" and not score < point.threshold
        good = sum(truth == "ok" for truth, _, _ in pictures)
        assert (point.escapes.events if point.escapes else 0) == passed["bad"]
        assert (point.false_calls.events if point.false_calls else 0) == good - passed["ok"]


def adjusted_score(answer: Answer, outcome: Calibrated) -> float:
    return honest(answer.finding.score, outcome.temperature)


def test_a_proven_rate_is_exceeded_in_at_most_one_lot_of_twenty() -> None:
    """Lots of pictures of one expert, whose true rate at each threshold is known: bad parts say ok with a score."""
    chance, exceeded, proven = np.random.default_rng(20), 0, 0
    for _ in range(300):
        saying_ok = chance.random(150) < 0.3
        scores = chance.random(150)
        bad = [("bad", "ok" if says else "bad", float(s)) for says, s in zip(saying_ok, scores, strict=True)]
        good = [("ok", "ok", float(score)) for score in chance.uniform(0.5, 1.0, 60)]
        answers = classified(*good, *bad)
        wanted = WantedRate(Goal.ESCAPES, 0.1)
        curve = curve_of(answers, 1.0, wanted.goal)
        assert curve is not None
        choice = choose(curve, answers, 1.0, wanted)
        assert choice is not None
        proven += choice.proven
        exceeded += choice.proven and 0.3 * (1 - choice.point.threshold) > 0.1
    assert proven > 290
    assert exceeded <= 0.05 * 300 + 3 * (0.05 * 0.95 * 300) ** 0.5
    assert exceeded > 0, "a bound that never fails gives away good parts"


def test_boxes_of_a_label_that_no_picture_shows_count_whatever_their_score() -> None:
    expert = replace(DETECTOR, labels=("hole", "scratch"), reject=frozenset({"hole", "scratch"}))

    def saying(truth: str, **scores: float) -> Answer:
        boxes = tuple(Box(label, score, (0, 0, 1, 1)) for label, score in scores.items())
        best = max(boxes, key=lambda box: box.score, default=Box("none", 1.0, (0, 0, 1, 1)))
        return Answer(truth, Finding("seen", "fp32", best.label, best.score, boxes))

    answers = [saying("hole", hole=0.5 + place / 200) for place in range(60)]
    answers += [saying("none")] * 50 + [saying("none", hole=0.3)] * 8 + [saying("none", scratch=0.3)] * 2
    outcome = calibrate(Answers(expert, True, tuple(answers), {}), WantedRate(Goal.ESCAPES, 0.05))
    assert outcome.written is not None
    assert outcome.written.point.false_calls == Rate(2, 60)
    stated = StatedScores(outcome.temperature, {}, {"scratch": 0.9, "hole": 0.9})
    assert outcome.entries(stated)["ignore_under"] == {"hole": outcome.written.point.threshold}
    assert any("'scratch'" in told for told in warnings(outcome))
    both = [*answers, *[saying("scratch")] * 2]
    few = calibrate(Answers(expert, True, tuple(both), {}), WantedRate(Goal.ESCAPES, 0.12))
    assert few.written is not None
    assert few.written.by_label["scratch"] == Rate(2, 2)
    assert any("'scratch' 2 of 2" in told for told in warnings(few)), "a rare label is not hidden by the others"


def test_a_detectors_threshold_holds_on_the_line_what_the_pictures_show() -> None:
    scores = [("none", 0.1)] * 40 + [("none", 0.6)] * 2 + [("hole", 0.8)] * 40 + [("hole", 0.3)]
    answers = detected(*scores)
    few_calls = calibrate(answers, WantedRate(Goal.FALSE_CALLS, 0.1), unproven=True)
    few_escapes = calibrate(answers, WantedRate(Goal.ESCAPES, 0.0), unproven=True)
    assert _passed(answers, few_calls.entries()) == (1, 42)  # the hole at 0.3 escapes, all good parts pass
    assert _passed(answers, few_escapes.entries()) == (0, 40)


@pytest.mark.parametrize("kind", ["classifier", "detector"])
def test_parts_that_cannot_be_compared_are_called_at_every_threshold(kind: str) -> None:
    if kind == "detector":
        answers = detected(*[("none", 0.1)] * 32, *[("hole", 0.9)] * 10)
        good, bad = "none", "hole"
    else:
        answers = classified(*[("ok", "ok", 0.9)] * 32, *[("bad", "bad", 0.9)] * 10)
        good, bad = "ok", "bad"
    curve = curve_of(replace(answers, doubtful=(good,) * 8 + (bad,) * 2), 1.0, Goal.ESCAPES)
    before_it = curve_of(answers, 1.0, Goal.ESCAPES)
    assert curve is not None
    assert before_it is not None
    without = {point.threshold: point for point in before_it.points}
    for point in curve.points:
        before = without[point.threshold]
        assert point.false_calls == Rate(_events(before.false_calls) + 8, 40)
        assert point.escapes == Rate(_events(before.escapes), 12)
    outcome = calibrate(replace(answers, doubtful=(good,) * 8), WantedRate(Goal.FALSE_CALLS, 0.1))
    assert "42 pictures, and 8 that could not be compared, on 2026-11-22" in outcome.comment("2026-11-22")


def test_good_parts_of_which_none_can_be_compared_are_all_called() -> None:
    answers = replace(detected(*[("hole", 0.9)] * 10), doubtful=("none",) * 8)
    curve = curve_of(answers, 1.0, Goal.FALSE_CALLS)
    assert curve is not None
    assert {point.false_calls for point in curve.points} == {Rate(8, 8)}


def test_where_nothing_seen_speaks_against_a_part_it_is_never_an_escape() -> None:
    expert = Expert("joint", "k", ("joint", "bridge"), 64, "b/joint", frozenset({"bridge", "none"}))

    def saying(truth: str, **scores: float) -> Answer:
        boxes = tuple(Box(label, score, (0, 0, 1, 1)) for label, score in scores.items())
        return Answer(truth, Finding("joint", "fp32", boxes[0].label if boxes else "none", 0.9, boxes))

    answers = [saying("none")] * 40 + [saying("none", bridge=0.3)] * 5 + [saying("joint", joint=0.9)] * 30
    answers += [saying("bridge", joint=0.9, bridge=0.8)] * 20 + [saying("none", joint=0.5)]
    outcome = calibrate(Answers(expert, True, tuple(answers), {}), WantedRate(Goal.ESCAPES, 0.1))
    assert outcome.written is not None
    assert outcome.written.by_label == {"bridge": Rate(0, 20), "none": Rate(1, 46)}
    assert outcome.written.point.false_calls == Rate(0, 30)


def _events(rate: Rate | None) -> int:
    assert rate is not None
    return rate.events


def _passed(answers: Answers, entries: Mapping[str, object]) -> tuple[int, int]:
    """Return how many bad and how many good pictures a board with these entries lets pass."""
    stated = ", ".join(f"{key}: {edit._written(value)}" for key, value in entries.items())  # type: ignore[arg-type]
    board = rules_from(
        "{board: b, experts: {seen: {kind: k, labels: [hole], input: 64, reject: [hole], then: {none: OK}, "
        + stated
        + "}}, components: {R1: {inspect: seen}}}"
    )
    root, expert = board.components["R1"].root, board.experts["seen"]
    passed = [
        answer.truth
        for answer in answers.answers
        if board.router.next(root, adjusted(answer.finding, expert)).verdict == "OK"
    ]
    return passed.count("hole"), passed.count("none")


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from(["none", "hole"]), st.floats(0, 1)), min_size=1, max_size=40), st.floats(0, 1)
)
def test_a_line_lets_pass_what_the_chosen_point_says(pairs: list[tuple[str, float]], rate: float) -> None:
    answers = detected(*pairs)
    for goal in Goal:
        outcome = calibrate(answers, WantedRate(goal, rate), unproven=True)
        if (choice := outcome.written) is not None:
            bad, good = _passed(answers, outcome.entries())
            if choice.point.escapes:
                assert bad == choice.point.escapes.events
            if choice.point.false_calls:
                assert good == choice.point.false_calls.trials - choice.point.false_calls.events


def test_what_the_rules_state_for_a_label_without_a_threshold_stays_on_the_scale_of_the_new_scores() -> None:
    """Otherwise a picture that went to REVIEW would pass once a label's pictures are too few."""
    stated = StatedScores(2.0, {"ok": 0.8, "none": 0.3}, {"hole": 0.6})
    few = calibrate(classified(("ok", "ok", 0.9)), WantedRate(Goal.ESCAPES, 0.1))
    assert (few.choice, few.temperature) == (None, 1.0)
    entries = few.entries(stated)
    assert entries == {
        "min_scores": {
            "ok": pytest.approx(honest(0.8, 0.5), abs=2e-7),
            "none": pytest.approx(honest(0.3, 0.5), abs=2e-7),
        },
        "ignore_under": {"hole": pytest.approx(honest(0.6, 0.5), abs=2e-7)},
    }
    assert honest(0.3, 0.5) <= entries["min_scores"]["none"]  # type: ignore[index]
    assert entries["ignore_under"]["hole"] <= honest(0.6, 0.5)  # type: ignore[index]
    same = StatedScores(1.0, {"ok": 0.93}, {})
    assert few.entries(same) == {"min_scores": {"ok": 0.93}}

    found = calibrate(detected(*[("none", 0.6)] * 3, *[("hole", 0.8)] * 3), WantedRate(Goal.FALSE_CALLS, 0.7))
    assert found.written is not None
    threshold = found.written.point.threshold
    assert found.entries(StatedScores(1.0, {"none": 0.9}, {"hole": 0.2})) == {
        "min_scores": {"none": round(1 - threshold, 7)},
        "ignore_under": {"hole": threshold},
    }


def test_an_expert_without_a_threshold_says_why() -> None:
    only_good = calibrate(classified(("ok", "ok", 0.9)), WantedRate(Goal.ESCAPES, 0.1))
    assert unreached(only_good) == "no picture shows a bad part, so escapes cannot be counted"
    assert only_good.choice is None
    seen = calibrate(replace(detected(("none", 0.1)), expert=replace(DETECTOR, reject=frozenset({"none"}))),
                     WantedRate(Goal.ESCAPES, 0.1))  # fmt: skip
    assert seen.curve is None
    assert unreached(seen)


FILE = """\
# The line of hall 7.
board: hall7

experts:
  # looks at bodies
  body: {kind: k, labels: [ok, bad], input: 64, min_score: 0.5,
         then: {ok: OK, bad: NG}}   # two lines
  seen:
    kind: k
    labels: [hole]
    input: 64     # pixels
    reject: [hole]
    then:
      none: OK    # a part without a hole

  # the last
  other: {kind: k, labels: [ok, 'no'], input: 64, then: {ok: OK, 'no': NG}}

components:
  U1: {inspect: body}   # first
  U2: {inspect: seen}
  U3: {inspect: other}
"""


def test_entries_are_written_where_they_belong_and_all_else_stays() -> None:
    entries = {
        "body": RulesEntry({"temperature": 1.5, "min_scores": {"ok": 0.93}}, "first"),
        "seen": RulesEntry({"ignore_under": {"hole": 0.6}, "min_scores": {"none": 0.4}}, "second"),
        "other": RulesEntry({"min_scores": {"no": 0.5}}, "third"),
    }
    text = edit.edited(Path("hall7.yaml"), FILE, entries)
    assert text == FILE.replace("  body: {", "  # calibrated: first\n  body: {").replace(
        "then: {ok: OK, bad: NG}}   # two", "then: {ok: OK, bad: NG}, temperature: 1.5, min_scores: {ok: 0.93}}   # two"
    ).replace("  seen:\n", "  # calibrated: second\n  seen:\n").replace(
        "a part without a hole\n", "a part without a hole\n    ignore_under: {hole: 0.6}\n    min_scores: {none: 0.4}\n"
    ).replace("  other: {", "  # calibrated: third\n  other: {").replace(
        "'no': NG}}", "'no': NG}, min_scores: {'no': 0.5}}"
    )
    board = rules_from(text)
    assert board.experts["body"].temperature == 1.5
    assert board.components["U3"].root.min_scores == {"no": 0.5}

    again = {name: RulesEntry({"temperature": 2.0}, f"{entry.comment} again") for name, entry in entries.items()}
    assert edit.edited(Path("hall7.yaml"), text, again) == edit.edited(Path("hall7.yaml"), FILE, again)


def test_values_in_blocks_are_replaced_and_experts_in_one_line_share_it() -> None:
    text = """\
board: b
experts: {a: {kind: k, labels: [ok], input: 8, then: {ok: OK}}, b: {kind: k, labels: [x], input: 8, reject: [x]}}
components: {U1: {inspect: a}, U2: {inspect: b}}
"""
    entries = {"a": RulesEntry({"temperature": 2.0}, "first"), "b": RulesEntry({"temperature": 3.0}, "second")}
    once = edit.edited(Path("b.yaml"), text, entries)
    assert [expert.temperature for expert in rules_from(once).experts.values()] == [2.0, 3.0]
    assert edit.edited(Path("b.yaml"), once, entries) == once

    block = FILE.replace(
        "    reject: [hole]\n", "    min_scores:\n      none: 0.9  # once\n    # why\n    reject: [hole]\n"
    )
    changed = edit.edited(Path("hall7.yaml"), block, {"seen": RulesEntry({"min_scores": {"none": 0.4}}, "c")})
    assert rules_from(changed).components["U2"].root.min_scores == {"none": 0.4}
    assert "    # why\n    reject: [hole]\n" in changed
    without = edit.edited(Path("hall7.yaml"), block, {"seen": RulesEntry({}, "c")})
    assert without == FILE.replace("    reject: [hole]\n", "    # why\n    reject: [hole]\n").replace(
        "  seen:\n", "  # calibrated: c\n  seen:\n"
    )


@settings(max_examples=20)
@given(st.dictionaries(st.sampled_from(["body", "seen", "other"]), st.floats(0.1, 10)), st.booleans())
def test_what_is_written_is_read_again(temperatures: dict[str, float], windows: bool) -> None:
    text = FILE.replace("\n", "\r\n") if windows else FILE
    entries = {
        name: RulesEntry({"temperature": value, "min_scores": {"none": 1e-7}}, "c")
        for name, value in temperatures.items()
    }
    changed = edit.edited(Path("hall7.yaml"), text, entries)
    experts = rules_from(changed).experts
    for name, expert in experts.items():
        assert expert.temperature == pytest.approx(temperatures.get(name, 1.0), abs=1e-6)
    assert changed.count("\r") == (changed.count("\n") if windows else 0)


ONE = "board: b\nexperts:\n{}components: {{U1: {{inspect: a}}}}\n"
STYLES = {
    "first key, flow": ONE.format("  a: {temperature: 2, kind: k, labels: [ok], input: 8, then: {ok: OK}}\n"),
    "first key, block": ONE.format(
        "  a:\n    min_scores:\n      ok: 0.5\n    kind: k\n    labels: [ok]\n    input: 8\n    then: {ok: OK}\n"
    ),
    "a comma at the end": ONE.format("  a: {kind: k, labels: [ok], input: 8, then: {ok: OK}, }\n"),
    "comments in a flow": ONE.format(
        "  a: {kind: k, # kind\n   labels: [ok], # all\n   input: 8,\n   then: {ok: OK} # t\n   }\n"
    ),
    "an anchor": ONE.format("  a: &a\n    kind: k\n    labels: [ok]\n    input: 8\n    then: {ok: OK}\n"),
    "quotes": ONE.format("  'a': {'kind': k, \"labels\": ['ok'], input: '8', then: {'ok': OK}, 'temperature': '2'}\n"),
    "a mark of bytes": "\ufeff" + ONE.format("  a: {kind: k, labels: [ok], input: 8, then: {ok: OK}}\n"),
    "beyond the first plane": ONE.format(
        "  # \U0001f600\n  a: {kind: k, labels: [ok], input: 8, then: {ok: OK}} # é \U0001f600\n"
    ),
    "tabs": ONE.format("  a: {kind: k,\tlabels: [ok],\tinput: 8,\tthen: {ok: OK}\t}\t# x\n"),
    "a question": ONE.format("  ? a\n  : kind: k\n    labels: [ok]\n    input: 8\n    then: {ok: OK}\n"),
    "JSON": '{"board":"b","experts":{"a":{"kind":"k","labels":["ok"],"input":8,"then":{"ok":"OK"}}},'
    '"components":{"U1":{"inspect":"a"}}}',
    "no end of line": "board: b\ncomponents: {U1: {inspect: a}}\nexperts:\n  a:\n    kind: k\n    labels: [ok]\n"
    "    input: 8\n    then:\n      ok: OK",
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("values", [{}, {"temperature": 1.5, "min_scores": {"ok": 0.93}}])
def test_entries_are_written_in_any_style(style: str, values: Mapping[str, edit.Value]) -> None:
    changed = edit.edited(Path("b.yaml"), STYLES[style], {"a": RulesEntry(values, "c")})
    board = rules.of_bytes(Path("b.yaml"), changed.encode())
    assert board.experts["a"].temperature == values.get("temperature", 1.0)
    root = board.components["U1"].root
    assert (root.min_scores, root.outcomes["ok"]) == (values.get("min_scores", {}), Verdict.OK)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        # Another line feed: what looks like a comment is a key behind it.
        (
            {},
            ONE.format(
                "  a:\n    kind: k\n    labels: [ok]\n    input: 8\n    then: {ok: OK} # x\u0085    temperature: 2\n"
            ),
        ),
        # The line of expert a begins within a text of expert z.
        (
            {},
            "board: b\nexperts: {z: {kind: 'k\n  ', labels: [ok], input: 8, then: {ok: OK}}, a: {kind: k, "
            "labels: [ok], input: 8, then: {ok: OK}}}\ncomponents: {U1: {inspect: a}, U2: {inspect: z}}\n",
        ),
        (
            {"temperature": 2.0},
            ONE.format("  a:\n    kind: k\n    labels: [ok]\n    input: 8\n    then: {ok: OK}\n").replace("\n", "\r"),
        ),
    ],
)
def test_a_style_that_would_change_other_entries_is_refused(values: Mapping[str, edit.Value], text: str) -> None:
    rules.of_bytes(Path("b.yaml"), text.encode())
    with pytest.raises(ConfigError, match=r"b\.yaml: the entries of 'a' cannot be changed without a change of others"):
        edit.edited(Path("b.yaml"), text, {"a": RulesEntry(values, "c")})


def test_an_expert_that_the_file_lacks_is_said() -> None:
    with pytest.raises(ConfigError, match=r"hall7\.yaml: no expert 'bdy' to calibrate"):
        edit.edited(Path("hall7.yaml"), FILE, {"bdy": RulesEntry({}, "")})


def test_pictures_lie_in_folders_of_experts_and_labels(tmp_path: Path) -> None:
    for name in ("body/ok/2.png", "body/ok/10.png", "seen/none/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "body/ok/notes.txt").touch()
    board = rules_from(FILE)
    pictures = verified.find(tmp_path, board.experts)
    assert [(picture.name, picture.expert, picture.label) for picture in pictures] == [
        ("body/ok/2.png", "body", "ok"),
        ("body/ok/10.png", "body", "ok"),
        ("seen/none/1.png", "seen", "none"),
    ]
    (tmp_path / "body" / "okay").mkdir()
    (tmp_path / "body/okay/1.png").touch()
    with pytest.raises(ConfigError, match=r"1\.png: 'okay' is not a label of 'body'; did you mean 'ok'"):
        verified.find(tmp_path, board.experts)


def test_pictures_stand_in_a_table(tmp_path: Path) -> None:
    table = tmp_path / "images.csv"
    for name in ("a.png", "good.png"):
        (tmp_path / name).touch()
    table.write_text("path;expert;label;reference\na.png;seen;hole;good.png\na.png;body;bad;\n")
    experts = rules_from(FILE).experts
    first, second = verified.find(tmp_path, experts)
    assert (first.expert, first.label, first.reference) == ("seen", "hole", tmp_path / "good.png")
    assert second.reference is None
    for line, message in {
        "b.png;seen;hole;": "images.csv:2: there is no picture 'b.png' in the folder of the table",
        "../a.png;seen;hole;": "images.csv:2: there is no picture '../a.png' in the folder of the table",
        "a.png;sen;hole;": "images.csv:2: 'sen' is not an expert; did you mean 'seen'",
        "a.png;seen;hole;\na.png;seen;none;": "images.csv:3: 'a.png' is listed for 'seen' already in line 2",
    }.items():
        table.write_text(f"path;expert;label;reference\n{line}\n")
        with pytest.raises(ConfigError) as caught:
            verified.find(table, experts)
        assert str(caught.value).startswith(message)


def test_a_picture_is_drawn_of_each_expert(tmp_path: Path) -> None:
    answers = classified(
        *[("ok", "ok", 0.5 + place / 50) for place in range(25)], *[("bad", "bad", 0.9)] * 10, ("bad", "ok", 0.6)
    )
    outcome = calibrate(answers, WantedRate(Goal.ESCAPES, 0.5))
    for number, each in enumerate((outcome, calibrate(classified(), outcome.wanted))):
        assert draw(each, tmp_path / f"{number}.png").stat().st_size > 10_000


def test_what_is_written_keeps_scores_of_other_labels_and_names_steps_with_their_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hall7.yaml").write_text(
        FILE.replace("  body: {", "  body: {temperature: 2, min_scores: {ok: 0.9, bad: 0.2}, ")
        .replace("{inspect: body}", "{inspect: body, min_scores: {ok: 0.6}}")
        .replace("min_score: 0.5", "min_score: 0.4")
    )
    link = tmp_path / "link.yaml"
    link.symlink_to("hall7.yaml")
    before = link.read_bytes()
    _put(rules.load(link), [calibrate(classified(), WantedRate(Goal.ESCAPES, 0.1))], write=True)
    assert link.read_bytes() == before
    answers = classified(*[("ok", "ok", 0.9)] * 3, *[("bad", "bad", 0.9)] * 3)
    _put(rules.load(link), [calibrate(answers, WantedRate(Goal.ESCAPES, 0.7))], write=True)
    assert link.is_symlink()
    written = rules.load(link)
    root, expert = written.components["U1"].root, written.experts["body"]
    assert expert.temperature == 1.0
    assert root.min_scores == {"ok": 0.6, "bad": pytest.approx(honest(0.2, 0.5), abs=2e-7)}
    told = " ".join(capfd.readouterr().err.split())
    assert "body: `min_score` of U1 still counts, too; its scores have another scale now, so check it" in told
    assert "body: `min_scores` of U1 count in the place of those written here; its scores have another" in told


def test_the_front_of_rules_knows_a_file_before_it_is_written(tmp_path: Path) -> None:
    assert rules.of_bytes(tmp_path / "b.yaml", FILE.encode()).board == "hall7"


@pytest.mark.parametrize(("outcome", "against"), [("OK", False), ("NG", True), ("REVIEW", True)])
def test_what_follows_none_on_the_board_says_whether_it_speaks_against_a_part(
    tiny: tuple[Path, Path], tmp_path: Path, outcome: str, against: bool
) -> None:
    path, store = tiny
    (tmp_path / "tiny.yaml").write_text(path.read_text(encoding="utf-8").replace("none: OK", f"none: {outcome}"))
    picture = tmp_path / "a.png"
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(picture)
    asked = BoardExperts(rules.load(tmp_path / "tiny.yaml"), Store(store))
    answers = asked.answers("joint", [verified.VerifiedPicture(picture, "a.png", "joint", "none")])
    assert ("none" in answers.expert.reject) is against
