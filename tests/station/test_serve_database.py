"""The contract of the service's database, the same for SQLite and PostgreSQL."""

import threading
from contextlib import closing
from dataclasses import replace
from itertools import product

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from serve_rows import NOON, accepted, decided, decision, files_of_views, good, late, ng, recipe, the
from sqlalchemy import ForeignKeyConstraint, delete, func, select, text, update
from sqlalchemy.exc import IntegrityError

from coe.core import Verdict
from coe.errors import ConfigError
from coe.serve.database import (
    audit,
    board_rows,
    call_rows,
    connecting,
    event_log,
    fault_log,
    hourly,
    keys,
    recipe_versions,
    repairs,
    row_types,
    states,
    tables,
    verifications,
    views,
)
from coe.serve.database.board_rows import Amendment
from coe.serve.database.connecting import DatabaseError, open_database
from coe.serve.database.hourly import Window
from coe.serve.database.migration import expect_newest, migrate, newest, revision_of
from coe.serve.database.row_types import upserting
from coe.serve.database.tables import Board, Call, NewEscape, NewFault, NewRepair, NewVerification, NewView, View
from coe.serve.database.verifications import CallChanged
from coe.serve.enums import (
    NEXT,
    ActivationState,
    BoardState,
    EventKind,
    FaultKind,
    Intake,
    LineState,
    Outcome,
    Process,
    RepairOutcome,
    Role,
    Subject,
)


def kinds(database):
    return [event.kind for event in database.read(event_log.after, 0)]


@pytest.mark.filterwarnings("ignore:.*expression-based index")
def test_a_new_database_has_the_tables_of_the_schema(database):
    assert revision_of(database) == newest()
    expect_newest(database)
    assert not migrate(database)
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        # Changes of one column come as a list.
        differences = compare_metadata(context, tables.metadata)
    steps = [step for one in differences for step in (one if isinstance(one, list) else [one])]
    assert [step for step in steps if "comment" not in step[0]] == []


def test_a_database_of_the_first_schema_is_taken_over(database):
    with database.writing() as connection:
        states.change(connection, Subject.INTAKE, Intake.DRAINING, by="supervisor", now_us=NOON)
        fault_log.note(connection, NewFault(Process.WEB, FaultKind.SINK, "away", "plant"), NOON)
        states.beat(connection, Process.WEB, pid=7, now_us=NOON, facts={})
        states.beat(connection, Process.WORKER, pid=8, now_us=NOON, facts={})
        for statement in (
            "UPDATE fault SET process = 'bridge'",
            "UPDATE heartbeat SET process = 'gate' WHERE process = 'web'",
            "INSERT INTO heartbeat (process, pid, beat_us, facts) VALUES ('bridge', 1, 1, '{}')",
            "UPDATE alembic_version SET version_num = '1'",
            "DROP INDEX ix_board_hourly",
            "CREATE INDEX ix_board_counted ON board (decided_us)",
        ):
            connection.exec_driver_sql(statement)
    with pytest.raises(ConfigError, match="coe-serve migrate"):
        expect_newest(database)
    assert migrate(database)
    with database.reading() as connection:
        assert [one.process for one in fault_log.open_faults(connection)] == [Process.WEB]
        assert {one.process: one.pid for one in states.heartbeats(connection).values()} == dict.fromkeys(Process, 0)
        assert the(states.current(connection, Subject.INTAKE)).changed_by == Process.WORKER
        connection.exec_driver_sql("DROP INDEX ix_board_hourly")
        connection.exec_driver_sql("CREATE INDEX ix_board_counted ON board (decided_us)")


def test_a_database_of_the_second_schema_gets_its_index(database):
    with database.writing() as connection:
        for statement in (
            "DROP INDEX ix_board_hourly",
            "CREATE INDEX ix_board_counted ON board (decided_us)",
            "UPDATE alembic_version SET version_num = '2'",
        ):
            connection.exec_driver_sql(statement)
    assert migrate(database)
    with database.reading() as connection:
        connection.exec_driver_sql("DROP INDEX ix_board_hourly")
        connection.exec_driver_sql("CREATE INDEX ix_board_counted ON board (decided_us)")


def test_two_processes_may_make_the_tables_at_once(bare_database, monkeypatch):
    """The second saw none when it looked, and waits for the first."""
    assert migrate(bare_database)
    monkeypatch.setattr("coe.serve.database.migration.revision_of", lambda database: None)
    migrate(bare_database)
    assert revision_of(bare_database) == newest()


def test_tables_of_another_program_are_not_taken_over(bare_database):
    with bare_database.engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE event (id INTEGER, name VARCHAR(9))")
    with pytest.raises(ConfigError, match="event"):
        migrate(bare_database)
    assert revision_of(bare_database) is None


def test_a_row_that_refers_to_nothing_is_refused_and_a_transaction_that_fails_leaves_nothing(database):
    def refer_to_nothing(connection):
        accepted(connection)
        event_log.append(connection, EventKind.BOARD_DECIDED, NOON, board_id=99)

    with pytest.raises(IntegrityError):
        database.write(refer_to_nothing)
    with database.reading() as connection:
        assert board_rows.of_key(connection, "k1") is None
        assert event_log.newest_id(connection) == 0


def test_a_key_names_one_board(database):
    board = database.write(accepted, "k1", serial="SN1")
    assert (board.state, board.pass_number) == (BoardState.ACCEPTED, 1)
    with pytest.raises(IntegrityError), database.writing() as connection:
        accepted(connection, "k1")
    with database.writing() as connection:
        assert accepted(connection, "k2", serial="SN1").pass_number == 2
        assert accepted(connection, "k3", serial="").pass_number == 1
    assert kinds(database) == [EventKind.BOARD_ACCEPTED] * 3


def test_a_board_is_named_as_in_danger_once_and_decided_once(database):
    with database.writing() as connection:
        board = accepted(connection, due_us=NOON + 5)
        for now_us in (NOON, NOON + 1):
            board_rows.endanger(connection, [board], now_us)
        assert board_rows.begin(connection, board.id, NOON)
        assert board_rows.decide(connection, decision(board, ng("R1"), late("R2")))
    with database.writing() as connection:
        assert not board_rows.decide(connection, decision(board))
        assert not board_rows.begin(connection, board.id, NOON)
        assert not board_rows.abort(connection, board, NOON, reason="too late")
        found = the(row_types.get(connection, Board, board.id))
        assert (found.state, found.verdict, found.late) == (BoardState.DECIDED, Verdict.NG, True)
        assert (found.components, found.calls, found.attempts) == (3, 2, 1)
        assert [call.refdes for call in call_rows.of_board(connection, board.id)] == ["R1", "R2"]
        assert board_rows.unpack(board_rows.findings_of(connection, board.id)) == [good()]
        assert board_rows.undecided(connection) == []
    assert kinds(database) == [EventKind.BOARD_ACCEPTED, EventKind.BOARD_ENDANGERED, EventKind.BOARD_DECIDED]


def test_a_board_without_calls_is_verified_at_once_but_for_one_in_review(database):
    fine = database.write(decided, "k2")
    assert (fine.state, fine.verified_us) == (BoardState.VERIFIED, fine.decided_us)
    with database.writing() as connection:
        board = accepted(connection, "k1")
        assert board_rows.decide(connection, replace(decision(board), verdict=Verdict.REVIEW))
        found = row_types.get(connection, Board, board.id)
    assert (found.state, found.verified_us) == (BoardState.DECIDED, None)


def test_a_board_takes_the_steps_of_the_table_of_states_and_no_others(database):
    def verify(connection, board):
        for call in call_rows.of_board(connection, board.id):
            verifications.record_verification(connection, call, NewVerification(Outcome.CONFIRMED, NOON + 2, "op"))

    steps = [
        lambda to, board: board_rows.located(to, board.id),
        lambda to, board: board_rows.begin(to, board.id, NOON),
        lambda to, board: board_rows.decide(to, decision(board, ng())),
        lambda to, board: board_rows.decide(to, decision(board)),
        lambda to, board: board_rows.abort(to, board, NOON, reason=""),
        verify,
    ]
    taken = set()
    with database.writing() as connection:
        for number, way in enumerate(product(steps, repeat=3)):
            board = accepted(connection, f"k{number}")
            taken.add((None, board.state))
            for step in way:
                before = board.state
                step(connection, board)
                board = row_types.get(connection, Board, board.id) or pytest.fail("the board is gone")
                taken |= {(before, board.state)} if board.state is not before else set()
    assert taken == {(before, after) for before, following in NEXT.items() for after in following}


def test_later_findings_raise_severity_and_never_lower_it_and_a_persons_word_outranks_them(database):
    with database.writing() as connection:
        board = decided(connection, "k1", late("R1"), late("R2"))
        assert board.verdict is Verdict.REVIEW
        same = Amendment(board.id, NOON + 9, [late("R1")])
        assert not board_rows.amend(connection, same)
        assert board_rows.amend(connection, Amendment(board.id, NOON + 9, [ng("R1")]))
        assert not board_rows.amend(connection, Amendment(board.id, NOON + 9, [ng("R1", Verdict.REVIEW)]))
        found = the(row_types.get(connection, Board, board.id))
        assert (found.verdict, found.revision) == (Verdict.NG, 1)
        calls = [(call.verdict, call.label) for call in call_rows.of_board(connection, board.id)]
        assert calls == [(Verdict.NG, "cracked"), (Verdict.REVIEW, "")]
        second = the(call_rows.of_component(connection, board.id, "R2"))
        verifications.record_verification(connection, second, NewVerification(Outcome.FALSE_CALL, NOON + 2, "op"))
        assert not board_rows.amend(connection, Amendment(board.id, NOON + 9, [ng("R2")]))


def test_verifications_supersede_and_are_never_overwritten(database):
    with database.writing() as connection:
        board = decided(connection, "k1", ng("R1"), ng("R2"))
        first, second = call_rows.open_calls(connection)
        verifications.record_verification(connection, first, NewVerification(Outcome.FALSE_CALL, NOON + 2, "op"))
        with pytest.raises(CallChanged):
            verifications.record_verification(connection, first, NewVerification(Outcome.CONFIRMED, NOON + 3, "two"))
        verifications.record_verification(connection, second, NewVerification(Outcome.CONFIRMED, NOON + 4, "op"))
        found = the(row_types.get(connection, Board, board.id))
        assert (found.state, found.verified_us) == (BoardState.VERIFIED, NOON + 4)
        again = the(row_types.get(connection, Call, first.id))
        verifications.record_verification(connection, again, NewVerification(Outcome.CONFIRMED, NOON + 5, "op"))
        words = verifications.of_calls(connection, [first.id])
        assert [one.outcome for one in words] == [Outcome.FALSE_CALL, Outcome.CONFIRMED]
        assert [one.supersedes for one in words] == [None, words[0].id]
    assert kinds(database)[2:] == [EventKind.CALL_VERIFIED, *[EventKind.CALL_VERIFIED, EventKind.BOARD_VERIFIED] * 2]
    for change in (update(tables.verification).values(note="no"), delete(tables.verification)):
        with pytest.raises(IntegrityError, match="never changed"), database.writing() as connection:
            connection.execute(change)


def test_no_insert_takes_the_place_of_a_row_that_is_never_changed(database):
    with database.writing() as connection:
        board = accepted(connection, "k1", serial="SN1")
        board_rows.decide(connection, decision(board, ng("R1")))
        (call,) = call_rows.open_calls(connection)
        for outcome in (Outcome.FALSE_CALL, Outcome.CONFIRMED):
            seen = the(row_types.get(connection, Call, call.id))
            verifications.record_verification(connection, seen, NewVerification(outcome, NOON, "op"))
        for became in (RepairOutcome.SCRAPPED, RepairOutcome.REPAIRED):
            seen = the(row_types.get(connection, Call, call.id))
            repairs.record_repair(connection, seen, NewRepair(became, NOON, "eve"))
        audit.append(connection, "ann", "drain", "line", now_us=NOON)
        repairs.report_escape(connection, NewEscape("SN1", NOON, "ict"))
        of = recipe(connection)
        recipe_versions.confirm(connection, of, by="ann", now_us=NOON, picture_sha256="0" * 64)
    for table in tables.APPEND_ONLY:
        alone = [
            [column.name for column in key.columns]
            for key in table.constraints
            if not isinstance(key, ForeignKeyConstraint)
        ]
        assert ["id"] in alone
        for key in alone:
            with database.reading() as connection:
                row = connection.execute(select(table).order_by(table.c.id.desc())).first()
            new = {name: value for name, value in row._asdict().items() if name in key or name != "id"}
            other = next(name for name in new if name in ("outcome", "detail", "confirmed_by", "created_by", "note"))
            new[other] = {"n": 1} if other == "detail" else Outcome.ACCEPTED if other == "outcome" else "mallory"
            statement = upserting(database.engine.dialect.name)(table).values(new)
            ways = [statement.on_conflict_do_update(index_elements=key, set_={other: new[other]})]
            ways += [statement.prefix_with("OR REPLACE")] if database.is_sqlite else []
            for way in ways:
                with pytest.raises(IntegrityError), database.writing() as connection:
                    connection.execute(way)
            with database.reading() as connection:
                assert connection.execute(select(table).where(table.c.id == row.id)).one() == row


def test_triggers_keep_the_append_only_tables_and_no_others(database):
    triggers = "SELECT DISTINCT event_object_table FROM information_schema.triggers"
    if database.is_sqlite:
        triggers = "SELECT DISTINCT tbl_name FROM sqlite_master WHERE type = 'trigger'"
    with database.reading() as connection:
        found = set(connection.scalars(text(triggers)))
    assert found == {table.name for table in tables.APPEND_ONLY}


def test_a_call_is_claimed_by_one_person_until_the_claim_expires(database):
    with database.writing() as connection:
        decided(connection, "k1", ng())
        (call,) = call_rows.open_calls(connection)
        claims = (("ann", 0, 10, True), ("ann", 5, 20, True), ("bob", 15, 30, False), ("bob", 20, 30, True))
        for by, now_us, until_us, is_given in claims:
            times = {"by": by, "now_us": NOON + now_us, "until_us": NOON + until_us}
            assert (call_rows.claim_next(connection, **times) is not None) == is_given
            assert call_rows.claim(connection, call.id, **times) == is_given


def test_each_sink_gets_each_event_in_order_until_it_acknowledges(database):
    with database.writing() as connection:
        event_log.append(connection, EventKind.STATE_CHANGED, NOON, {"n": 0})
        event_log.register_sinks(connection, ["mqtt", "cfx"], NOON)
        for number in (1, 2, 3):
            event_log.append(connection, EventKind.STATE_CHANGED, NOON + number, {"n": number})
    with database.writing() as connection:
        waiting = event_log.waiting(connection, "mqtt")
        assert [event.body["n"] for event in waiting] == [1, 2, 3]
        assert [one.uuid for one in event_log.after(connection, 1)] == [event.uuid for event in waiting]
        event_log.failed(connection, "mqtt", waiting[0].id, error="no broker")
        assert [queue.error for queue in event_log.queues(connection)] == ["", "no broker"]
        event_log.delivered(connection, "mqtt", [waiting[0].id])
        assert [one.body["n"] for one in event_log.waiting(connection, "mqtt")] == [2, 3]
        assert [(queue.sink, queue.waiting) for queue in event_log.queues(connection)] == [("cfx", 3), ("mqtt", 2)]
        event_log.register_sinks(connection, ["mqtt"], NOON)
        assert [queue.sink for queue in event_log.queues(connection)] == ["mqtt"]


def test_ids_of_events_grow_in_the_order_of_commits(database):
    """A reader who remembers the newest id that it saw misses no event, however many append at a time."""
    seen = []
    last, begun = 0, threading.Barrier(5)

    def append_some():
        begun.wait()
        for _ in range(20):
            database.write(event_log.append, EventKind.STATE_CHANGED, NOON)

    threads = [threading.Thread(target=append_some) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    while len(seen) < 80 and (any(thread.is_alive() for thread in threads) or not seen or last != seen[-1]):
        new = [event.id for event in database.read(event_log.after, last)]
        seen += new
        last = new[-1] if new else last
    for thread in threads:
        thread.join()
    with database.reading() as connection:
        seen += [event.id for event in event_log.after(connection, last)]
        assert seen == list(connection.scalars(select(tables.event.c.id).order_by(tables.event.c.id)))
    assert len(seen) == 80


def test_versions_of_a_recipe_never_change_and_one_is_active(database):
    with database.writing() as connection:
        first, second = recipe(connection, rules="one"), recipe(connection, rules="two")
        assert recipe(connection, rules="one") == first
        assert [one.version for one in recipe_versions.versions(connection, "demo")] == [2, 1]
        assert recipe_versions.active(connection, "demo") is None
        for version in (first, second):
            asked = recipe_versions.ask_activation(connection, version.id, by="ann", now_us=NOON)
            assert recipe_versions.asked(connection) == [asked]
            state = ActivationState.ACTIVE if version is first else ActivationState.FAILED
            assert recipe_versions.answer(connection, asked.id, state, now_us=NOON, reason="no weights")
            assert not recipe_versions.answer(connection, asked.id, ActivationState.ACTIVE, now_us=NOON)
        assert recipe_versions.active(connection, "demo") == first
        assert recipe_versions.all_active(connection) == [first]


def view(name="top", key="k1"):
    return NewView(key, name, f"{key}-{name}.png", "a" * 64, 10, 100, NOON)


def test_no_picture_goes_before_its_board_is_decided_or_while_its_call_is_open(database):
    with database.writing() as connection:
        shown = views.add(connection, view())
        assert [one.id for one in views.orphans(connection, NOON + 1, NOON + 1)] == [shown.id]
        board = accepted(connection)
        assert views.orphans(connection, NOON + 1, NOON + 1) == []
        assert views.removable(connection, [shown.id]) == []
        assert board_rows.decide(connection, decision(board, ng()))
        assert views.removable(connection, [shown.id]) == []
        (call,) = call_rows.open_calls(connection)
        verifications.record_verification(connection, call, NewVerification(Outcome.CONFIRMED, NOON, "op"))
        assert [one.id for one in views.removable(connection, [shown.id])] == [shown.id]
        views.removed(connection, [shown.id], NOON)
        assert views.removable(connection, [shown.id]) == []
        assert files_of_views(connection) == set()


def test_a_view_whose_picture_goes_leaves_a_row_only_where_a_call_refers_to_it_and_its_id_is_never_used_again(database):
    """The findings of good components name their views by these ids."""
    with database.writing() as connection:
        fine, called, last = (views.add(connection, view(name)) for name in ("a", "b", "c"))
        assert board_rows.decide(connection, decision(accepted(connection), ng(view_id=called.id)))
        views.removed(connection, [fine.id, called.id, last.id], NOON)
        (kept,) = views.of_board(connection, "k1")
        assert (kept.id, kept.removed_us) == (called.id, NOON)
        assert row_types.get(connection, View, last.id) is None
        assert views.add(connection, view("a", "k2")).id > last.id


def test_the_same_fault_again_counts_up(database):
    fault = NewFault(Process.WORKER, FaultKind.IMAGE_LOST, "gone", about="a.png")
    with database.writing() as connection:
        first = fault_log.note(connection, fault, NOON)
        again = fault_log.note(connection, fault, NOON + 1)
        assert (again.id, again.times, again.raised_us, again.seen_us) == (first.id, 2, NOON, NOON + 1)
        assert fault_log.clear_about(connection, Process.WORKER, FaultKind.IMAGE_LOST, about="a.png", now_us=NOON + 2)
        assert fault_log.open_faults(connection) == []
        third = fault_log.note(connection, fault, NOON + 3)
        assert third.id != first.id
        assert fault_log.clear(connection, third.id, by="ann", now_us=NOON + 4)
        assert not fault_log.clear(connection, third.id, by="ann", now_us=NOON + 5)
        assert [one.cleared_by for one in fault_log.newest(connection)] == ["ann", "worker"]
    assert kinds(database) == [EventKind.FAULT_RAISED, EventKind.FAULT_CLEARED] * 2


def test_states_change_only_to_other_states(database):
    with database.writing() as connection:
        assert (states.intake(connection), states.line(connection)) == (Intake.OPEN, LineState.DOWN)
        # The drain of a person is noted as theirs, also while the worker ends.
        for by, changes in ((Process.WORKER, True), (Process.WORKER, False), ("ann", True), ("bob", False)):
            assert states.change(connection, Subject.INTAKE, Intake.DRAINING, by=by, now_us=NOON) == changes
        assert the(states.current(connection, Subject.INTAKE)).changed_by == "ann"
        assert not states.change(connection, Subject.INTAKE, Intake.DRAINING, by=Process.WORKER, now_us=NOON)
        with pytest.raises(ConfigError):  # else that person's drain would look like the worker's
            keys.add(connection, Process.WORKER, Role.ENGINEER, keys.generate(), now_us=NOON)
        assert states.intake(connection) is Intake.DRAINING
        for beat_us in (NOON, NOON + 1):
            states.beat(connection, Process.WORKER, pid=7, now_us=beat_us, facts={"board": None})
        assert states.heartbeats(connection)[Process.WORKER].beat_us == NOON + 1
        states.beat(connection, Process.WORKER, pid=7, now_us=NOON + 2)
        assert states.heartbeats(connection)[Process.WORKER].facts == {"board": None}  # what it does not say stays


def test_the_chain_of_the_audit_shows_a_changed_entry(database):
    with database.writing() as connection:
        for number in range(3):
            audit.append(connection, "ann", "drain", "line", now_us=NOON + number, detail={"n": number})
        proof = audit.prove(connection)
        assert (proof.sound, proof.broken_id) == (3, None)
        # Whoever owns the file can remove a trigger.
        for trigger in ("audit_no_update",) if database.is_sqlite else ("audit_append_only ON audit",):
            connection.exec_driver_sql(f"DROP TRIGGER {trigger}")
        connection.execute(update(tables.audit).where(tables.audit.c.id == 2).values(actor="bob"))
        assert audit.prove(connection).broken_id == 2
        # The entry before the newest is the broken one, or lies after it.
        assert audit.prove(connection, newest=proof.sound - 1).broken_id == 2
        assert audit.prove(connection, newest=proof.sound - 2).broken_id is None


def panel(connection, key, serial, units, product="demo"):
    return accepted(connection, key, serial=serial, of=recipe(connection, product), serials=units)


def test_an_escape_of_a_unit_belongs_to_its_panel_and_one_that_is_repeated_counts_once(database):
    window = Window(0, 2 * NOON)
    with database.writing() as connection:
        board = panel(connection, "k1", "P1", {"left": "SN7", "right": "SN8"})
        board_rows.decide(connection, decision(board))
        first = repairs.report_escape(connection, NewEscape("SN7", NOON, "ict", "R1", label="open"))
        assert first.board_id == board.id
        assert repairs.report_escape(connection, NewEscape("SN7", NOON + 5, "ict", "R1", label="open")) == first
        repairs.report_escape(connection, NewEscape("SN7", NOON + 6, "ict", "R1", label="open", found_at="customer"))
        assert hourly.escapes_of(connection, window) == 1
        repairs.report_escape(connection, NewEscape("SN8", NOON + 6, "ict", "R1", label="open"))
        assert hourly.escapes_of(connection, window) == 2
        assert [hourly.escapes_of(connection, replace(window, recipe=name)) for name in ("demo", "other")] == [2, 0]
        assert connection.scalar(select(func.count()).select_from(tables.escape)) == 3
    assert kinds(database).count(EventKind.ESCAPE_REPORTED) == 3


def test_a_first_pass_is_the_first_decision_of_a_product_and_a_serial(database):
    def decide(board):
        assert board_rows.decide(connection, decision(board))
        found = the(row_types.get(connection, Board, board.id))
        return found.pass_number

    with database.writing() as connection:
        first, second, third = (accepted(connection, f"k{number}", serial="SN1") for number in range(3))
        board_rows.abort(connection, first, NOON, reason="taken back")
        assert [decide(third), decide(second)] == [1, 2]
        assert decide(panel(connection, "o1", "SN1", {}, "other")) == 1, "another product has numbers of its own"
        units = enumerate(("SN5", "SN6", "SN5"))
        carrier = [panel(connection, f"c{key}", "CARRIER", {"left": unit}, "panel") for key, unit in units]
        assert [decide(one) for one in carrier] == [1, 1, 2], "the units are what comes back, not their carrier"


def test_a_reader_sees_one_state_of_the_database_whatever_is_written_meanwhile(database):
    with database.reading() as connection:
        assert states.intake(connection) is Intake.OPEN
        database.write(states.change, Subject.INTAKE, Intake.DRAINING, by="ann", now_us=NOON)
        assert states.intake(connection) is Intake.OPEN
    assert database.read(states.intake) is Intake.DRAINING


def test_a_locked_database_says_so_after_its_time(sqlite_database):
    impatient = open_database(sqlite_database.url.render_as_string(), busy_s=0.05)
    with sqlite_database.writing() as connection:
        accepted(connection)
        with impatient.reading() as reader:
            assert reader.scalar(select(func.count()).select_from(tables.board)) == 0
        with pytest.raises(DatabaseError, match="locked") as raised, impatient.writing():
            pass
    assert raised.value.kind == "busy"
    impatient.close()


def test_the_log_of_a_sqlite_database_is_cut(sqlite_database):
    with sqlite_database.writing() as connection:
        for number in range(200):
            accepted(connection, f"k{number}")
    sqlite_database.shorten_log()
    with open(sqlite_database.url.database + "-wal", "rb") as log:
        assert log.read() == b""


def test_what_was_committed_is_on_the_disk(sqlite_database, monkeypatch):
    """Elsewhere tests wait for no disk."""
    monkeypatch.setattr(connecting, "SYNCHRONOUS", "FULL")
    with closing(open_database(f"sqlite:///{sqlite_database.file}")) as opened, opened.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2


@pytest.mark.parametrize(
    ("url", "sentence"),
    [("sqlite://", "in memory"), ("mysql://host/name", "not supported"), ("nonsense", "postgresql")],
)
def test_a_url_that_cannot_be_used_is_refused(url, sentence):
    with pytest.raises(ConfigError, match=sentence):
        open_database(url)


def test_a_network_file_system_is_refused(monkeypatch):
    monkeypatch.setattr(connecting, "file_system_of", lambda path: "nfs4")
    with pytest.raises(ConfigError, match="nfs4"):
        open_database("sqlite:////mnt/share/serve.db")
