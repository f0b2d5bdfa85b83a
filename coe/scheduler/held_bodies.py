"""The bodies that the experts of a pool hold, as a book of bytes. Only `coe.scheduler.pool` writes in it.

An expert holds its body from its planning until it begins to leave. A body counts once, however many hold it: as
planned, as loading while a holder loads, or as ready once a holder has brought it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from coe.scheduler.costs import Body
from coe.scheduler.expert_state import State


@dataclass(slots=True, eq=False)
class HeldBody:
    """A body and its holders, each with its own state: a body that a holder brought is ready, whatever the others'."""

    id: str
    bytes: int
    state: State = State.PLANNED
    holders: dict[str, State] = field(default_factory=dict)


class HeldBodies:
    """Bodies by their holders. `changed` is told of all experts that free or need other bytes from now on."""

    def __init__(self, changed: Callable[[Iterable[str]], None]) -> None:
        self.bytes = dict.fromkeys(State, 0)
        self._changed = changed
        self._sharers: Mapping[str, Collection[str]] = {}
        self._bodies: dict[str, HeldBody] = {}
        self._by_holder: dict[str, HeldBody] = {}

    def __repr__(self) -> str:
        return f"<HeldBodies {len(self._bodies)} bodies of {len(self._by_holder)} experts>"

    def tell_of(self, sharers: Mapping[str, Collection[str]]) -> None:
        """Tell of these experts when a body comes or goes; `sharers` are by its id."""
        self._sharers = sharers

    # The pool alone reads these

    def __contains__(self, body: object) -> bool:
        """Whether a body, by its id, is here or on its way."""
        return body in self._bodies

    def bytes_of(self, expert: str) -> int:
        """Return the bytes of the body that an expert holds; 0 if it holds none."""
        held = self._by_holder.get(expert)
        return 0 if held is None else held.bytes

    def id_of(self, expert: str) -> str | None:
        """Return the id of the body that an expert holds; None if it holds none."""
        held = self._by_holder.get(expert)
        return None if held is None else held.id

    def missing(self, expert: str) -> str | None:
        """Return the id of the body that an expert holds and that no load has brought yet; None if there is none."""
        held = self._by_holder.get(expert)
        return None if held is None or held.state is State.READY else held.id

    def planned_bytes(self, expert: str) -> int:
        """Return the bytes of the body of a planned expert for which no room is taken yet; 0 if there is none."""
        held = self._by_holder.get(expert)
        return 0 if held is None or held.state is not State.PLANNED else held.bytes

    def is_held(self, body: str, besides: str) -> bool:
        """Return whether an expert other than `besides` holds a body."""
        held = self._bodies.get(body)
        return held is not None and (len(held.holders) > 1 or besides not in held.holders)

    def freed(self, expert: str, after: Collection[str], kept: Body | None) -> int:
        """Return the bytes of the body that leaves with an expert, if it leaves after the experts `after`.

        The body `kept` stays in any case.
        """
        held = self._by_holder.get(expert)
        if held is None or (kept is not None and held.id == kept.id):
            return 0
        others = len(held.holders) - 1 - sum(other in held.holders for other in after)
        return 0 if others else held.bytes

    # The pool alone calls these

    def hold(self, expert: str, body: Body) -> None:
        """Let a planned expert hold a body from now on."""
        held = self._bodies.get(body.id)
        if held is None:
            held = self._bodies[body.id] = HeldBody(body.id, body.bytes)
            self.bytes[State.PLANNED] += body.bytes
            self._changed(self._sharers.get(body.id, ()))
        self._by_holder[expert] = held
        held.holders[expert] = State.PLANNED
        if len(held.holders) == 2:
            self._changed(held.holders)

    def begin(self, expert: str) -> None:
        """Note that a load of an expert begins: unless its body is in place, it may bring that, too."""
        self._follow(expert, State.LOADING, State.PLANNED)

    def arrive(self, expert: str) -> None:
        """Note that an expert has come: its body is in place now."""
        self._follow(expert, State.READY, State.LOADING)

    def _follow(self, expert: str, state: State, before: State) -> None:
        """Note the state of an expert; its body goes with it if that is in the state `before`."""
        held = self._by_holder.get(expert)
        if held is not None:
            held.holders[expert] = state
            if held.state is before:
                self._move(held, state)

    def let_go(self, expert: str, kept: Body | None = None) -> HeldBody | None:
        """Let an expert hold its body no more.

        Return the body if it is in place and must leave with the expert, because nobody else holds it. The body `kept`
        stays: an expert that is about to be planned will hold it.
        """
        held = self._by_holder.pop(expert, None)
        if held is None:
            return None
        del held.holders[expert]
        if held.holders:
            if len(held.holders) == 1:
                self._changed(held.holders)
            if held.state is State.LOADING and State.LOADING not in held.holders.values():
                self._move(held, State.PLANNED)
            return None
        if kept is not None and kept.id == held.id:
            return None
        del self._bodies[held.id]
        self.bytes[held.state] -= held.bytes
        self._changed(self._sharers.get(held.id, ()))
        return held if held.state is State.READY else None

    def check(self, states: Mapping[str, State]) -> None:
        """Prove the book by the states of all experts of the pool; raises AssertionError."""
        for state in State:
            sizes = sum(held.bytes for held in self._bodies.values() if held.state is state)
            assert sizes == self.bytes[state], f"{self!r}: the book of {state} is wrong"
        holders = {expert: held for held in self._bodies.values() for expert in held.holders}
        assert holders == self._by_holder, f"{self!r}: bodies and holders differ"
        for held in self._bodies.values():
            assert held.holders, f"{self!r}: nobody holds body '{held.id}'"
            for expert, state in held.holders.items():
                assert states.get(expert) is state, f"{self!r}: '{expert}', which holds '{held.id}', is not {state}"
                assert state is not State.LEAVING, f"{self!r}: '{expert}' leaves and holds '{held.id}'"
            if held.state is not State.READY:
                furthest = State.LOADING if State.LOADING in held.holders.values() else State.PLANNED
                assert State.READY not in held.holders.values(), f"{self!r}: '{held.id}' of a ready expert is not there"
                assert held.state is furthest, f"{self!r}: '{held.id}' is {held.state}, not {furthest}"

    def _move(self, held: HeldBody, state: State) -> None:
        self.bytes[held.state] -= held.bytes
        held.state = state
        self.bytes[state] += held.bytes
