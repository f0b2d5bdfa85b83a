"""An OK of an expert that is blind by its exam is REVIEW, until another expert stops the same, or it is accepted."""

import json
import pickle
from types import SimpleNamespace

import pytest
from exams import exam, examined, give
from hypothesis import given
from hypothesis import strategies as st
from lines import line_of
from picture_folders import saved
from tiny_line import TINY

from coe import Inspector
from coe.board.parts_list import PlacedPart
from coe.board.steps import DECIDING, polarity_is_known
from coe.cli import experts_command, inspect
from coe.core import Shown, Verdict
from coe.errors import StoreError
from coe.inspector import weights_used
from coe.results import result_lines
from coe.store.exam import NO_EXAM, NO_GOOD, NOT_TOLD, Exam, ExamItem, apart, stops_of
from coe.store.store import Store
from coe.testing import Experiment, rules_from

BOARD = """
board: b
experts:
  body: {{kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {{ok: {then}}}}}
  mark: {{kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {{ok: OK}}}}
  sort: {{kind: k, labels: [ok, bad], input: 8, then: {{ok: OK, bad: OK}}}}
components:
  {name}: {{inspect: body{keys}}}
  other: {{inspect: mark, then: {{ok: sort}}}}
"""
BLIND_TO_TURNED = {"body": exam(missing=True, turned=False)}
BLIND_TO_MISSING = {"body": exam(missing=False)}


def exam_of(*, shown, passed):
    return Exam(items=(ExamItem(item=Shown.MISSING, shown=shown, passed=passed),))


def judged(exams, name="R0402", keys="", *, then="OK", refdes="", findings=None):
    board = examined(rules_from(BOARD.format(name=name, keys=keys, then=then)), exams)
    line = line_of(board, 100, findings=findings)
    line.arrive(0.0, name, refdes=refdes)
    line.run()
    return line.results[0]


@pytest.mark.parametrize(
    ("exams", "how", "verdict", "accepted"),
    [
        ({}, {}, "OK", ()),
        ({"body": exam(missing=True, turned=True)}, {"name": "U7"}, "OK", ()),
        (BLIND_TO_MISSING, {}, "REVIEW", ()),
        (BLIND_TO_MISSING, {"keys": ", accepts: missing"}, "OK", ("missing",)),
        (BLIND_TO_MISSING, {"keys": ", accepts: [turned]"}, "REVIEW", ()),
        # A turned part is a defect where it has a polarity: as the board file says, else by component or refdes.
        (BLIND_TO_TURNED, {}, "OK", ()),
        (BLIND_TO_TURNED, {"keys": ", polarity: yes"}, "REVIEW", ()),
        (BLIND_TO_TURNED, {"name": "SOT23"}, "REVIEW", ()),
        (BLIND_TO_TURNED, {"name": "SOT23", "keys": ", polarity: no"}, "OK", ()),
        (BLIND_TO_TURNED, {"refdes": "D5"}, "REVIEW", ()),
        (BLIND_TO_TURNED, {"refdes": "R5"}, "OK", ()),
        (BLIND_TO_TURNED, {"name": "U7", "keys": ", accepts: [turned]"}, "OK", ("turned",)),
        # Another expert on the way to OK may stop it; one that did not look does not.
        (BLIND_TO_MISSING | {"mark": exam(missing=True)}, {"then": "mark"}, "OK", ()),
        (BLIND_TO_MISSING | {"mark": exam(missing=True)}, {}, "REVIEW", ()),
        (BLIND_TO_MISSING | {"mark": exam(turned=True)}, {"then": "mark"}, "REVIEW", ()),
        (BLIND_TO_MISSING, {"then": "mark"}, "REVIEW", ()),
        (BLIND_TO_MISSING | {"sort": exam(missing=True)}, {"then": "sort"}, "REVIEW", ()),
        # What decides no verdict, and what too few pictures tell.
        ({"body": exam(neighbour=False)}, {}, "OK", ()),
        ({"body": exam_of(shown=1, passed=1)}, {}, "OK", ()),
        (BLIND_TO_MISSING | {"mark": exam_of(shown=3, passed=1)}, {"then": "mark"}, "REVIEW", ()),
        # Nothing gets better, and no defect becomes less.
        (BLIND_TO_MISSING, {"findings": {(0, "body"): "bad"}}, "NG", ()),
        (BLIND_TO_MISSING, {"keys": ", accepts: missing", "findings": {(0, "body"): "bad"}}, "NG", ()),
    ],
)
def test_a_gap_decides_where_nothing_stops_it(exams, how, verdict, accepted):
    result = judged(exams, **how)
    assert (result.verdict, result.accepted) == (Verdict(verdict), accepted)
    doubts = {finding.expert: finding.doubt for finding in result.findings if finding.doubt}
    assert set(doubts) == ({"body"} if verdict == "REVIEW" else set())
    assert all("accepts: [" in doubt for doubt in doubts.values()), "the way out"
    assert result_lines.from_line(result_lines.to_line(result).encode(), 0).accepted == accepted


STOPS = st.dictionaries(st.sampled_from([item.value for item in Shown]), st.booleans())


@given(STOPS, STOPS, st.sampled_from(["ok", "bad"]), st.sets(st.sampled_from([item.value for item in DECIDING])))
def test_no_exam_and_nothing_accepted_makes_a_part_better(body, mark, label, accepts):
    keys = f", polarity: yes, accepts: [{', '.join(sorted(accepts))}]"
    exams = {"body": exam(**body), "mark": exam(**mark)}
    result = judged(exams, keys=keys, then="mark", findings={(0, "mark"): label})
    assert result.verdict.severity >= judged({}, then="mark", findings={(0, "mark"): label}).verdict.severity
    blind = {
        item
        for item in DECIDING
        if False in (body.get(item), mark.get(item)) and True not in (body.get(item), mark.get(item))
    }
    assert (result.verdict is Verdict.OK) == (label == "ok" and blind <= accepts)


def test_rules_with_gaps_travel():
    board = examined(rules_from(BOARD.format(name="U7", keys="", then="mark")), BLIND_TO_TURNED)
    travelled = pickle.loads(pickle.dumps(board.router))
    assert [gap.item for gap in travelled.components["U7"].gaps(["body"])] == [Shown.TURNED]


@pytest.mark.parametrize(
    ("known", "names"),
    [
        (
            True,
            "D-LED U-QFP32 SOT-23 SOIC-8 TSSOP20 optocoupler LED0603 CP_Elec_4x5.3 CT-A-10U D5 IC3 TO-220 Diode "
            "UFQFPN WLCSP LGA-14 TSOT23 SC70 HTSSOP Leuchtdiode Zener-5V6 LEDs MOSFET EEPROM",
        ),
        (False, "R0402-10K C0603-100N MOV fuse hazelnut screws top display X1 USB_C R_Array relay J1"),
    ],
)
def test_polarity_is_known_by_package_and_refdes(known, names):
    assert {name: polarity_is_known(name) for name in names.split()} == dict.fromkeys(names.split(), known)
    assert all(polarity_is_known("part", refdes) for refdes in ("D5", "panel2/U7", "Q1"))
    assert not any(polarity_is_known("part", refdes) for refdes in ("C5", "R5", ""))


@pytest.fixture
def blind_tiny(own_tiny):
    board, store = own_tiny
    board.write_text(TINY.replace("{ok: joint, bad: joint}", "{ok: OK, bad: OK}"), encoding="utf-8")
    give(Store(store), "tiny/body-a", exam(missing=False))
    return board, store


def verdicts(results):
    return {result.request.image: (result.verdict, result.accepted) for result in results}


def test_a_line_and_a_cluster_and_a_changed_line_hold_it(blind_tiny, pictures, thread_boxes):
    board, store = blind_tiny
    shown = [picture for picture in pictures if picture.component == "A"][:3]
    review = {picture.name: (Verdict.REVIEW, ()) for picture in shown}
    accepted = {picture.name: (Verdict.OK, (Shown.MISSING,)) for picture in shown}
    for how in ({}, {"cluster": "auto", "experiment": Experiment(make_boxes=thread_boxes(2))}):
        with Inspector(board, store=store, **how) as line:
            assert verdicts(line.stream(shown)) == review
    with Inspector(board, store=store) as line:
        board.write_text(board.read_text().replace("{count: 5,", "{count: 5, accepts: [missing],"), encoding="utf-8")
        line.set_boards(board)
        assert verdicts(line.stream(shown)) == accepted
    give(Store(store), "tiny/body-a", None)
    with Inspector(board, store=store) as line:
        assert verdicts(line.stream(shown)) == {picture.name: (Verdict.OK, ()) for picture in shown}


@pytest.fixture
def inspected(tmp_path, pictures, call):
    """Return a function that runs two pictures of A, with options."""
    saved(tmp_path / "images" / "A", *[picture.image for picture in pictures if picture.component == "A"][:2])
    where = ("--images", tmp_path / "images", "--out", tmp_path / "run")
    return lambda board, store, *more: call("--board", board, "--store", store, *where, *more, command=inspect)


def test_a_run_holds_it_and_is_not_continued_once_the_exam_is_another(blind_tiny, inspected, tmp_path):
    assert inspected(*blind_tiny).status == 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    assert {row["verdict"] for row in rows} == {"REVIEW"}
    assert all(finding["doubt"] for row in rows for finding in row["findings"])
    give(Store(blind_tiny[1]), "tiny/body-a", exam(missing=True))
    said = inspected(*blind_tiny, "--resume")
    assert (said.status, "body-a" in said.words) == (2, True)


def test_what_passes_is_said_at_each_start_in_the_results_and_in_the_report(blind_tiny, inspected, tmp_path):
    board, store = blind_tiny
    board.write_text(board.read_text().replace("{count: 5,", "{count: 5, accepts: missing,"), encoding="utf-8")
    give(Store(store), "tiny/body-b", exam(neighbour=False, turned=False, missing=True))
    give(Store(store), "tiny/body-c", Exam(items=(), is_surface=True, left_out=("odd.png",)))
    assert inspected(board, store).status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    warnings = summary["warnings"]
    gaps = [warning for warning in warnings if not warning.startswith("expert")]
    assert len(gaps) == 3, "each thing once: what is accepted, turned parts of B, and neighbours"
    no_good, no_exam = (warning for warning in warnings if warning.startswith("expert"))
    assert ("'joint'" in no_exam, "--write" in no_exam) == (True, True)
    assert ("'body-a'" in no_good, "'joint'" in no_good, "--near" in no_good) == (True, False, True)
    assert any("accepts" in warning and "at A" in warning and "'body-a'" in warning for warning in warnings)
    assert any("turned" in warning and "at B" in warning and "polarity" in warning for warning in warnings)
    assert summary["accepted"] == {"missing": 2}
    report = " ".join((tmp_path / "run" / "report.html").read_text(encoding="utf-8").split())
    rows = report.partition('id="exams"')[2].partition("</table>")[0]
    assert (">19 of 20</td>" in rows, "accepted at A" in rows, "would pass at B" in rows) == (True, True, True)
    assert ("bad pictures of each" in rows, "odd.png" in rows) == (True, True)
    assert all(note in rows for note in (NO_EXAM, NO_GOOD)), "the detector, and experts that were never trained"
    assert "<b>missing</b>" in report, "two images are OK because it is accepted"
    with Inspector(board, store=store, say=(said := list[str]()).append) as line:
        assert sorted(line.exams) == ["body-a", "body-b", "body-c"]
    assert {warning for warning in warnings if any(warning in sentence for sentence in said)} == {*warnings}


def manifests_of(exams, knows_good_parts=True):
    """What a store says of experts of board b, by their exams."""
    known = {"unproven": "", "few_pixels": "", "knows_good_parts": knows_good_parts}
    return {f"b/{id}": SimpleNamespace(exam=taken, **known) for id, taken in exams.items()}


EXPERTS = {
    "word": "{kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {ok: OK}}",
    "near": "{kind: k, labels: [strange], input: 8, then: {strange: REVIEW, none: OK}}",
    "text": "{kind: k, labels: [match, other], input: 8, reject: [other], reads: {allowed: [A]}, then: {match: OK}}",
}


@pytest.mark.parametrize(
    ("component", "told"),
    [
        ("{inspect: word}", {"word": {NO_EXAM, NO_GOOD}}),
        ("{inspect: near}", {"near": {NO_EXAM}}),
        ("{inspect: word, then: {ok: near}}", {"near": {NO_EXAM}}),
        ("{inspect: near, then: {none: word}}", {"word": {NO_EXAM}}),
        ("{inspect: text}", {}),
        ("{inspect: text, then: {match: word}}", {"word": {NO_EXAM, NO_GOOD}}),
    ],
)
def test_an_expert_whose_ok_is_not_earned_is_named_whoever_else_took_an_exam(component, told):
    experts = ", ".join(f"{id}: {entry}" for id, entry in EXPERTS.items() if id in component)
    board = rules_from(f"{{board: b, experts: {{{experts}}}, components: {{A: {component}}}}}")
    manifests = manifests_of({"near": None}) | manifests_of({"word": None, "text": None}, knows_good_parts=False)
    found = {}
    for row in weights_used.exam_rows(board, manifests):
        found.setdefault(row.expert, set()).add(row.note)
    assert found == told
    assert not any(row.is_told for row in weights_used.exam_rows(board, manifests)), "the warnings tell it"
    said = weights_used.warnings(board, manifests)
    assert {id for id in board.experts if any(f"'{id}'" in sentence for sentence in said)} == found.keys()
    for taken, is_told in ((Exam(), True), (Exam(is_surface=True), False), (exam(missing=True), False)):
        manifests["b/near"].exam = taken
        notes = {row.note for row in weights_used.exam_rows(board, manifests) if row.expert == "near"}
        assert (NO_EXAM in notes) == (is_told and "near" in told)


@pytest.mark.parametrize(
    ("polarity", "taken", "beside", "lacking"),
    [
        ("no", exam(missing=True), None, ()),
        ("yes", exam(missing=True), None, (Shown.TURNED,)),
        ("yes", exam(missing=True), exam(missing=True, turned=True), ()),
        ("yes", exam(missing=True, turned=False), None, ()),
        ("yes", Exam(is_surface=True), None, (Shown.TURNED,)),
        ("no", Exam(is_surface=True), None, ()),
        ("no", Exam(items=exam(missing=True, turned=True).items[1:]), None, (Shown.MISSING,)),
    ],
)
def test_an_exam_that_leaves_open_whether_parts_pass_is_told_unless_another_expert_there_tells(
    polarity, taken, beside, lacking
):
    experts = ", ".join(f"{id}: {EXPERTS['near']}" for id in ("near", "behind"))
    component = f"{{inspect: near, polarity: {polarity}, then: {{none: behind}}}}"
    board = rules_from(f"{{board: b, experts: {{{experts}}}, components: {{A: {component}}}}}")
    told = weights_used.cautions(board, manifests_of({"near": beside, "behind": taken}))["behind"]
    assert told == ((NOT_TOLD[lacking],) if lacking else ())


def test_each_verdict_says_that_small_defects_may_pass(own_tiny, inspected, pictures, tmp_path):
    board, store = own_tiny
    shown = [picture for picture in pictures if picture.component == "A"][:2]
    with Inspector(board, store=store) as line:
        before = verdicts(line.stream(shown))
    with Store(store).changing("tiny/body-a") as manifest:
        few = manifest.model_copy(update={"metrics": {"smallest_px": 2.5}})
        Store(store).rewrite(few)
    inspected(board, store)
    for line in (tmp_path / "run" / "results.jsonl").read_bytes().splitlines():
        result = result_lines.from_line(line, 0)
        cautions = {finding.expert: finding.caution for finding in result.findings}
        assert cautions == {finding.expert: "" for finding in result.findings} | {"body-a": few.few_pixels}
    with Inspector(board, store=store) as line:
        results = list(line.stream(shown))
        assert {result.findings[0].caution for result in results} == {few.few_pixels}
        assert verdicts(results) == before


def test_the_list_names_what_experts_let_pass_and_more_than_was_shown_is_refused(blind_tiny, call):
    give(Store(blind_tiny[1]), "tiny/body-b", exam(missing=True))
    said = call("list", "--store", blind_tiny[1], command=experts_command).out.splitlines()
    passes = {line.split()[0]: line for line in said if "tiny/body" in line}
    assert ("missing" in passes["tiny/body-a"], "no exam" in passes["tiny/body-c"]) == (True, True)
    with Store(blind_tiny[1]).changing("tiny/body-c") as manifest:
        Store(blind_tiny[1]).rewrite(manifest.model_copy(update={"metrics": {"smallest_px": 2.5}}))
    said = call("list", "--store", blind_tiny[1], command=experts_command).out
    assert "no exam in training, small defects" in said
    assert not {"missing", "exam"} & {*passes["tiny/body-b"].split()}
    path = blind_tiny[1] / "tiny" / "body-a" / "manifest.json"
    path.write_text(path.read_text().replace('"passed": 19', '"passed": 21').replace('"passed":19', '"passed":21'))
    with pytest.raises(StoreError, match=r"manifest.json.*'missing' 21"):
        Store(blind_tiny[1]).manifest("tiny/body-a")
    said = call("list", "--store", blind_tiny[1], command=experts_command)
    assert (said.status, "body-a" in said.err) == (1, True)


def test_the_rows_of_a_board_tell_what_follows_at_each_component():
    board = rules_from(
        "board: b\nexperts:\n  body: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}\n"
        "  mark: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}\ncomponents:\n"
        "  U1: {inspect: body}\n  U2: {inspect: body, accepts: [turned]}\n  R3: {inspect: body}\n"
        "  U4: {inspect: body, then: {ok: mark}}\n  U5: {inspect: body, polarity: no}\n"
        "  R6: {inspect: body, accepts: [turned]}\n"
    )
    manifests = manifests_of({"body": exam(turned=False), "mark": exam(turned=True)})
    blind, clear = (row for row in weights_used.exam_rows(board, manifests) if row.item is not None)
    assert (blind.review, blind.stopped, blind.passing) == (("U1",), ("U4",), ("R3",))
    assert blind.accepted == ("U2", "U5", "R6"), "as the board file says"
    assert (clear.expert, clear.follows) == ("mark", "")
    told = [one for one in weights_used.warnings(board, manifests) if NOT_TOLD[Shown.MISSING,] not in one]
    assert [[name for name in ("U1", "U2", "R3") if name in sentence] for sentence in told] == [["U1"], ["U2"], ["R3"]]
    assert "accepts: [turned]" in told[0], "the way out"
    assert weights_used.exam_rows(board, {}) == ()
    named, *_ = weights_used.exam_rows(board, manifests, [PlacedPart("R3", "R3"), PlacedPart("R3", "D4")])
    assert named.review == ("U1", "R3"), "a diode stands at a place of the component"


def test_a_component_that_is_blind_by_itself_does_not_hide_among_others():
    def row(component, passed, shown=4):
        return ExamItem(item=Shown.TURNED, shown=shown, passed=passed, component=component)

    rows = apart([row("U1", 0), row("U2", 4), row("U3", 1), row("C1", 0, shown=40)])
    assert [(one.component, one.passed, one.shown) for one in rows] == [("", 0, 44), ("U2", 4, 4), ("U3", 1, 4)]
    stops = stops_of(Exam(items=rows))
    assert stops == {"": {Shown.TURNED: True}, "U2": {Shown.TURNED: False}, "U3": {}}, "one of four leaves it open"
    assert apart([row("U2", 4)]) == (row("", 4),), "an expert of one component"
    missing = ExamItem(item=Shown.MISSING, shown=4, passed=0)
    again = Exam(items=(missing, *rows)).again([row("", 0, shown=40)])
    assert again.items == (missing, row("", 0, shown=40)), "a row of all that is taken again stands for all"


@pytest.mark.parametrize(
    ("before", "now", "stops"),
    [
        ((20, 20), (1, 1), False),
        ((20, 20), (0, 1), False),
        ((20, 20), (3, 12), False),
        ((20, 20), (1, 20), True),
        ((0, 20), (3, 4), False),
        ((0, 20), (1, 2), True),
        ((2, 9), (1, 1), None),
        ((0, 1), (0, 2), None),
    ],
)
def test_few_pictures_undo_nothing_that_an_exam_has_shown(before, now, stops):
    """Pairs of (passed, shown); an expert that passed on few pictures stops nothing for others either."""
    first, second = (ExamItem(item=Shown.TURNED, passed=passed, shown=shown) for passed, shown in (before, now))
    found = stops_of(Exam(items=(first,)).again([second])).get("", {})
    assert found.get(Shown.TURNED) is stops
