"""What the head of a cluster is told (events), and what it lets its driver do (orders)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView
from coe.cluster.decisions.stage_rules import StageRequest
from coe.core import Failure, Finding
from coe.scheduler.controller import Controller
from coe.scheduler.events import Arrived, Command, Event, Evict, Evicted, Load, LoadFailed, Reply, Stopped

GOSSIP_S = 0.05
"""A box reports experts alone no more often than this, in seconds."""

# Events, beside those of a box: `Arrived` and `Stopped`


@dataclass(frozen=True, slots=True)
class StageDone:
    """A box has answered a stage: with its finding, or with the failure that its result has."""

    stage_id: int
    finding: Finding | None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ExpertsReported:
    """The seconds in which experts would be there, by the box's controller; only those that have changed.

    Stages take `pace` times as long there as their prices say.
    """

    box: str
    comes_s: Mapping[str, float]
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class BoxLost:
    """A box no longer answers; whatever it sends from now on is ignored.

    `crashed` says that its machine lives on: one of its images may have ended it
    (`coe.cluster.decisions.failing_boxes`).
    `reason` is for people.
    """

    box: str
    reason: str = ""
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class BoxJoined:
    """A box that runs stages once the placement names it."""

    view: BoxView


@dataclass(frozen=True, slots=True)
class ExpertsMoved:
    """Another placement holds from now on (`coe.cluster.decisions.place_experts`)."""

    placement: ExpertPlacement


HeadEvent = Arrived | StageDone | ExpertsReported | BoxLost | BoxJoined | ExpertsMoved | Stopped

# Orders, beside `Reply`


@dataclass(frozen=True, slots=True)
class SendStage:
    """Let a box run a stage: a request of its own id.

    `request_id` is that of the image, which the box keeps until `Release`. `with_image` says that it is not there yet.
    """

    box: str
    request: StageRequest
    request_id: int
    with_image: bool


@dataclass(frozen=True, slots=True)
class Release:
    """The box needs an image no longer."""

    box: str
    request_id: int


@dataclass(frozen=True, slots=True)
class GiveRules:
    """Let a box go on with the experts that the placement names, and with `also`, for which stages are under way there.

    This comes before any stage that needs these rules.
    """

    box: str
    also: frozenset[str]


Order = SendStage | Reply | Release | GiveRules


def changed_experts(event: Event | None, commands: Iterable[Command]) -> list[str]:
    """Return the experts for which `comes_in_s` may have changed by a step of the box."""
    changed = [command.expert for command in commands if isinstance(command, (Load, Evict))]
    if isinstance(event, (Evicted, LoadFailed)):
        changed.append(event.expert)
    return changed


def comes_in_s(controller: Controller, experts: Iterable[str]) -> dict[str, float]:
    """Return the seconds in which each expert would be in some pool; 0 if it is there, or on its way.

    Experts that the box's rules do not name any more are left out.
    """
    return {expert: _comes_in_s(controller, expert) for expert in experts if expert in controller.graph.experts}


def _comes_in_s(controller: Controller, expert: str) -> float:
    pools = controller.pools.values()
    if any(expert in pool for pool in pools):
        return 0.0
    return min(controller.world.switch_s(pool, expert) for pool in pools)
