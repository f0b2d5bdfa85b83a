"""Before a recipe counts: stored boards are inspected again with it, and a person confirms its placements."""

import asyncio
import errno
import hashlib
import multiprocessing
import os
from contextlib import closing, suppress

import numpy as np
import psutil
import pytest
from quick_line import COSTS, QuickDevice
from serve_rows import NOON, the
from serving import activated, locked, put, signed_in
from sqlalchemy import update
from stations import DARK, LIGHT, Shop, accept_request
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, layout_of, picture_of, png, whole_of

from coe.core import Verdict
from coe.errors import ConfigError
from coe.inspector import line as line_module
from coe.serve import trials
from coe.serve.clock import now_us
from coe.serve.database import audit, call_rows, recipe_versions, row_types, trial_rows, verifications, views
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import Activation, NewVerification, StoredTrial
from coe.serve.enums import ActivationState, CallReason, Outcome, Role, TrialState, Truth
from coe.serve.gate import trial_routes
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.trials import TrialCounts, TrialRequest, TriedPart, compared
from coe.testing import Experiment


def test_what_nobody_has_said_lies_between_the_bounds():
    counts = TrialCounts()
    parts = [
        *([(Truth.DEFECT, Verdict.NG, Verdict.NG)] * 8),
        *([(Truth.DEFECT, Verdict.NG, Verdict.OK)] * 2),
        *([(Truth.GOOD, Verdict.NG, Verdict.OK)] * 30),
        *([(Truth.GOOD, Verdict.NG, Verdict.NG)] * 10),
        *([(Truth.UNASKED, Verdict.OK, Verdict.OK)] * 947),
        *([(Truth.UNASKED, Verdict.OK, Verdict.REVIEW)] * 3),
    ]
    for number, (truth, today, then) in enumerate(parts):
        counts.add(TriedPart(number, "R1", "C", truth, today, then))
    again = TrialCounts.of_json(counts.json)
    escapes, false = compared(again)
    assert (escapes.today.events, escapes.then.events, escapes.then.trials) == (0, 2, 10)
    assert (escapes.then.value, escapes.today.value) == (20, 0)
    assert (false.today.value, false.then.events, false.then.open) == (pytest.approx(1e6 * 40 / 990), 10, 3)
    assert false.then.value is None, "3 of 13 calls would be of parts that nobody was asked about"
    assert false.then.lower is not None
    assert again.changes == {"new escapes": 2, "false calls gone": 30, "new calls, truth not known": 3}
    assert [len(rows) for rows in again.changed.values()] == [2, 30, 3]


def config_of(shop):
    url = shop.database.url.render_as_string(hide_password=False)
    return shop.config.model_copy(update={"database": url})


def carry_out(shop, id):
    tell = lambda news: shop.database.write(trial_rows.write, id, news, NOON)  # noqa: E731
    trials.run(config_of(shop), id, tell)


def trial(shop, content, **asked):
    request = TrialRequest(recipe="tiny", **asked).model_dump(mode="json")
    data = content.model_dump(mode="json")
    added = shop.database.write(trial_rows.add, "tiny", data, request, by="ann", now_us=NOON)
    carry_out(shop, added.id)
    return shop.database.read(row_types.get, StoredTrial, added.id)


@pytest.fixture
def tried(shop, monkeypatch):
    """A shop whose trials have the experts and the device of its line."""
    line = shop.config.line.model_copy(update={"store": shop.tiny[1]})
    shop.config = shop.config.model_copy(update={"line": line})
    devices = {"cpu": QuickDevice()}
    experiment = Experiment(costs=COSTS, make_devices=lambda *a, **k: devices)
    opened = line_module.Line
    monkeypatch.setattr(line_module, "Line", lambda options: opened(options.but(experiment=experiment)))
    return shop


def test_stored_boards_are_inspected_again(tried):
    shop = tried
    boards = [shop.accept({"R1": DARK, "R2": LIGHT}, key=f"k{number}") for number in range(3)]
    shop.decide(*boards)
    with shop.database.writing() as connection:
        for one, outcome in zip(boards, (Outcome.CONFIRMED, Outcome.FALSE_CALL), strict=False):
            [call] = call_rows.of_board(connection, one.id)
            verifications.record_verification(connection, call, NewVerification(outcome, now_us(), "op"))
    before = [shop.state(one) for one in boards]
    ended = trial(shop, RecipeContent(rules=TINY))
    assert (ended.reason, ended.state) == ("", TrialState.DONE)
    same = TrialCounts.of_json(ended.counts)
    assert (same.boards, same.left_out, same.changes) == (3, 0, {})
    assert same.number([Truth.DEFECT, Truth.GOOD, Truth.OPEN], today=True, then=[True]) == 3
    assert same.number([Truth.UNASKED], today=False, then=[False]) == 3
    lenient = RecipeContent(rules=TINY.replace("bad: NG", "bad: OK"))
    escaped = TrialCounts.of_json(trial(shop, lenient, boards=3).counts)
    assert escaped.changes == {"new escapes": 1, "false calls gone": 1, "calls gone, truth not known": 1}
    [row] = escaped.changed["new escapes"]
    assert (row["board"], row["refdes"], row["then"]) == (boards[0].id, "R1", "OK")
    assert TrialCounts.of_json(trial(shop, lenient, boards=2).counts).boards == 2
    assert not list((shop.config.data / "recipes").glob("trial-*"))
    assert [shop.state(one) for one in boards] == before


def test_parts_whose_pictures_are_gone_or_not_as_they_came_have_no_verdict(tried):
    shop = tried
    boards = [shop.accept({"R1": DARK}, key=f"k{number}") for number in range(3)]
    shop.decide(*boards)
    gone, alone, whole = (the(call.view_id) for one in boards for call in shop.calls(one))
    files = shop.database.read(views.of_ids, [gone, alone, whole])
    paths = [shop.config.pictures / files[id].file for id in (gone, alone, whole)]
    paths[0].unlink()
    for path in paths[1:]:
        path.write_bytes(LIGHT)
    place = {"polygon": [[0, 0], [40, 0], [40, 40], [0, 40]], "size": [40, 40]}
    with shop.database.writing() as connection:
        connection.execute(update(call_rows.call).where(call_rows.call.c.view_id == whole).values(place=place))
    ended = trial(shop, RecipeContent(rules=TINY))
    assert (ended.state, TrialCounts.of_json(ended.counts).number(Truth, then=[None])) == (TrialState.DONE, 3)


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="this system has no classes of processes")
def test_a_trial_has_the_least_priority_that_gets_some_time_beside_a_line_that_never_rests(served):
    """Without any it could not give back the lock of the database."""
    assert served.engineer.post("/api/v1/trials", json={"recipe": "tiny"}).is_success
    before = {child.pid for child in psutil.Process().children()}

    async def until_it_gives_way():
        carrying = asyncio.create_task(trial_routes.carry_out(served.gate))
        begun = []
        while not begun:
            assert not carrying.done()
            await asyncio.sleep(0.01)
            new = [child for child in psutil.Process().children() if child.pid not in before]
            begun = [one for one in new if (one.nice(), os.sched_getscheduler(one.pid)) == (19, os.SCHED_OTHER)]
        carrying.cancel()
        with suppress(asyncio.CancelledError):
            await carrying
        psutil.wait_procs(begun, 30)

    asyncio.run(asyncio.wait_for(until_it_gives_way(), 60))


def test_a_trial_never_waits_for_the_lock_of_the_database_nor_holds_it(config, sqlite_database, tiny, monkeypatch):
    """With the least priority it would hold it for long, and the line would wait."""
    monkeypatch.setattr(trials, "NOTE_S", 0.0)
    config = config.model_copy(update={"line": config.line.model_copy(update={"store": tiny[1]})})
    shop = Shop(config, sqlite_database, tiny)
    shop.decide(shop.accept({"R1": LIGHT}))
    added = shop.database.write(trial_rows.add, "tiny", {"rules": TINY}, {"recipe": "tiny"}, by="ann", now_us=NOON)
    news = []
    with locked(shop.database):
        trials.run(config_of(shop), added.id, news.append)
    assert {one.state for one in news[:-1]} == {TrialState.RUNNING}
    assert (news[-1].state, news[-1].counts["boards"]) == (TrialState.DONE, 1)


def test_a_trial_that_fails_says_why_and_one_that_was_dropped_ends(shop):
    shop.decide(shop.accept({"R1": LIGHT}))
    broken = RecipeContent(rules=TINY.replace("narrow", "no_such_kind"))
    failed = trial(shop, broken)
    assert failed.state is TrialState.FAILED
    assert "no_such_kind" in failed.reason
    added = shop.database.write(trial_rows.add, "tiny", {"rules": TINY}, {"recipe": "tiny"}, by="ann", now_us=NOON)
    assert shop.database.write(trial_rows.end, added.id, TrialState.DROPPED, now_us=NOON)
    carry_out(shop, added.id)
    dropped = the(shop.database.read(row_types.get, StoredTrial, added.id))
    assert (dropped.state, dropped.counts) == (TrialState.DROPPED, {})
    assert shop.database.read(trial_rows.next_unfinished) is None


@pytest.mark.parametrize("failures", [1, 99])
def test_a_trial_begins_anew_when_its_database_was_away_and_says_if_it_stays_away(tried, monkeypatch, failures):
    shop = tried
    shop.decide(shop.accept({"R1": LIGHT}), shop.accept({"R1": LIGHT}, key="k2"))
    look, left = trial_rows.boards_before, [None] * failures

    def read_boards(connection, recipe, before_id, *, limit):
        if before_id == 2 and left:
            left.pop()
            raise DatabaseError(DatabaseErrorKind.LOST, "the server is started again")
        return look(connection, recipe, before_id, limit=1)

    monkeypatch.setattr(trial_rows, "boards_before", read_boards)
    monkeypatch.setattr(trials, "AGAIN_S", 0.0)
    ended = trial(shop, RecipeContent(rules=TINY))
    if failures == 1:
        assert (ended.state, ended.counts["boards"]) == (TrialState.DONE, 2)
    else:
        assert (ended.state, "started again" in ended.reason) == (TrialState.FAILED, True)


def carried_out(served, number=1):
    """Ask for trials; return them once the gate has carried them out."""
    asked = [served.engineer.post("/api/v1/trials", json={"recipe": "tiny"}).json()["trial"] for _ in range(number)]

    async def until_all_have_ended():
        carrying = asyncio.create_task(trial_routes.carry_out(served.gate))
        while served.database.read(trial_rows.next_unfinished) is not None:
            assert not carrying.done()
            await asyncio.sleep(0.01)
        carrying.cancel()

    asyncio.run(asyncio.wait_for(until_all_have_ended(), 60))
    return [served.engineer.get(f"/api/v1/trials/{id}").json() for id in asked]


def test_the_gate_writes_what_the_process_of_a_trial_tells_and_ends_one_that_takes_too_much(served, monkeypatch):
    assert [one["state"] for one in carried_out(served)] == ["done"]
    monkeypatch.setattr(trial_routes, "LOOK_S", 0.01)
    served.limit(child_memory=1)
    (ended,) = carried_out(served)
    assert (ended["state"], "child_memory" in ended["reason"]) == ("failed", True)


def test_trials_whose_processes_cannot_be_started_fail_one_after_the_other(served, monkeypatch):
    def no_memory(process):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", no_memory)
    monkeypatch.setattr(trial_routes, "LOOK_S", 0.0)
    assert [one["state"] for one in carried_out(served, 2)] == ["failed"] * 2


def test_engineers_ask_for_trials_of_versions(served):
    asked = {"recipe": "tiny", "boards": 10}
    assert served.operator.post("/api/v1/trials", json=asked).status_code == 403
    answer = served.engineer.post("/api/v1/trials", json=asked)
    assert (answer.status_code, answer.json()["state"]) == (201, "asked")
    assert answer.json()["request"] == {**asked, "version": 1}
    path = f"/api/v1/trials/{answer.json()['trial']}"
    missing = [pair["today"]["missing"] for pair in served.engineer.get(path).json()["figures"]]
    assert missing == ["no known defects", "no parts"]
    for wrong in ({"recipe": "tny"}, {"recipe": "tiny", "version": 9}):
        assert served.engineer.post("/api/v1/trials", json=wrong).status_code == 400
    assert served.engineer.get("/trials").status_code == 200
    assert served.engineer.get(path.removeprefix("/api/v1")).status_code == 200
    assert served.operator.get("/trials").status_code == 403
    assert served.engineer.post(f"{path}/drop").status_code == 204
    assert served.engineer.post(f"{path}/drop").status_code == 409


CONTENT = {"rules": TINY, "whole": WHOLE, "within_s": None, "terminations": {}, "parts": {}}
PATH = "/api/v1/recipes/new/1"


def staged(served, **changes):
    return served.database.write(recipe_versions.add, "new", {**CONTENT, **changes}, by="ann", now_us=now_us()).version


def refuse(whole):
    raise ConfigError("line 3 is torn")


def overlay(client, path=PATH, pixels=BOARD):
    return client.post(f"{path}/overlay", content=png(pixels), params={"side": 300})


def proof_of(answer):
    return {"picture": answer.headers["x-picture-sha256"], "proof": answer.headers["x-overlay-proof"]}


def test_without_a_word_on_its_placements_a_version_is_not_activated(served):
    staged(served)
    refused = served.engineer.post(f"{PATH}/activate")
    told = "nobody has confirmed the placements of version 1 of recipe 'new'"
    assert (refused.status_code, refused.json()["detail"]) == (409, told)
    assert "/recipes/new/1" in refused.json()["way_out"]
    drawn = overlay(served.engineer)
    assert drawn.headers["x-picture-sha256"] == hashlib.sha256(png(BOARD)).hexdigest()
    assert served.engineer.post(f"{PATH}/activate").status_code == 409, "to draw is not to confirm"
    said = served.engineer.post(f"{PATH}/confirmation", json=proof_of(drawn))
    assert (said.status_code, said.json()["by"]) == (201, "engineer")
    again = served.engineer.post(f"{PATH}/confirmation", json=proof_of(drawn))
    assert again.json() == said.json(), "the first word stays"
    assert served.engineer.post(f"{PATH}/activate").status_code == 202
    entry = next(one for one in served.database.read(audit.newest) if one.action == "confirm")
    picture = {"picture": drawn.headers["x-picture-sha256"]}
    assert (entry.actor, entry.about, entry.detail) == ("engineer", "recipe new 1", picture)


def test_a_word_holds_for_versions_with_the_same_placements_alone(served):
    staged(served)
    assert served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer))).status_code == 201
    retrained = staged(served, terminations={"A": 2})
    moved = staged(served, whole={**WHOLE, "parts": WHOLE["parts"].replace("5", "6")})
    answers = [served.engineer.post(f"/api/v1/recipes/new/{number}/activate") for number in (retrained, moved)]
    assert [answer.status_code for answer in answers] == [202, 409]


def test_placements_that_another_version_of_the_service_reads_elsewhere_are_confirmed_anew(served, monkeypatch):
    activated(served.database, TINY, name="new", whole=WHOLE)
    assert served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer))).status_code == 201
    put(served.feeder, "b1", "top", png(BOARD))
    with monkeypatch.context() as other, closing(signed_in(served, Role.ENGINEER)) as person:
        other.setattr(WholeBoard, "reading", "f" * 64)
        for path in (f"{PATH}/activate", "/api/v1/boards/b1"):
            refused = served.engineer.post(path, json={"recipe": "new", "whole": "top"} if "boards" in path else None)
            assert (refused.status_code, "another version" in refused.text) == (409, True), path
        assert "another version" in person.get("/recipes/new/1").text
        seen = proof_of(overlay(served.engineer))
        assert served.engineer.post(f"{PATH}/confirmation", json=seen).status_code == 201
        assert served.engineer.post(f"{PATH}/activate").status_code == 202
    assert served.engineer.post(f"{PATH}/activate").status_code == 202
    with monkeypatch.context() as other:
        for name in ("reading", "layout"):
            other.setattr(WholeBoard, name, property(refuse))
        refused = served.engineer.post("/api/v1/boards/b1", json={"recipe": "new", "whole": "top"})
        assert (refused.status_code, refused.json()["detail"]) == (422, "line 3 is torn"), "the reason itself is told"
    bottom = {**WHOLE, "parts": WHOLE["parts"].replace("5,", "5.0,")}
    assert WholeBoard.model_validate(bottom).reading == WholeBoard.model_validate(WHOLE).reading


def test_only_an_overlay_that_was_drawn_for_this_version_can_be_confirmed(served):
    staged(served)
    staged(served, terminations={"A": 2})
    seen = proof_of(overlay(served.engineer, "/api/v1/recipes/new/2"))
    for wrong in (seen, {**seen, "picture": "0" * 64}, {**seen, "proof": "0" * 64}):
        assert served.engineer.post(f"{PATH}/confirmation", json=wrong).status_code == 409
    for form in ({}, {**seen, "proof": "x"}, {**seen, "by": "bob"}):
        assert served.engineer.post(f"{PATH}/confirmation", json=form).status_code == 422
    own = proof_of(overlay(served.engineer))
    assert served.operator.post(f"{PATH}/confirmation", json=own).status_code == 403
    assert served.engineer.post("/api/v1/recipes/tiny/1/confirmation", json=own).status_code == 409
    assert served.engineer.post("/api/v1/recipes/new/9/confirmation", json=own).status_code == 404
    of_nothing = overlay(served.engineer, pixels=np.full((400, 480, 3), 200, np.uint8))
    assert (of_nothing.status_code, "x-overlay-proof" in of_nothing.headers) == (200, False)


def test_the_page_of_a_version_says_who_confirmed_it(served):
    staged(served)
    with closing(signed_in(served, Role.ENGINEER)) as person:
        before, listed = person.get("/recipes/new/1").text, person.get("/recipes").text
        served.engineer.post(f"{PATH}/confirmation", json=proof_of(overlay(served.engineer)))
        after = person.get("/recipes/new/1").text
        assert "First confirm the placements" in before
        assert "data-post" not in before
        assert "not confirmed" in listed
        assert "by engineer" in after
        assert f'data-post="{PATH}/activate"' in after
        assert person.get("/recipes/new/7").status_code == 404
    with closing(signed_in(served, Role.OPERATOR)) as person:
        assert "board-picture" not in person.get("/recipes/new/1").text


def moved_by(served, name="new"):
    """Stage a version that cuts boards in another way than the active one; return its number."""
    activated(served.database, TINY, name=name, whole=WHOLE)
    return staged(served, whole={**WHOLE, "parts": WHOLE["parts"].replace("5", "6")})


def test_no_feeder_names_a_version_that_cannot_be_activated(served):
    version = moved_by(served)
    put(served.feeder, "b1", "top", png(BOARD))
    body = {"recipe": "new", "version": version}
    for said in ({"whole": "top"}, {"views": {"top": {"refdes": "P1", "component": "C"}}}):
        assert served.feeder.post("/api/v1/boards/b1", json={**body, **said}).status_code == 409
    assert served.engineer.post(f"/api/v1/recipes/new/{version}/activate").status_code == 409
    assert served.feeder.post("/api/v1/boards/b1", json={"recipe": "new", "whole": "top"}).status_code == 202


def test_a_line_opens_no_version_that_cannot_be_activated(served, tiny):
    """A board and an activation that got into the database in another way."""
    version, config, database = moved_by(served), served.gate.config, served.database
    with database.writing() as connection:
        refused = the(recipe_versions.version(connection, "new", version))
        asked = recipe_versions.ask_activation(connection, refused.id, by="ann", now_us=now_us())
    board = accept_request(config, database, refused.id, {"top": png(BOARD)}, {"whole": "top"})
    shop = Shop(config, database, tiny)
    with shop.deciding():
        eventually(lambda: shop.is_decided(board) and database.read(recipe_versions.asked) == [])
    assert shop.verdict(board) is Verdict.REVIEW
    assert {call.reason for call in shop.calls(board)} == {CallReason.FAILED}
    assert database.read(row_types.get, Activation, asked.id).state is ActivationState.FAILED


def test_placements_on_which_a_board_may_lie_wrong_are_not_confirmed_in_silence(served):
    two = {"diameter": 1, "search": 2.5, "at": {"F1": [1.5, 1.5], "F2": [18.5, 14.5]}}
    whole, way = whole_of(fiducials=two), "turned by 180 degrees"
    staged(served, whole=whole)
    (warning,) = served.engineer.get(PATH).json()["warnings"]
    assert way in warning
    with closing(signed_in(served, Role.ENGINEER)) as person:
        page = person.get("/recipes/new/1").text
    assert f'data-blind-to="{way}"' in page
    seen = proof_of(overlay(served.engineer, pixels=picture_of(layout_of(whole), [])))
    for read in ([], ["mirrored"], [way, "mirrored"]):
        refused = served.engineer.post(f"{PATH}/confirmation", json={**seen, "blind_to": read})
        assert refused.status_code == 409
        assert way in refused.json()["detail"]
    assert served.engineer.post(f"{PATH}/activate").status_code == 409
    assert served.engineer.post(f"{PATH}/confirmation", json={**seen, "blind_to": [way]}).status_code == 201
    entry = next(one for one in served.database.read(audit.newest) if one.action == "confirm")
    assert entry.detail["blind_to"] == [way]
