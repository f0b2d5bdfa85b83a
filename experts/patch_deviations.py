"""How far good parts lie from each other, as kind `patch` sees it: by banks of others, and by colours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from experts.backbone import smooth
from experts.core_set import core_set
from experts.good_train import MOST_STRANGE, Numbers, Scale
from experts.patch_colours import colour_logarithms, outside_of_others, usual_of
from experts.patch_network import ROWS, USUAL, on_grid_of, picture_logarithm

_FOLDS = 5
_STEPS = 127
_REACH = 0.7
"""In aligned parts, the steps of the grid to where a neighbour lies as far off as parts usually differ at a place."""
_NOTHING = 4.0
"""The largest squared distance: a part whose rows alone are in a bank is as far from the others as from nothing."""
_FLOOR = 0.1
"""How much of a place's usual distance is that of all places: one that hardly varies in a few parts may in the next."""


@dataclass(frozen=True, slots=True)
class Bank:
    """Rows of a bank: `values` (m, channels) float32 as 8 bits hold them, and which patches they are, (m,)."""

    values: torch.Tensor
    patches: torch.Tensor
    step: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Pictures of good parts: names, inputs (n, 3, S, S) uint8, patches (n, G, G, channels), and numbers of parts (n,).

    `colours` (n, 3, COLOURS, COLOURS) and their `leeway` are there for aligned parts; `apart` is 0 for others.
    """

    names: list[str]
    images: torch.Tensor
    seen: torch.Tensor
    numbers: torch.Tensor
    colours: torch.Tensor | None
    leeway: float = 0.0
    apart: float = 0.0

    def of(self, places: list[int]) -> Parts:
        """Return some of the parts."""
        colours = None if self.colours is None else self.colours[places]
        names = [self.names[i] for i in places]
        numbers = self.numbers[places]
        images, seen = self.images[places], self.seen[places]
        return replace(self, names=names, images=images, seen=seen, numbers=numbers, colours=colours)

    def places(self) -> torch.Tensor:
        """Return column and row of each patch in its grid, (n G G, 2) float32."""
        grid = self.seen.shape[1]
        axis = torch.arange(grid, dtype=torch.float32)
        one = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=2).reshape(-1, 2)
        return one.repeat(len(self.seen), 1)


class LeftOut:
    """How far parts lie from others, by a bank of all of them in which rows of the part itself do not count."""

    def __init__(self, parts: Parts) -> None:
        self.bank, self._parts = bank_of(parts), parts
        self._squares = self._by_part(parts)

    def largest(self, places: list[int]) -> Numbers:
        """Return the largest deviations (n, 1 or 2) of the parts at these places from each other."""
        alone = replace(self._parts.of(places), numbers=torch.arange(len(places)))
        return largest_of(alone, _from_others(self._squares, places, alone.numbers))

    def squares(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return squared distances of patches (n, G, G) from pictures of parts of other numbers, (n,).

        In one bank a row of a part stands for the like in others, of aligned ones for those at its place alone: without
        it they seem far. So these are judged by banks of others, in folds.
        """
        parts = replace(self._parts, numbers=numbers)
        if not parts.apart:
            return _from_others(self._squares, [*range(len(numbers))], numbers).view(parts.seen.shape[:3])
        squares, different = torch.zeros(parts.seen.shape[:3]), numbers.unique()
        for fold in range(_FOLDS):
            judged = torch.isin(numbers, different[fold::_FOLDS])
            others = parts.of(torch.nonzero(~judged)[:, 0].tolist())
            bank = bank_of(others)
            for place in torch.nonzero(judged)[:, 0].tolist():
                nearest = _squares(parts.of([place]), bank, others).amin(dim=1)
                squares[place] = nearest.clamp_min(0).view(squares.shape[1:])
        return squares

    def changed(self, numbers: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Return, as `squares` does, how far patches (n, G, G, channels) lie off that the parts would show."""
        squares = self._by_part(replace(self._parts, seen=seen))
        return _from_others(squares, [*range(len(numbers))], numbers).view(seen.shape[:3])

    def _by_part(self, parts: Parts) -> torch.Tensor:
        """Return the squared distances (n, G G, count) of patches from the nearest row of each part of the bank."""
        count, patches = len(parts.names), parts.seen.shape[1] ** 2
        owner = (self.bank.patches // patches).expand(patches, -1)
        squares = torch.full((count, patches, count), torch.inf)
        for place in range(count):
            found = _squares(parts.of([place]), self.bank, parts)
            squares[place].scatter_reduce_(1, owner, found, "amin")
        return squares

    def group(self, share: float, farther: float) -> list[int]:
        """Return the places of the largest group of parts that are strange to all parts beside the group.

        Each lies beyond the limit for a `share` of good parts, and by `farther` beyond all others, as a logarithm.
        Groups are those of an average linkage by how far the parts' patches lie apart, at most `MOST_STRANGE` of all.
        """
        from scipy.cluster.hierarchy import linkage  # slow to import
        from scipy.spatial.distance import squareform

        count = len(self._squares)
        most = int(MOST_STRANGE * count)
        if most < 2:
            return []
        apart = np.stack([_distances(squares.T) for squares in self._squares])
        apart = np.exp(np.minimum(apart, apart.T))
        np.fill_diagonal(apart, 0)
        groups = [[place] for place in range(count)]
        for first, second, *_ in linkage(squareform(apart, checks=False), "average"):
            groups.append(groups[int(first)] + groups[int(second)])
        strange = [one for one in groups if 2 <= len(one) <= most and self._is_strange(one, share, farther)]
        return max(strange, key=len) if strange else []

    def _is_strange(self, group: list[int], share: float, farther: float) -> bool:
        rest = [place for place in range(len(self._squares)) if place not in group]
        of_rest = _distances(_from_others(self._squares, rest, torch.arange(len(rest))))[:, None]
        nearest = _distances(self._squares[group][:, :, rest].amin(dim=2)).min()
        scale = Scale.of(of_rest)
        beyond = scale.deviation_of(np.array([nearest])) > scale.limit(share)
        return beyond and bool(nearest - of_rest.max() >= farther)


def _from_others(squares: torch.Tensor, places: list[int], numbers: torch.Tensor) -> torch.Tensor:
    """Return how far parts at some places lie from those of other numbers, of squared distances (n, G G, n)."""
    same = (numbers[:, None] == numbers)[:, None]
    return squares[places][:, :, places].masked_fill(same, torch.inf).amin(dim=2).clamp_max(_NOTHING)


def _distances(squares: torch.Tensor) -> Numbers:
    """Return the logarithms (n) of how far pictures lie off whose patches have these squared distances (n, G G)."""
    return picture_logarithm(squares.clamp_max(_NOTHING)[:, None]).double().numpy()


def largest_of(parts: Parts, squares: torch.Tensor) -> Numbers:
    """Return the largest deviations (n, 1 or 2) of parts whose patches have these squared distances (n, G G)."""
    grid = parts.seen.shape[1]
    squares = squares.view(-1, grid, grid)
    if parts.colours is None:
        return picture_logarithm(squares)[:, None].double().numpy()
    usual = torch.stack([on_grid_of(usual_at(squares[parts.numbers != own], USUAL), grid)[0] for own in parts.numbers])
    of_patches = picture_logarithm(squares / usual).double().numpy()
    left = outside_of_others(parts.colours, parts.numbers, parts.leeway)
    of_colours = colour_logarithms(left, usual_of(left)).flatten(1).amax(dim=1)
    return np.stack([of_colours.double().numpy(), of_patches], axis=1)


def usual_at(squares: torch.Tensor, grid: int) -> torch.Tensor:
    """Return the mean of squared distances (n, G, G) at each place and those around it, on a grid (1, grid, grid)."""
    mean = squares.mean(dim=0, keepdim=True)
    return on_grid_of((1 - _FLOOR) * smooth(mean) + _FLOOR * mean.mean(), grid).clamp_min(1e-8)


def bank_of(parts: Parts) -> Bank:
    """Return the core set of all patches of parts."""
    rows, places = parts.seen.flatten(0, 2), parts.places()
    chosen = core_set(rows, ROWS, places * parts.apart**0.5 if parts.apart else None)
    step = float(rows[chosen].abs().max()) / _STEPS
    return Bank((rows[chosen] / step).round() * step, chosen, step)


def _squares(part: Parts, bank: Bank, of: Parts) -> torch.Tensor:
    """Return squared distances (G G, m) of one part's patches to the rows of a bank of the parts `of`."""
    rows = part.seen.flatten(0, 2)
    squares = torch.cdist(rows, bank.values).square()
    if of.apart:
        squares += of.apart * torch.cdist(part.places(), of.places()[bank.patches]).square()
    return squares


def apart(parts: Parts) -> float:
    """Return what a step between places adds to a squared distance of aligned parts: see `_REACH`."""
    squares = [
        (parts.seen[place] - parts.seen[other]).square().sum(dim=2)
        for place in range(len(parts.names))
        for other in [(place + 1) % len(parts.names)]
    ]
    return float(torch.stack(squares).median()) / _REACH**2
