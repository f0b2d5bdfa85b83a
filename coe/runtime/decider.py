"""Who decides for an engine: the controller, or a class of a user's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from coe.board.router import Router
from coe.scheduler.events import Command, Event
from coe.scheduler.executor import Executor
from coe.scheduler.pool import ModelPool

Trace = list[tuple[float, Event | None, list[Command]]]
"""What happened, when, and the commands that answered it; the event is None for the first commands."""


class Decider(Protocol):
    """Answers events with commands. Called by one thread.

    The engine reads `router`, `pools` and `executors` once, when it is made. A decider may later take another router
    (the event `RulesChanged`) and drop executors (`Lost`): the engine hands in these events, and never asks again.
    """

    @property
    def router(self) -> Router:
        """The router, which tells where a component's inspection begins."""

    @property
    def pools(self) -> Mapping[str, ModelPool]:
        """The pools, by id."""

    @property
    def executors(self) -> Mapping[str, Executor]:
        """The executors, by id."""

    def lacks_initial(self) -> bool:
        """Return whether the pools do not hold their initial experts yet."""

    def start(self, now: float) -> list[Command]:
        """Return the commands to carry out before the first event; `now` is in seconds."""

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event and return the commands to carry out, in order; `now` never decreases."""
