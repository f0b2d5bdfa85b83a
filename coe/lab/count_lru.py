"""The routing of Ray Serve's multiplexing, to compare with: a box has so many experts, whatever their size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView, Routing


class CountLru(Routing):
    """A stage goes to a box that has its expert, the least busy of these; else to the box with the fewest experts.

    Ray Serve's `multiplexed` with `max_num_models_per_replica`: the router knows which models each replica has, and a
    replica drops the model that it used least recently. It knows nothing of bytes, usage or dependencies.
    """

    def __init__(self, views: Iterable[BoxView], most: int) -> None:
        super().__init__(views)
        self._most = most
        self._models: dict[str, OrderedDict[str, None]] = {box: OrderedDict() for box in self.views}

    def __repr__(self) -> str:
        return f"<CountLru to {len(self.views)} boxes of {self._most} experts>"

    def move(self, placement: ExpertPlacement) -> None:
        """Go on: a placement says nothing here."""

    def choose(self, expert: str, holding: Collection[str], avoid: Collection[str] = ()) -> str | None:
        """Return the box that takes a stage."""
        able = [box for box in self.views if box not in avoid]
        if not able:
            return None
        having = [box for box in able if expert in self._models.setdefault(box, OrderedDict())]
        if having:
            box = min(having, key=lambda box: self.views[box].work_s)
        else:
            box = min(able, key=lambda box: (min(len(self._models[box]), self._most), self.views[box].work_s))
        models = self._models[box]
        models[expert] = None
        models.move_to_end(expert)
        if len(models) > self._most:
            models.popitem(last=False)
        return box
