"""What the head of a cluster is told (events), and what it lets its driver do (orders)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.routing import BoxView
from coe.cluster.decisions.stage_rules import StageRequest
from coe.core import Failure, Finding
from coe.scheduler.events import Arrived, Reply, Stopped

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
