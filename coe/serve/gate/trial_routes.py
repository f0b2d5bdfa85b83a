"""Trials: a recipe, or other scores, on stored boards, before it counts."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from multiprocessing.connection import Connection as PipeConnection
from multiprocessing.process import BaseProcess
from typing import Any

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.serve import trial_process
from coe.serve.database import audit, recipe_versions, row_types, trial_rows
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.tables import Recipe, StoredTrial
from coe.serve.database.trial_rows import TrialNews
from coe.serve.enums import TrialState
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ENGINEER, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.gate.recipe_routes import VERSION, add_version, expect_recipe
from coe.serve.recipe_content import RecipeContent
from coe.serve.trial_counts import Compared, TrialCounts, TrialRequest, TriedPart, compared, tried

router = OperationRouter()
_CHANGED = JsonForm("ChangedPart", TriedPart, "board refdes component truth today then call")
_TRIAL = JsonForm(
    "StoredTrial",
    StoredTrial,
    "recipe state asked_us asked_by ended_us reason",
    {
        "boards": int,
        "left_out": int,
        "inspected": int,
        "figures": list[Compared],
        "changes": dict[str, int],
        "request": TrialRequest,
    },
    {"changed": dict[str, _CHANGED.many]},  # type: ignore[name-defined]
    trial="id",
)
_TRIALS = JsonForm("Trials", more={"trials": _TRIAL.many})
LOOK_S = 1.0


@router.add(
    "POST",
    "/api/v1/trials",
    ENGINEER,
    body=TrialRequest,
    sends=_TRIAL,
    answers={201: "the trial", 422: "what is tried cannot be used"},
)
async def post_trial(visit: Visit) -> Response:
    """Start a trial of a recipe version or other scores, on stored boards. No verdict changes; the line goes on."""
    asked: TrialRequest = visit.body.form

    def base(connection: Connection) -> Recipe:
        expect_recipe(connection, asked.recipe)
        if asked.version is None:
            version = recipe_versions.active(connection, asked.recipe)
        else:
            version = recipe_versions.version(connection, asked.recipe, asked.version)
        if version is None:
            detail = f"recipe '{asked.recipe}' has no version {asked.version or 'that is active'}"
            raise Problem(ProblemKind.BAD_REQUEST, detail, "see GET /api/v1/recipes")
        return version

    version = await visit.gate.read(base)
    content = RecipeContent.model_validate(version.content)
    found = await visit.gate.run(partial(tried, asked.recipe, content, asked.scores))

    def add(connection: Connection) -> StoredTrial:
        now_us, said = visit.gate.now_us(), asked.model_dump(mode="json", exclude_defaults=True)
        content = found.model_dump(mode="json")
        trial = trial_rows.add(connection, asked.recipe, content, said, by=visit.caller, now_us=now_us)
        audit.append(connection, visit.caller, "try", f"recipe {asked.recipe}", now_us=now_us, detail=said)
        return trial

    return JSONResponse(facts(await visit.gate.write(add)), int(HTTPStatus.CREATED))


@router.read("/api/v1/trials", ENGINEER, answers={200: "the newest trials"}, sends=_TRIALS)
def get_trials(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List trials, newest first."""
    return _TRIALS(trials=[facts(trial) for trial in trial_rows.newest(connection)])


@router.read("/api/v1/trials/{id:int}", ENGINEER, answers={200: "the trial"}, sends=_TRIAL)
def get_trial(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get a trial with its figures and the parts that change."""
    trial = trial_of(visit, connection)
    return {**facts(trial), "changed": trial.counts.get("changed", {})}


@router.write("POST", "/api/v1/trials/{id:int}/drop", ENGINEER, answers={204: "it ends", 409: "it has ended"})
def drop(visit: Visit, connection: Connection) -> None:
    """End a trial; its figures stay."""
    trial, now_us = trial_of(visit, connection), visit.gate.now_us()
    if not trial_rows.end(connection, trial.id, TrialState.DROPPED, now_us=now_us):
        raise Problem(ProblemKind.CONFLICT, f"trial {trial.id} is {trial.state}", "ask for another trial")


@router.add(
    "POST",
    "/api/v1/trials/{id:int}/adoption",
    ENGINEER,
    answers={201: "the version", 422: "it cannot be used"},
    sends=VERSION,
)
async def adopt(visit: Visit) -> Response:
    """Make the trial a version of its recipe. It can then be activated."""
    trial = await visit.gate.read(partial(trial_of, visit))
    return await add_version(visit, trial.recipe, RecipeContent.model_validate(trial.content))


def trial_of(visit: Visit, connection: Connection) -> StoredTrial:
    """Return the trial that the path names; raises Problem."""
    return existing(row_types.get(connection, StoredTrial, visit.id), f"trial {visit.id}", "see GET /api/v1/trials")


def facts(trial: StoredTrial) -> dict[str, Any]:
    """Return a trial as JSON: today's figures beside those of what is tried."""
    counts = TrialCounts.of_json(trial.counts)
    return _TRIAL(
        trial,
        boards=counts.boards,
        left_out=counts.left_out,
        inspected=counts.inspected,
        figures=[asdict(pair) for pair in compared(counts)],
        changes=counts.changes,
        request=trial.asked,
    )


async def carry_out(gate: Gate) -> None:
    """Run the oldest trial that is not finished in a process of its own, one after the other, as long as this runs."""
    process: BaseProcess | None = None
    told, news, running_id, bounds = None, None, 0, gate.bounds()
    try:
        while True:
            has_ended = process is None or not process.is_alive()  # what it told before is read below
            try:
                if process is not None and not has_ended and (why := bounds.broken_by(process.pid or 0)):
                    process.kill()
                    failed = partial(trial_rows.end, id=running_id, state=TrialState.FAILED, now_us=gate.now_us())
                    await gate.write(partial(failed, reason=why))
                if told is not None:
                    news = await asyncio.to_thread(_newest, told) or news
                if news is not None:
                    await gate.write(partial(trial_rows.write, id=running_id, news=news, now_us=gate.now_us()))
                    news = None
                wanted = await gate.read(trial_rows.next_unfinished) if has_ended else None
                if wanted is not None and wanted.id == running_id:
                    status = process.exitcode if process else None
                    reason = "cannot be started" if status is None else f"ended with status {status}"
                    failed = partial(trial_rows.end, id=running_id, state=TrialState.FAILED, now_us=gate.now_us())
                    await gate.write(partial(failed, reason=f"its process {reason}"))
                elif wanted is not None:
                    running_id = wanted.id
                    told, telling = multiprocessing.Pipe(duplex=False)
                    context = multiprocessing.get_context("spawn")
                    process = context.Process(
                        target=trial_process.main, args=(gate.config, running_id, telling), daemon=True
                    )
                    await asyncio.to_thread(process.start)
                    bounds = gate.bounds()
                    telling.close()
                    _give_way(process, inspects=bool(wanted.asked.get("inspect")))
            except (DatabaseError, OSError):  # the next time will do, or say that the process did not start
                pass
            await asyncio.sleep(LOOK_S)
    finally:
        if process is not None and process.is_alive():
            process.terminate()


def _newest(told: PipeConnection) -> TrialNews | None:
    """Return the newest of what a trial has told since the last look."""
    news: TrialNews | None = None
    with suppress(EOFError, OSError):
        while told.poll():
            news = told.recv()
    return news


def _give_way(process: BaseProcess, *, inspects: bool) -> None:
    """Let a trial have the least processor time, from its start on; scores alone take seconds, and may have more.

    Not SCHED_IDLE: on a busy machine the trial would get no time at all.
    """
    with suppress(OSError, AttributeError):  # it has ended already; a system without priorities
        os.setpriority(os.PRIO_PROCESS, process.pid or 0, 19 if inspects else 5)
