"""Trials: a version of a recipe on stored boards, before it counts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection as PipeConnection
from typing import Any

from sqlalchemy import Connection

from coe.serve import trials
from coe.serve.database import audit, recipe_versions, row_types, trial_rows
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.tables import StoredTrial
from coe.serve.database.trial_rows import TrialNews
from coe.serve.enums import TrialState
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ENGINEER, JsonForm, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.gate.recipe_routes import expect_recipe
from coe.serve.trials import Compared, TrialCounts, TrialRequest, TriedPart, compared

router = OperationRouter()
_CHANGED = JsonForm("ChangedPart", TriedPart, "board refdes component truth today then call")
_TRIAL = JsonForm(
    "StoredTrial",
    StoredTrial,
    "recipe state asked_us asked_by ended_us reason trial=id",
    {"boards": int, "left_out": int, "figures": list[Compared], "changes": dict[str, int], "request": TrialRequest},
    {"changed": dict[str, _CHANGED.many]},  # type: ignore[name-defined]
)
_TRIALS = JsonForm("Trials", more={"trials": _TRIAL.many})
LOOK_S = 1.0


@router.write("POST", "/api/v1/trials", ENGINEER, body=TrialRequest, sends=_TRIAL, status=201)
def post_trial(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Start a trial of a recipe version on stored boards. No verdict changes; the line goes on."""
    asked, now_us = visit.body.form, visit.gate.now_us()
    expect_recipe(connection, asked.recipe)
    if asked.version is None:
        version = recipe_versions.active(connection, asked.recipe)
    else:
        version = recipe_versions.version(connection, asked.recipe, asked.version)
    if version is None:
        detail = f"recipe '{asked.recipe}' has no version {asked.version or 'that is active'}"
        raise Problem(ProblemKind.BAD_REQUEST, detail, "see GET /api/v1/recipes")
    said = {"recipe": asked.recipe, "version": version.version, "boards": asked.boards}
    audit.append(connection, visit.caller, "try", f"recipe {asked.recipe}", now_us=now_us, detail=said)
    return facts(trial_rows.add(connection, asked.recipe, version.content, said, by=visit.caller, now_us=now_us))


@router.read("/api/v1/trials", ENGINEER, sends=_TRIALS)
def get_trials(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List trials, newest first."""
    return _TRIALS(trials=[facts(trial) for trial in trial_rows.newest(connection)])


@router.read("/api/v1/trials/{id:int}", ENGINEER, sends=_TRIAL)
def get_trial(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get a trial with its figures and the parts that change."""
    trial = trial_of(visit, connection)
    return {**facts(trial), "changed": trial.counts.get("changed", {})}


@router.write("POST", "/api/v1/trials/{id:int}/drop", ENGINEER, status=204)
def drop(visit: Visit, connection: Connection) -> None:
    """End a trial; its figures stay."""
    trial, now_us = trial_of(visit, connection), visit.gate.now_us()
    if not trial_rows.end(connection, trial.id, TrialState.DROPPED, now_us=now_us):
        raise Problem(ProblemKind.CONFLICT, f"trial {trial.id} is {trial.state}", "ask for another trial")


def trial_of(visit: Visit, connection: Connection) -> StoredTrial:
    """Return the trial that the path names; raises Problem."""
    return existing(row_types.get(connection, StoredTrial, visit.id), f"trial {visit.id}", "see GET /api/v1/trials")


def facts(trial: StoredTrial) -> dict[str, Any]:
    """Return a trial as JSON: today's figures beside those of what is tried."""
    counts = TrialCounts.of_json(trial.counts)
    figures = [asdict(pair) for pair in compared(counts)]
    numbers = {"boards": counts.boards, "left_out": counts.left_out, "changes": counts.changes}
    return _TRIAL(trial, **numbers, figures=figures, request=trial.asked)


async def carry_out(gate: Gate) -> None:
    """Run the oldest trial that is not finished, one after the other, as long as this runs."""
    while True:
        with suppress(DatabaseError):  # the next time will do
            if (wanted := await gate.read(trial_rows.next_unfinished)) is not None:
                await _carry_out(gate, wanted.id)
        await asyncio.sleep(LOOK_S)


async def _carry_out(gate: Gate, id: int) -> None:
    """Run a trial in a process of its own, within bounds, and write what it tells."""
    told, telling = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=trials.main, args=(gate.config, id, telling), daemon=True
    )
    bounds, news, is_alive = gate.bounds(), None, True
    try:
        await asyncio.to_thread(process.start)
    except OSError as error:
        return await _fail(gate, id, f"its process cannot be started: {error.strerror}")
    telling.close()
    with suppress(OSError, AttributeError):  # it has ended already; a system without priorities
        # Not SCHED_IDLE: on a busy machine the trial would get no time at all.
        os.setpriority(os.PRIO_PROCESS, process.pid or 0, 19)
    try:
        while is_alive or news is not None:
            is_alive = process.is_alive()  # what it told before is read now
            news = await asyncio.to_thread(_newest, told) or news
            if news is not None:
                with suppress(DatabaseError):  # the next time will do
                    await gate.write(partial(trial_rows.write, id=id, news=news, now_us=gate.now_us()))
                    news = None
            if is_alive and (why := bounds.broken_by(process.pid or 0)):
                return await _fail(gate, id, why)
            await asyncio.sleep(LOOK_S)
        await _fail(gate, id, f"its process ended with status {process.exitcode}")  # no news of its end came
    finally:
        process.kill()


async def _fail(gate: Gate, id: int, why: str) -> None:
    await gate.write(partial(trial_rows.end, id=id, state=TrialState.FAILED, now_us=gate.now_us(), reason=why))


def _newest(told: PipeConnection) -> TrialNews | None:
    news: TrialNews | None = None
    with suppress(EOFError, OSError):
        while told.poll():
            news = told.recv()
    return news
