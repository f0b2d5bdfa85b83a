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
    board_routes,
    call_routes,
    escape_routes,
    event_routes,
    export_routes,
    image_routes,
    models,
    openapi,
    overlay_routes,
    recipe_routes,
    sessions,
    state_routes,
    stats_routes,
    upload_routes,
)
from coe.serve.gate.access import guarded
from coe.serve.gate.connections import SafeHeaders
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operation_routes import Operation
from coe.serve.gate.pages import page_routes
from coe.serve.gate.problems import Problem, answer


class _Number(IntegerConvertor):
    """Whole numbers in paths. Python refuses to read a number of thousands of digits, and no row has such a number."""

    def convert(self, value: str) -> int:
        return int(value.lstrip("0")[:_DIGITS] or "0")


_DIGITS = 20
"""A number of this many digits is larger than the largest id."""
register_url_convertor("int", _Number())

_MODULES = (
    upload_routes,
    board_routes,
    call_routes,
    escape_routes,
    export_routes,
    event_routes,
    recipe_routes,
    stats_routes,
    sessions,
    image_routes,
    overlay_routes,
    state_routes,
    models,
)
OPERATIONS: Sequence[Operation] = [operation for module in _MODULES for operation in module.router.operations]
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
        for operation in [*operations, *page_routes.parts.operations]
    ]
    routes += [Route(shown.path, page_routes.paged(gate, shown), methods=[shown.method]) for shown in page_routes.PAGES]
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
