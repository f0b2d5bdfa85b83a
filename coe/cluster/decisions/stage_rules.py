"""The rules of a box among several: each stage is a request by itself, and the cluster's head knows what follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coe.board.graph import ExpertGraph
from coe.board.router import Router
from coe.board.steps import Component, Consequence, Step
from coe.cluster.decisions.expert_placement import ExpertPlacement
from coe.core import Finding, Request, Verdict
from coe.helpers.arithmetic import added


@dataclass(frozen=True, slots=True)
class StageRequest(Request):
    """A stage as a box gets it: its component is the expert, and its board that of the image, for the due time alone.

    The rules of a box know experts, and no board.
    """

    @property
    def rule(self) -> str:
        """The name under which the router of a box has the stage: that of its expert."""
        return self.component


class StageRouter(Router):
    """Rules in which each expert is a component of its name, and a request ends with the first finding.

    `followers` are those of the whole rules: a box still expects the successors of its stages.
    """

    def __init__(self, experts: Collection[str], followers: Mapping[str, Mapping[str, float]]) -> None:
        super().__init__({expert: Component(expert, 1.0, Step(expert, 0.0, {})) for expert in experts})
        self._followers = {
            expert: {other: stages for other, stages in followers.get(expert, {}).items() if other in self.components}
            for expert in experts
        }

    def next(self, step: Step, finding: Finding) -> Consequence:
        """Return that nothing follows here; the verdict counts nowhere."""
        return Consequence(Verdict.OK)

    def followers(self) -> dict[str, dict[str, float]]:
        """Return the followers that this box may run too."""
        return self._followers


@dataclass(frozen=True, slots=True)
class StageRules:
    """What a controller needs to run the stages of some experts."""

    router: StageRouter
    graph: ExpertGraph


def stage_rules(
    graph: ExpertGraph,
    followers: Mapping[str, Mapping[str, float]],
    placement: ExpertPlacement,
    box: str,
    also: Collection[str] = (),
) -> StageRules:
    """Return the rules of a box for the experts that `placement` lets it run, and for `also`.

    `graph` and `followers` are those of the whole rules. Usage probabilities are for a stage that comes to this box:
    the replicas of an expert share its stages, and a standby expects none.
    """
    experts = sorted({*placement.on(box), *also} & set(graph.experts))
    shares = {
        expert: graph.probability(expert) / len(places)
        for expert in experts
        if box in (places := placement.boxes.get(expert, ()))
    }
    total = added(shares.values()) or 1.0
    here = set(experts)
    edges = [(expert, other) for expert in experts for other in graph.successors(expert) if other in here]
    first = [expert for expert in experts if not graph.waits_for_others(expert)]
    probability = {expert: share / total for expert, share in shares.items()}
    box_graph = ExpertGraph([graph.experts[expert] for expert in experts], edges, probability, first)
    return StageRules(StageRouter(experts, followers), box_graph)
