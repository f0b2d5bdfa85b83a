"""The requests of a simulation, and when they arrive. The same names and seed give the same requests everywhere.

Tasks are those of the paper's section 5.1. Requests come in one of two orders: drawn by count, or one board after
another as a camera passes over them. Tails change the counts of a board, from all equal to a few common components.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coe.board import rules
from coe.board.graph import ExpertGraph, first_experts, usage
from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.board.rules import Rules
from coe.core import Finding, Request
from coe.errors import ConfigError, did_you_mean
from coe.helpers.arithmetic import added
from coe.sim.agenda import Arrival


@dataclass(frozen=True, slots=True)
class Task:
    """A task of the paper: a number of requests of a board."""

    board: str
    requests: int


TASKS: Mapping[str, Task] = {"A1": Task("A", 2500), "A2": Task("A", 3500), "B1": Task("B", 2500), "B2": Task("B", 3500)}
EVERY_S = 0.004
"""The time between two requests, in seconds (section 5.1)."""

ORDERS = ("iid", "boards")
"""`iid`: each request's component is drawn by count. `boards`: one board after another, in placement order."""


@dataclass(frozen=True, slots=True)
class Tail:
    """Counts in proportion to 1 / rank**exponent, for the `types` commonest component types; the others never come."""

    exponent: float
    types: float = math.inf


BOARD = "board"
"""The tail that keeps the counts of the board file."""
TAILS: Mapping[str, Tail | None] = {
    BOARD: None,
    "flat": Tail(0.0),
    "mild": Tail(0.5),
    "steep": Tail(1.0),
    "steepest": Tail(1.5),
    "narrow": Tail(1.0, types=150),
}
"""How steeply counts fall.

With `narrow` the simulated baseline switches as often as the paper's does; the counts of the
paper's boards are not given.
"""

# A layout: parts of one type stand in groups, like bypass capacitors around a chip; the camera passes in lanes.
_GROUP_PARTS = 4
_SPREAD = 0.1  # how far from its group's middle a part may stand, in sides of the board
_LANES = 20


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests by rising time, with ids 0, 1, 2, ...; `board` has the counts by which they were drawn.

    `recorded` holds the findings of a real run by request id, then expert; it may be empty. `doubtful` is the share of
    a lesser variant's findings that are in doubt. `parts` is the parts list that the line is given; without it the line
    learns.
    """

    task: str
    order: str
    board: Rules = field(repr=False)
    arrivals: Sequence[Arrival] = field(repr=False)
    recorded: Mapping[int, Mapping[str, Finding]] = field(default_factory=dict, repr=False)
    doubtful: float = 0.0
    parts: Sequence[PlacedPart] = field(default=(), repr=False)

    def unforeseen(self) -> Workload:
        """Return the same requests without reference designators, so that nothing can be foreseen."""
        arrivals = [replace(a, request=replace(a.request, refdes="")) for a in self.arrivals]
        return replace(self, arrivals=arrivals, parts=())


def task(
    name: str,
    *,
    order: str = "iid",
    tail: str = BOARD,
    seed: int = 0,
    requests: int | None = None,
    every_s: float = EVERY_S,
) -> Workload:
    """Return a task of TASKS, as `synthetic` draws it; raises ConfigError for an unknown name, too."""
    chosen = TASKS.get(name)
    if chosen is None:
        raise ConfigError(f"'{name}' is not a task{did_you_mean(name, TASKS)}")
    return synthetic(
        rules.load(chosen.board),
        task=name,
        order=order,
        tail=tail,
        requests=chosen.requests if requests is None else requests,
        every_s=every_s,
        seed=seed,
    )


def synthetic(
    board: Rules,
    *,
    task: str,
    order: str = "iid",
    tail: str = BOARD,
    requests: int,
    every_s: float = EVERY_S,
    seed: int = 0,
) -> Workload:
    """Return `requests` requests of a board, one every `every_s` seconds (0: all at once). Raises ConfigError.

    A tail of TAILS other than the board's is stated in the workload's name ("A1 steep").
    """
    board, task = with_tail(board, tail), task if tail == BOARD else f"{task} {tail}"
    if order not in ORDERS:
        raise ConfigError(f"'{order}' is not an order of requests{did_you_mean(order, ORDERS)}")
    if requests < 1:
        raise ConfigError(f"a workload of {requests} requests has nothing to run; give at least 1")
    if not (math.isfinite(every_s) and every_s >= 0):
        raise ConfigError(f"a request every {every_s} s is impossible; give seconds of 0 or more")
    drawn = _drawn(board, requests, seed) if order == "iid" else _boards(board, requests, seed)
    arrivals = tuple(Arrival(request.id * every_s, request) for request in drawn)
    return Workload(task, order, board, arrivals)


def with_tail(board: Rules, tail: str) -> Rules:
    """Return a board whose counts fall as a tail of TAILS says; their sum and the components' ranks stay.

    A component with the count 0 keeps it. Ties in rank go by the order of the file. Raises ConfigError.
    """
    if tail not in TAILS:
        raise ConfigError(f"'{tail}' is not a tail of counts{did_you_mean(tail, TAILS)}")
    chosen = TAILS[tail]
    if chosen is None:
        return board
    present = [component for component in board.components.values() if component.count > 0]
    present.sort(key=lambda component: -component.count)
    weights = [rank**-chosen.exponent if rank <= chosen.types else 0.0 for rank in range(1, len(present) + 1)]
    scale = added(component.count for component in present) / added(weights)
    counts = {component.name: scale * weight for component, weight in zip(present, weights, strict=True)}
    return with_counts(board, counts)


def with_counts(board: Rules, counts: Mapping[str, float]) -> Rules:
    """Return a board with other counts, and so with other usage probabilities.

    Components that `counts` leaves out keep theirs; `digest` stays that of the file. Raises ConfigError.
    """
    for name, count in counts.items():
        if name not in board.components:
            raise ConfigError(
                f"'{name}' is not a component of board {board.board}{did_you_mean(name, board.components)}"
            )
        if not (math.isfinite(count) and count >= 0):
            raise ConfigError(f"component '{name}' cannot have the count {count}; give a number of 0 or more")
    components = {
        name: replace(component, count=counts.get(name, component.count))
        for name, component in board.components.items()
    }
    total = added(component.count for component in components.values())
    if not 0 < total < math.inf:
        raise ConfigError(f"the counts of board {board.board} add up to {total}; at least one component must occur")
    escalations = board.router.escalations
    probability = usage(components.values(), escalations)
    first = first_experts(components.values())
    graph = ExpertGraph(board.experts.values(), board.graph.digraph.edges, probability, first)
    router = Router(components, escalations, board.router.names)
    return replace(board, router=router, graph=graph)


def placement(board: Rules, seed: int = 0) -> tuple[PlacedPart, ...]:
    """Return the parts of a board in the order in which a camera reaches them; the same for all boards of a seed.

    Each component with a count above 0 is there round(count) times, at least once. Board files do not say where parts
    stand, so this is a model: a type's parts stand in groups of up to 4 around points drawn evenly over the board, each
    part within a tenth of the board's side of its point, and the camera passes in 20 lanes, there and back.
    """
    chance = random.Random(f"{board.board}/{seed}")
    spots: list[tuple[int, float, str]] = []
    for name, component in board.components.items():
        x = y = 0.0
        for number in range(max(1, round(component.count)) if component.count > 0 else 0):
            if number % _GROUP_PARTS == 0:
                x, y = chance.random(), chance.random()
            along = x + chance.uniform(-_SPREAD, _SPREAD)
            lane = math.floor((y + chance.uniform(-_SPREAD, _SPREAD)) * _LANES)
            spots.append((lane, -along if lane % 2 else along, name))
    numbers: Counter[str] = Counter()
    parts = []
    for _, _, name in sorted(spots):
        letters = re.match("[A-Za-z]*", name)
        prefix = (letters[0] if letters else "").upper() or "X"
        numbers[prefix] += 1
        parts.append(PlacedPart(name, f"{prefix}{numbers[prefix]}"))
    return tuple(parts)


def _drawn(board: Rules, requests: int, seed: int) -> Iterator[Request]:
    counts = [component.count for component in board.components.values()]
    names = random.Random(seed).choices(list(board.components), counts, k=requests)
    return (Request(number, name) for number, name in enumerate(names))


def _boards(board: Rules, requests: int, seed: int) -> Iterator[Request]:
    parts = placement(board, seed)
    for number in range(requests):
        boards, place = divmod(number, len(parts))
        yield Request(number, parts[place].component, "", f"S{boards + 1:04d}", parts[place].refdes)
