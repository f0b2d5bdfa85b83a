"""The gate's application: operations as routes, errors as problems."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp

from coe.errors import CoeError
from coe.serve.gate import (
    boards,
    calls,
    control,
    escapes,
    events,
    exports,
    faults,
    health,
    images,
    metrics,
    models,
    openapi,
    overlays,
    recipes,
    sessions,
    stats,
    uploads,
)
from coe.serve.gate.access import guarded
from coe.serve.gate.headers import SafeHeaders
from coe.serve.gate.operations import Operation
from coe.serve.gate.pages import views
from coe.serve.gate.problems import Problem, answer
from coe.serve.gate.state import Gate


class _Number(IntegerConvertor):
    """Whole numbers in paths. Python refuses to read a number of thousands of digits, and no row has such a number."""

    def convert(self, value: str) -> int:
        return int(value.lstrip("0")[:_DIGITS] or "0")


_DIGITS = 20
"""A number of this many digits is larger than the largest id."""
register_url_convertor("int", _Number())

OPERATIONS: Sequence[Operation] = [
    *uploads.OPERATIONS,
    *boards.OPERATIONS,
    *calls.OPERATIONS,
    *escapes.OPERATIONS,
    *exports.OPERATIONS,
    *events.OPERATIONS,
    *recipes.OPERATIONS,
    *stats.OPERATIONS,
    *sessions.OPERATIONS,
    *images.OPERATIONS,
    *overlays.OPERATIONS,
    *control.OPERATIONS,
    *faults.OPERATIONS,
    *models.OPERATIONS,
    *health.OPERATIONS,
    *metrics.OPERATIONS,
]
"""All operations of the gate except `/openapi.json`, which describes them."""


def application(gate: Gate) -> ASGIApp:
    """Return the application of a gate; it runs the gate's feed while it runs."""
    operations = [*OPERATIONS, openapi.described(OPERATIONS)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gate.feed.begin()
        feed = asyncio.create_task(gate.feed.run())
        yield
        await gate.feed.close()
        await feed

    routes = [
        Route(operation.path, guarded(gate, operation), methods=[operation.method])
        for operation in [*operations, *views.PARTS]
    ]
    routes += [Route(shown.path, views.paged(gate, shown), methods=[shown.method]) for shown in views.PAGES]
    errors = (Problem, CoeError, HTTPException, ClientDisconnect, Exception)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(errors, answer),
    )
    # A redirect would name the host that the client claims to have asked.
    app.router.redirect_slashes = False
    # The outermost layer, because the answer to a fault of the service is made outside of all middleware.
    return SafeHeaders(app)
