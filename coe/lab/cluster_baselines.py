"""Placements and routings to compare with, which know nothing of usage or dependencies: hash, in turn, Ray Serve's."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import xxhash

from coe.cluster.decisions.expert_placement import DEFAULT_TRAFFIC, BoxBudget, ExpertNeeds, ExpertPlacement, Traffic
from coe.cluster.decisions.placement_solver import PlacementSolver
from coe.cluster.decisions.routing import BoxView

Rule = Callable[[Sequence[str], Sequence[str]], Mapping[str, Sequence[int]]]
"""From experts and boxes to the numbers of each expert's boxes: the home, then the standby if there is another."""


def by_hash(experts: Sequence[str], boxes: Sequence[str]) -> dict[str, list[int]]:
    """Return the boxes of each expert with the highest hashes (rendezvous hashing: Thaler and Ravishankar, 1998)."""

    def rank(expert: str) -> list[int]:
        hashes = [xxhash.xxh3_64_intdigest(f"{box}/{expert}".encode()) for box in boxes]
        return sorted(range(len(boxes)), key=hashes.__getitem__)[-1:-3:-1]

    return {expert: rank(expert) for expert in experts}


def in_turn(experts: Sequence[str], boxes: Sequence[str]) -> dict[str, list[int]]:
    """Return one box after another (round robin), in the order of the experts."""
    count = len(boxes)
    return {
        expert: list(dict.fromkeys([number % count, (number + 1) % count])) for number, expert in enumerate(experts)
    }


def homes_by(
    rule: Rule, experts: Iterable[ExpertNeeds], boxes: Sequence[BoxBudget], traffic: Traffic = DEFAULT_TRAFFIC
) -> ExpertPlacement:
    """Return the homes that a rule gives; boxes hold the worthiest of their experts.

    A box that is too small for an expert passes it to the next box that is not.
    """
    needs = {need.expert: need for need in experts}
    most_bytes = max(box.bytes for box in boxes)
    fitting = {name: need for name, need in needs.items() if need.bytes <= most_bytes}
    maker = PlacementSolver(fitting, boxes, traffic)
    standbys: dict[str, int] = {}
    for expert, chosen in rule(list(fitting), [box.id for box in boxes]).items():
        able = [number for number, box in enumerate(boxes) if box.bytes >= fitting[expert].bytes]
        places = list(dict.fromkeys(min(able, key=lambda box: (box - start) % len(boxes)) for start in chosen))
        maker.settle(expert, places[:1])
        if len(places) > 1:
            standbys[expert] = places[1]
    return maker.placement(standbys, tuple(sorted(set(needs) - set(fitting))))


class CountLru:
    """A stage goes to a box that has its expert, the least busy of these; else to the box with the fewest experts.

    Ray Serve's `multiplexed` with `max_num_models_per_replica`: the router knows which models each replica has, and a
    replica drops the model that it used least recently. It knows nothing of bytes, usage or dependencies.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._models: defaultdict[str, OrderedDict[str, None]] = defaultdict(OrderedDict)

    def __repr__(self) -> str:
        return f"<CountLru of {self._most} experts a box>"

    def choose(
        self,
        expert: str,
        views: Mapping[str, BoxView],
        placement: ExpertPlacement,
        holding: Collection[str],
        avoid: Collection[str] = (),
    ) -> str | None:
        """Return the box that takes a stage; a placement says nothing here."""
        able = [box for box in views if box not in avoid]
        if not able:
            return None
        having = [box for box in able if expert in self._models[box]]
        if having:
            box = min(having, key=lambda box: views[box].work_s)
        else:
            box = min(able, key=lambda box: (min(len(self._models[box]), self._most), views[box].work_s))
        models = self._models[box]
        models[expert] = None
        models.move_to_end(expert)
        if len(models) > self._most:
            models.popitem(last=False)
        return box
