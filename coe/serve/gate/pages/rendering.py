"""Templates to answers. Jinja2 escapes every text; no page has scripts or styles inside, as its policy says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from coe import config
from coe.serve.clock import DAY_US, SECOND_US, LocalTime, iso
from coe.serve.database import call_rows
from coe.serve.database.tables import Key
from coe.serve.enums import Role
from coe.serve.gate import access
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ENGINEER, READ, VERIFY, OperationRouter, Visit
from coe.serve.gate.problems import RETRY_S, Problem
from coe.serve.statistics import Chart

Shown = Mapping[str, Any]  # what a template draws, by the names that it uses
_R = TypeVar("_R", bound=Callable[[Visit, Connection], Shown])
_FOLDER = Path(__file__).parent
_KINDS = {".svg": "image/svg+xml", ".css": "text/css", ".js": "text/javascript"}
STATIC = {path.name: _KINDS[path.suffix] for path in _FOLDER.iterdir() if path.suffix in _KINDS}
"""The files that pages load, and their media types."""


class PageRouter(OperationRouter):
    """Collects pages where their queries stand."""

    def page(self, path: str, template: str, roles: frozenset[Role] = READ, **more: Any) -> Callable[[_R], _R]:
        """Serve a page, for all who may read unless roles are given: a template draws what the query returns."""
        return self.serve(lambda visit, query: page(visit, template, query), "GET", path, roles, **more)


async def page(visit: Visit, template: str, query: Callable[[Connection], Shown], status: int = 200) -> Response:
    """Return a page of what a query returns and what all pages show: who is signed in, open calls and faults."""

    def read(connection: Connection) -> Shown:
        return {
            "open_calls": call_rows.count_open(connection),
            "open_faults": len(visit.gate.open_faults(connection)),
            **query(connection),
        }

    around = _around(visit.gate, visit.request, visit.key, await access.csrf_of(visit.gate, visit.request))
    shown = await visit.gate.read(read)
    return HTMLResponse(environment().get_template(template).render({**around, **shown}), status)


def _around(gate: Gate, request: Request, key: Key | None = None, csrf: str = "") -> Shown:
    role = key.role if key else None
    return {
        "station": gate.config.station,
        "person": key,
        "may": role in ENGINEER,
        "may_verify": role in VERIFY,
        "csrf": csrf,
        "here": request.url.path,
        "now_us": gate.now_us(),
        "local": gate.config.local,
    }


def plain(template: str, /, **shown: Any) -> Response:
    """Return a page for somebody who is not signed in, or a part of a page."""
    return HTMLResponse(environment().get_template(template).render(shown))


def words_of(problem: Problem) -> Shown:
    """Return what the page of a refusal says."""
    return {"title": problem.status.phrase, "detail": problem.detail, "way_out": problem.way_out}


def storage_failed(gate: Gate, request: Request, problem: Problem) -> Response:
    """Return the page of a refusal that needs no database and no secret; a browser asks again by itself."""
    counts = {"open_calls": 0, "open_faults": len(gate.faults.unwritten())}
    shown = {**_around(gate, request), **counts, **words_of(problem)}
    page = environment().get_template("problem.j2").render(shown)
    return HTMLResponse(page, int(problem.status), {**problem.headers, "Refresh": str(RETRY_S)})


@cache
def environment() -> Environment:
    """Return the templates."""
    env = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    env.filters.update(
        percent=percent,
        clock=_local("%H:%M:%S"),
        day=_local("%Y-%m-%d %H:%M"),
        second=_local("%Y-%m-%d %H:%M:%S"),
        ago=ago,
        number=number,
        ppm=number,
        bytes=config.format_bytes,
        counted=config.counted,
        utc=iso,
    )
    return env


@cache
def static(name: str) -> bytes:
    """Return a file that pages load."""
    return (_FOLDER / name).read_bytes()


def percent(share: float | None) -> str:
    """Return a share in 0..1 as percents; "–" for None."""
    return "–" if share is None else f"{100 * share:.1f} %"


def number(value: float | None) -> str:
    """Return a number in the digits that a person reads; "–" for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _local(form: str) -> Callable[[Context, int | None], str]:
    """Return a filter that writes a moment as the clock of the place shows it; "–" for None."""

    @pass_context
    def written(context: Context, moment_us: int | None) -> str:
        return "–" if moment_us is None else context["local"].at(moment_us).strftime(form)

    return written


def ago(moment_us: int, now_us: int) -> str:
    """Return how long ago a moment was."""
    seconds = max(0, now_us - moment_us) // SECOND_US
    for length, word in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {word} ago"
    return f"{seconds} s ago"


# Charts
WIDTH, HEIGHT = 720, 220  # the size of a chart in its own units
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 28
_TICKS_X, _TICKS_Y = 6, 4
_MOST_DOTS = 100  # with more points than this, dots would hide the line, so only points outside their limits have a dot


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
    """A control chart: paths of the line and the limits, dots, and the marks of both axes."""

    line: str
    lower: str
    upper: str
    mean: float
    dots: tuple[Dot, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


def draw(chart: Chart, local: LocalTime) -> Drawing | None:
    """Return a control chart in millionths over local time; None without points."""
    points = chart.points
    if not points:
        return None
    heights = [1e6 * height for point in points for height in (point.value, point.lower, point.upper)]
    low, high = _range(min(heights), max(heights))
    first, last = points[0].at_us, points[-1].at_us

    def x(at_us: int) -> float:
        share = (at_us - first) / (last - first) if last > first else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(TOP + (high - value * 1e6) / (high - low) * (HEIGHT - TOP - BOTTOM), 1)

    def path(values: Sequence[float]) -> str:
        return "M" + "L".join(f"{x(point.at_us)} {y(value)}" for point, value in zip(points, values, strict=True))

    dots = tuple(
        Dot(x(one.at_us), y(one.value), f"{local.at(one.at_us):%d %b %H:%M}: {1e6 * one.value:,.4g} ppm", one.signals)
        for one in points
        if one.signals or len(points) <= _MOST_DOTS
    )
    step = -(-len(points) // _TICKS_X)
    form = "%d %b" if last - first > 3 * DAY_US else "%H:%M"
    return Drawing(
        line=path([point.value for point in points]),
        lower=path([point.lower for point in points]),
        upper=path([point.upper for point in points]),
        mean=y(chart.mean),
        dots=dots,
        across=tuple(Tick(x(one.at_us), f"{local.at(one.at_us):{form}}") for one in points[::step]),
        up=tuple(Tick(y(value / 1e6), f"{value:,.6g}") for value in _steps(low, high)),
    )


def _range(low: float, high: float) -> tuple[float, float]:
    """Return a range that holds the values with some room; one that begins at 0 if they are not far from it."""
    if low < 0.6 * high:
        low = min(0.0, low)
    room = 0.08 * (high - low) or abs(high) * 0.05 or 1.0
    return (low - room if low else 0.0), high + room


def _steps(low: float, high: float) -> list[float]:
    rough = (high - low) / _TICKS_Y
    size: float = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
