"""Which layers of a quantised network stay float: those whose quantisation changes its findings, found by measuring.

Groups of neighbouring layers are tried, because each border between float and whole numbers costs a conversion. The
group whose return to float helps most stays float, then the next (greedy forward selection); at last each part is given
back to whole numbers if that does no harm. After Wu et al., "Integer Quantization for Deep Learning Inference" (2020),
section 5.2, which ranks layers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

_GROUPS = 8
MOST_FLOAT = 0.5
"""The largest share of layers that may stay float: with more, little is gained."""


class Harm(NamedTuple):
    """How much quantisation changes findings, the worst first: labels that differ, second looks, the mean push.

    `wrong` and `again` are shares of the samples; `push` is the mean change of scores.
    """

    wrong: float
    again: float
    push: float

    def is_small(self, most_again: float) -> bool:
        """Tell whether no label differs, and at most so large a share of the samples is looked at twice."""
        return not self.wrong and self.again <= most_again


Layers = frozenset[str]


def search(
    layers: Sequence[str],
    ends: Layers,
    harm_of: Callable[[Layers], Harm],
    *,
    most_again: float,
    first: Layers = frozenset(),
    in_time: Callable[[], bool] = lambda: True,
) -> Layers:
    """Return the layers that stay float: as few as the limits allow of those that do harm in whole numbers.

    `layers` are in the order of computation, `ends` the first and the last ones of them. `harm_of` measures the network
    with the given layers in float. Those of `first`, which another network of the same layers keeps in float, are
    taken as they are if they do; else the search may go on from them. When it is no longer `in_time`, the best so far
    is taken; the network whole in int8 and the one with float ends are measured in any case.

    Example: if the labels differ unless layer "c" of "a" to "e" is float, the answer is {"c"}.
    """
    known: dict[Layers, Harm] = {}

    def harm(kept: Layers) -> Harm:
        if kept not in known:
            known[kept] = harm_of(kept)
        return known[kept]

    def is_good(kept: Layers) -> bool:
        return harm(kept).is_small(most_again)

    kept = frozenset[str]()
    if not is_good(kept):
        starts = [kept, ends]
        if first and first.issubset(layers):
            if is_good(first):
                return first
            starts.append(first)
        kept = min(starts, key=harm)
    groups = [frozenset(group) for group in _groups([layer for layer in layers if layer not in ends])]
    while not is_good(kept) and in_time():
        rest = [kept | group for group in groups if not group <= kept]
        tried: list[Layers] = []
        for candidate in rest:
            if len(candidate) <= MOST_FLOAT * len(layers) and in_time():
                tried.append(candidate)
                if is_good(candidate):
                    break
        best = min(tried, key=harm, default=kept)
        if harm(best) >= harm(kept):
            break
        kept = best
    if not is_good(kept):
        return min(known, key=lambda one: (known[one], len(one)))
    return _given_back(layers, kept, is_good, in_time)


def _given_back(
    layers: Sequence[str], kept: Layers, is_good: Callable[[Layers], bool], in_time: Callable[[], bool]
) -> Layers:
    """Return fewer layers with which the network is still good: halves of what is kept go, then smaller parts."""
    size = len(kept) // 2
    while size and in_time():
        ordered = [layer for layer in layers if layer in kept]
        for first in range(0, len(ordered), size):
            fewer = kept - frozenset(ordered[first : first + size])
            if fewer and in_time() and is_good(fewer):
                kept = fewer
        size //= 2
    return kept


def _groups(layers: Sequence[str]) -> list[Sequence[str]]:
    count = min(_GROUPS, len(layers))
    return [layers[number * len(layers) // count : (number + 1) * len(layers) // count] for number in range(count)]
