"""What the engine needs of whoever decides: the controller, or a decider that an experiment puts in its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from coe.board.router import Router
from coe.scheduler.events import Command, Event
from coe.scheduler.executor import Executor
from coe.scheduler.pool import ModelPool


class Decider(Protocol):
    """Answers events with commands. Called by one thread; pools, executors and router stay what they are."""

    @property
    def router(self) -> Router:
        """Where a component's inspection begins."""
        ...

    @property
    def pools(self) -> Mapping[str, ModelPool]:
        """The pools, by id."""
        ...

    @property
    def executors(self) -> Mapping[str, Executor]:
        """The executors, by id."""
        ...

    @property
    def under_way(self) -> int:
        """The number of requests that have arrived and have no reply yet."""
        ...

    def start(self, now: float) -> list[Command]:
        """Return what is to be done before anything has happened; `now` is in seconds."""
        ...

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return what is to be done, in order; `now` never goes back."""
        ...

    def check(self, *, idle: bool = False) -> None:
        """Prove all books; raises AssertionError."""
        ...


MakeDecider = Callable[..., Decider]
"""Called as `coe.scheduler.controller.Controller` is: with `router`, `graph`, `costs`, `plan`, `strategy` and
`max_wait_s`.
"""
