"""`GET /api/v1/stats/...`: figures with their definitions. The database counts; the formulas are in one place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Any, get_type_hints

from pydantic import BeforeValidator, Field
from sqlalchemy import Connection

from coe.errors import ConfigError
from coe.helpers.strict_model import StrictModel
from coe.serve import statistics
from coe.serve.clock import HOUR_US, iso, moment_us
from coe.serve.database import hourly, recipe_versions, repairs
from coe.serve.database.hourly import BoardCount, CallCount, Window
from coe.serve.enums import By, RepairOutcome
from coe.serve.gate.operations import DIGITS, READ, JsonForm, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.gate.recipe_routes import expect_recipe
from coe.serve.recipe_content import RecipeContent
from coe.serve.statistics import CONFIDENCE, Bar, Chart, ChartPoint, Figure, Subgroup

router = OperationRouter()
_WINDOW = {"from": datetime, "until": datetime, "recipe": str}
_YIELDS = JsonForm("Yields", more={**_WINDOW, "confidence": float, "figures": list[Figure]})
_PARETO = JsonForm("Pareto", more={**_WINDOW, "definition": str, "bars": list[Bar]})
_CHART_POINT = JsonForm("ChartPoint", more={"at": datetime, "signals": bool, **get_type_hints(ChartPoint)})
_CHART_FACTS = {**get_type_hints(Chart), "points": _CHART_POINT.many}
_CALLS_CHART = JsonForm("CallsChart", more={"definition": str, **_CHART_FACTS})
_CHARTS = JsonForm("ControlCharts", more={**_WINDOW, "calls": _CALLS_CHART.one})

HOURS, MOST_HOURS = 24, 24 * 366  # how far statistics look back, if the query does not say


def _time(given: Any) -> Any:
    try:
        until = datetime.fromisoformat(given) if given else None
        if until is not None:
            until = until.replace(tzinfo=UTC) if until.tzinfo is None else until.astimezone(UTC)
            if not 1970 < until.year < 9999:  # the window around it must be times, too
                raise ValueError
        return until
    except (ValueError, OverflowError):
        raise ValueError(
            f"{given[:100]!r} is not a time; give one in UTC as 2026-03-01T08:00, or with its offset as "
            "2026-03-01T10:00%2B02:00 (a plain `+` is a blank in a query)"
        ) from None


Moment = Annotated[datetime | None, BeforeValidator(_time)]  # a time of a query, in UTC; an empty text is none


class WindowQuery(StrictModel):
    """The window of statistics."""

    hours: Annotated[int, Field(ge=1, le=MOST_HOURS, description="how many whole hours to look back"), DIGITS] = HOURS
    until: Annotated[Moment, Field(description="the end, in UTC or with its offset; else now")] = None
    since: Annotated[Moment, Field(description="the beginning, instead of `hours`")] = None
    recipe: Annotated[str, Field(description="only boards of this recipe")] = ""


class ParetoQuery(WindowQuery):
    """The window, and what calls are counted by."""

    by: Annotated[By, Field(description="component (if not given), expert, label, refdes, unit, feeder")] = By.COMPONENT


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a window by the hour; `of_recipe` are the opportunities of a board by the recipe's id."""

    window: Window
    boards: Sequence[BoardCount]
    calls: Sequence[CallCount]
    escapes: int
    of_recipe: Mapping[int, int]
    repairs: Mapping[RepairOutcome, int]

    @property
    def figures(self) -> list[Figure]:
        """Yields, false calls, defects and escapes."""
        return statistics.figures(self.boards, self.calls, self.escapes, self.of_recipe, self.repairs)

    @property
    def calls_chart(self) -> Chart:
        """The control chart of calls."""
        return statistics.u_chart(self._subgroups())

    def _subgroups(self) -> list[Subgroup]:
        hours = groupby(self.boards, key=lambda count: count.hour_us)  # they come in this order
        counted = [(hour, list(boards)) for hour, boards in hours]
        return [
            Subgroup(hour, sum(one.calls for one in boards), statistics.opportunities(boards, self.of_recipe))
            for hour, boards in counted
        ]


def counts(connection: Connection, window: Window, by: By = By.COMPONENT) -> Counts:
    """Count what happened within a window; calls by what they have in common."""
    boards = hourly.board_counts(connection, window)
    return Counts(
        window,
        boards,
        hourly.calls_by(connection, window, by),
        hourly.escapes_of(connection, window),
        {id: _opportunities(connection, id) for id in sorted({count.recipe_id for count in boards})},
        repairs.outcomes(connection, window),
    )


def _opportunities(connection: Connection, recipe_id: int) -> int:
    recipe = recipe_versions.get(connection, recipe_id)
    return _opportunities_of(recipe.name, json.dumps(recipe.content))


@lru_cache(maxsize=256)
def _opportunities_of(name: str, content: str) -> int:
    """Return the opportunities of a board; remembered, because to read the rules takes longer than all counting."""
    with suppress(ConfigError):
        return RecipeContent.model_validate_json(content).opportunities(name)
    return 0  # the recipe was in order when the board was accepted, and an update refuses it


def window_of(visit: Visit, connection: Connection) -> Window:
    """Return the window that a query asks for; raises Problem for a recipe that is not there."""
    asked: WindowQuery = visit.query
    end_us = visit.gate.now_us() if asked.until is None else moment_us(asked.until)
    expect_recipe(connection, asked.recipe)
    if asked.since is None:
        return Window(end_us - asked.hours * HOUR_US, end_us, asked.recipe)
    start_us = moment_us(asked.since)
    if not 0 < end_us - start_us <= MOST_HOURS * HOUR_US:
        detail = f"`since` must be before the end, by {MOST_HOURS} hours at most"
        raise Problem(ProblemKind.BAD_REQUEST, detail, "correct `since`, or give `hours`")
    return Window(start_us, end_us, asked.recipe)


@router.read("/api/v1/stats/fpy", READ, query=WindowQuery, sends=_YIELDS)
def get_fpy(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get yield, false calls and escapes. Each has its definition and bounds."""
    window = window_of(visit, connection)
    figures = [asdict(figure) for figure in counts(connection, window).figures]
    return _YIELDS(**_window(window), confidence=CONFIDENCE, figures=figures)


@router.read("/api/v1/stats/pareto", READ, query=ParetoQuery, sends=_PARETO)
def get_pareto(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get the Pareto of calls. By component, expert, label, place, panel position or feeder."""
    window, by = window_of(visit, connection), visit.query.by
    shown = [asdict(bar) for bar in statistics.pareto(hourly.calls_by(connection, window, by), by)]
    return _PARETO(**_window(window), definition=statistics.PARETO_DEFINITION.format(by=by), bars=shown)


@router.read("/api/v1/stats/spc", READ, query=WindowQuery, sends=_CHARTS)
def get_spc(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get the control chart of calls (Laney's u' chart)."""
    window = window_of(visit, connection)
    chart = counts(connection, window).calls_chart
    points = [_CHART_POINT(at=iso(point.at_us), signals=point.signals, **asdict(point)) for point in chart.points]
    facts = {**asdict(chart), "points": points}
    return _CHARTS(**_window(window), calls=_CALLS_CHART(definition=statistics.U_DEFINITION, **facts))


def _window(window: Window) -> dict[str, Any]:
    return {"from": iso(window.start_us), "until": iso(window.end_us), "recipe": window.recipe}
