"""The switches that stages in the order of their images need, if the next use of each expert is known (Belady, 1966).

Of all ways to choose who leaves, none loads less often while stages run in the order in which their images come, if all
experts take the same bytes. A strategy that lets images overtake each other may load less often. So in a burst this is
no bound, and at a trickle, where there is little to reorder, it is the number to compare with.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence


def belady_switches(
    stages: Sequence[str], bytes_by_expert: Mapping[str, int], room_bytes: int, resident: Collection[str]
) -> int:
    """Return how often an expert is loaded for `stages`, each named by its expert, into one pool.

    `resident` experts are there at the beginning. For each load the experts leave whose next stage is furthest off, and
    before those the experts without one. A stage's expert is loaded even if it does not fit.
    """
    next_stage = [math.inf] * len(stages)
    first: dict[str, float] = {}
    for number in range(len(stages) - 1, -1, -1):
        next_stage[number] = first.get(stages[number], math.inf)
        first[stages[number]] = number
    here = {expert: first.get(expert, math.inf) for expert in resident}
    furthest = [(-number, expert) for expert, number in here.items()]
    heapq.heapify(furthest)
    held_bytes = sum(bytes_by_expert[expert] for expert in here)
    switches = 0
    for number, expert in enumerate(stages):
        if expert not in here:
            switches += 1
            held_bytes += bytes_by_expert[expert]
            while held_bytes > room_bytes and furthest:
                negative, leaving = heapq.heappop(furthest)
                # Entries of experts that have run since, or have left, are void.
                if here.get(leaving) == -negative:
                    del here[leaving]
                    held_bytes -= bytes_by_expert[leaving]
        here[expert] = next_stage[number]
        heapq.heappush(furthest, (-next_stage[number], expert))
    return switches
