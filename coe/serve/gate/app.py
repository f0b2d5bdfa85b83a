"""The gate's application: operations as routes, errors as problems."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import coe
from coe.errors import CoeError
from coe.serve.gate import (
    access,
    board_routes,
    call_routes,
    escape_routes,
    event_routes,
    export_routes,
    image_routes,
    inference_routes,
    overlay_routes,
    recipe_routes,
    repair_routes,
    report_routes,
    search_routes,
    state_routes,
    stats_routes,
    teach_files,
    teach_learn_routes,
    teach_routes,
    trial_routes,
    upload_routes,
)
from coe.serve.gate.access import guarded
from coe.serve.gate.connections import SafeHeaders
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import QUOTED, NoQuery, Operation, Visit
from coe.serve.gate.pages import page_routes
from coe.serve.gate.problems import MEDIA_TYPE, Problem, answer


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
    search_routes,
    call_routes,
    repair_routes,
    escape_routes,
    export_routes,
    event_routes,
    recipe_routes,
    trial_routes,
    stats_routes,
    report_routes,
    access,
    image_routes,
    overlay_routes,
    state_routes,
    inference_routes,
)
OPERATIONS: Sequence[Operation] = [operation for module in _MODULES for operation in module.router.operations]
"""All operations of the gate except `/openapi.json`, which describes them."""


_ROUTERS = (page_routes.parts, teach_files.router, teach_routes.router, teach_learn_routes.router)
PARTS = [operation for one in _ROUTERS for operation in one.operations]
"""What pages alone ask for."""


def application(gate: Gate) -> ASGIApp:
    """Return the application of a gate; it runs the gate's feed while it runs."""
    operations = [*OPERATIONS, described(OPERATIONS)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gate.feed.begin()
        feed = asyncio.create_task(gate.feed.run())
        yield
        await gate.feed.close()
        await feed

    routes = [
        Route(operation.path, guarded(gate, operation), methods=[operation.method])
        for operation in [*operations, *PARTS]
    ]
    routes += [Route(shown.path, page_routes.paged(gate, shown), methods=[shown.method]) for shown in page_routes.PAGES]
    errors = (Problem, CoeError, HTTPException, ClientDisconnect, OSError, Exception)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers=dict.fromkeys(errors, answer),
    )
    # A redirect would name the host that the client claims to have asked.
    app.router.redirect_slashes = False
    # The outermost layer, because the answer to a fault of the service is made outside of all middleware.
    return SafeHeaders(_with_quoted_names(app))


def _with_quoted_names(app: ASGIApp) -> ASGIApp:
    """Return an application that leaves a path of boards as it came if a name in it has a `/`, written as `%2F`.

    Decoded, the name would be two parts of the path; `Visit.name` decodes it.
    """

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path", b"") if scope["type"] == "http" else b""
        if path.startswith(b"/api/v1/boards/") and b"%2f" in path.lower():
            scope = {**scope, "path": path.decode("ascii"), QUOTED: True}
        await app(scope, receive, send)

    return pass_on


def described(operations: Sequence[Operation]) -> Operation:
    """Return the operation that describes all operations, and itself; it is written when it is first asked for."""

    @cache
    def document() -> dict[str, Any]:
        return _document([*operations, own])

    async def describe(visit: Visit) -> Mapping[str, Any]:
        """Describe all operations, this one too."""
        return document()

    own = Operation("GET", "/openapi.json", describe, None, {HTTPStatus.OK: "OpenAPI 3.1"})
    return own


def _document(operations: Sequence[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {"Problem": _PROBLEM}
    for operation in operations:
        path = re.sub(r":\w+}", "}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "coe-serve", "version": coe.__version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _given(operation: Operation) -> dict[str, Any]:
    """Return the headers of an answer, if it has any that a client needs."""
    headers = {name: {"schema": {"type": "string"}} for name in operation.gives}
    return {"headers": headers} if headers else {}


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": " ".join((operation.handler.__doc__ or "").split()),
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "integer" if kind == "int" else "string"},
            }
            for name, kind in re.findall(r"{(\w+)(?::(\w+))?}", operation.path)
        ]
        + [{"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in operation.needs]
        + [
            {"name": name, "in": "query", "description": schema.pop("description", ""), "schema": schema}
            for name, schema in (operation.query or NoQuery).model_json_schema().get("properties", {}).items()
        ],
        "responses": {
            **{
                str(status): {"description": meaning, **(_given(operation) if status < HTTPStatus.BAD_REQUEST else {})}
                for status, meaning in operation.answers.items()
            },
            "default": {
                "description": "a problem",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        "security": [] if operation.roles is None else [{"key": []}],
        "x-roles": None if operation.roles is None else sorted(operation.roles),
    }
    if operation.body is not None:
        schema = operation.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[operation.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": reference}}}
    elif operation.takes:
        described["requestBody"] = {"required": True, "content": {operation.takes: {}}}
    return described


_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {"type": "string", "description": "urn:coe:problem:... , for programs"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "what is wrong with this request"},
        "way_out": {"type": "string", "description": "what to do"},
        "instance": {"type": "string"},
    },
}
