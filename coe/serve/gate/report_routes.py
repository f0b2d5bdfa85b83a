"""What leaves the service: reports of a time as tables, verified pictures as labelled folders."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field
from sqlalchemy import Connection, select
from starlette.responses import Response, StreamingResponse

from coe.helpers.strict_model import StrictModel
from coe.results import csv_table
from coe.serve import export_files
from coe.serve.clock import DAY_US
from coe.serve.database import audit
from coe.serve.database.hourly import Window, of_recipe
from coe.serve.database.tables import board, call, recipe, verification
from coe.serve.export_files import FOLDER, MANIFEST, Export, ExportScope
from coe.serve.gate import stats_routes
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ENGINEER, READ, OperationRouter, Visit
from coe.serve.gate.recipe_routes import expect_recipe
from coe.serve.gate.stats_routes import WindowQuery
from coe.serve.text_checks import Text

router = OperationRouter()
TOGETHER = 2000
"""How many calls are read at a time."""
_CSV = "text/csv; charset=utf-8"
_EXPORT = JsonForm("Export", Export, "counts left_out", {"folder": str, "manifest": str}, export="name")
_MARK = "\ufeff"
"""Spreadsheets take a table without this mark for one of the characters of the country."""


class TableQuery(WindowQuery):
    """The window of a table, and what divides its cells."""

    separator: Annotated[
        Literal[",", ";"], Field(description="`;` where spreadsheets expect it, with a decimal comma in numbers")
    ] = ","


_FIGURES = "name title value unit lower upper events trials asked open missing definition"
_CALLS = (
    "board serial key recipe version decided refdes component verdict reason expert label score "
    "outcome said_label note answered by"
)


@router.read(
    "/api/v1/reports/figures.csv",
    READ,
    query=TableQuery,
    answers={200: "CSV, a line for each figure"},
    sends="text/csv",
)
def figures_csv(visit: Visit, connection: Connection) -> Response:
    """Get figures as CSV. Each has its bounds."""
    window = stats_routes.window_of(visit, connection)
    names = _FIGURES.split()
    figures = stats_routes.counts(connection, window).figures
    rows = ([getattr(one, name) for name in names] for one in figures)
    text = _MARK + "".join(_line(visit.query, values) for values in (names, *rows))
    return Response(text, media_type=_CSV, headers=_named(visit.gate, window, "figures", "csv"))


@router.add(
    "GET",
    "/api/v1/reports/calls.csv",
    ENGINEER,
    query=TableQuery,
    answers={200: "CSV, a line for each call"},
    sends="text/csv",
)
async def calls_csv(visit: Visit) -> Response:
    """Get calls as CSV. Each has its latest answer."""
    window = await visit.gate.read(partial(stats_routes.window_of, visit))
    headers = _named(visit.gate, window, "calls", "csv")
    return StreamingResponse(_calls(visit, window), media_type=_CSV, headers=headers)


async def _calls(visit: Visit, window: Window) -> AsyncIterator[str]:
    gate = visit.gate
    yield _MARK + _line(visit.query, _CALLS.split())
    after = (window.start_us, 0)
    while rows := await gate.read(partial(_some_calls, window, after)):
        yield "".join(_line(visit.query, _cells(gate, row)) for row in rows)
        after = (rows[-1].opened_us, rows[-1].id)


def _some_calls(window: Window, after: tuple[int, int], connection: Connection) -> list[Any]:
    opened_us, id = after
    is_after = (call.c.opened_us > opened_us) | ((call.c.opened_us == opened_us) & (call.c.id > id))
    query = (
        select(call, board.c.serial, board.c.key, board.c.decided_us, recipe.c.name.label("recipe"), recipe.c.version)
        .add_columns(verification.c.outcome, verification.c.label.label("said_label"), verification.c.note)
        .add_columns(verification.c.verified_us, verification.c.verified_by)
        .join(board, board.c.id == call.c.board_id)
        .join(recipe, recipe.c.id == board.c.recipe_id)
        .outerjoin(verification, verification.c.id == call.c.verification_id)
        .where(call.c.opened_us < window.end_us, is_after)
        .where(of_recipe(window.recipe, board.c.recipe_id))
        .order_by(call.c.opened_us, call.c.id)
        .limit(TOGETHER)
    )
    return list(connection.execute(query))


def _cells(gate: Gate, row: Any) -> Sequence[object]:
    def time(moment_us: int | None) -> str:
        return "" if moment_us is None else gate.config.local.at(moment_us).isoformat(sep=" ", timespec="seconds")

    return (
        row.board_id, row.serial, row.key, row.recipe, row.version, time(row.decided_us), row.refdes, row.component,
        row.verdict, row.reason, row.expert, row.label, row.score, row.outcome, row.said_label, row.note,
        time(row.verified_us), row.verified_by,
    )  # fmt: skip


def _line(query: TableQuery, values: Iterable[object]) -> str:
    """Return a line of a table."""

    def shown(value: object) -> str:
        is_comma = isinstance(value, float) and query.separator == ";"
        return "" if value is None else str(value).replace(".", "," if is_comma else ".")

    return csv_table.row(map(shown, values), query.separator)


def _named(gate: Gate, window: Window, name: str, suffix: str) -> dict[str, str]:
    begins = gate.config.local.at(window.start_us)
    return {"Content-Disposition": f'attachment; filename="{name}-{begins:%Y-%m-%dT%H%M}.{suffix}"'}


class ExportRequest(StrictModel):
    """Answers of the last `days`; of one recipe's boards; and up to `good` good parts of each expert and label."""

    days: Annotated[int, Field(ge=1, le=36500)] = 30
    recipe: Text = ""
    good: Annotated[int, Field(ge=0, le=100_000)] = 500


@router.add(
    "POST",
    "/api/v1/exports",
    ENGINEER,
    body=ExportRequest,
    sends=_EXPORT,
    answers={201: "the folder; `coe-experts train --data FOLDER/EXPERT` takes each expert's part"},
)
async def post_export(visit: Visit) -> Mapping[str, Any]:
    """Export verified pictures. They lie as EXPERT/LABEL/PICTURE in a new folder of the service, with a manifest."""
    gate = visit.gate
    form: ExportRequest = visit.body.form
    await gate.read(lambda connection: expect_recipe(connection, form.recipe))
    now_us = gate.now_us()
    asked = ExportScope(now_us - form.days * DAY_US, now_us, form.recipe, form.good)
    folder = gate.config.data / FOLDER
    write = partial(export_files.export, gate.database, gate.pictures, folder, asked, now_us)
    made = await gate.keep(partial(write, limit_pixels=gate.config.limits.pixels))
    number = sum(sum(labels.values()) for labels in made.counts.values())
    detail = {"pictures": number, "recipe": form.recipe, "days": form.days}
    await gate.write(
        lambda connection: audit.append(
            connection, visit.caller, "export", made.name, now_us=gate.now_us(), detail=detail
        )
    )
    return _EXPORT(made, folder=str(folder / made.name), manifest=str(folder / made.name / MANIFEST))
