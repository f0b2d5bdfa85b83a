"""Affinity groups: experts that lead to each other, taken together as far as a box can take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

_MOST = 1 / 8
"""The largest part of a box that a group may take: larger groups could not be balanced."""


@dataclass(frozen=True, slots=True)
class Flow:
    """How many images, for each image of the cluster, go from one expert to a successor."""

    leader: str
    follower: str
    images: float


def affinity_groups(
    experts: Iterable[str],
    flows: Iterable[Flow],
    shares: Mapping[str, tuple[float, ...]],
    *,
    together: Callable[[str, str], bool] = lambda one, other: True,
) -> list[Sequence[str]]:
    """Join experts along their flows, the largest flow first, and return the groups by falling weight.

    `shares` holds for each expert its part of several resources; a group takes no more than `_MOST` of any of them,
    unless it is a single expert. Its weight is its largest part. Only experts that may lie `together` are joined.
    Source: heavy-edge matching with a limit on the weight, the coarsening of METIS (Karypis and Kumar, 1998).
    """
    members = {expert: [expert] for expert in experts}
    parent = {expert: expert for expert in members}
    weights = {expert: shares[expert] for expert in members}

    def root(expert: str) -> str:
        while parent[expert] != expert:
            parent[expert] = parent[parent[expert]]
            expert = parent[expert]
        return expert

    inside = [flow for flow in flows if flow.leader in members and flow.follower in members]
    for flow in sorted(inside, key=lambda flow: (-flow.images, flow.leader, flow.follower)):
        one, other = sorted((root(flow.leader), root(flow.follower)))
        if one == other or not together(flow.leader, flow.follower):
            continue
        joint = tuple(a + b for a, b in zip(weights[one], weights[other], strict=True))
        if max(joint) <= _MOST:
            parent[other] = one
            weights[one] = joint
            members[one] += members.pop(other)
    return [members[expert] for expert in sorted(members, key=lambda expert: (-max(weights[expert]), expert))]
