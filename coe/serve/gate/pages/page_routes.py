"""What each page shows. A page reads once, and what it shows is of one state of the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from coe.errors import ConfigError
from coe.helpers.strict_model import StrictModel
from coe.helpers.visible import is_visible
from coe.serve.clock import HOUR_US
from coe.serve.database import audit, board_rows, call_rows, fault_log, recipe_versions, row_types, states, trial_rows
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.hourly import CallCount, Window, calls_by
from coe.serve.database.tables import Board, Recipe
from coe.serve.enums import UNDECIDED, By, Outcome, Process
from coe.serve.gate import access, stats_routes
from coe.serve.gate.access import admitted, answered
from coe.serve.gate.call_routes import CLAIM_S
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ENGINEER, READ, VERIFY, Operation, OperationRouter, RowId, Visit
from coe.serve.gate.pages import board_page, rendering, teach_pages
from coe.serve.gate.pages.rendering import PageRouter, Shown, page
from coe.serve.gate.problems import Problem, ProblemKind, not_found, problem_of
from coe.serve.gate.recipe_routes import version_of
from coe.serve.gate.stats_routes import ParetoQuery, WindowQuery
from coe.serve.gate.trial_routes import facts, trial_of
from coe.serve.recipe_content import RecipeContent
from coe.serve.statistics import PARETO_DEFINITION, U_DEFINITION, number, pareto


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """An expert: what people said of its calls, and the share in which they saw a defect (None without answers).

    `memory` is what `LineWatch.experts` tells of it; None if no line has it open.
    """

    name: str
    memory: Mapping[str, Any] | None
    called: int
    confirmed: int
    false_calls: int
    open: int
    agreement: float | None


def expert_rows(calls: Sequence[CallCount], in_memory: Mapping[str, Any] | None) -> list[ExpertRow]:
    """Return the experts that called something or that a line has open, those with most calls first."""
    experts = in_memory or {}
    asked: dict[str, list[CallCount]] = defaultdict(list)
    for call in calls:
        asked[call.expert].append(call)
    listed = [_row(name, asked[name], experts.get(name)) for name in asked.keys() | experts.keys() if name]
    return sorted(listed, key=lambda row: (-row.called, row.name))


def _row(name: str, asked: Sequence[CallCount], memory: Mapping[str, Any] | None) -> ExpertRow:
    real, false = number(asked, Outcome.CONFIRMED, Outcome.ACCEPTED), number(asked, Outcome.FALSE_CALL)
    agreement = real / (real + false) if real + false else None
    return ExpertRow(name, memory, number(asked), real, false, number(asked, None), agreement)


router = PageRouter()
parts = OperationRouter()  # parts that pages fetch; their refusals are problem JSON, like those of the API
_NEWEST, _LISTED, _BARS = 24, 100, 12
_HOURS_OF_OVERVIEW = 8  # the figures of the overview are those of the shift; of this time without shifts
_PROVEN = 1000  # entries of the audit chain are verified whenever the page is shown


@router.add("GET", "/login", None, query=None)
async def login(visit: Visit) -> Response:
    """Ask for a key."""
    way = visit.request.query_params.get("next", "/")
    # A path of this service alone: `//host` and `/\\host` would lead elsewhere, and browsers leave out tabs and breaks.
    is_path = way.startswith("/") and not way.startswith(("//", "/\\")) and is_visible(way) and "\n" not in way
    safe = way if is_path else "/"
    return rendering.plain("login.j2", station=visit.gate.config.station, next=safe)


@parts.read("/line/part", READ)
def overview_part(visit: Visit, connection: Connection) -> Response:
    """The part of the overview that changes."""
    local = visit.gate.config.local
    return rendering.plain("live.j2", now_us=visit.gate.now_us(), local=local, **overview(visit, connection))


@router.page("/", "overview.j2")
def overview(visit: Visit, connection: Connection) -> Shown:
    """The line."""
    now_us = visit.gate.now_us()
    shift = next(iter(visit.gate.config.local.shifts_until(now_us, 1)), None)
    window = Window(shift.start_us if shift else now_us - _HOURS_OF_OVERVIEW * HOUR_US, now_us)
    counts = stats_routes.counts(connection, window)
    newest = [board for board in board_rows.newest(connection, limit=2 * _NEWEST) if board.state not in UNDECIDED]
    figures = {figure.name: figure for figure in counts.figures}
    beat = states.living_worker(connection, now_us)
    facts = dict(beat.facts) if beat else {}
    return {
        "hours": _HOURS_OF_OVERVIEW,
        "shift": shift,
        "state": states.line(connection),
        "answers": beat is not None,
        "intake": states.intake(connection),
        "closed": states.why_closed(connection),
        "facts": facts,
        "under_way": _under_way(connection, facts),
        "waiting": board_rows.count_undecided(connection),
        "newest": newest[:_NEWEST],
        "calls_open": call_rows.count_open(connection),
        "figures": figures,
        "late": sum(hour.late for hour in counts.boards),
        "decided": sum(hour.boards for hour in counts.boards),
        "faults": visit.gate.open_faults(connection),
    }


def _under_way(connection: Connection, facts: dict[str, Any]) -> list[Shown]:
    listed = list[Shown]()
    for item in facts.get("boards", ()):
        board = row_types.get(connection, Board, item["board"])
        if board is not None and board.state in UNDECIDED:
            listed.append({**item, "board": board})
    return listed


class VerifyQuery(StrictModel):
    """What is verified."""

    call: Annotated[RowId, Field(description="this call alone, answered or not; else the queue")] = 0


@router.page("/verify", "verify.j2", roles=VERIFY, query=VerifyQuery)
def verify(visit: Visit, connection: Connection) -> Shown:
    """The operators' queue, or one call; the script claims calls and sends the answers."""
    asked = visit.gate.config.verify
    return {"claim_s": CLAIM_S, "asked": asked, "keys": asked.keys, "chosen": visit.query.call}


@router.page("/statistics", "statistics.j2", query=ParetoQuery)
def statistics(visit: Visit, connection: Connection) -> Shown:
    """Yields, Pareto and the control chart of calls."""
    window, by = stats_routes.window_of(visit, connection), visit.query.by
    counts = stats_routes.counts(connection, window, by)
    local, chart = visit.gate.config.local, counts.calls_chart
    return {
        "window": window,
        "hours": None if visit.query.since else visit.query.hours,
        "shifts": local.shifts_until(visit.gate.now_us(), 2 * len(local.shifts) + 1),
        "recipe": window.recipe,
        "by": by,
        "ways": list(By),
        "pareto_definition": PARETO_DEFINITION.format(by=by),
        "u_definition": U_DEFINITION,
        "figures": counts.figures,
        "decided": sum(hour.boards for hour in counts.boards),
        "late": sum(hour.late for hour in counts.boards),
        "recipes": recipe_versions.names(connection),
        "bars": pareto(counts.calls, by)[:_BARS],
        "calls_chart": (chart, rendering.draw(chart, local)),
    }


@router.page("/experts", "experts.j2", query=WindowQuery)
def experts(visit: Visit, connection: Connection) -> Shown:
    """How often experts are used, and how far people agree with them."""
    window = stats_routes.window_of(visit, connection)
    line = states.heartbeats(connection).get(Process.WORKER)
    rows = expert_rows(calls_by(connection, window, By.EXPERT), line.experts if line else None)
    known = [row.memory for row in rows if row.memory is not None]
    return {
        "hours": visit.query.hours,
        "rows": rows,
        "known_number": len(known),
        "known_bytes": sum(memory["bytes"] for memory in known),
        "resident_number": sum(bool(memory["devices"]) for memory in known),
        "resident_bytes": sum(memory["bytes"] for memory in known if memory["devices"]),
    }


@router.page("/recipes", "recipes.j2")
def recipes_page(visit: Visit, connection: Connection) -> Shown:
    """Recipes with their versions."""
    listed, confirmed = [], set[int]()
    for name in recipe_versions.names(connection):
        versions = recipe_versions.versions(connection, name)
        listed.append((name, recipe_versions.active(connection, name), versions))
        confirmed |= recipe_versions.confirmed(connection, versions)
    asked = {activation.recipe_id for activation in recipe_versions.asked(connection)}
    return {"recipes": listed, "asked": asked, "confirmed": confirmed}


@router.page("/recipes/{name}/{version:int}", "recipe.j2")
def recipe_page(visit: Visit, connection: Connection) -> Shown:
    """A version of a recipe; engineers lay it over the picture of a board, and confirm its placements."""
    recipe = version_of(visit, connection)
    active = recipe_versions.active(connection, recipe.name)
    return {
        "recipe": recipe,
        "confirmation": recipe_versions.confirmation_of(connection, recipe),
        "unconfirmed": recipe_versions.refusal(connection, recipe),
        "is_active": active is not None and active.id == recipe.id,
        "is_asked": recipe.id in {activation.recipe_id for activation in recipe_versions.asked(connection)},
        **_facts(recipe),
    }


def _facts(recipe: Recipe) -> dict[str, Any]:
    content = RecipeContent.model_validate(recipe.content)
    facts: dict[str, Any] = {
        "whole": content.whole is not None,
        "within_s": content.within_s,
        "warnings": [],
        "blind_to": [],
    }
    try:
        if content.whole is not None:
            facts |= {"warnings": content.whole.warnings, "blind_to": content.whole.blind_to}
        numbers = {"parts_number": len(content.components), "opportunities": content.opportunities(recipe.name)}
    except ConfigError as error:  # the recipe was in order when it was added, and an update refuses it
        return {**facts, "parts_number": None, "opportunities": None, "refusal": str(error)}
    return {**facts, **numbers, "refusal": ""}


@router.page("/trials", "trials.j2", ENGINEER)
def trials(visit: Visit, connection: Connection) -> Shown:
    """Trials, and a form that asks for one."""
    listed = [facts(trial) | {"asked_us": trial.asked_us} for trial in trial_rows.newest(connection)]
    return {"trials": listed, "recipes": recipe_versions.names(connection)}


@router.page("/trials/{id:int}", "trial.j2", ENGINEER)
def trial(visit: Visit, connection: Connection) -> Shown:
    """A trial: today's figures beside those of what is tried, and the parts that change."""
    found = trial_of(visit, connection)
    return {"trial": found, "facts": facts(found), "changed": found.counts.get("changed", {})}


@router.page("/faults", "faults.j2")
def faults_page(visit: Visit, connection: Connection) -> Shown:
    """Faults, first those that are open, and for engineers the audit chain, verified."""
    sees_audit = visit.key is not None and visit.key.role in ENGINEER
    cleared = [fault for fault in fault_log.newest(connection, limit=_LISTED) if fault.cleared_us is not None]
    return {
        "faults": [*visit.gate.open_faults(connection), *cleared],
        "entries": audit.newest(connection, limit=_LISTED) if sees_audit else [],
        "proof": audit.prove(connection, newest=_PROVEN) if sees_audit else None,
    }


@parts.add("GET", "/static/{name}", None, query=None)
async def static_file(visit: Visit) -> Response:
    """Return a file that pages load."""
    name = visit.part("name")
    if name not in rendering.STATIC:
        raise not_found("such file", "pages load their own files")
    return Response(rendering.static(name), media_type=rendering.STATIC[name], headers={"Cache-Control": "no-cache"})


def paged(gate: Gate, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """Return a page as a handler. A person who is not signed in is asked for a key, and a refusal is a page, too."""

    async def handle(request: Request) -> Response:
        key = None
        try:
            key = None if operation.roles is None else await admitted(gate, request, operation.roles)
            return await answered(gate, operation, request, key)
        except (DatabaseError, OSError) as error:
            return rendering.storage_failed(gate, request, problem_of(error))
        except Problem as problem:
            if problem.kind is ProblemKind.NO_KEY:
                way = URL("/login").include_query_params(next=str(request.url.replace(scheme="", netloc="")))
                return RedirectResponse(str(way), int(HTTPStatus.SEE_OTHER))
            words = rendering.words_of(problem)
            try:
                visit = Visit(gate, request, key or await access.key_of(gate, request))
                return await page(visit, "problem.j2", lambda connection: words, int(problem.status))
            except DatabaseError as error:
                return rendering.storage_failed(gate, request, problem_of(error))

    return handle


async def _nowhere(visit: Visit) -> Response:
    raise not_found("such page", "take one of those above")


NOWHERE = Operation("GET", "/", _nowhere, READ, query=None)
"""What a person gets at a path that leads nowhere."""

_ROUTERS = (router, board_page.router, teach_pages.router)
PAGES = [operation for one in _ROUTERS for operation in one.operations]
