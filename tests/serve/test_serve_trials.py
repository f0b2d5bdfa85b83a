"""Trials: stored boards by other rules, from their scores alone or with another look; no verdict changes."""

import asyncio
import errno
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from serve_rows import NOON, the
from serving import Served, locked
from sqlalchemy import Connection, update
from stations import DARK, LIGHT, Shop
from tiny_line import TINY

from coe.board import rules
from coe.board.rules import Rules
from coe.core import Verdict
from coe.serve import trial_process
from coe.serve.clock import now_us
from coe.serve.database import call_rows, recipe_versions, row_types, trial_rows, verifications, views
from coe.serve.database.connecting import Database, DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import NewVerification, StoredTrial
from coe.serve.database.trial_rows import TrialNews
from coe.serve.enums import Outcome, TrialState
from coe.serve.gate import trial_routes
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.serve.trial_counts import TrialCounts, TrialRequest, TriedPart, TriedScores, Truth, compared, tried
from coe.serve.trial_process import Rejudge

BOARD = """
board: b
experts:
  look: {{kind: narrow, labels: [ok, bad], input: 48{look}}}
  find: {{kind: narrow_boxes, labels: [short], input: 64{find}}}
components:
  C:
    inspect: look
    then: {{ok: {{inspect: find, then: {{short: NG, none: OK}}}}, bad: NG}}
"""


def board(look: str = "", find: str = "") -> Rules:
    return rules.of_bytes(Path("b.yaml"), BOARD.format(look=look, find=find).encode())


def row(expert: str, label: str, score: float, *boxes: tuple[str, float], **more: Any) -> dict[str, Any]:
    found = [{"label": name, "score": number, "xyxy": [0, 0, 9, 9]} for name, number in boxes]
    return {"expert": expert, "variant": "fp32", "label": label, "score": score, "boxes": found, **more}


STRICT = ", min_scores: {ok: 0.7}"
OK_HERE = row("look", "ok", 0.8)
NONE = row("find", "none", 0.9)
SHORT = row("find", "short", 0.6, ("short", 0.6))


@pytest.mark.parametrize(
    ("then", "now", "found", "verdict"),
    [
        ({}, {}, [OK_HERE, NONE], Verdict.OK),
        ({}, {"look": STRICT}, [OK_HERE, NONE], Verdict.OK),
        ({}, {"look": STRICT}, [OK_HERE, SHORT], Verdict.NG),
        ({}, {"look": ", min_scores: {ok: 0.9}"}, [OK_HERE, NONE], Verdict.REVIEW),
        ({"look": ", min_scores: {ok: 0.9}"}, {}, [OK_HERE, NONE], Verdict.OK),
        ({"look": ", min_scores: {ok: 0.9}"}, {}, [OK_HERE], None),
        ({}, {"find": ", ignore_under: {short: 0.7}"}, [OK_HERE, SHORT], Verdict.OK),
        ({"find": ", ignore_under: {short: 0.7}"}, {"find": ", ignore_under: {short: 0.5}"}, [OK_HERE, NONE], None),
        ({}, {"look": ", temperature: 2, min_scores: {ok: 0.7}"}, [OK_HERE, NONE], Verdict.REVIEW),
        ({"look": ", temperature: 2"}, {"look": ", min_scores: {ok: 0.9}"}, [OK_HERE, NONE], Verdict.OK),
        ({}, {"look": ", weights: other"}, [OK_HERE, NONE], None),
        ({}, {"look": STRICT}, [row("look", "ok", 0.8, doubt="blurred"), NONE], Verdict.REVIEW),
        ({}, {"look": STRICT}, [row("look", "ok", 0.8), row("look@fp32", "bad", 0.9)], Verdict.NG),
        ({}, {"look": STRICT}, [row("look", "odd", 0.8)], Verdict.REVIEW),
    ],
)
def test_findings_give_the_verdict_of_other_rules_or_none(
    then: Mapping[str, str], now: Mapping[str, str], found: Sequence[dict[str, Any]], verdict: Verdict | None
) -> None:
    rejudge = Rejudge(board(**then), board(**now))
    # Where no rule changed, the verdict of today stands.
    assert rejudge.verdict("C", found, Verdict.OK) is (Verdict.OK if then == now else verdict)
    assert rejudge.verdict("D", found, Verdict.OK) is None


def test_what_a_board_accepts_or_says_of_polarity_is_not_told_by_findings_of_before() -> None:
    for key in ("accepts: [turned]", "polarity: yes"):
        text = BOARD.format(look="", find="").replace("inspect: look", f"{key}\n    inspect: look", 1)
        now = rules.of_bytes(Path("b.yaml"), text.encode())
        assert Rejudge(board(), now).verdict("C", [OK_HERE, NONE], Verdict.OK) is None


def test_findings_of_an_expert_that_was_trained_again_tell_nothing_unless_another_decides() -> None:
    anew = Rejudge(board(), board(), ["find"])
    assert anew.verdict("C", [OK_HERE, NONE], Verdict.OK) is None
    assert anew.verdict("C", [row("look", "bad", 0.9)], Verdict.OK) is Verdict.NG


def test_what_nobody_has_said_lies_between_the_bounds() -> None:
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


def test_scores_are_tried_as_a_calibration_that_can_be_adopted() -> None:
    content = RecipeContent(rules=BOARD.format(look=", min_scores: {ok: 0.6}", find=""))
    found = tried("b", content, {"look": TriedScores(min_scores={"ok": 0.9})})
    assert found.board("b").components["C"].root.least("ok") == 0.9
    again = tried("b", found, {"find": TriedScores(ignore_under={"short": 0.5})})
    assert again.board("b").experts["find"].ignore_under == {"short": 0.5}
    assert again.board("b").components["C"].root.least("ok") == 0.9
    for scores, name in (({"lok": TriedScores()}, "look"), ({"look": TriedScores(min_scores={"oky": 1})}, "ok")):
        with pytest.raises(rules.RulesError, match=f"did you mean '{name}'"):
            tried("b", content, scores)


def config_of(shop: Shop) -> ServeConfig:
    url = shop.database.url.render_as_string(hide_password=False)
    return shop.config.model_copy(update={"database": url})


def carry_out(shop: Shop, id: int) -> None:
    """Carry out a trial, and write its news, as the gate does."""
    tell = lambda news: shop.database.write(trial_rows.write, id, news, NOON)  # noqa: E731
    trial_process.run(config_of(shop), id, tell)


def trial(shop: Shop, content: RecipeContent, **asked: Any) -> StoredTrial:
    """Carry out a trial, and return its end."""
    request = TrialRequest(recipe="tiny", **asked).model_dump(mode="json")
    data = content.model_dump(mode="json")
    added = shop.database.write(trial_rows.add, "tiny", data, request, by="ann", now_us=NOON)
    carry_out(shop, added.id)
    ended = shop.database.read(row_types.get, StoredTrial, added.id)
    assert ended is not None
    return ended


def test_stored_boards_are_tried_from_their_scores_and_with_another_look(shop: Shop) -> None:
    boards = [shop.accept({"R1": DARK, "R2": LIGHT}, key=f"k{number}") for number in range(3)]
    shop.decide(*boards)
    with shop.database.writing() as connection:
        for one, outcome in zip(boards, (Outcome.CONFIRMED, Outcome.FALSE_CALL), strict=False):
            [call] = call_rows.of_board(connection, one.id)
            verifications.record_verification(connection, call, NewVerification(outcome, now_us(), "op"))
    before = [shop.state(one) for one in boards]
    content = RecipeContent(rules=TINY)
    same = TrialCounts.of_json(trial(shop, content).counts)
    assert (same.boards, same.left_out, same.changes) == (3, 0, {})
    assert same.number([Truth.DEFECT, Truth.GOOD, Truth.OPEN], today=True, then=[True]) == 3
    assert same.number([Truth.UNASKED], today=False, then=[False]) == 3
    lenient = RecipeContent(rules=TINY.replace("bad: NG", "bad: OK"))
    escaped = TrialCounts.of_json(trial(shop, lenient, boards=3).counts)
    assert escaped.changes == {"new escapes": 1, "false calls gone": 1, "calls gone, truth not known": 1}
    [row] = escaped.changed["new escapes"]
    assert (row["board"], row["refdes"], row["then"]) == (boards[0].id, "R1", "OK")
    anew = trial(shop, content, anew=["body-c"], boards=2)
    assert TrialCounts.of_json(anew.counts).number(Truth, then=[None]) == 4
    line = shop.config.line.model_copy(update={"store": shop.tiny[1]})
    shop.config = shop.config.model_copy(update={"line": line})
    looked = trial(shop, content, anew=["body-c"], boards=2, inspect=True)
    assert looked.reason == ""
    assert looked.state is TrialState.DONE
    counts = TrialCounts.of_json(looked.counts)
    assert (counts.inspected, counts.number(Truth, then=[None])) == (4, 0)
    assert not list((shop.config.data / "recipes").glob("trial-*"))
    assert [shop.state(one) for one in boards] == before


def test_parts_whose_pictures_are_gone_or_not_as_they_came_have_no_verdict(shop: Shop) -> None:
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
    line = shop.config.line.model_copy(update={"store": shop.tiny[1]})
    shop.config = shop.config.model_copy(update={"line": line})
    tried_again = trial(shop, RecipeContent(rules=TINY), anew=["body-c"], inspect=True)
    counts = TrialCounts.of_json(tried_again.counts)
    assert (tried_again.state, counts.inspected, counts.number(Truth, then=[None])) == (TrialState.DONE, 0, 3)


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="this system has no classes of processes")
def test_a_trial_has_the_least_priority_that_gets_some_time_beside_a_line_that_never_rests(served: Served) -> None:
    """Without any it could not give back the lock of the database."""
    asked = {"recipe": "tiny", "inspect": True}
    assert served.engineer.post("/api/v1/trials", json=asked).is_success
    before = {child.pid for child in psutil.Process().children()}

    async def until_it_gives_way() -> None:
        carrying = asyncio.create_task(trial_routes.carry_out(served.gate))
        begun: list[psutil.Process] = []
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


def test_a_trial_never_waits_for_the_lock_of_the_database_nor_holds_it(
    config: ServeConfig, sqlite_database: Database, tiny: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the least priority it would hold it for long, and the line would wait."""
    monkeypatch.setattr(trial_process, "NOTE_S", 0.0)
    shop = Shop(config, sqlite_database, tiny)
    shop.decide(shop.accept({"R1": LIGHT}))
    added = shop.database.write(trial_rows.add, "tiny", {"rules": TINY}, {"recipe": "tiny"}, by="ann", now_us=NOON)
    news: list[TrialNews] = []
    with locked(shop.database):
        trial_process.run(config_of(shop), added.id, news.append)
    assert {one.state for one in news[:-1]} == {TrialState.RUNNING}
    assert (news[-1].state, news[-1].counts["boards"]) == (TrialState.DONE, 1)


def test_the_gate_writes_what_the_process_of_a_trial_tells(served: Served) -> None:
    path = f"/api/v1/trials/{served.engineer.post('/api/v1/trials', json={'recipe': 'tiny'}).json()['trial']}"

    async def until_it_ends() -> str:
        carrying = asyncio.create_task(trial_routes.carry_out(served.gate))
        while (state := (await asyncio.to_thread(served.engineer.get, path)).json()["state"]) in ("asked", "running"):
            assert not carrying.done()
            await asyncio.sleep(0.05)
        carrying.cancel()
        return str(state)

    assert asyncio.run(asyncio.wait_for(until_it_ends(), 120)) == "done"


def test_a_trial_that_fails_says_why_and_one_that_was_dropped_ends(shop: Shop) -> None:
    shop.decide(shop.accept({"R1": LIGHT}))
    broken = RecipeContent(rules=TINY.replace("narrow", "no_such_kind"))
    failed = trial(shop, broken, anew=["body-c"], inspect=True)
    assert failed.state is TrialState.FAILED
    assert "no_such_kind" in failed.reason
    added = shop.database.write(trial_rows.add, "tiny", {"rules": TINY}, {"recipe": "tiny"}, by="ann", now_us=NOON)
    assert shop.database.write(trial_rows.end, added.id, TrialState.DROPPED, now_us=NOON)
    carry_out(shop, added.id)
    assert (dropped := shop.database.read(row_types.get, StoredTrial, added.id)) is not None
    assert (dropped.state, dropped.counts) == (TrialState.DROPPED, {})
    assert shop.database.read(trial_rows.next_unfinished) is None


def test_a_trial_begins_anew_when_its_database_was_away(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.decide(shop.accept({"R1": LIGHT}), shop.accept({"R1": LIGHT}, key="k2"))
    look, away = trial_rows.boards_before, [False, True]

    def read_boards(connection: Connection, recipe: str, before_id: int, *, limit: int) -> list[int]:
        if before_id == 2 and away.pop():
            raise DatabaseError(DatabaseErrorKind.LOST, "the server is started again")
        return look(connection, recipe, before_id, limit=1)

    monkeypatch.setattr(trial_rows, "boards_before", read_boards)
    monkeypatch.setattr(trial_process, "AGAIN_S", 0.0)
    done = trial(shop, RecipeContent(rules=TINY))
    assert (done.state, done.counts["boards"]) == (TrialState.DONE, 2)


def test_a_trial_whose_database_fails_each_time_says_so(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.decide(shop.accept({"R1": LIGHT}))

    def read_boards(*_: object, **__: object) -> list[int]:
        raise DatabaseError(DatabaseErrorKind.LOST, "the file is damaged")

    monkeypatch.setattr(trial_rows, "boards_before", read_boards)
    monkeypatch.setattr(trial_process, "AGAIN_S", 0.0)
    ended = trial(shop, RecipeContent(rules=TINY))
    assert ended.state is TrialState.FAILED
    assert "damaged" in ended.reason


def test_a_trial_that_takes_too_much_is_ended(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_routes, "LOOK_S", 0.01)
    served.limit(child_memory=1)
    asked = served.engineer.post("/api/v1/trials", json={"recipe": "tiny"}).json()["trial"]
    carried_out(served)
    ended = the(served.database.read(row_types.get, StoredTrial, asked))
    assert ended.state is TrialState.FAILED
    assert "child_memory" in ended.reason


def carried_out(served: Served) -> None:
    """Carry out trials until all have ended."""

    async def until_all_have_ended() -> None:
        carrying = asyncio.create_task(trial_routes.carry_out(served.gate))
        while served.database.read(trial_rows.next_unfinished) is not None:
            assert not carrying.done()
            await asyncio.sleep(0.01)
        carrying.cancel()

    asyncio.run(asyncio.wait_for(until_all_have_ended(), 60))


def test_trials_whose_processes_cannot_be_started_fail_one_after_the_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(process: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(multiprocessing.get_context("spawn").Process, "start", no_memory)
    monkeypatch.setattr(trial_routes, "LOOK_S", 0.0)
    asked = [served.engineer.post("/api/v1/trials", json={"recipe": "tiny"}).json()["trial"] for _ in range(2)]

    carried_out(served)
    ended = [the(served.database.read(row_types.get, StoredTrial, id)) for id in asked]
    assert [one.state for one in ended] == [TrialState.FAILED] * 2


def test_engineers_ask_for_trials_and_adopt_what_was_tried(served: Served) -> None:
    asked = {"recipe": "tiny", "scores": {"body-c": {"min_scores": {"ok": 0.99}}}, "boards": 10}
    assert served.operator.post("/api/v1/trials", json=asked).status_code == 403
    answer = served.engineer.post("/api/v1/trials", json=asked)
    assert (answer.status_code, answer.json()["state"]) == (201, "asked")
    path = f"/api/v1/trials/{answer.json()['trial']}"
    assert [pair["today"]["missing"] for pair in served.engineer.get(path).json()["figures"]] == [
        "no known defects",
        "no parts",
    ]
    for wrong in ({"recipe": "tny"}, {"recipe": "tiny", "version": 9}):
        assert served.engineer.post("/api/v1/trials", json=wrong).status_code == 400
    scores = {"scores": {"body-x": {}}}
    assert served.engineer.post("/api/v1/trials", json={"recipe": "tiny", **scores}).status_code == 422
    scores = {"scores": {"body-c": {"min_scores": {"okay": 0.9}}}}
    answer = served.engineer.post("/api/v1/trials", json={**asked, **scores})
    assert (answer.status_code, ".yaml" in answer.json()["detail"]) == (422, False)  # it stands in no file
    assert served.engineer.get("/trials").status_code == 200
    assert served.engineer.get(path.removeprefix("/api/v1")).status_code == 200
    assert served.operator.get("/trials").status_code == 403
    assert served.engineer.post(f"{path}/drop").status_code == 204
    assert served.engineer.post(f"{path}/drop").status_code == 409
    with served.database.reading() as connection:
        content = trial_rows.newest(connection)[0].content
        assert len(recipe_versions.versions(connection, "tiny")) == 1
    assert RecipeContent.model_validate(content).board("tiny").components["C"].root.least("ok") == 0.99
