"""Blind audits: drawn by chance, held apart from calls by nobody who answers them, and waited for by no board."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick_line import QuickDevice
from serve_rows import NOON, accepted, decision, ng, the
from serving import Served, config_of, embedded
from stations import LIGHT, accept, deciding, quick_opener, state_of
from thorough import THOROUGH
from tiny_line import TINY
from waiting import eventually

from coe.core import Verdict
from coe.serve.clock import DAY_US, HOUR_US
from coe.serve.database import (
    board_rows,
    call_rows,
    decisions,
    event_log,
    hourly,
    recipe_versions,
    row_types,
    verifications,
    views,
)
from coe.serve.database.connecting import Database
from coe.serve.database.findings import GoodComponent
from coe.serve.database.hourly import Window
from coe.serve.database.tables import Board, Call, Event, Key, NewCall, NewVerification, NewView, View
from coe.serve.enums import BoardState, CallKind, EventKind, Outcome, Role
from coe.serve.gate import role_views
from coe.serve.picture_folder import Pictures
from coe.serve.retention import sweep
from coe.serve.secret_file import AUDITS
from coe.serve.service_config import Audits, Retention
from coe.serve.statistics import yields
from coe.serve.statistics.trend import By, pareto
from coe.serve.worker.blind_audits import RESTS_US, BlindAudits, Lottery

ALL, NONE, EVERY_SEED = Audits(ok_per_1000=1000), Audits(), Audits(seeded_per_100_calls=100)
LOTTERY = Lottery(b"a secret of this test")
OPERATOR = Key(1, "ann", Role.OPERATOR, "", 0, None, None)
ENGINEER = replace(OPERATOR, role=Role.ENGINEER)
_numbers = itertools.count()


def picture(connection: Any, key: str, pixels: int = 2500) -> View:
    file = f"ab/{next(_numbers):032x}"
    return views.add(connection, NewView(key, "R1", file, "0" * 64, 100, pixels, NOON))


def part(connection: Any, key: str, refdes: str, component: str = "R0402", pixels: int = 2500) -> GoodComponent:
    row = {"expert": "body", "variant": "q8", "label": "ok", "score": 0.98, "boxes": []}
    return GoodComponent(refdes, component, picture(connection, f"{key}-{refdes}", pixels).id, None, [row])


def called(connection: Any, key: str, refdes: str, label: str = "cracked") -> NewCall:
    box = {"label": label, "score": 0.9, "xyxy": [10, 10, 20, 30]}
    row = {"expert": "body", "variant": "q8", "label": label, "score": 0.9, "boxes": [box]}
    return replace(ng(refdes, view_id=picture(connection, f"{key}-{refdes}").id), label=label, findings=[row])


def decide(
    connection: Any, audits: BlindAudits, key: str, bad: Sequence[str], good: Sequence[str], at_us: int = NOON
) -> list[Call]:
    """Decide a board with these parts; return its calls and what seems to be its calls, in the order of their ids."""
    board = accepted(connection, key, serial=f"SN-{key}")
    made = decision(
        board,
        *(called(connection, key, refdes) for refdes in bad),
        fine=[part(connection, key, refdes) for refdes in good],
        at_us=at_us,
    )
    assert decisions.write(connection, audits.added(connection, made, sorted([*bad, *good])))
    return faces_of(connection, board.id, kinds=True)


def faces_of(connection: Any, board_id: int, *, kinds: bool = False) -> list[Call]:
    found = role_views.calls_of(connection, board_id, OPERATOR)
    return [one for id in (one.id for one in found) if (one := row_types.get(connection, Call, id))] if kinds else found


def answer(connection: Any, call: Call, outcome: Outcome, at_us: int = NOON + 1, label: str = "") -> None:
    now = the(row_types.get(connection, Call, call.id))
    verifications.record_verification(connection, now, NewVerification(outcome, at_us, "ann", label))


def known_defects(connection: Any, *refdes: str) -> None:
    """Leave confirmed calls of these parts, long ago."""
    for call in decide(connection, BlindAudits(NONE, LOTTERY), f"old{next(_numbers)}", refdes, [], NOON - 2 * RESTS_US):
        answer(connection, call, Outcome.CONFIRMED, NOON - 2 * RESTS_US + 1, label="tombstone")


def test_the_same_secret_draws_the_same_parts_and_another_secret_others() -> None:
    numbers = range(20_000)
    drawn = [number for number in numbers if LOTTERY.share("ok", 7, f"R{number}") < 0.03]
    again = [number for number in numbers if Lottery(LOTTERY.secret).share("ok", 7, f"R{number}") < 0.03]
    other = [number for number in numbers if Lottery(b"other").share("ok", 7, f"R{number}") < 0.03]
    assert drawn == again
    assert 500 < len(drawn) < 700
    assert len(set(drawn) & set(other)) < 40
    assert {LOTTERY.number(3, "which", number) for number in range(99)} == {0, 1, 2}


def test_nothing_is_audited_and_no_secret_is_made_unless_the_config_says_so(
    sqlite_database: Database, tmp_path: Path
) -> None:
    audits = BlindAudits.of(config_of(tmp_path))
    with sqlite_database.writing() as connection:
        assert [one.kind for one in decide(connection, audits, "k1", ["R1"], ["R2"])] == [CallKind.DEFECT]
    assert not (tmp_path / AUDITS).exists()
    BlindAudits.of(config_of(tmp_path, audits={"ok_per_1000": 5}))
    assert (tmp_path / AUDITS).stat().st_mode & 0o777 == 0o600
    assert len((tmp_path / AUDITS).read_bytes()) == 32


def test_an_audit_stands_where_a_call_of_its_part_would_stand_with_a_face_of_its_type(database: Database) -> None:
    with database.writing() as connection:
        decide(connection, BlindAudits(NONE, LOTTERY), "k0", ["R9"], [])
        rows = decide(connection, BlindAudits(ALL, LOTTERY), "k1", ["R2"], ["R1", "R3"])
        seen = faces_of(connection, rows[0].board_id or 0)
    assert [one.refdes for one in rows] == [one.refdes for one in seen] == ["R1", "R2", "R3"]
    assert [one.kind for one in rows] == [CallKind.AUDIT, CallKind.DEFECT, CallKind.AUDIT]
    assert [(one.verdict, one.label) for one in rows[:2]] == [(Verdict.OK, "ok"), (Verdict.NG, "cracked")]
    assert {(one.verdict, one.label, one.expert, one.score) for one in seen} == {(Verdict.NG, "cracked", "body", 0.9)}


def test_a_part_whose_type_was_never_called_seems_to_be_in_doubt(database: Database) -> None:
    with database.writing() as connection:
        (row,) = decide(connection, BlindAudits(ALL, LOTTERY), "k1", [], ["R1"])
        (seen,) = faces_of(connection, row.board_id or 0)
    assert (seen.verdict, seen.expert, seen.label) == (Verdict.REVIEW, "body", "ok")
    assert 0.5 < seen.score < 0.9
    assert seen.findings[-1]["score"] == round(seen.score, 6) != seen.score


def test_boxes_of_a_face_fit_a_picture_of_another_size(sqlite_database: Database) -> None:
    with sqlite_database.writing() as connection:
        decide(connection, BlindAudits(NONE, LOTTERY), "k0", ["R9"], [])
        board = accepted(connection, "k1")
        made = decision(board, fine=[part(connection, "k1", "R1", pixels=10_000)])
        decisions.write(connection, BlindAudits(ALL, LOTTERY).added(connection, made, ["R1"]))
        (seen,) = faces_of(connection, board.id)
    assert seen.findings[0]["boxes"][0]["xyxy"] == [20, 20, 40, 60]


def test_no_board_waits_for_an_audit_and_a_defect_that_it_found_is_told(database: Database) -> None:
    def verified() -> list[tuple[list[str], list[Any]]]:
        with database.reading() as connection:
            told = [one.body for one in event_log.after(connection, 0) if one.kind is EventKind.BOARD_VERIFIED]
        names = ("refdes", "label", "outcome")
        return [(body["confirmed"], [tuple(one[name] for name in names) for one in body["calls"]]) for body in told]

    with database.writing() as connection:
        only, *_ = decide(connection, BlindAudits(ALL, LOTTERY), "k1", [], ["R1", "R2"])
        first, second, real = decide(connection, BlindAudits(ALL, LOTTERY), "k2", ["R3"], ["R1", "R2"])
        answer(connection, real, Outcome.FALSE_CALL)
    states = [state_of(database, id).state for id in (only.board_id or 0, first.board_id or 0)]
    assert states == [BoardState.VERIFIED, BoardState.VERIFIED]
    assert verified() == [([], [("R3", "cracked", "false call")])]
    database.write(answer, first, Outcome.FALSE_CALL)
    assert len(verified()) == 1
    database.write(answer, second, Outcome.CONFIRMED, label="lifted")
    assert verified()[1:] == [(["R2"], [("R2", "lifted", "confirmed"), ("R3", "cracked", "false call")])]
    database.write(answer, second, Outcome.FALSE_CALL)
    assert verified()[2:] == [([], [("R3", "cracked", "false call")])]
    with database.reading() as connection:
        told = [one.body["refdes"] for one in event_log.after(connection, 0) if one.kind is EventKind.CALL_VERIFIED]
    assert told == ["R3"]


def test_a_known_defect_comes_back_as_a_call_of_another_board(database: Database) -> None:
    with database.writing() as connection:
        known_defects(connection, "R1", "R2")
        rows = decide(connection, BlindAudits(EVERY_SEED, LOTTERY), "k1", ["R5"], ["R1", "R3", "R4"])
        seen = faces_of(connection, rows[1].board_id or 0)
    seeded, real = rows
    assert (seeded.kind, seeded.refdes, seeded.truth, seeded.board_id) == (CallKind.SEEDED, "R1", "tombstone", None)
    assert [(one.refdes, one.label, one.board_id) for one in seen] == [
        ("R1", "cracked", real.board_id),
        ("R5", "cracked", real.board_id),
    ]
    with database.writing() as connection:
        answer(connection, seeded, Outcome.CONFIRMED)
        answer(connection, seeded, Outcome.FALSE_CALL)  # the first word counts
        answer(connection, real, Outcome.FALSE_CALL)
        window = Window(NOON - HOUR_US, NOON + HOUR_US)
        found = yields.seeded(hourly.call_counts(connection, window))
    assert (found.events, found.trials, found.lower is not None) == (1, 1, True)
    assert state_of(database, real.board_id or 0).state is BoardState.VERIFIED


def test_a_known_defect_seems_to_lie_where_its_part_lies_on_the_board(sqlite_database: Database) -> None:
    there, here = ({"polygon": [[at, 1], [9, 1], [9, 9], [at, 9]], "size": [8, 8]} for at in (1, 2))
    with sqlite_database.writing() as connection:
        old = accepted(connection, "k0")
        bad = replace(called(connection, "k0", "R1"), place=there)
        decisions.write(connection, decision(old, bad, at_us=NOON - 2 * RESTS_US))
        answer(connection, call_rows.of_board(connection, old.id)[0], Outcome.CONFIRMED, NOON - 2 * RESTS_US)
        new = accepted(connection, "k1")
        good = replace(part(connection, "k1", "R1"), place=here)
        made = decision(new, called(connection, "k1", "R2"), fine=[good])
        decisions.write(connection, BlindAudits(EVERY_SEED, LOTTERY).added(connection, made, ["R1", "R2"]))
        seen = faces_of(connection, new.id)
        seeded = row_types.get(connection, Call, seen[0].id)
    assert [(one.refdes, one.place) for one in seen] == [("R1", here), ("R2", None)]
    assert seeded.place == there, "its picture is cut out of the view in which it lies"


def test_known_defects_take_turns_and_neither_new_ones_nor_lost_pictures_come_back(database: Database) -> None:
    audits = BlindAudits(EVERY_SEED, LOTTERY)
    with database.writing() as connection:
        known_defects(connection, "R1", "R2", "R3")
        new = decide(connection, BlindAudits(NONE, LOTTERY), "new", ["R4"], [], NOON - HOUR_US)
        answer(connection, new[0], Outcome.CONFIRMED, NOON - HOUR_US)
        lost = the(call_rows.of_component(connection, 1, "R3"))
        views.removed(connection, [lost.view_id or 0], NOON)
        seeded = []
        for number in range(4):
            rows = decide(connection, audits, f"k{number}", ["R9"], ["R1", "R2", "R3", "R4"])
            seeded += [one.refdes for one in rows if one.kind is CallKind.SEEDED]
    assert sorted(seeded[:2]) == sorted(seeded[2:]) == ["R1", "R2"]


def test_no_picture_of_a_known_defect_goes_while_somebody_may_look_at_it(
    sqlite_database: Database, tmp_path: Path
) -> None:
    with sqlite_database.writing() as connection:
        known_defects(connection, "R1")
        source = the(call_rows.of_component(connection, 1, "R1"))
        real, seeded = decide(connection, BlindAudits(EVERY_SEED, LOTTERY), "k1", ["R0"], ["R1"])
        answer(connection, real, Outcome.FALSE_CALL)
    assert seeded.view_id == source.view_id
    for is_open in (True, False):
        sweep(sqlite_database, Pictures(tmp_path), Retention(), NOON + 10_000 * DAY_US)
        with sqlite_database.writing() as connection:
            view = the(row_types.get(connection, View, source.view_id or 0))
            assert (view.removed_us is None) is is_open
            if is_open:
                answer(connection, seeded, Outcome.CONFIRMED)


def test_an_operator_sees_an_audit_as_a_call_everywhere_and_an_engineer_sees_what_it_is(served: Served) -> None:
    with served.database.writing() as connection:
        known_defects(connection, "R2")
        both = BlindAudits(Audits(ok_per_1000=1000, seeded_per_100_calls=100), LOTTERY)
        rows = decide(connection, both, "k1", ["R3"], ["R1", "R2"])
        last = rows[0].board_id
    # R2 is drawn as an audit, so that the known defect of R2 cannot be a call of this board.
    assert [(one.refdes, one.kind) for one in rows] == [("R1", "audit"), ("R2", "audit"), ("R3", "defect")]
    path = f"/api/v1/boards/{last}?good=1"
    blindly, openly = (client.get(path).json() for client in (served.operator, served.engineer))
    assert [one["refdes"] for one in blindly["calls"]] == ["R1", "R2", "R3"]
    assert [one["refdes"] for one in openly["calls"]] == ["R3"]
    assert {frozenset(one) for one in blindly["calls"]} == {frozenset(openly["calls"][0])}
    assert (blindly["good"], [one["refdes"] for one in openly["good"]]) == ([], ["R1", "R2"])
    assert served.feeder.get(f"/api/v1/boards/{last}").json()["calls"] == openly["calls"]
    queue = served.operator.get("/api/v1/calls").json()["calls"]
    assert [one["call"] for one in queue] == [one["id"] for one in blindly["calls"]]


def test_open_audits_count_as_open_calls_of_their_component(sqlite_database: Database) -> None:
    window = Window(NOON - HOUR_US, NOON + HOUR_US)
    with sqlite_database.writing() as connection:
        audit, real = decide(connection, BlindAudits(ALL, LOTTERY), "k1", ["R2"], ["R1"])
        (before,) = pareto(hourly.call_counts(connection, window), By.COMPONENT)
        labels = [bar.name for bar in pareto(hourly.call_counts(connection, window), By.LABEL)]
        answer(connection, audit, Outcome.FALSE_CALL)
        answer(connection, real, Outcome.FALSE_CALL)
        (after,) = pareto(hourly.call_counts(connection, window), By.COMPONENT)
        blindly = pareto(hourly.call_counts(connection, window), By.LABEL, is_blind=True)
    assert (before.open, after.open, after.false_calls) == (2, 0, 1)
    assert labels == ["cracked", "ok"], "what the operator sees of the audit, which has no earlier call's face"
    assert [(bar.name, bar.calls, bar.false_calls) for bar in blindly] == [("cracked", 1, 1), ("ok", 1, 1)]


def event(kind: EventKind) -> Event:
    body = {"board": 1, "serial": "SN1", "verdict": "OK", "calls": [], "confirmed": [], "late": False}
    return Event(7, "u", kind, 1, NOON, body)


def test_events_do_not_tell_an_operator_what_was_called() -> None:
    shown = {kind: role_views.event_of(event(kind), OPERATOR) for kind in EventKind}
    hidden = {EventKind.BOARD_VERIFIED, EventKind.BOARD_REPAIRED, EventKind.CALL_VERIFIED}
    assert {kind for kind, one in shown.items() if one is None} == hidden
    for kind in (EventKind.BOARD_DECIDED, EventKind.BOARD_AMENDED):
        assert shown[kind] == replace(event(kind), body={"board": 1, "serial": "SN1"})
    assert all(role_views.event_of(event(kind), ENGINEER) == event(kind) for kind in EventKind)


PARTS = st.lists(st.sampled_from(["bad", "good", "absent"]), min_size=1, max_size=6)
# Drawn beforehand: how many calls there are follows from the boards of earlier examples, too.
ANSWERS = st.lists(st.none() | st.sampled_from(Outcome), min_size=16, max_size=16)


@settings(max_examples=12 * THOROUGH, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PARTS, st.tuples(st.sampled_from([0, 300, 1000]), st.sampled_from([0, 50, 100])), ANSWERS)
def test_what_an_operator_sees_of_a_board_always_fits_together(
    sqlite_database: Database, parts: list[str], shares: tuple[int, int], answers: list[Outcome | None]
) -> None:
    audits = BlindAudits(Audits(ok_per_1000=shares[0], seeded_per_100_calls=shares[1]), LOTTERY)
    names = {word: [f"R{number}" for number, one in enumerate(parts) if one == word] for word in ("bad", "good")}
    with sqlite_database.writing() as connection:
        known_defects(connection, "R1", "R4")
        rows = decide(connection, audits, f"p{next(_numbers)}", names["bad"], names["good"])
        board = board_rows.newest(connection)[0]
        assert len(rows) <= len(answers)
        for row, outcome in zip(rows, answers, strict=False):
            if outcome is not None:
                answer(connection, row, outcome)
        truth, seen = row_types.get(connection, Board, board.id), role_views.board_of(connection, board, OPERATOR)
        seen = role_views.board_of(connection, truth, OPERATOR) if truth else seen
        shown = faces_of(connection, board.id)
    assert truth is not None
    check_truth(truth, rows, names)
    # As if the line itself had called what is shown: parts in order, each once, and the board follows from them.
    assert [one.refdes for one in shown] == sorted({one.refdes for one in shown})
    assert {one.kind for one in shown} <= {CallKind.DEFECT}
    assert {(one.board_id, one.truth, one.face, one.shown_board_id) for one in shown} <= {(board.id, "", None, None)}
    assert seen.calls == len(shown)
    assert (seen.verdict is Verdict.OK) == (not shown)
    assert (seen.state is BoardState.VERIFIED) == all(not one.is_open for one in shown)
    assert (seen.verified_us is None) == (seen.state is not BoardState.VERIFIED)


def check_truth(truth: Board, rows: Sequence[Call], names: dict[str, list[str]]) -> None:
    """What other machines are told follows from the calls alone."""
    real = [one for one in rows if one.kind is CallKind.DEFECT]
    assert [one.refdes for one in real] == names["bad"]
    assert (truth.calls, truth.components) == (len(real), len(names["bad"]) + len(names["good"]))
    assert (truth.verdict is Verdict.OK) == (not real)
    assert all(one.board_id is None and one.shown_board_id == truth.id for one in rows if one.kind is CallKind.SEEDED)


@pytest.fixture
def audited(tmp_path: Path, sqlite_template: Path) -> Iterator[tuple[Any, Database]]:
    config = config_of(tmp_path, drain_s=5, audits={"ok_per_1000": 1000})
    with embedded(config, sqlite_template) as database:
        yield config, database


def test_a_line_opens_audits_in_the_transaction_of_its_decision(
    audited: tuple[Any, Database], tiny: tuple[Path, Path]
) -> None:
    config, database = audited
    recipe = database.write(recipe_versions.add, "tiny", {"rules": TINY}, by="ann", now_us=NOON)
    board = accept(config, database, recipe.id, {"C1": LIGHT, "C2": LIGHT})
    with deciding(config, database, quick_opener(tiny, QuickDevice())):
        eventually(lambda: state_of(database, board.id).verdict is not None)
    found = state_of(database, board.id)
    assert (found.verdict, found.state, found.calls) == (Verdict.OK, BoardState.VERIFIED, 0)
    with database.reading() as connection:
        opened = [
            (one.refdes, one.kind, one.is_open, one.opened_us) for one in call_rows.of_board(connection, board.id)
        ]
        kinds = [one.kind for one in event_log.after(connection, 0, board_id=board.id)]
    assert opened == [(refdes, CallKind.AUDIT, True, found.decided_us) for refdes in ("C1", "C2")]
    assert kinds[-1] is EventKind.BOARD_DECIDED
