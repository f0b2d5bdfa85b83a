"""The form in which the gate's operations are listed. Law: routes, access and `/openapi.json` come from one list."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from coe.serve.database.keys import Key
from coe.serve.gate.gate_state import Gate
from coe.serve.words import Role
from coe.strict_model import StrictModel

FEED = frozenset({Role.FEEDER, Role.ENGINEER, Role.ADMIN})
READ = frozenset({Role.OPERATOR, Role.ENGINEER, Role.ADMIN})
VERIFY = READ
ENGINEER = frozenset({Role.ENGINEER, Role.ADMIN})
ADMIN = frozenset({Role.ADMIN})
ANY = frozenset(Role)
"""Who may do an operation: the roles that a key may have."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to the gate; `key` is that of the caller, None for an operation that needs none.

    `session` names the session in a browser that the caller's key was given in; it is empty for a program.
    """

    gate: Gate
    request: Request
    key: Key | None
    session: str = ""

    @property
    def caller(self) -> str:
        """The name of the caller's key."""
        return self.key.name if self.key else ""

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])


Handler = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method does at a path. `roles` are those that may do it; None: everybody, without a key.

    `body` is the form of a JSON body; `takes` is the media type of any other body. `query` says what each parameter of
    the query means, and `answers` what each status means.
    """

    method: str
    path: str
    summary: str
    handler: Handler
    roles: frozenset[Role] | None
    body: type[StrictModel] | None = None
    takes: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    answers: Mapping[int, str] = field(default_factory=dict)
