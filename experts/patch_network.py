"""The network of the kind `patch`: how far each place of a picture lies from all that good parts show (PatchCore).

The distance of a place is that to the nearest row of a bank of patch features (Roth et al., 2022). Where parts are
aligned, a row from another place lies further off, a distance is measured by those that good parts have at the place,
and colours that no good part shows there count as well; see `experts.patch_colours`. Elsewhere a picture that as a
whole is unlike that of every good part deviates too: where a part is missing, each patch may be one that good parts
show beside the part.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from coe.store.outputs import unhidden
from experts.backbone import patches
from experts.patch_colours import Colours, colours

CELL = 8
"""The side in pixels of the input of one place."""
ROWS = 2048
"""The rows of a bank. Fewer are repeated."""
WHOLES = 64
"""Of how many good parts an expert keeps how each looks as a whole. Fewer are repeated."""
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
"""The centre of the logarithms of deviations of which none ever counts: of colours, or of wholes of aligned parts."""


class PatchNetwork(nn.Module):
    """A frozen backbone, the bank of patch features of good parts, and what deviations good parts show.

    `bank` (ROWS, channels) int8 in steps of `step` (1), each row from a place `places` (ROWS, 2) of the grid and shown
    by `shown_by` (ROWS, 3): an example and its left and top pixel. `apart` (1) is what a step of the grid between two
    places adds to the squared distance. `log_usual` (1, USUAL, USUAL) is the logarithm of the squared distance that
    good parts have at a place, and 0 of parts that are not aligned. `wholes` (WHOLES, deepest) fp16 is how good parts
    look as wholes. `optional` holds the colours of aligned parts, and is None of others. `centre` and `deviation` (3)
    are those of the logarithm of a good part's largest deviation, of its colours, of its patches and as a whole;
    `limit` (1) is how many of these deviations a part may show. The numbers of alternates follow each other along the
    first axis. `leeway` (1) is by how much most of a picture may leave the ranges of colours; None: by nothing.
    """

    may_lack = ("leeway",)

    bank: torch.Tensor
    step: torch.Tensor
    places: torch.Tensor
    apart: torch.Tensor
    shown_by: torch.Tensor
    examples: torch.Tensor
    wholes: torch.Tensor
    leeway: torch.Tensor | None
    optional: Colours | None

    def __init__(self, backbone: nn.Module, channels: int, deepest: int, alternates: int = 1) -> None:
        super().__init__()
        self.backbone, self.alternates = backbone, alternates
        self.register_buffer("bank", torch.zeros(ROWS * alternates, channels, dtype=torch.int8))
        self.register_buffer("places", torch.zeros(ROWS * alternates, 2, dtype=torch.uint8))
        self.register_buffer("shown_by", torch.zeros(ROWS * alternates, 3, dtype=torch.uint8))
        self.register_buffer("examples", torch.zeros(EXAMPLES * alternates, SIDE, SIDE, 3, dtype=torch.uint8))
        self.register_buffer("wholes", torch.zeros(WHOLES * alternates, deepest, dtype=torch.float16))
        self.register_buffer("step", torch.full((alternates,), 1 / _STEPS))
        self.register_buffer("apart", torch.zeros(alternates))
        self.register_buffer("leeway", torch.zeros(alternates))
        self.optional = Colours(alternates)
        self.log_usual = nn.Parameter(torch.zeros(alternates, USUAL, USUAL))
        self.centre = nn.Parameter(torch.tensor([NEVER, 0.0, 0.0] * alternates))
        self.deviation = nn.Parameter(torch.ones(3 * alternates))
        self.limit = nn.Parameter(torch.full((alternates,), 3.0))

    def rows(self, grid: int, alternate: int = 0) -> torch.Tensor:
        """Return an alternate's bank, (ROWS, channels + 3): its product with patches of `asked` is their distance.

        That is the squared one, without the patches' own squares.
        """
        values = self._own(self.bank, alternate).float() * self._own(self.step, alternate).float()
        own = placed(values, self._own(self.places, alternate).float() - grid / 2, self._own(self.apart, alternate))
        return torch.cat((-2 * own[:, :-1], lengths(own)[:, None]), dim=1)

    def asked(self, seen: torch.Tensor, alternate: int = 0) -> torch.Tensor:
        """Return patches (n, G, G, channels) with their places, (n, G G, channels + 3)."""
        axis = torch.arange(seen.shape[1], device=seen.device, dtype=torch.float32) - seen.shape[1] / 2
        places = torch.stack((axis.repeat(len(axis)), axis.repeat_interleave(len(axis))), dim=1)
        return placed(seen.flatten(1, 2), places, self._own(self.apart, alternate))

    def forward(self, seen: torch.Tensor, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what patches (n, G, G, channels) and images (n, 3, S, S) uint8 deviate by.

        `scores` (n, G, G) and `score` (n), 0.5 at the limit; `shown` (n, SHOWN, SHOWN, 3) uint8, the good patch that is
        nearest to the place that deviates most. With alternates each has a second axis, of them.
        """
        shown = None if self.optional is None else colours(images)
        looks = [self._judged(seen, shown, alternate) for alternate in range(self.alternates)]
        if self.alternates == 1:
            return looks[0]
        return {name: torch.stack([look[name] for look in looks], dim=1) for name in looks[0]}

    def _judged(self, seen: torch.Tensor, shown: torch.Tensor | None, alternate: int) -> dict[str, torch.Tensor]:
        grid = seen.shape[1]
        asked, rows = self.asked(seen, alternate), self.rows(grid, alternate)
        squares = ((asked @ rows.T).amin(dim=2) + lengths(asked)).view(-1, grid, grid)
        centre, deviation = (self._own(numbers, alternate).float() for numbers in (self.centre, self.deviation))
        squares = squares / unhidden(on_grid_of(self._own(self.log_usual, alternate).float(), grid).exp())
        places = (logarithms(squares) - centre[1]) / deviation[1]
        worst = (picture_logarithm(squares) - centre[1]) / deviation[1]
        wholes = self._own(self.wholes, alternate).float()
        far = torch.cdist(whole(seen, wholes.shape[1]), wholes, compute_mode="donot_use_mm_for_euclid_dist")
        as_whole = (logarithms(far.amin(dim=1).square()) - centre[2]) / deviation[2]
        both, most = places, [worst, as_whole]
        if self.optional is not None and shown is not None:
            leeway = 0.0 if self.leeway is None else self._own(self.leeway, alternate).float()
            strange = (self.optional.strange(shown, leeway, alternate) - centre[0]) / deviation[0]
            both = torch.maximum(places, functional.adaptive_max_pool2d(strange[:, None], grid)[:, 0])
            most.append(strange.flatten(1).amax(dim=1))
        limit = self._own(self.limit, alternate).float()
        place = both.flatten(1).argmax(dim=1)
        row = (asked[torch.arange(len(place), device=place.device), place] @ rows.T).argmin(dim=1)
        return {
            "scores": torch.sigmoid(unhidden(both - limit)),
            "score": torch.sigmoid(unhidden(torch.stack(most).amax(dim=0) - limit)),
            "shown": self._shown(row, alternate),
        }

    def _own(self, numbers: torch.Tensor, alternate: int) -> torch.Tensor:
        return numbers.chunk(self.alternates)[alternate]

    def _shown(self, rows: torch.Tensor, alternate: int) -> torch.Tensor:
        """Return what examples show (n, SHOWN, SHOWN, 3) where rows (n) of the alternate's bank come from."""
        number, left, top = self._own(self.shown_by, alternate)[rows].long().unbind(dim=1)
        side = torch.arange(SHOWN, device=rows.device)
        across, down = left[:, None, None] + side[None, None, :], top[:, None, None] + side[None, :, None]
        return self._own(self.examples, alternate)[number[:, None, None], down, across]


def features(maps: list[torch.Tensor], grid: int) -> torch.Tensor:
    """Return the patches (n, grid, grid, channels) of a backbone's maps, each of length 1, float32."""
    return functional.normalize(patches([one.float() for one in maps], grid), dim=3)


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


def whole(seen: torch.Tensor, deepest: int) -> torch.Tensor:
    """Return how pictures with patches (n, G, G, channels) look as wholes, (n, deepest): the mean of their patches.

    It is that of the deepest stage, which half precision disturbs least.
    """
    return seen[..., -deepest:].mean(dim=(1, 2))


def placed(values: torch.Tensor, places: torch.Tensor, apart: torch.Tensor) -> torch.Tensor:
    """Return patches (..., channels) with their places (..., 2), by what a step adds to a squared distance, and 1."""
    where = (places * apart.float().sqrt()).expand(*values.shape[:-1], 2)
    return torch.cat((values, where, torch.ones_like(where[..., :1])), dim=-1)


def lengths(placed: torch.Tensor) -> torch.Tensor:
    """Return the squared lengths of what `placed` gives."""
    return placed[..., :-1].square().sum(dim=-1)


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
