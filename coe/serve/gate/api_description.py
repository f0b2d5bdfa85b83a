"""`/openapi.json`: the operations of the gate with their bodies, queries, headers and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

import coe
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import NoQuery, Operation, Visit
from coe.serve.gate.problems import MEDIA_TYPE

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


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    query = _schema_of(operation.query or NoQuery, schemas)
    described: dict[str, Any] = {
        "summary": " ".join((operation.handler.__doc__ or "").split()),
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "integer", "minimum": 0} if kind == "int" else {"type": "string"},
            }
            for name, kind in re.findall(r"{(\w+)(?::(\w+))?}", operation.path)
        ]
        + [
            {"name": name, "in": "header", "required": name in operation.needs, "schema": {"type": "string"}}
            for name in operation.needs + operation.reads
        ]
        + [
            {
                "name": name,
                "in": "query",
                "required": name in query.get("required", ()),
                "description": schema.pop("description", ""),
                "schema": schema,
            }
            for name, schema in query.get("properties", {}).items()
        ],
        "responses": {
            **{str(int(status)): _answer(operation, status, schemas) for status in operation.answers},
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


def _answer(operation: Operation, status: int, schemas: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": operation.answers[status]}
    if status >= HTTPStatus.BAD_REQUEST:
        return answer | {"content": _REFUSAL}
    if operation.gives:
        answer["headers"] = {name: {"schema": {"type": "string"}} for name in operation.gives}
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
    """Return the schema of a model; those that it refers to go to the others."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    _add(schemas, schema.pop("$defs", {}))
    return schema


def _add(schemas: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, schema in more.items():
        known = schemas.setdefault(name, schema)
        assert known == schema, f"two forms are named {name}"
