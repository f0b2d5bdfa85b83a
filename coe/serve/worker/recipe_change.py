"""Which recipes are on the line. All active versions, and each version of which boards wait, together.

An activation that fails leaves the version before active, and raises a fault. Boards keep the version that they were
accepted with: a version leaves the line when it is not active and has had no board for a while. Recipes change when no
board is being handed in; a line is opened anew, when no board is under way, only for recipes that clash.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Connection

from coe.serve.database import audit, event_log, fault_log, recipe_versions
from coe.serve.database.connecting import Database
from coe.serve.database.tables import Activation, NewFault, Recipe
from coe.serve.enums import ActivationState, EventKind, FaultKind, Process
from coe.serve.worker.product import Changed, Product, Products

REFUSED_S = 30.0
"""How long a recipe that could not be opened is left alone before the next attempt."""
STAYS_S = 60.0
"""How long a version that is not active stays on the line after its last board: a feeder may name it again."""
_KINDS = (FaultKind.INSPECTOR_FAILED, FaultKind.RECIPE_REFUSED)


@dataclass(frozen=True, slots=True)
class RefusedRecipe:
    """Why a recipe cannot be opened, and until when nobody tries again, on the monotonic clock."""

    reason: str
    until_s: float


class Changeover:
    """Brings recipes onto the line as boards and activations need them. The loop's thread alone uses it."""

    def __init__(self, database: Database, products: Products, now_us: Callable[[], int]) -> None:
        self._database, self._products, self._now_us = database, products, now_us
        self._asked: list[Activation] = []
        self._answering: Activation | None = None
        self._active: frozenset[int] = frozenset()
        self._needed: frozenset[int] = frozenset()
        self._needed_s: dict[int, float] = {}
        self._recipes: dict[int, Recipe] = {}
        self._ended: Changed | None = None
        self._refused: dict[int, RefusedRecipe] = {}
        self._apart: dict[int, str] = {}
        self._first: int | None = None
        self._kept: frozenset[int] = frozenset()
        """What went on as it was during the change."""

    @property
    def is_holding_up(self) -> bool:
        """Whether no board may begin, because a line is to be opened anew as soon as no board is under way."""
        return self._first is not None

    def look(self, connection: Connection, needed: Collection[int], now_s: float) -> None:
        """Take in which activations were asked for, and that boards need recipes, by their ids."""
        self._asked = recipe_versions.asked(connection)
        self._active = recipe_versions.active_ids(connection)
        self._needed = frozenset(needed)
        lately = {id: seen_s for id, seen_s in self._needed_s.items() if now_s - seen_s < STAYS_S}
        self._needed_s = lately | dict.fromkeys(needed, now_s)

    def step(self, now_s: float, *, is_between: bool, is_free: bool) -> None:
        """Go on as far as possible; raises DatabaseError.

        `is_between` says that no board is being handed in, `is_free` that none is under way.
        """
        self._ended = self._ended or self._products.finished()
        if self._ended is not None:
            self._conclude(self._ended, now_s)
            self._ended = None
        if self._products.is_changing or not is_between or (self._first is not None and not is_free):
            return
        if self._answering is None and self._asked:
            self._answering = self._asked[0]
        again = None if self._answering is None else self._answering.recipe_id
        wanted, current = self._wanted(now_s), self._products.current.keys()
        if self._first is not None or again is not None or wanted - current - self._apart.keys() or current - wanted:
            self._begin(wanted, again)

    def product_for(self, recipe_id: int) -> Product | None:
        """Return a recipe that is on the line; None for a recipe that comes onto it as soon as that is possible."""
        product = self._products.current.get(recipe_id)
        if product is None and recipe_id in self._apart and self._first is None and not self._products.is_changing:
            self._first = recipe_id
        return product

    def refusal(self, recipe_id: int, now_s: float) -> str | None:
        """Return why a recipe cannot be opened now, or None."""
        refused = self._refused.get(recipe_id)
        return refused.reason if refused is not None and now_s < refused.until_s else None

    def _wanted(self, now_s: float) -> set[int]:
        """Return the recipes that should be on the line; those that were refused are tried again for boards alone."""
        wanted = {
            id
            for id in self._active | self._needed_s.keys()
            if id not in self._refused or (id in self._needed and self.refusal(id, now_s) is None)
        }
        return wanted | ({self._answering.recipe_id} if self._answering is not None else set())

    def _begin(self, wanted: Collection[int], again: int | None) -> None:
        first = self._first if self._first is not None else again
        ids = sorted(wanted, key=lambda id: (id != first, id))
        with self._database.reading() as connection:
            self._recipes = {id: self._recipes.get(id) or recipe_versions.get(connection, id) for id in ids}
            # A gate of another version, or a person with the database, may have let it in.
            refusals = {id: recipe_versions.refusal(connection, one) for id, one in self._recipes.items()}
        refused = {id: reason for id, reason in refusals.items() if reason is not None}
        wanted_now = [one for id, one in self._recipes.items() if id not in refused]
        self._products.begin_to_change(wanted_now, again=again, anew=self._first is not None, refused=refused)
        self._first, self._kept = None, frozenset(self._products.current)

    def _conclude(self, changed: Changed, now_s: float) -> None:
        """Write what became of a change; what nobody could try is tried again."""
        asked = self._answering
        is_answered = asked is not None and not changed.is_lost and asked.recipe_id not in changed.apart
        with self._database.writing() as connection:
            for id, reason in changed.refused.items():
                is_asked = asked is not None and asked.recipe_id == id
                kind = FaultKind.RECIPE_REFUSED if is_asked else FaultKind.INSPECTOR_FAILED
                fault_log.note(connection, NewFault(Process.WORKER, kind, reason, self._about(id)), self._now_us())
            opened = changed.products.keys() - self._kept - changed.refused.keys()
            activated = asked.recipe_id if asked is not None and is_answered and asked.recipe_id in opened else None
            self._clear_faults(connection, opened, activated, changed.refused)
            if asked is not None and is_answered:
                self._answer(connection, asked, changed.refused.get(asked.recipe_id, ""))
        # A recipe that could not be read again is still on the line as it was.
        refused = {id: reason for id, reason in changed.refused.items() if id not in changed.products}
        self._refused = {id: one for id, one in self._refused.items() if id not in changed.products}
        self._refused |= {id: RefusedRecipe(reason, now_s + REFUSED_S) for id, reason in refused.items()}
        self._apart = changed.apart
        if asked is not None and is_answered:
            self._asked = [one for one in self._asked if one.id != asked.id]
            if asked.recipe_id in changed.products:
                # As the database says from now on; without it this step would take the version off the line again.
                self._active |= {asked.recipe_id}
            self._answering = None
        elif asked is not None and not changed.is_lost:
            self._first = asked.recipe_id

    def _clear_faults(
        self, connection: Connection, opened: Collection[int], activated: int | None, refused: Collection[int]
    ) -> None:
        """Clear the faults of versions that were opened, and of the versions whose place an activated one has taken.

        They may be open from before this process was started.
        """
        name = None if activated is None else self._recipes[activated].name
        mended, still = {self._about(id) for id in opened}, {self._about(id) for id in refused}
        for fault in fault_log.open_faults(connection):
            is_ours = fault.process is Process.WORKER and fault.kind in _KINDS and fault.about not in still
            if is_ours and (fault.about in mended or fault.about.rpartition(" ")[0] == name):
                fault_log.clear(connection, fault.id, by=Process.WORKER.value, now_us=self._now_us())

    def _about(self, id: int) -> str:
        return f"{self._recipes[id].name} {self._recipes[id].version}"

    def _answer(self, connection: Connection, asked: Activation, reason: str) -> None:
        wanted, state = self._recipes[asked.recipe_id], ActivationState.FAILED if reason else ActivationState.ACTIVE
        now_us = self._now_us()
        if not recipe_versions.answer(connection, asked.id, state, now_us=now_us, reason=reason):
            return
        kind = EventKind.RECIPE_FAILED if reason else EventKind.RECIPE_ACTIVATED
        body = {"name": wanted.name, "version": wanted.version, "reason": reason, "by": asked.asked_by}
        event_log.append(connection, kind, now_us, body)
        audit.append(connection, Process.WORKER, kind.value, f"recipe {wanted.name} {wanted.version}", now_us=now_us)
