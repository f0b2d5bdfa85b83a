"""`/openapi.json`, made from the list of operations. Law: an operation that is not listed is not served."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import coe
from coe.serve.gate.operation_routes import NoQuery, Operation, Visit
from coe.serve.gate.problems import MEDIA_TYPE


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
        + [
            {"name": name, "in": "query", "description": schema.pop("description", ""), "schema": schema}
            for name, schema in (operation.query or NoQuery).model_json_schema().get("properties", {}).items()
        ],
        "responses": {
            **{str(status): {"description": meaning} for status, meaning in operation.answers.items()},
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
