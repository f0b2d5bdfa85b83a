"""The data of requests: bodies, queries and ids. A body is bounded in bytes and time before anything reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.requests import Request

from coe.errors import ConfigError, did_you_mean
from coe.helpers.strict_model import StrictModel, of_json, parsed_json
from coe.helpers.visible import visible
from coe.serve.database.row_types import NAME
from coe.serve.gate.operations import Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.text_checks import SEPARATORS

MOST_HELD_BYTES = 1 << 30
"""The most bytes of bodies in memory; pictures of boards go to the disk as they come, and do not count."""

_F = TypeVar("_F", bound=StrictModel)


@dataclass(frozen=True, slots=True)
class JsonBody(Generic[_F]):
    """A JSON body: its data, and what they mean."""

    data: Any
    form: _F


async def json_body(visit: Visit, form: type[_F], *, most_bytes: int) -> JsonBody[_F]:
    """Return a JSON body as a form; raises Problem, and ConfigError for data that do not fit the form."""
    limit = min(most_bytes, visit.gate.config.limits.body)
    async with whole_body(visit, limit) as content:
        # On a thread: other requests, and clients of events, would wait for a large body.
        return await visit.gate.run(lambda: _read(content, form))


def _read(content: bytes, form: type[_F]) -> JsonBody[_F]:
    try:
        data = parsed_json(content or b"{}")
    except (ValueError, RecursionError) as error:
        raise Problem(ProblemKind.BAD_REQUEST, f"the body is not JSON: {error}", "send a JSON object") from None
    return JsonBody(data, of_json(data, form))


async def parts_of(visit: Visit, limit: int) -> AsyncIterator[bytes]:
    """Yield a body as it comes; raises Problem if it is compressed, larger than `limit` bytes, or comes too slowly."""
    encoding = visit.request.headers.get("content-encoding", "identity").strip().casefold()
    if encoding not in ("", "identity"):
        raise Problem(
            ProblemKind.ENCODED,
            f"the body is encoded as {visible(encoding[:40])}, and bodies are read as they are",
            "send it without Content-Encoding",
            {"Accept-Encoding": "identity", "Connection": "close"},
        )
    length = visit.request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limit:
        raise _too_large(limit)
    size, stream = 0, visit.request.stream()
    until_s = asyncio.get_running_loop().time() + visit.gate.config.limits.body_s
    while True:
        try:
            # The time ends the wait for the client alone, and never what is done with a part.
            async with asyncio.timeout_at(until_s):
                part = await anext(stream, None)
        except TimeoutError:
            detail = f"the body did not come within {visit.gate.config.limits.body_s:g} s"
            way_out = "send it again over a faster connection, or raise `limits.body_s`"
            raise Problem(ProblemKind.TOO_SLOW, detail, way_out, {"Connection": "close"}) from None
        if part is None:
            return
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        if part:
            yield part


@asynccontextmanager
async def whole_body(visit: Visit, limit: int) -> AsyncIterator[bytes]:
    """Give a body as one value; raises Problem, also if bodies of other requests fill the memory."""
    gate, parts, size = visit.gate, [], 0
    try:
        async for part in parts_of(visit, limit):
            parts.append(part)
            size += len(part)
            gate.held_bytes += len(part)
            if gate.held_bytes > MOST_HELD_BYTES:
                raise Problem(ProblemKind.BUSY, "too many large requests come at a time", "try again later")
        yield b"".join(parts)
    finally:
        gate.held_bytes -= size


def _too_large(limit: int) -> Problem:
    return Problem(
        ProblemKind.TOO_LARGE,
        f"the body is larger than {limit:,} bytes",
        "send a smaller one, or raise `limits.body` in the service's config",
        # What the client still sends is not read.
        {"Connection": "close"},
    )


def read_query(request: Request, form: type[_F]) -> _F:
    """Return the parameters of a query as a form; raises Problem for what the form does not take.

    No parameter may be given twice, be long, or have hidden characters.
    """
    pairs = request.query_params.multi_items()
    data, known = {name: value.translate(SEPARATORS) for name, value in pairs}, list(form.model_fields)
    way_out = f"known: {', '.join(known)}" if known else "leave it out"
    for name, value in data.items():
        if name not in known:
            raise _wrong_query(f"'{visible(name[:100])}' is not a parameter here{did_you_mean(name, known)}", way_out)
        if len(value) > NAME or visible(value) != value:
            detail = f"'{name}' is longer than {NAME} characters, or has hidden characters"
            raise _wrong_query(detail, f"give plain characters as `{name}`")
    if len(data) < len(pairs):
        raise _wrong_query("a parameter is given twice", "give each parameter once")
    try:
        return of_json(data, form)
    except ConfigError as error:
        raise _wrong_query(str(error), f"correct it, or leave it out; {way_out}") from None


def _wrong_query(detail: str, way_out: str) -> Problem:
    return Problem(ProblemKind.BAD_REQUEST, detail, way_out)
