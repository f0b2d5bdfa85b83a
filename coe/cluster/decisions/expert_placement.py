"""What experts need, what boxes have, and on which boxes experts lie."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ExpertNeeds:
    """What an expert needs on a box of speed 1.

    `usage` is the number of its stages for an image of the cluster, by board: experts of one board occur together. A
    stage takes `stage_s` seconds of the processor, a load `load_s` of the disk, its weights `bytes` of memory. `leads`
    is the mean number of stages of each successor that one of its stages leads to (`coe.board.graph.follows`).
    """

    expert: str
    bytes: int
    usage: Mapping[str, float]
    stage_s: float
    load_s: float
    leads: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ConfigError for a number that is negative, infinite or NaN."""
        for number in (self.bytes, self.stage_s, self.load_s, *self.usage.values(), *self.leads.values()):
            if not 0 <= number < math.inf:
                raise ConfigError(f"expert '{self.expert}' cannot be placed with {number}; give numbers of 0 or more")


@dataclass(frozen=True, slots=True)
class BoxBudget:
    """A box: the bytes that it has for experts, and its speed as a multiple of the box of `ExpertNeeds`."""

    id: str
    bytes: int
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """`move_s` is the time that an image takes to another box; as many as `images` wait together and share loads."""

    move_s: float = 0.0
    images: int = 2000


DEFAULT_TRAFFIC = Traffic()


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """Where experts lie: the `boxes` with a replica of each, and the `standby` of an expert with one box.

    `held` and `beyond` divide the experts of each box, the worthiest first: those that its budget holds, and those that
    exceed it and are loaded when they are needed. An expert that is larger than every box has no boxes.
    """

    boxes: Mapping[str, tuple[str, ...]]
    standby: Mapping[str, str]
    held: Mapping[str, tuple[str, ...]]
    beyond: Mapping[str, tuple[str, ...]]

    def of(self, expert: str) -> tuple[str, ...]:
        """Return all boxes that may run an expert, the standby last; none if no box can hold it."""
        standby = self.standby.get(expert)
        return self.boxes.get(expert, ()) + (() if standby is None else (standby,))

    def on(self, box: str) -> tuple[str, ...]:
        """Return the experts that a box may run, in the order of their names."""
        return tuple(sorted({*self.held[box], *self.beyond[box], *(e for e, b in self.standby.items() if b == box)}))

    def seen_by(self, box: str) -> ExpertPlacement:
        """Return this placement for the experts alone that a box may run."""
        here = self.on(box)
        return ExpertPlacement(
            {expert: self.boxes[expert] for expert in here},
            {expert: box for expert in here if self.standby.get(expert) == box},
            {box: self.held[box]},
            {box: self.beyond[box]},
        )

    def moves_from(self, before: ExpertPlacement) -> list[str]:
        """Return the experts that have a replica on another box than before, once for each box, in order of names."""
        return [
            expert
            for expert in sorted(self.boxes)
            for box in self.boxes[expert]
            if box not in before.boxes.get(expert, ())
        ]
