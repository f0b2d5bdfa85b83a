"""The routing of Ray Serve's multiplexing, to compare with: a box has so many experts, whatever their size."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView


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
