"""Stop rules: boards and rules in, alarms out; told once, over restarts, and cleared by a person."""

import math

import pytest
from serve_rows import NOON, accepted, decided, decision, late, ng, the
from stations import DARK, LIGHT, quick_opener
from tiny_line import TINY
from waiting import eventually

from coe.core import Verdict
from coe.errors import ConfigError
from coe.helpers.strict_model import of_json
from coe.serve.clock import now_us
from coe.serve.database import (
    board_rows,
    call_rows,
    event_log,
    fault_log,
    recipe_versions,
    row_types,
    states,
    verifications,
)
from coe.serve.database.tables import Board, NewVerification
from coe.serve.enums import (
    BoardState,
    By,
    CallReason,
    EventKind,
    FaultKind,
    Intake,
    LineState,
    Outcome,
    Process,
    Subject,
)
from coe.serve.recipe_content import RecipeContent
from coe.serve.stop_rules import SeenBoard, SeenCall, StopRule, alarms
from coe.serve.worker.station import Station

AT_R1 = StopRule(same=(By.REFDES, By.LABEL), times=3)
AMONG_FOUR = StopRule(same=(By.REFDES,), times=2, boards=4)
HALF_AT_A_PLACE, HALF_OF_A_UNIT = (StopRule(same=(by,), times=2, share=0.5) for by in (By.REFDES, By.UNIT))
CONFIRMED = StopRule(counts="confirmed", same=(By.LABEL,), times=2)


def seen(*places, label="cracked", outcome=None):
    return [SeenCall(place, "R0402", label, CallReason.EXPERT, outcome, "body", f"F-{place}") for place in places]


def timetable(rule, boards):
    """Return the number of each board that gives an alarm, with what the alarm is about."""
    rows = [SeenBoard(number, calls=calls) for number, calls in enumerate(boards, 1)]
    return [
        (number, alarm.about.removeprefix("r: "))
        for number in range(1, len(rows) + 1)
        for alarm in alarms("r", rule, rows[:number][::-1], number)
    ]


@pytest.mark.parametrize(
    ("rule", "boards", "told"),
    [
        (AT_R1, [seen("R1"), seen("R1"), seen("R1")], [(3, "refdes R1, label cracked")]),
        (AT_R1, [seen("R1"), seen("R1"), [], seen("R1")], []),
        (AT_R1, [seen("R1"), seen("R2"), seen("R1")], []),
        (AT_R1, [seen("R1"), seen("R1"), seen("R1", label="absent")], []),
        (AT_R1, [seen("R1"), seen("R1", outcome=Outcome.FALSE_CALL), seen("R1")], []),
        (AMONG_FOUR, [seen("R1"), [], [], seen("R1"), [], [], []], [(4, "refdes R1")]),
        (StopRule(same=(By.REFDES,), times=2, boards=3), [seen("R1"), [], [], seen("R1")], []),
        (StopRule(same=(By.UNIT,), times=2), [seen("a/R1", "b/R1"), seen("b/R7")], [(2, "unit b")]),
        (StopRule(same=(By.REFDES,), times=2), [seen("a/R1"), seen("b/R1")], [(2, "refdes R1")]),
        (StopRule(same=(By.UNIT,), times=2), [seen("R1"), seen("R1")], []),
        (StopRule(same=(By.FEEDER,), times=2), [seen("R1"), seen("R1")], [(2, "feeder F-R1")]),
        (HALF_AT_A_PLACE, [seen("R1", "R2", "R3"), seen("R1", "R4", "R5"), seen("R1")], [(3, "refdes R1")]),
        (HALF_OF_A_UNIT, [seen("a/R1", "R2", "R3"), seen("a/R1", "R2", "R3"), seen("a/R1")], [(3, "unit a")]),
        (CONFIRMED, [seen("R1", outcome=Outcome.CONFIRMED), seen("R2"), seen("R3", outcome=Outcome.CONFIRMED)], []),
    ],
)
def test_an_alarm_is_given_by_the_board_that_makes_it_true(rule, boards, told):
    assert timetable(rule, boards) == told


def test_late_and_unseen_boards_are_counted_as_boards():
    lost = SeenCall("R1", "R0402", "", CallReason.NOT_REGISTERED)
    boards = [SeenBoard(2, late=True, calls=[lost, lost]), SeenBoard(1, late=True)]
    assert len(alarms("r", StopRule(counts="late boards", times=2), boards, 2)) == 1
    assert not alarms("r", StopRule(counts="unseen boards", times=2), boards, 2)
    assert len(alarms("r", StopRule(counts="unseen boards", times=1, boards=9), boards, 2)) == 1
    assert not alarms("r", StopRule(same=(By.COMPONENT,), times=1), boards, 2), "nobody saw a defect"


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"times": 3}, "`same` states what calls have in common; name some of component, expert, label"),
        ({"times": 3, "boards": 2, "same": ["label"]}, "`boards` must be at least `times`"),
        ({"times": 3, "counts": "late boards", "same": ["label"]}, "leave it out with `counts: late boards`"),
        ({"times": 3, "counts": "late boards", "share": 0.5}, "`share` is for calls"),
        ({"times": 3, "sane": ["label"]}, "did you mean 'same'"),
    ],
)
def test_a_rule_that_does_not_fit_is_one_sentence(rule, sentence):
    with pytest.raises(ConfigError, match=sentence):
        of_json(rule, StopRule)


RULES = {"paste": AT_R1}
HOLDING = {"paste": AT_R1.model_copy(update={"hold": True})}


def decide(database, key, *calls, rules=RULES):
    with database.writing() as connection:
        board = accepted(connection, key)
        assert board_rows.decide(connection, decision(board, *calls), rules)
        assert not board_rows.decide(connection, decision(board, *calls), rules), "a crash after the commit"


def raised(database):
    return database.read(fault_log.open_faults)


def told(database):
    kinds = (EventKind.FAULT_RAISED, EventKind.FAULT_CLEARED)
    return [event.kind for event in database.read(event_log.after, 0) if event.kind in kinds]


def test_an_alarm_is_told_once_and_what_was_cleared_counts_no_more(database):
    for number in range(4):
        decide(database, f"k{number}", ng("R1"))
    [alarm] = raised(database)
    assert (alarm.kind, alarm.process, alarm.board_id, alarm.times) == (FaultKind.STOP_RULE, Process.WORKER, 4, 2)
    assert told(database) == [EventKind.FAULT_RAISED]
    assert database.write(fault_log.acknowledge, alarm.id, by="op", now_us=NOON)
    for number in range(4, 6):
        decide(database, f"k{number}", ng("R1"))
    assert raised(database) == []
    decide(database, "k6", ng("R1"))
    assert [again.board_id for again in raised(database)] == [7]
    assert database.read(states.intake) is Intake.OPEN


def test_a_board_that_comes_back_and_another_recipe_say_nothing(database):
    with database.writing() as connection:
        for key in ("k1", "k2", "k3"):
            board = accepted(connection, key, serial="SN1")
            board_rows.decide(connection, decision(board, ng("R1")), RULES)
        recipe_versions.add(connection, "demo", {"rules": "board: new"}, by="ann", now_us=NOON)
    assert raised(database) == []


def test_a_held_line_takes_no_board_until_its_last_alarm_is_cleared(database):
    for number in range(3):
        decide(database, f"k{number}", ng("R1"), ng("R2"), rules=HOLDING)
    assert database.read(states.intake) is Intake.HELD
    assert "paste" in database.read(states.why_closed)
    first, second = raised(database)
    assert {first.kind, second.kind} == {FaultKind.LINE_HELD}
    database.write(fault_log.acknowledge, first.id, by="ann", now_us=NOON)
    assert database.read(states.intake) is Intake.HELD
    database.write(fault_log.acknowledge, second.id, by="ann", now_us=NOON)
    assert database.read(states.intake) is Intake.OPEN


@pytest.mark.parametrize(("by", "then"), [("ann", Intake.DRAINING), (Process.WORKER, Intake.HELD)])
def test_a_hold_leaves_a_persons_drain_and_outlives_an_end_in_order(database, by, then):
    database.write(states.change, Subject.INTAKE, Intake.DRAINING, by=by, now_us=NOON)
    for number in range(3):
        decide(database, f"k{number}", ng("R1"), rules=HOLDING)
    assert database.read(states.intake) is then


def test_late_boards_give_an_alarm(database):
    for key in ("k1", "k2"):
        decide(database, key, late("R1"), rules={"late": StopRule(counts="late boards", times=2)})
    assert [fault.about for fault in raised(database)] == ["late: late boards"]


def test_confirmed_defects_in_a_row_give_an_alarm_although_people_are_behind_the_line(database):
    rules = {"real": StopRule(counts="confirmed", same=(By.REFDES,), times=3, hold=True)}
    boards = [database.write(decided, f"k{number}", ng("R1"), ng("R2")) for number in range(5)]
    for number, board in enumerate(boards[:3]):
        assert raised(database) == []
        outcomes = {"R1": Outcome.CONFIRMED, "R2": Outcome.CONFIRMED if number == 1 else Outcome.FALSE_CALL}
        for call in database.read(call_rows.of_board, board.id):
            new = NewVerification(outcomes[call.refdes], NOON, "op")
            database.write(verifications.record_verification, call, new, rules)
    assert [(fault.about, fault.board_id) for fault in raised(database)] == [("real: refdes R1", 3)]
    assert database.read(states.intake) is Intake.HELD


def test_a_line_that_a_rule_holds_begins_no_board_and_goes_on_when_it_is_cleared(shop):
    rules = {"row": StopRule(same=(By.REFDES,), times=2, hold=True)}
    shop.config = shop.config.model_copy(update={"stop_rules": rules})
    boards = [shop.accept({"R1": DARK}, key=f"k{number}") for number in range(2)]
    shop.decide(*boards)
    waits = shop.accept({"R1": LIGHT}, key="k9")
    for _ in range(2):  # a restart neither forgets the hold nor tells it again
        with shop.deciding():
            eventually(lambda: shop.database.read(states.line) is LineState.HELD)
        assert shop.state(waits).verdict is None
    [alarm] = shop.faults()
    assert (alarm.kind, alarm.times) == (FaultKind.LINE_HELD, 1)
    shop.database.write(fault_log.acknowledge, alarm.id, by="ann", now_us=now_us())
    shop.decide(waits)
    assert shop.state(waits).verdict is Verdict.OK


def test_a_hold_by_a_persons_answer_lets_no_board_begin_that_the_line_saw_before(shop):
    waits = shop.accept({"R1": LIGHT})
    station = Station(shop.config, shop.database, open_line=quick_opener(shop.tiny, shop.device))
    station._next_look_s = math.inf
    station._look()
    shop.database.write(states.hold, by=Process.WORKER, now_us=now_us(), reason="stop rule 'real'")
    station._next_look_s = math.inf
    eventually(lambda: (station._work(), station._state())[1] is LineState.HELD)
    assert shop.state(waits).state is BoardState.ACCEPTED
    station.close()


def test_a_drain_that_ends_does_not_release_a_line_that_an_alarm_holds(served):
    for number in range(3):
        decide(served.database, f"k{number}", ng("R1"), rules=HOLDING)
    [holding] = raised(served.database)

    def intake():
        return str(served.engineer.get("/api/v1/state").json()["intake"])

    assert served.engineer.post("/api/v1/resume").status_code == 409
    assert served.engineer.post("/api/v1/drain").is_success
    assert served.engineer.post("/api/v1/resume").status_code == 409
    assert intake() == "draining"
    assert served.engineer.post(f"/api/v1/faults/{holding.id}/clear").is_success
    assert intake() == "draining", "this is another person's word"
    assert served.engineer.post("/api/v1/resume").json()["intake"] == "open"


def test_operators_clear_alarms_and_engineers_what_holds_the_line(served):
    def alarm(rules):
        with served.database.writing() as connection:
            for number in range(3):
                key = f"{rules is HOLDING}{number}"
                board_rows.decide(connection, decision(accepted(connection, key), ng("R1")), rules)
            return fault_log.open_faults(connection)[0].id

    plain = alarm(RULES)
    assert "Acknowledge" in served.operator.get("/faults").text
    assert "Acknowledge" not in served.viewer.get("/faults").text
    assert served.operator.post(f"/api/v1/faults/{plain}/clear").status_code == 204
    holding = alarm(HOLDING)
    assert served.operator.get("/api/v1/state").json()["intake"] == "held"
    assert "held" in served.operator.get("/").text
    assert served.operator.post(f"/api/v1/faults/{holding}/clear").status_code == 403
    assert served.engineer.post(f"/api/v1/faults/{holding}/clear").status_code == 204
    assert served.operator.get("/api/v1/state").json()["intake"] == "open"
    assert served.engineer.post(f"/api/v1/faults/{holding}/clear").status_code == 404


def test_calls_are_counted_by_place_panel_position_and_feeder(served):
    with served.database.writing() as connection:
        content = RecipeContent(rules=TINY, feeders={"R1": "F12"}).model_dump(mode="json")
        version = recipe_versions.add(connection, "fed", content, by="ann", now_us=NOON)
        for key, places in (("k1", ("u1/R1", "u2/R1")), ("k2", ("u1/R2",)), ("k3", ())):
            board = accepted(connection, key)
            connection.execute(board_rows.board.update().values(recipe_id=version.id))
            board = the(row_types.get(connection, Board, board.id))
            board_rows.decide(connection, decision(board, *map(ng, places), at_us=now_us()))

    def bars(by):
        rows = served.operator.get("/api/v1/stats/pareto", params={"by": by}).json()["bars"]
        return {row["name"]: row["calls"] for row in rows}

    assert bars("refdes") == {"R1": 2, "R2": 1}
    assert bars("unit") == {"u1": 2, "u2": 1}
    assert bars("feeder") == {"F12": 2, "": 1}
    assert served.operator.get("/statistics", params={"by": "unit"}).status_code == 200
