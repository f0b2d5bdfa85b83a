"""The network of the kind `patch`: how far each place of a picture lies from all that good parts show (PatchCore).

The distance of a place is that to the nearest row of a bank of patch features (Roth et al., 2022). Where parts are
aligned, a row from another place lies further off, a distance is measured by those that good parts have at the place,
and colours that no good part shows there count as well; see `experts.patch_colours`. How far a picture lies off as a
whole is said apart: see `experts.nearness`.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from coe.store.outputs import unhidden
from experts.backbone import patches, pooled
from experts.nearness import NearnessNetwork
from experts.patch_colours import Colours, colours

Beside = tuple[torch.Tensor, torch.Tensor]
CELL = 8
"""The side in pixels of the input of one place."""
ROWS = 2048
"""The rows of a bank. Fewer are repeated."""
EXAMPLES, SIDE = 16, 64
"""How many pictures of good parts an expert keeps to show them, and their side in pixels."""
SHOWN = 24
"""The side in pixels of what is shown of them beside a deviation."""
WORST = 8 / 784
"""A picture deviates as the mean of its worst places does, of this share of all: 8 in an input of 224 pixels."""
USUAL = 28
"""The side of the grid on which an expert keeps how far good parts lie off, of an input of 224 pixels."""
_STEPS = 127
_LEAST = 1e-4
"""Distances under this are as good as none."""
NEVER = 50.0
"""The centre of the logarithms of deviations of which none ever counts: of colours of parts that are not aligned."""


class PatchNetwork(nn.Module):
    """A frozen backbone, the bank of patch features of good parts, and what deviations good parts show.

    `bank` (ROWS, channels) int8 in steps of `step` (1), each row from a place `places` (ROWS, 2) of the grid and shown
    by `shown_by` (ROWS, 3): an example and its left and top pixel. `apart` (1) is what a step of the grid between two
    places adds to the squared distance. `log_usual` (1, USUAL, USUAL) is the logarithm of the squared distance that
    good parts have at a place, and 0 of parts that are not aligned. `optional` holds the colours of aligned parts, and
    is None of others. `centre` and `deviation` (2) are those of the logarithm of a good part's largest deviation, of
    its colours and of its patches; `limit` (1) is how many of these deviations a part may show. `near` says how far a
    picture lies off as a whole. The numbers of alternates follow each other along the first axis. `leeway` (1) is by
    how much most of a picture may leave the ranges of colours; None: by nothing.
    """

    may_lack = ("leeway",)

    bank: torch.Tensor
    step: torch.Tensor
    places: torch.Tensor
    apart: torch.Tensor
    shown_by: torch.Tensor
    examples: torch.Tensor
    leeway: torch.Tensor | None
    optional: Colours | None

    def __init__(
        self, backbone: nn.Module | None, channels: int, features: int, alternates: int = 1, *, rows: int = ROWS
    ) -> None:
        """`channels` are those of a patch, `features` those of a whole picture; a part of a network has no backbone."""
        super().__init__()
        if backbone is not None:
            self.backbone = backbone
        self.alternates = alternates
        self.register_buffer("bank", torch.zeros(rows * alternates, channels, dtype=torch.int8))
        self.register_buffer("places", torch.zeros(rows * alternates, 2, dtype=torch.uint8))
        self.register_buffer("shown_by", torch.zeros(rows * alternates, 3, dtype=torch.uint8))
        self.register_buffer("examples", torch.zeros(EXAMPLES * alternates, SIDE, SIDE, 3, dtype=torch.uint8))
        self.register_buffer("step", torch.full((alternates,), 1 / _STEPS))
        self.register_buffer("apart", torch.zeros(alternates))
        self.register_buffer("leeway", torch.zeros(alternates))
        self.optional = Colours(alternates)
        self.log_usual = nn.Parameter(torch.zeros(alternates, USUAL, USUAL))
        self.centre = nn.Parameter(torch.tensor([NEVER, 0.0] * alternates))
        self.deviation = nn.Parameter(torch.ones(2 * alternates))
        self.limit = nn.Parameter(torch.full((alternates,), 3.0))
        self.near = NearnessNetwork(features, alternates)

    def rows(self, grid: int, alternate: int = 0) -> torch.Tensor:
        """Return an alternate's bank, (ROWS, k + 1): the product with what `asked` gives, (n, k), and a last column.

        Their sum is the squared distance, but for the squares of `asked`.
        """
        values = self._own(self.bank, alternate).float() * self._own(self.step, alternate).float()
        own = self._placed(values, self._own(self.places, alternate).float() - grid / 2, alternate)
        return torch.cat((-2 * own, own.square().sum(dim=1, keepdim=True)), dim=1)

    def beside(self, seen: torch.Tensor, alternate: int = 0) -> Beside:
        """Return patches (n, G, G, channels) as `asked` gives them, and the `rows` to compare them with."""
        return self.asked(seen, alternate), self.rows(int(seen.shape[1]), alternate)

    def asked(self, seen: torch.Tensor, alternate: int = 0) -> torch.Tensor:
        """Return patches (n, G, G, channels), of aligned parts with their places, (n, G G, k)."""
        grid = int(seen.shape[1])
        axis = torch.arange(grid, device=seen.device, dtype=torch.float32) - grid / 2
        places = torch.stack((axis.repeat(len(axis)), axis.repeat_interleave(len(axis))), dim=1)
        return self._placed(seen.flatten(1, 2), places, alternate)

    def _placed(self, values: torch.Tensor, places: torch.Tensor, alternate: int) -> torch.Tensor:
        """Return patches (..., channels) with their places (..., 2), by what a step adds to a squared distance."""
        if self.optional is None:
            return values
        where = (places * self._own(self.apart, alternate).float().sqrt()).expand(*values.shape[:-1], 2)
        return torch.cat((values, where), dim=-1)

    def forward(self, seen: torch.Tensor, whole: torch.Tensor, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what patches (n, G, G, channels), pooled features (n, d) and images (n, 3, S, S) uint8 deviate by.

        `scores` (n, G, G) and `score` (n), 0.5 at the limit; `unlike` (n), the same of the picture as a whole; `shown`
        (n, SHOWN, SHOWN, 3) uint8, the good patch that is nearest to the place that deviates most. With alternates each
        has a second axis, of them.
        """
        coloured = None if self.optional is None else colours(images)
        looks = []
        for alternate in range(self.alternates):
            beside = self.beside(seen, alternate)
            look = self.judged(beside, whole, coloured, alternate)
            shown = self.shown_near(beside, look["scores"].flatten(1).argmax(dim=1), alternate)
            looks.append({**look, "shown": shown})
        if self.alternates == 1:
            return looks[0]
        return {name: torch.stack([look[name] for look in looks], dim=1) for name in looks[0]}

    def judged(
        self, beside: Beside, whole: torch.Tensor, coloured: torch.Tensor | None = None, alternate: int = 0
    ) -> dict[str, torch.Tensor]:
        """Return what `forward` does of one look, but for `shown`; `coloured` is what `colours` gives of the images."""
        asked, rows = beside
        grid = math.isqrt(int(asked.shape[1]))
        # A sum and a product in one: what exports this for `int8` leaves the results of such in floats.
        products = torch.addmm(rows[:, -1], asked.flatten(0, 1), rows[:, :-1].T)
        squares = (products.amin(dim=1).view(-1, grid**2) + asked.square().sum(dim=2)).view(-1, grid, grid)
        centre, deviation = (self._own(numbers, alternate).float() for numbers in (self.centre, self.deviation))
        squares = squares / unhidden(on_grid_of(self._own(self.log_usual, alternate).float(), grid).exp())
        places = (logarithms(squares) - centre[1]) / deviation[1]
        most = (picture_logarithm(squares) - centre[1]) / deviation[1]
        if self.optional is not None and coloured is not None:
            leeway = 0.0 if self.leeway is None else self._own(self.leeway, alternate).float()
            strange = (self.optional.strange(coloured, leeway, alternate) - centre[0]) / deviation[0]
            places = torch.maximum(places, functional.adaptive_max_pool2d(strange[:, None], grid)[:, 0])
            most = torch.maximum(most, strange.flatten(1).amax(dim=1))
        limit = self._own(self.limit, alternate).float()
        return {
            "scores": torch.sigmoid(unhidden(places - limit)),
            "score": torch.sigmoid(unhidden(most - limit)),
            "unlike": torch.sigmoid(unhidden(self.near(whole, alternate))),
        }

    def shown_near(self, beside: Beside, place: torch.Tensor, alternate: int = 0) -> torch.Tensor:
        """Return what good parts show that is nearest to places (n) of patches, (n, SHOWN, SHOWN, 3) uint8."""
        asked, rows = beside
        asked = asked.gather(1, place[:, None, None].expand(-1, 1, asked.shape[2]))[:, 0]
        # A sum, since `int8` would compute a product with the bank in whole numbers.
        products = (asked[:, None] * rows[:, :-1]).sum(dim=2) + rows[:, -1]
        return self._shown(products.argmin(dim=1), alternate)

    def _own(self, numbers: torch.Tensor, alternate: int) -> torch.Tensor:
        return numbers.chunk(self.alternates)[alternate]

    def _shown(self, rows: torch.Tensor, alternate: int) -> torch.Tensor:
        """Return what examples show (n, SHOWN, SHOWN, 3) where rows (n) of the alternate's bank come from."""
        number, left, top = self._own(self.shown_by, alternate)[rows].long().unbind(dim=1)
        side = torch.arange(SHOWN, device=rows.device)
        across, down = left[:, None, None] + side[None, None, :], top[:, None, None] + side[None, :, None]
        return self._own(self.examples, alternate)[number[:, None, None], down, across]


def seen_and_whole(maps: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches (n, G, G, channels) of all stages' maps but the last, and pooled features of all but the
    first.

    Patches have length 1; both are float32. The first map has a quarter of the input's side.
    """
    grid = 4 * int(maps[0].shape[-1]) // CELL  # a number for the exporter of `int8` too, which traces shapes
    seen = functional.normalize(patches([one.float() for one in maps[:-1]], grid), dim=3)
    return seen, pooled(maps[1:]).float()


def on_grid_of(maps: torch.Tensor, grid: int) -> torch.Tensor:
    """Return maps (n, H, W) on another grid, (n, grid, grid), bilinearly."""
    if maps.shape[-1] == grid:
        return maps
    return functional.interpolate(maps[:, None], size=(grid, grid), mode="bilinear", align_corners=False)[:, 0]


def window(column: int, row: int, grid: int, side: float) -> tuple[float, float]:
    """Return left and top of the window around a place of a grid, in a square of `side` that it does not leave."""
    width = side * SHOWN / SIDE
    left, top = ((middle + 0.5) * side / grid - width / 2 for middle in (column, row))
    return min(max(left, 0.0), side - width), min(max(top, 0.0), side - width)


def logarithms(squares: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of distances that are given squared."""
    return squares.clamp_min(_LEAST**2).log() / 2


def picture_logarithm(squares: torch.Tensor) -> torch.Tensor:
    """Return the logarithm (n) of the mean distance of the worst places, of squared distances (n, G, G)."""
    flat = squares.flatten(1)
    worst = flat.topk(worst_count(int(flat.shape[1])), dim=1).values
    return worst.clamp_min(_LEAST**2).sqrt().mean(dim=1).log()


def worst_count(places: int) -> int:
    """Return how many of a picture's places say how far it deviates."""
    return max(1, round(WORST * places))
