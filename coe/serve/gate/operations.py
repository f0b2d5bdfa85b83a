"""The gate's operations. Routes, access and `/openapi.json` come from one list."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial, wraps
from inspect import getattr_static
from typing import Annotated, Any, Generic, TypeVar, get_type_hints

from pydantic import BeforeValidator, Field, create_model
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from coe.errors import ConfigError, did_you_mean
from coe.helpers.strict_model import StrictModel, of_json, parsed_json
from coe.helpers.visible import is_visible, visible
from coe.serve.clock import iso
from coe.serve.database.row_types import NAME
from coe.serve.database.tables import Key
from coe.serve.enums import Role
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.problems import Problem, ProblemKind, not_found
from coe.serve.text_checks import SEPARATORS

FEED = frozenset({Role.FEEDER, Role.ENGINEER})
VERIFY = frozenset({Role.OPERATOR, Role.ENGINEER})
READ = VERIFY | {Role.VIEWER}
ENGINEER = frozenset({Role.ENGINEER})
ANY = frozenset(Role)  # who may do an operation: the roles that a key may have
BYTES = "application/octet-stream"
LARGEST_ID = 2**63 - 1
MAX_JSON_BYTES = 8 << 20  # a JSON body holds at most a board file and what belongs to it


def _decimal(given: Any) -> Any:
    if isinstance(given, str) and not (given.isascii() and given.isdecimal()):
        raise ValueError("give a whole number")
    return given


DIGITS = BeforeValidator(_decimal)  # for a whole number of a query: it is written in digits alone
RowId = Annotated[int, Field(ge=0, le=LARGEST_ID), DIGITS]


QUOTED = "coe.is_quoted"  # in the scope of a request whose path was left as it came: a name has a `/`, as `%2F`


def _unquoted(part: str) -> str:
    """Return a part of a path with its `%XX` decoded, as uvicorn decodes paths."""
    encoded = part.encode("ascii", "replace")
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), encoded).decode(
        errors="replace"
    )


class NoQuery(StrictModel):
    """The query of an operation without parameters."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to the gate; `key` is that of the caller, None for an operation that needs none.

    `session` names the session in a browser that the caller's key was given in; it is empty for a program. `query` has
    the parameters in the form that the operation names, `body` a JSON body (`JsonBody`).
    """

    gate: Gate
    request: Request
    key: Key | None
    session: str = ""
    query: Any = None
    body: Any = None

    @property
    def caller(self) -> str:
        """The name of the caller's key."""
        return self.key.name if self.key else ""

    @property
    def id(self) -> int:
        """The id of a row in the path; raises Problem for a number that no row can have."""
        id = int(self.part("id"))
        if id > LARGEST_ID:
            raise not_found(f"row {str(id)[:30]}", "use an id that the service gave you")
        return id

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def name(self, part: str) -> str:
        """Return a name in the path; raises Problem if it has hidden characters, is too long, or leads to a folder."""
        name = _unquoted(self.part(part)) if self.request.scope.get(QUOTED) else self.part(part)
        # U+FFFD stands for bytes that are no UTF-8: two names with it may have been different.
        if not 0 < len(name) <= NAME or not is_visible(name) or {"\n", "\ufffd"} & {*name}:
            raise Problem(
                ProblemKind.BAD_REQUEST,
                f"the {part} in the path is longer than {NAME} characters, has hidden characters, or is not UTF-8",
                f"give a {part} of plain characters in UTF-8",
            )
        if "/" in name and {".", ".."} & set(name.split("/")):
            way_out = f"give a {part} without `..` between its slashes"
            raise Problem(ProblemKind.BAD_REQUEST, f"the {part} in the path leads to a folder", way_out)
        return name


HandlerResult = Response | Mapping[str, Any] | None  # a mapping is sent as JSON with `status`; None: no content
Handler = Callable[[Visit], Awaitable[HandlerResult]]
_H = TypeVar("_H", bound=Handler)
_Q = TypeVar("_Q", bound=Callable[[Visit, Connection], HandlerResult])
_W = TypeVar("_W", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method does at a path: the docstring of its handler says it to clients.

    `roles` may do it; None: everybody, without a key. `query` is the form of the parameters, None if any may be given.
    `body` is the form of a JSON body of `most_bytes` at most, `takes` the media type of any other. `sends` is the form
    of a JSON answer, or the media type of any other; `status` is that of success, `also` another one. `needs` are
    headers that a request must have, `reads` those that it may have, `gives` those of its answer, between blanks.
    """

    method: str
    path: str
    handler: Handler
    roles: frozenset[Role] | None
    status: int = 200
    also: int = 0
    query: type[StrictModel] | None = NoQuery
    body: type[StrictModel] | None = None
    most_bytes: int = MAX_JSON_BYTES
    takes: str = ""
    sends: JsonForm | str = ""
    needs: str = ""
    reads: str = ""
    gives: str = ""


class OperationRouter:
    """Collects operations where their handlers stand."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, method: str, path: str, roles: frozenset[Role] | None, **more: Any) -> Callable[[_H], _H]:
        """Serve an operation with the handler that this decorates; `more` are fields of `Operation`."""

        def added(handler: _H) -> _H:
            self.operations.append(Operation(method, path, handler, roles, **more))
            return handler

        return added

    def read(self, path: str, roles: frozenset[Role] | None, **more: Any) -> Callable[[_Q], _Q]:
        """Serve what the query that this decorates returns of one state of the database."""
        return self.serve(lambda visit, query: visit.gate.read(query), "GET", path, roles, **more)

    def write(self, method: str, path: str, roles: frozenset[Role] | None, **more: Any) -> Callable[[_Q], _Q]:
        """Serve what the query that this decorates returns; what it writes is on the disk when the answer is sent."""
        return self.serve(lambda visit, query: visit.gate.write(query), method, path, roles, **more)

    def serve(
        self,
        run: Callable[[Visit, Callable[..., Any]], Awaitable[HandlerResult]],
        method: str,
        path: str,
        roles: frozenset[Role] | None,
        **more: Any,
    ) -> Callable[[_W], _W]:
        """Serve what `run` makes of a visit and of the function that this decorates, which has the visit already."""

        def added(work: _W) -> _W:
            @wraps(work)
            async def handle(visit: Visit) -> HandlerResult:
                return await run(visit, partial(work, visit))

            self.add(method, path, roles, **more)(handle)
            return work

        return added


# JSON answers. One form makes an answer of a record, and describes it in `/openapi.json`, so that both agree.


class JsonForm:
    """A JSON object: fields of a record, and what stands beside them.

    `names` are fields of the record, with blanks between them, as in `namedtuple`; `key=name` has another name in JSON.
    Times, as `seen_us`, are written out as `seen`. `more` has the types of what else there is, `maybe` of what may be
    missing. `one` is the type of such an object, `many` of a list of them, for `more` of another form.
    """

    def __init__(
        self,
        title: str,
        record: type | None = None,
        names: str = "",
        more: Mapping[str, Any] = {},
        maybe: Mapping[str, Any] = {},
    ) -> None:
        fields = {key: name or key for key, _, name in (word.partition("=") for word in names.split())}
        self._plain = {key: name for key, name in fields.items() if not name.endswith("_us")}
        self._times = {key.removesuffix("_us"): name for key, name in fields.items() if name.endswith("_us")}
        self._more, self._maybe = set(more), set(maybe)
        types = {key: _type_of(record, name) for key, name in (self._plain | self._times).items()}
        needed = {key: (kind, ...) for key, kind in {**types, **more}.items()}
        optional: dict[str, Any] = {key: (kind, Field(default_factory=dict)) for key, kind in maybe.items()}
        make: Any = create_model  # names of fields are known at runtime alone
        one = make(title, **needed, **optional)
        self.one: Any = one
        self.many: Any = list[one]  # type: ignore[valid-type]

    def __call__(self, row: Any = None, **more: Any) -> dict[str, Any]:
        """Return a record as JSON, with what stands beside its fields."""
        assert self._more <= set(more) <= self._more | self._maybe, (self.one.__name__, sorted(more))
        plain = {key: getattr(row, name) for key, name in self._plain.items()}
        moments = {key: getattr(row, name) for key, name in self._times.items()}
        return plain | {key: None if us is None else iso(us) for key, us in moments.items()} | more


_BOX = JsonForm("Box", more={"label": str, "score": float | None, "xyxy": list[float | None]})
_HEAT = JsonForm("Heat", more={"rows": int, "columns": int, "values": str})
_LIKENESS = JsonForm("Likeness", more={"side": int, "pixels": str, "box": list[float]})
FINDING = JsonForm(
    "Finding",
    more={"expert": str, "label": str, "score": float | None},
    maybe={
        "variant": str,
        "boxes": _BOX.many,
        "doubt": str,
        "heat": _HEAT.one,
        "likeness": _LIKENESS.one,
        "read": str,
        "allowed": list[str],
        "reference": str,
        "caution": str,
    },
)  # a row of `Finding.to_dict` (`coe.core`), as boards and calls hold it; bytes are in base64


def _type_of(record: type | None, name: str) -> Any:
    hints = get_type_hints(record)
    kind = hints[name] if name in hints else get_type_hints(getattr_static(record, name).fget)["return"]
    if not name.endswith("_us"):
        return kind
    return datetime if kind is int else datetime | None


# The data of requests: bodies, queries and ids. A body is bounded in bytes and time before anything reads it.
MOST_HELD_BYTES = 1 << 30  # of bodies in memory; pictures of boards go to the disk as they come

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
            f"the body is encoded as {visible(encoding[:40])}, but encoded bodies are not accepted",
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
                raise Problem(ProblemKind.BUSY, "too many large requests at once", "try again later")
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
    """Return the parameters of a query as a form; raises Problem for what is unknown, given twice, long or hidden."""
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
