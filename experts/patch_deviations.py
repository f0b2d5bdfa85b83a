"""How far good parts lie from each other, as kind `patch` sees it: by banks of others, and by colours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from experts.backbone import smooth
from experts.core_set import core_set
from experts.patch_colours import colour_logarithms, outside_of_others, usual_of
from experts.patch_network import ROWS, USUAL, on_grid_of, picture_logarithm
from experts.scale import Numbers

Places = NDArray[np.intp]
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

    def of(self, kept: torch.Tensor) -> Bank:
        """Return some of the rows; `kept` (m,) tells which."""
        return Bank(self.values[kept], self.patches[kept], self.step)


@dataclass(frozen=True, slots=True)
class Parts:
    """Pictures of good parts: names, inputs (n, 3, S, S) uint8, patches (n, G, G, channels), pooled features (n, d),
    and numbers of parts (n,).

    `colours` (n, 3, COLOURS, COLOURS) and their `leeway` are there for aligned parts; `apart` is 0 for others.
    """

    names: list[str]
    images: torch.Tensor
    seen: torch.Tensor
    whole: torch.Tensor
    numbers: torch.Tensor
    colours: torch.Tensor | None
    leeway: float = 0.0
    apart: float = 0.0

    def of(self, places: list[int]) -> Parts:
        """Return some of the parts."""
        colours = None if self.colours is None else self.colours[places]
        names = [self.names[i] for i in places]
        numbers = self.numbers[places]
        images, seen, whole = self.images[places], self.seen[places], self.whole[places]
        return replace(self, names=names, images=images, seen=seen, whole=whole, numbers=numbers, colours=colours)

    def places(self) -> torch.Tensor:
        """Return column and row of each patch in its grid, (n G G, 2) float32."""
        grid = self.seen.shape[1]
        axis = torch.arange(grid, dtype=torch.float32)
        one = torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=2).reshape(-1, 2)
        return one.repeat(len(self.seen), 1)


class LeftOut:
    """How far parts lie from others, by a bank of all of them in which rows of the part itself do not count."""

    def __init__(self, parts: Parts, rows: int = ROWS) -> None:
        self.bank, self._parts = bank_of(parts, rows), parts

    def squares(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return squared distances of patches (n, G, G) from pictures of parts of other numbers, (n,).

        In one bank a row of a part stands for the like in others, of aligned ones for those at its place alone: without
        it they seem far. So these are judged by banks of others, in folds.
        """
        parts = replace(self._parts, numbers=numbers)
        if not parts.apart:
            return self.of_others(numbers, numbers.numpy(), parts.seen)
        squares, different = torch.zeros(parts.seen.shape[:3]), numbers.unique()
        for fold in range(_FOLDS):
            judged = torch.isin(numbers, different[fold::_FOLDS])
            others = parts.of(torch.nonzero(~judged)[:, 0].tolist())
            bank = bank_of(others)
            for place in torch.nonzero(judged)[:, 0].tolist():
                nearest = _squares(parts.seen[place], bank, others).amin(dim=1)
                squares[place] = nearest.clamp_min(0).view(squares.shape[1:])
        return squares

    def of_others(self, numbers: torch.Tensor, own: Places, seen: torch.Tensor) -> torch.Tensor:
        """Return, as `squares` does, how far patches (m, G, G, channels) of further pictures lie off.

        Rows of parts whose number, of `numbers` (n,), is that of the picture, of `own` (m,), do not count.
        """
        squares, of_rows = torch.full(seen.shape[:3], _NOTHING), numbers[self.bank.patches // seen.shape[1] ** 2]
        for place, number in enumerate(own):
            if len(others := self.bank.of(of_rows != int(number)).values):
                nearest = torch.cdist(seen[place].flatten(0, 1), others).amin(dim=1)
                squares[place] = nearest.square().clamp_max(_NOTHING).view(squares.shape[1:])
        return squares


def largest_of(parts: Parts, squares: torch.Tensor) -> Numbers:
    """Return the largest deviations (n, 1 or 2) of parts whose patches have these squared distances (n, G G)."""
    grid = parts.seen.shape[1]
    squares = squares.view(-1, grid, grid)
    if parts.colours is None:
        return picture_logarithm(squares)[:, None].double().numpy()
    usual = torch.stack([on_grid_of(usual_at(squares[parts.numbers != own]), grid)[0] for own in parts.numbers])
    of_patches = picture_logarithm(squares / usual).double().numpy()
    left = outside_of_others(parts.colours, parts.numbers, parts.leeway)
    of_colours = colour_logarithms(left, usual_of(left)).flatten(1).amax(dim=1)
    return np.stack([of_colours.double().numpy(), of_patches], axis=1)


def usual_at(squares: torch.Tensor) -> torch.Tensor:
    """Return the mean of squared distances (n, G, G) at each place and those around it, as (1, USUAL, USUAL)."""
    mean = squares.mean(dim=0, keepdim=True)
    return on_grid_of((1 - _FLOOR) * smooth(mean) + _FLOOR * mean.mean(), USUAL).clamp_min(1e-8)


def bank_of(parts: Parts, size: int = ROWS) -> Bank:
    """Return the core set, of at most so many rows, of all patches of parts."""
    rows, places = parts.seen.flatten(0, 2), parts.places()
    chosen = core_set(rows, size, places * parts.apart**0.5 if parts.apart else None)
    step = float(rows[chosen].abs().max()) / _STEPS
    return Bank((rows[chosen] / step).round() * step, chosen, step)


def _squares(seen: torch.Tensor, bank: Bank, of: Parts) -> torch.Tensor:
    """Return squared distances (G G, m) of one part's patches (G, G, channels) to the rows of a bank of parts `of`."""
    squares = torch.cdist(seen.flatten(0, 1), bank.values).square()
    if of.apart:
        places = of.places()
        squares += of.apart * torch.cdist(places[: len(squares)], places[bank.patches]).square()
    return squares


def apart(parts: Parts) -> float:
    """Return what a step between places adds to a squared distance of aligned parts: see `_REACH`."""
    squares = [
        (parts.seen[place] - parts.seen[other]).square().sum(dim=2)
        for place in range(len(parts.names))
        for other in [(place + 1) % len(parts.names)]
    ]
    return float(torch.stack(squares).median()) / _REACH**2
