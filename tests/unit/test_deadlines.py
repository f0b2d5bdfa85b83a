"""Due times and second looks as timetables: who runs first, what is told late, and what full precision decides."""

from dataclasses import replace

import pytest
from cases import LABELS, LINE, Case, answers, cases, watch
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import arrive, board, cost, inspect, line_of, log_of
from thorough import THOROUGH

from coe.core import FailureKind, Finding, Verdict
from coe.inspector.precision import VariantChoice, apply_choice
from coe.results.metrics import Recorder


def runs(line):
    return [what for _, what in log_of(line, after=10.0) if " run " in what]


def late(line):
    return [(when, what) for when, what in line.log if what.startswith("late ")]


def test_what_is_due_first_runs_first_once_half_of_its_time_is_over():
    """Without due times the fuller batch of a would be run before b."""
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", costs={"a": cost(max_batch=1)})
    arrive(line, 10.0, "AAAA")
    line.arrive(10.0, "B", serial="S1", due_s=11.7)
    line.run()
    assert runs(line)[:4] == ["cpu0 run a x1", "cpu0 run a x1", "cpu0 run b x1", "cpu0 run a x1"]
    assert not late(line)


def test_an_image_in_a_hurry_is_taken_from_the_middle_of_its_group():
    line = line_of(board({"A": 1}), 14, strategy="late-binding", costs={"a": cost(max_batch=1)})
    arrive(line, 10.0, "AAA")
    hurried = line.arrive(10.1, "A", due_s=10.7)
    line.run()
    replies = [what for _, what in line.log if what.startswith("reply")]
    assert replies[1] == f"reply {hurried} OK"


def test_the_images_of_a_board_are_due_with_its_first():
    """The second image of S1 has time until 99, but its board is due at 11.2; it goes before that of S2."""
    line = line_of(board({"A": 3, "B": 2}), 24, strategy="late-binding", costs={"a": cost(max_batch=1)})
    line.arrive(10.0, "A", serial="S1", due_s=11.2)
    other = line.arrive(10.0, "B", serial="S2", due_s=11.5)
    second = line.arrive(10.0, "B", serial="S1", due_s=99.0)
    inspect(line, (10.0, "AAAA"))
    assert line.results[second].late is line.results[other].late is False
    assert runs(line).index("cpu0 run b x2") < 4


def test_an_absent_expert_is_loaded_for_who_is_due_before_others_run():
    """Memory for one: b takes the place of a, for which more images wait, as soon as its board is in a hurry."""
    line = line_of(board({"A": 9, "B": 1}), 14, strategy="late-binding")
    for tenth in range(100, 400, 2):
        line.arrive(tenth / 10, "A")
        line.arrive(tenth / 10, "A")
    lonely = line.arrive(10.5, "B", due_s=16.5)
    line.run()
    assert not line.results[lonely].late
    assert not late(line)


def test_a_board_that_cannot_be_done_is_told_at_once_and_gives_way():
    """Loading c takes 5 s, which S1 does not have; S2 is due later, and is not held up by it."""
    line = line_of(board({"A": 3, "B": 2, "C": 1}), 24, strategy="late-binding", costs={"c": cost(load_s=5.0)})
    line.arrive(10.0, "A", serial="S1", due_s=12.0)
    saved = line.arrive(10.0, "B", serial="S2", due_s=13.0)
    doomed = line.arrive(10.0, "C", serial="S1", due_s=12.0)
    line.run()
    assert late(line) == [(10.0, "late S1")]
    assert line.results[doomed].late
    assert not line.results[saved].late


def test_a_board_whose_images_are_too_many_is_told_before_the_first_is_late():
    """Each of 40 images could be done in 0.3 s; all of them take 6 s at least, and the board has 4."""
    line = line_of(board({"A": 1}), 14, strategy="late-binding")
    for _ in range(40):
        line.arrive(10.0, "A", serial="S1", due_s=14.0)
    line.run()
    ((when, _),) = late(line)
    assert when < 10.5
    assert any(result.late for result in line.results.values())


def test_a_board_is_told_when_time_runs_out_while_it_waits():
    """Nothing is wrong with S1 until the load of c, which it had time for at 10, fails once."""
    line = line_of(
        board({"A": 3, "C": 1}), 14, strategy="late-binding", costs={"c": cost(load_s=2.0)}, bad_loads={"c": 1}
    )
    line.arrive(10.0, "C", serial="S1", due_s=13.5)
    line.run()
    assert late(line) == [(12.0, "late S1")]


def test_what_is_late_is_told_and_answered_foreseen_or_not_and_with_any_strategy():
    line = line_of(board({"A": 1}), 14, strategy="late-binding", findings={}, bad_stages=frozenset({(1, "a")}))
    first = line.arrive(10.0, "A", serial="S1", due_s=10.65)
    inspect(line, (10.0, "A"))
    assert [what for _, what in late(line)] == (["late S1"] if line.results[first].late else [])
    line = line_of(board({"A": 1}), 14, strategy="late-binding")
    gone = line.arrive(10.0, "A", serial="S1", due_s=9.0)
    line.run()
    assert late(line) == [(10.0, "late S1")]
    assert line.results[gone].late
    assert line.results[gone].error is None
    line = line_of(board({"A": 1}), 14, strategy="coserve")
    gone = line.arrive(10.0, "A", due_s=10.1)
    line.run()
    assert line.results[gone].late
    assert not late(line)


def test_one_miss_of_a_serial_that_goes_on_costs_its_later_images_nothing():
    """The line is full with B, due in a minute; an image of A comes now and then, the first too late."""
    late_images = {}
    for serials in ("one", "each"):
        costs = dict.fromkeys("ab", cost(base_s=0.1, load_s=0.1, max_batch=8))
        line = line_of(board({"A": 1, "B": 1}), 40, workspace=8, strategy="late-binding", costs=costs)
        images = []
        for n in range(150):
            at_s = 0.09 * n
            line.arrive(at_s, "B", serial=f"B{n}", due_s=at_s + 60)
            if n % 10 == 5:
                serial = "LOT" if serials == "one" else f"L{n}"
                images.append(line.arrive(at_s, "A", serial=serial, due_s=at_s + (1.5 if n > 5 else -0.1)))
        line.run()
        late_images[serials] = [id for id in images if line.results[id].late]
    assert late_images["one"] == late_images["each"]
    assert len(late_images["one"]) < 4


def mixed(rules, **below):
    """Let all experts run in int8; those that `below` names look again under that margin."""
    return apply_choice(rules, VariantChoice(dict.fromkeys(rules.experts, "int8"), below))


def says(expert, label, margin, score=1.0):
    return Finding(expert, "int8", label, score, margin=margin)


def test_a_doubtful_finding_runs_again_and_the_second_decides():
    findings = {(0, "a"): says("a", "ok", 0.5), (1, "a"): says("a", "ok", 0.2), (1, "a@fp32"): "bad"}
    line = line_of(mixed(board({"A": 1}), a=0.25), 14, findings=findings)
    inspect(line, (0.0, "AA"))
    assert line.log == [
        (0.0, "cpu0 load a"),
        (1.0, "cpu0 run a x2"),
        (1.4, "reply 0 OK"),
        (1.4, "cpu0 evict a"),
        (1.4, "cpu0 load a@fp32"),
        (2.4, "cpu0 run a@fp32 x1"),
        (2.7, "reply 1 NG"),
    ]
    assert line.results[0].findings == (says("a", "ok", 0.5),)
    looks = [(look.expert, look.variant, look.label) for look in line.results[1].findings]
    assert looks == [("a", "int8", "ok"), ("a@fp32", "fp32", "bad")]


def test_second_looks_are_grouped_like_any_stages_and_lead_on_and_none_follows_full_precision():
    doubt = {(number, "a"): says("a", "bad", 0.0) for number in range(3)}
    line = line_of(mixed(board({"A": 1}, {"a": "c"}), a=0.25), 40, findings=doubt)
    inspect(line, (3.0, "AAA"))
    runs = [(when, what) for when, what in line.log if " run " in what]
    assert runs == [(3.0, "cpu0 run a x1"), (3.3, "cpu0 run a x2"), (3.7, "cpu0 run a@fp32 x3"), (4.2, "cpu0 run c x3")]
    assert {result.verdict for result in line.results.values()} == {Verdict.OK}
    line = line_of(mixed(board({"A": 1}), a=0.25), 40, findings={(0, "a"): Finding("a", "fp32", "ok", 1.0)})
    inspect(line, (0.0, "A"))
    assert len(line.results[0].findings) == 1


@pytest.mark.parametrize(("margin", "again"), [(0.24, True), (0.25, False), (float("nan"), True)])
def test_the_margin_decides_who_looks_again(margin, again):
    line = line_of(mixed(board({"A": 1}), a=0.25), 40, findings={(0, "a"): says("a", "ok", margin)})
    inspect(line, (0.0, "A"))
    assert (len(line.results[0].findings) == 2) is again


def test_the_least_score_is_asked_of_the_finding_that_decides():
    rules = board({"A": 1})
    step = replace(rules.router.components["A"].root, min_score=0.8)
    rules.router.components["A"] = replace(rules.router.components["A"], root=step)
    low, high = says("a", "ok", 0.1, 0.5), Finding("a@fp32", "fp32", "ok", 0.9)
    for first, second, verdict in ((low, high, "OK"), (says("a", "ok", 0.1, 0.9), replace(high, score=0.5), "REVIEW")):
        line = line_of(mixed(rules, a=0.25), 40, findings={(0, "a"): first, (0, "a@fp32"): second})
        inspect(line, (0.0, "A"))
        assert line.results[0].verdict == verdict


def test_a_second_look_that_cannot_be_had_is_an_error_of_its_image_alone():
    findings = {(0, "a"): says("a", "ok", 0.0), (1, "a"): says("a", "ok", 0.5)}
    line = line_of(mixed(board({"A": 1}), a=0.25), 14, findings=findings, bad_loads={"a@fp32": 9})
    inspect(line, (0.0, "AA"))
    assert (line.results[0].failure.kind, "'a@fp32'" in line.results[0].error) == (FailureKind.LOAD, True)
    assert line.results[1].verdict is Verdict.OK


def test_second_looks_are_counted_with_their_seconds():
    findings = {(n, "a"): says("a", "ok", 0.0 if n < 2 else 0.5) for n in range(3)} | {(1, "a@fp32"): "bad"}
    line = line_of(mixed(board({"A": 1}), a=0.25), 40, findings=findings)
    recorder = Recorder(line.controller.pools, line.board.router.second_looks)
    observe = line.observe

    def both(event, commands, now, control_s=0.0):
        observe(event, commands, now, control_s)
        recorder.observe(event, commands, now, control_s)

    line.observe = both
    inspect(line, (3.0, "AAA"))
    seen = recorder.metrics()
    assert (seen.stages, seen.escalated, seen.changed) == (5, 2, 1)
    assert (round(seen.escalated_s, 6), round(seen.run_s, 6)) == (0.4, 1.1)


class Doubtful(Case):
    """Made-up findings in int8 that differ from those in fp32 in some images, each with a margin under 0.25."""

    def sharp(self, request, expert):
        return super().finding(request, expert.removesuffix("@fp32"))

    def finding(self, request, expert):
        sharp = self.sharp(request, expert)
        if expert.endswith("@fp32") or expert not in self.rules.router.escalations:
            return replace(sharp, expert=expert)
        dice = hash((self.salt, request, expert, "blur")) % 10
        other = LABELS[(LABELS.index(sharp.label) + 1) % len(LABELS)]
        label, score = (other, 0.9) if dice < 3 else (sharp.label, sharp.score)
        return Finding(expert, "int8", label, score, margin=0.2 if dice < 5 else 0.5)


def blurred(case):
    rules = mixed(case.rules, **dict.fromkeys(case.rules.experts, 0.25))
    costs = {expert: case.costs[expert.removesuffix("@fp32")] for expert in rules.experts}
    return Doubtful(rules, costs, case.arrivals, case.salt)


@given(cases(), st.lists(LINE, min_size=2, max_size=2))
@settings(max_examples=6 * THOROUGH)
def test_verdicts_are_those_of_full_precision_on_every_line(case, lines):
    sharp = case.line(*lines[0])
    sharp.run()
    expected = None
    for chosen in lines:
        line = watch(blurred(case).line(*chosen))
        line.run()
        assert sorted(line.results) == list(range(len(case.arrivals)))
        assert {n: r.verdict for n, r in line.results.items()} == {n: r.verdict for n, r in sharp.results.items()}
        assert expected is None or answers(line) == expected
        expected = answers(line)


@given(cases(), LINE, st.data())
@settings(max_examples=6 * THOROUGH)
def test_each_image_gets_one_reply_and_replays_whatever_fails(case, chosen, data):
    doubtful = blurred(case)
    experts = sorted(doubtful.rules.experts)
    stages = st.tuples(st.integers(0, len(case.arrivals) - 1), st.sampled_from(experts))
    bad_loads = data.draw(st.dictionaries(st.sampled_from(experts), st.sampled_from([1, 2, 10**9]), max_size=4))
    bad_stages = data.draw(st.frozensets(stages, max_size=8))
    line = watch(doubtful.line(*chosen, bad_loads=bad_loads, bad_stages=bad_stages))
    fresh = doubtful.line(*chosen).controller
    line.run()
    assert sorted(line.results) == list(range(len(case.arrivals)))
    fresh.start(0.0)
    for now, event, commands in line.history:
        assert fresh.handle(event, now) == commands
    fresh.check(idle=True)
