"""What each page shows. A page reads once, and what it shows is of one state of the database."""

from __future__ import annotations

import math
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

from coe.helpers.strict_model import StrictModel
from coe.helpers.visible import is_visible
from coe.serve.clock import DAY_US, HOUR_US, LocalTime
from coe.serve.database import audit, board_rows, call_rows, fault_log, hourly, recipe_versions, row_types, states
from coe.serve.database.connecting import DatabaseError
from coe.serve.database.hourly import CallCount, Window
from coe.serve.database.tables import Board, Tally
from coe.serve.database.verifications import figures_by_person
from coe.serve.enums import UNDECIDED, By, Dimension, Outcome, Process
from coe.serve.gate import access, stats_routes
from coe.serve.gate.access import admitted, answered
from coe.serve.gate.call_routes import CLAIM_S
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ENGINEER, READ, VERIFY, Operation, OperationRouter, RowId, Visit
from coe.serve.gate.pages import board_page, recipe_pages, teach_pages
from coe.serve.gate.pages.rendering import STATIC, PageRouter, Shown, page, plain, static, storage_failed, words_of
from coe.serve.gate.problems import Problem, ProblemKind, not_found, problem_of
from coe.serve.gate.stats_routes import ParetoQuery, WindowQuery
from coe.serve.statistics import PARETO_DEFINITION, U_DEFINITION, number

# Experts as their page shows them: memory, use, and how far people agree with them


@dataclass(frozen=True, slots=True)
class InMemory:
    """What the line says of an expert: the bytes of its weights, and the devices on which it is resident.

    `rules` and `estimated` are the probability that an image needs it, by the rules and by the images that came.
    `exam` holds (item, passed, shown, at most, is blind) for each item of its exam, `notes` sentences beside it.
    """

    bytes: int
    devices: Sequence[str]
    rules: float | None
    estimated: float | None
    exam: Sequence[tuple[str, int, int, float, bool]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ExpertRow:
    """An expert: its findings, those on components that are not OK, and what people said of its calls.

    `memory` is None if no line has it open. `agreement` is the share of its answered calls in which people saw a
    defect; None without answers.
    """

    name: str
    memory: InMemory | None
    findings: int
    called: int
    mean_score: float | None
    confirmed: int
    false_calls: int
    open: int
    agreement: float | None


def expert_rows(
    tallies: Sequence[Tally], calls: Sequence[CallCount], in_memory: Mapping[str, Any] | None
) -> list[ExpertRow]:
    """Return the experts that were used or that a line has open, the most used first."""
    experts = {name: InMemory(**facts) for name, facts in (in_memory or {}).items()}
    used: dict[str, list[Tally]] = defaultdict(list)
    asked: dict[str, list[CallCount]] = defaultdict(list)
    for tally in tallies:
        used[tally.expert].append(tally)
    for call in calls:
        asked[call.expert].append(call)
    names = [name for name in used.keys() | experts.keys() if name]
    listed = [_row(name, used[name], asked[name], experts.get(name)) for name in names]
    return sorted(listed, key=lambda row: (-row.findings, row.name))


def _row(name: str, used: Sequence[Tally], asked: Sequence[CallCount], memory: InMemory | None) -> ExpertRow:
    findings = sum(tally.findings for tally in used)
    real = number(asked, Outcome.CONFIRMED, Outcome.ACCEPTED)
    false = number(asked, Outcome.FALSE_CALL)
    return ExpertRow(
        name=name,
        memory=memory,
        findings=findings,
        called=sum(tally.called for tally in used),
        mean_score=sum(tally.score_sum for tally in used) / findings if findings else None,
        confirmed=real,
        false_calls=false,
        open=number(asked, None),
        agreement=real / (real + false) if real + false else None,
    )


router = PageRouter()
parts = OperationRouter()
"""Parts that pages fetch; their refusals are problem JSON, like those of the API."""
_NEWEST, _LISTED, _BARS = 24, 100, 12
_HOURS_OF_OVERVIEW = 8
"""The figures of the overview are those of the shift; of this time without shifts."""
_PROVEN = 1000
"""This many entries of the audit chain are verified whenever the page is shown; each answered call adds an entry."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A board under inspection, with how many of its parts are done."""

    board: Board
    done: int
    of: int


@router.add("GET", "/login", None, query=None)
async def login(visit: Visit) -> Response:
    """Ask for a key."""
    way = visit.request.query_params.get("next", "/")
    # A path of this service alone: `//host` and `/\\host` would lead elsewhere, and browsers leave out tabs and breaks.
    is_path = way.startswith("/") and not way.startswith(("//", "/\\")) and is_visible(way) and "\n" not in way
    safe = way if is_path else "/"
    return plain("login.j2", station=visit.gate.config.station, next=safe)


@parts.read("/line/part", READ)
def overview_part(visit: Visit, connection: Connection) -> Response:
    """The part of the overview that changes."""
    local = visit.gate.config.local
    return plain("live.j2", now_us=visit.gate.now_us(), local=local, **overview(visit, connection))


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


def _under_way(connection: Connection, facts: dict[str, Any]) -> list[UnderWay]:
    listed = []
    for item in facts.get("boards", ()):
        board = row_types.get(connection, Board, item["board"])
        if board is not None and board.state in UNDECIDED:
            listed.append(UnderWay(board, item["done"], item["of"]))
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
    counts = stats_routes.counts(connection, window)
    local, chart = visit.gate.config.local, counts.calls_chart
    spots = [Spot(point.at_us, point.value, point.lower, point.upper, point.signals) for point in chart.points]
    shows_people = visit.gate.config.figures_by_person and visit.key is not None and visit.key.role in ENGINEER
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
        "bars": stats_routes.bars(connection, window, by)[:_BARS],
        "people": figures_by_person(connection, window) if shows_people else None,
        "calls_chart": (chart, draw(spots, "ppm", local, factor=1e6, mean=chart.mean)),
    }


@router.page("/experts", "experts.j2", query=WindowQuery)
def experts(visit: Visit, connection: Connection) -> Shown:
    """How often experts are used, and how far people agree with them."""
    window = stats_routes.window_of(visit, connection)
    line = states.heartbeats(connection).get(Process.WORKER)
    rows = expert_rows(
        stats_routes.findings(connection, window, Dimension.EXPERT),
        hourly.call_counts(connection, window, by=[Dimension.EXPERT]),
        line.experts if line else None,
    )
    known = [row.memory for row in rows if row.memory is not None]
    return {
        "hours": visit.query.hours,
        "rows": rows,
        "known_number": len(known),
        "known_bytes": sum(memory.bytes for memory in known),
        "resident_number": sum(bool(memory.devices) for memory in known),
        "resident_bytes": sum(memory.bytes for memory in known if memory.devices),
    }


@router.page("/faults", "faults.j2")
def faults_page(visit: Visit, connection: Connection) -> Shown:
    """Faults, and for engineers the audit chain, verified."""
    sees_audit = visit.key is not None and visit.key.role in ENGINEER
    unwritten = [fault for fault in visit.gate.open_faults(connection) if not fault.id]
    return {
        "faults": [*unwritten, *fault_log.newest(connection, limit=_LISTED)],
        "entries": audit.newest(connection, limit=_LISTED) if sees_audit else [],
        "proof": audit.prove(connection, newest=_PROVEN) if sees_audit else None,
    }


@parts.add("GET", "/static/{name}", None, query=None)
async def static_file(visit: Visit) -> Response:
    """Return a file that pages load."""
    name = visit.part("name")
    if name not in STATIC:
        raise not_found("such file", "pages load their own files")
    return Response(static(name), media_type=STATIC[name], headers={"Cache-Control": "no-cache"})


def paged(gate: Gate, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """Return a page as a handler. A person who is not signed in is asked for a key, and a refusal is a page, too."""

    async def handle(request: Request) -> Response:
        key = None
        try:
            key = None if operation.roles is None else await admitted(gate, request, operation.roles)
            return await answered(gate, operation, request, key)
        except (DatabaseError, OSError) as error:
            return storage_failed(gate, request, problem_of(error))
        except Problem as problem:
            if problem.kind is ProblemKind.NO_KEY:
                way = URL("/login").include_query_params(next=str(request.url.replace(scheme="", netloc="")))
                return RedirectResponse(str(way), int(HTTPStatus.SEE_OTHER))
            words = words_of(problem)
            try:
                visit = Visit(gate, request, key or await access.key_of(gate, request))
                return await page(visit, "problem.j2", lambda connection: words, int(problem.status))
            except DatabaseError as error:
                return storage_failed(gate, request, problem_of(error))

    return handle


async def _nowhere(visit: Visit) -> Response:
    raise not_found("such page", "take one of those above")


NOWHERE = Operation("GET", "/", _nowhere, READ, {HTTPStatus.NOT_FOUND: "no such page"}, query=None)
"""What a person gets at a path that leads nowhere."""

_ROUTERS = (router, board_page.router, recipe_pages.router, teach_pages.router)
PAGES = [operation for one in _ROUTERS for operation in one.operations]


WIDTH, HEIGHT = 720, 220
"""The size of a chart in its own units."""
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
_TICKS_X, _TICKS_Y = 6, 4
_MOST_DOTS = 100
"""With more points than this, dots would hide the line, so only points outside their limits have a dot."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Dot:
    """A point of a chart, with the text that is shown when somebody points at it."""

    x: float
    y: float
    text: str
    signals: bool


@dataclass(frozen=True, slots=True)
class Drawing:
    """A chart: paths of the lines and the limits, dots, and the marks of both axes."""

    line: str
    lower: str
    upper: str
    mean: float | None
    dots: tuple[Dot, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


@dataclass(frozen=True, slots=True)
class Spot:
    """A value at a time, None for a gap; with limits on control charts."""

    at_us: int
    value: float | None
    lower: float | None = None
    upper: float | None = None
    signals: bool = False


def draw(
    spots: Sequence[Spot], unit: str, local: LocalTime, *, factor: float = 1.0, mean: float | None = None
) -> Drawing | None:
    """Return a chart of values times `factor`, in `unit`, over local time; None if there is nothing to draw."""
    heights = [height for spot in spots for height in (spot.value, spot.lower, spot.upper) if height is not None]
    if not heights:
        return None
    low, high = _range(min(heights) * factor, max(heights) * factor, 100.0 if unit == "%" else math.inf)
    first, last = spots[0].at_us, spots[-1].at_us

    def x(at_us: int) -> float:
        share = (at_us - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value * factor) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def path(values: Sequence[float | None]) -> str:
        parts, is_down = [], False
        for spot, value in zip(spots, values, strict=True):
            if value is not None:
                parts.append(f"{'L' if is_down else 'M'}{x(spot.at_us)} {y(value)}")
            is_down = value is not None
        return "".join(parts)

    dots = tuple(
        Dot(
            x(spot.at_us),
            y(spot.value),
            f"{local.at(spot.at_us):%d %b %H:%M}: {spot.value * factor:,.4g} {unit}",
            spot.signals,
        )
        for spot in spots
        if spot.value is not None and (spot.signals or len(spots) <= _MOST_DOTS)
    )
    step = max(1, -(-len(spots) // _TICKS_X))
    end = " %" if unit == "%" else ""
    form = "%d %b" if last - first > 3 * DAY_US else "%H:%M"
    return Drawing(
        line=path([spot.value for spot in spots]),
        lower=path([spot.lower for spot in spots]),
        upper=path([spot.upper for spot in spots]),
        mean=None if mean is None else y(mean),
        dots=dots,
        across=tuple(Tick(x(spot.at_us), f"{local.at(spot.at_us):{form}}") for spot in spots[::step]),
        up=tuple(Tick(y(value / factor), f"{value:,.6g}{end}") for value in _steps(low, high)),
    )


def _range(low: float, high: float, most: float) -> tuple[float, float]:
    """Return a range that holds the values with some room; one that begins at 0 if they are not far from it."""
    if low < 0.6 * high:
        low = min(0.0, low)
    room = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    return (low - room if low else 0.0), min(most, high + room)


def _steps(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS_Y
    size: float = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
