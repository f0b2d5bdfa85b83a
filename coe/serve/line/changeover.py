"""Which recipe the line is open for. Law: a product changes only while no board is under way.

An activation that fails leaves the version before active, and raises a fault. Boards keep the version that they were
accepted with: a queued board of an earlier version opens that version again when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from coe.serve.database import audit, events, faults, recipes
from coe.serve.database.events import NewEvent
from coe.serve.database.faults import NewFault
from coe.serve.database.opening import Database
from coe.serve.database.recipes import Activation
from coe.serve.line.product import Opened, Product, Products
from coe.serve.words import ActivationState, EventKind, FaultKind, Process

REFUSED_S = 30.0
"""How long a recipe that could not be opened is left alone before the next attempt."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a recipe cannot be opened, and until when nobody tries again, on the monotonic clock."""

    reason: str
    until_s: float


class Changeover:
    """Opens recipes as boards and activations need them. The loop's thread alone uses it."""

    def __init__(self, database: Database, products: Products, now_us: Callable[[], int]) -> None:
        self._database, self._products, self._now_us = database, products, now_us
        self._asked: list[Activation] = []
        self._answering: Activation | None = None
        self._ended: Opened | None = None
        self._refused: dict[int, Refusal] = {}

    @property
    def is_pending(self) -> bool:
        """Whether a product is being opened, or is to be opened as soon as no board is under way."""
        return self._products.is_opening or self._ended is not None or bool(self._asked)

    def begin(self) -> None:
        """Begin to open the recipe that was activated last, so that the first board need not wait."""
        with self._database.reading() as connection:
            newest = recipes.newest_activation(connection)
            if newest is not None:
                self._products.begin_to_open(recipes.get(connection, newest.recipe_id))

    def look(self, connection: Connection) -> None:
        """Take in the activations that were asked for."""
        self._asked = recipes.asked(connection)

    def step(self, now_s: float, *, is_free: bool) -> None:
        """Go on as far as possible; `is_free` says that no board is under way. Raises DatabaseTrouble."""
        self._ended = self._ended or self._products.finished()
        if self._ended is not None:
            self._conclude(self._ended, now_s)
            self._ended = None
        if self._asked and is_free and not self._products.is_opening:
            with self._database.reading() as connection:
                wanted = recipes.get(connection, self._asked[0].recipe_id)
            self._answering = self._asked[0]
            self._products.begin_to_open(wanted)

    def product_for(self, recipe_id: int, now_s: float, *, is_free: bool) -> Product | None:
        """Return the open product of a recipe, or begin to open it if no board is under way; raises DatabaseTrouble."""
        current = self._products.current
        if current is not None and current.recipe.id == recipe_id:
            return current
        if is_free and not self.is_pending and self.refusal(recipe_id, now_s) is None:
            with self._database.reading() as connection:
                wanted = recipes.get(connection, recipe_id)
            self._products.begin_to_open(wanted)
        return None

    def refusal(self, recipe_id: int, now_s: float) -> str | None:
        """Return why a recipe cannot be opened now, or None."""
        refused = self._refused.get(recipe_id)
        return refused.reason if refused is not None and now_s < refused.until_s else None

    def _conclude(self, opened: Opened, now_s: float) -> None:
        """Write what became of an attempt."""
        wanted, now_us = opened.wanted, self._now_us()
        with self._database.writing() as connection:
            if opened.error:
                kind = FaultKind.RECIPE_REFUSED if self._answering else FaultKind.INSPECTOR_FAILED
                about = f"{wanted.name} {wanted.version}"
                faults.note(connection, NewFault(Process.LINE, kind, opened.error, about), now_us)
            if self._answering is not None:
                self._answer(connection, self._answering, opened, now_us)
        self._refused.pop(wanted.id, None)
        if opened.error:
            self._refused[wanted.id] = Refusal(opened.error, now_s + REFUSED_S)
        if self._answering is not None:
            self._asked = [one for one in self._asked if one.id != self._answering.id]
            self._answering = None

    def _answer(self, connection: Connection, asked: Activation, opened: Opened, now_us: int) -> None:
        wanted, state = opened.wanted, ActivationState.FAILED if opened.error else ActivationState.ACTIVE
        if not recipes.answer(connection, asked.id, state, now_us=now_us, reason=opened.error):
            return
        kind = EventKind.RECIPE_FAILED if opened.error else EventKind.RECIPE_ACTIVATED
        body = {"name": wanted.name, "version": wanted.version, "reason": opened.error, "by": asked.asked_by}
        events.append(connection, NewEvent(kind, now_us, body))
        audit.append(connection, Process.LINE, kind.value, f"recipe {wanted.name} {wanted.version}", now_us=now_us)
