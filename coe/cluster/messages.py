"""What the head and its boxes tell each other. Plain data, which any transport can carry.

From a box come events of `coe.cluster.decisions.head_events`, so that nothing is translated on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.cluster.decisions.head_events import ExpertsReported, Release, StageDone
from coe.cluster.decisions.stage_rules import StageRequest
from coe.inspector.precision import LineCosts
from coe.pictures.image_source import ImageSource
from coe.results.metrics import Metrics
from coe.scheduler.events import Late, PaceChanged, Stopped
from coe.scheduler.plan import Plan


@dataclass(frozen=True, slots=True)
class CarriedImage:
    """An image on its way: its pixels or the bytes of its file, with the reference that came with it.

    `rule` is the name of the rules of its component (`Request.rule`): a box has the references that rules name.
    """

    source: ImageSource
    rule: str


@dataclass(frozen=True, slots=True)
class RunStage:
    """Run a stage. Its times are on the clock of the head.

    The image of `request_id` stays on the box until its `Release`; `image` is there when the box does not have it: what
    `coe.cluster.links.Boxes.share` gave for it.
    """

    request: StageRequest
    request_id: int
    image: object | None = None


@dataclass(frozen=True, slots=True)
class NewRules:
    """Go on with the experts of a placement that names this box alone, and with those of stages under way."""

    placement: ExpertPlacement
    also: frozenset[str]


ToBox = RunStage | Release | NewRules | Stopped


@dataclass(frozen=True, slots=True)
class Parcel:
    """Messages to a box, to be taken in their order. Parcels are numbered from 0; `now_s` is the clock of the head."""

    number: int
    now_s: float
    messages: tuple[ToBox, ...]


@dataclass(frozen=True, slots=True)
class BoxReport:
    """What a box says: what happened since its last report, and the counts after it.

    `broken` says why the box can run nothing any more; it is empty otherwise. A box is `settled` once its pools hold
    their first experts.
    """

    events: tuple[StageDone | ExpertsReported, ...]
    notices: tuple[Late | PaceChanged, ...]
    metrics: Metrics
    settled: bool
    broken: str = ""


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """What a box has: the costs of its experts in their variants, its pools, and what its devices may take in all."""

    costs: LineCosts
    plan: Plan
    memory_bytes: int
    budget_bytes: int
