"""The gate's application: operations as routes, errors as problems."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import coe
from coe.errors import CoeError
from coe.serve.gate import (
    access,
    board_routes,
    call_routes,
    image_routes,
    recipe_routes,
    report_routes,
    state_routes,
    stats_routes,
    teach_routes,
    trial_routes,
    upload_routes,
)
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import QUOTED, JsonForm, NoQuery, Operation, Visit
from coe.serve.gate.pages import page_routes
from coe.serve.gate.problems import MEDIA_TYPE, Problem, ProblemKind, answer

_PROBLEM = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("type", "title", "detail", "way_out", "instance")}
    | {"status": {"type": "integer"}},
    "required": ["type", "title", "status", "detail", "way_out"],
}
_REFUSAL = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def described(operations: Sequence[Operation]) -> Operation:
    """Return the operation that describes all operations, and itself; it is written when it is first asked for."""

    @cache
    def document() -> dict[str, Any]:
        return _document([*operations, own])

    async def describe(visit: Visit) -> Mapping[str, Any]:
        """Describe all operations, this one too."""
        return document()

    own = Operation("GET", "/openapi.json", describe, None)
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


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    query, good = _schema_of(operation.query or NoQuery, schemas), (operation.status, operation.also)
    described: dict[str, Any] = {
        "summary": " ".join((operation.handler.__doc__ or "").split()),
        "parameters": [
            *(
                _parameter(name, "path", {"type": "integer", "minimum": 0} if kind == "int" else {"type": "string"})
                for name, kind in re.findall(r"{(\w+)(?::(\w+))?}", operation.path)
            ),
            *(_parameter(name, "header", {"type": "string"}) for name in operation.needs.split()),
            *(_parameter(name, "header", {"type": "string"}, False) for name in operation.reads.split()),
            *(
                _parameter(name, "query", schema, name in query.get("required", ()))
                for name, schema in query.get("properties", {}).items()
            ),
        ],
        "responses": {
            **{str(status): _answer(operation, status, schemas) for status in good if status},
            # No "default": a generated client takes any answer for it whose type it cannot read, as a picture.
            **{status: {"description": "a problem", "content": _REFUSAL} for status in ("4XX", "5XX")},
        },
        "security": [] if operation.roles is None else [{"key": []}],
        "x-roles": None if operation.roles is None else sorted(operation.roles),
    }
    content = _bytes(operation.takes) if operation.takes else {}
    if form := operation.body:
        content["application/json"] = {"schema": _reference(form, schemas)}
    if content:
        described["requestBody"] = {"required": True, "content": content}
    return described


def _parameter(name: str, where: str, schema: dict[str, Any], required: bool = True) -> dict[str, Any]:
    said = schema.pop("description", "")
    return {"name": name, "in": where, "required": required, "description": said, "schema": schema}


def _answer(operation: Operation, status: int, schemas: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if operation.gives:
        answer["headers"] = {name: {"schema": {"type": "string"}} for name in operation.gives.split()}
    if status == HTTPStatus.NO_CONTENT or not operation.sends:
        return answer
    if isinstance(operation.sends, JsonForm):
        content = {"application/json": {"schema": _reference(operation.sends.one, schemas)}}
        return answer | {"content": content}
    return answer | {"content": _bytes(operation.sends)}


def _bytes(media_type: str) -> dict[str, Any]:
    is_text = media_type.startswith("text/")
    return {media_type: {"schema": {"type": "string"} | ({} if is_text else {"format": "binary"})}}


def _reference(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    _add(schemas, {model.__name__: _schema_of(model, schemas)})
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _schema_of(model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    _add(schemas, schema.pop("$defs", {}))
    return schema


def _add(schemas: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, schema in more.items():
        known = schemas.setdefault(name, schema)
        assert known == schema, f"two forms are named {name}"


HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class SafeHeaders:
    """Adds `HEADERS` to each answer that does not set them itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; one that is cancelled, as when the gate ends, gets an answer before."""
        has_begun = scope["type"] != "http"

        async def send_with_headers(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except asyncio.CancelledError:
            if not has_begun:
                way_out = "before retrying later, check whether this request was saved"
                problem = Problem(ProblemKind.DRAINING, "the service ends", way_out, {"Connection": "close"})
                await problem.response(Request(scope))(scope, receive, send_with_headers)
            raise


class _Number(IntegerConvertor):
    """Whole numbers in paths. Python refuses to read a number of thousands of digits, and no row has such a number."""

    def convert(self, value: str) -> int:
        return int(value.lstrip("0")[:_DIGITS] or "0")


_DIGITS = 20  # a number of this many digits is larger than the largest id
register_url_convertor("int", _Number())

_MODULES = (
    upload_routes,
    board_routes,
    call_routes,
    report_routes,
    recipe_routes,
    trial_routes,
    stats_routes,
    access,
    image_routes,
    state_routes,
)
OPERATIONS: Sequence[Operation] = [operation for module in _MODULES for operation in module.router.operations]
"""All operations of the gate except `/openapi.json`, which describes them."""


_ROUTERS = (page_routes.parts, teach_routes.router)
PARTS = [operation for one in _ROUTERS for operation in one.operations]  # what pages alone ask for


def application(gate: Gate) -> ASGIApp:
    """Return the application of a gate; it runs the gate's feed while it runs."""
    operations = [*OPERATIONS, described(OPERATIONS)]

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gate.look()  # pictures come in after it, or are refused
        await gate.feed.begin()
        feed = asyncio.create_task(gate.feed.run())
        yield
        await gate.feed.close()
        await feed

    routes = [
        Route(operation.path, access.guarded(gate, operation), methods=[operation.method])
        for operation in [*operations, *PARTS]
    ]
    routes += [Route(shown.path, page_routes.paged(gate, shown), methods=[shown.method]) for shown in page_routes.PAGES]
    nowhere = page_routes.paged(gate, page_routes.NOWHERE)

    async def missing(request: Request, error: Exception) -> Response:
        by_person = "text/html" in request.headers.get("accept", "")
        return await (nowhere(request) if by_person else answer(request, error))

    errors: tuple[type[Exception], ...] = (Problem, CoeError, HTTPException, ClientDisconnect, OSError, Exception)
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={**dict.fromkeys(errors, answer), HTTPStatus.NOT_FOUND: missing},
    )
    # A redirect would name the host that the client claims to have asked.
    app.router.redirect_slashes = False
    # The outermost layer, because the answer to a fault of the service is made outside of all middleware.
    return SafeHeaders(_with_quoted_names(app))


def _with_quoted_names(app: ASGIApp) -> ASGIApp:
    """Leave a path of boards encoded if a name in it has a `/`, written as `%2F`; `Visit.name` decodes it."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path", b"") if scope["type"] == "http" else b""
        if path.startswith(b"/api/v1/boards/") and b"%2f" in path.lower():
            scope = {**scope, "path": path.decode("ascii"), QUOTED: True}
        await app(scope, receive, send)

    return pass_on
