"""Random variation of training images: the whole batch as one tensor, with one generator."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Augment:
    """How far training images vary; leave a variation that would change a label at 0 or False.

    `shift`, `scale`: shares of the side; `rotate`: degrees to either side; `gain` and `offset`: contrast and
    brightness to either side, shares of full scale; `noise`: standard deviation, share of full scale; `erase`: the
    largest side of a square that is blotted out, share of the side (it hides small defects: only for large defects).
    """

    mirror_x: bool = False
    mirror_y: bool = False
    shift: float = 0.02
    scale: float = 0.03
    rotate: float = 0.0
    gain: float = 0.15
    offset: float = 0.08
    noise: float = 0.015
    erase: float = 0.0

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return varied copies of images (n, 3, S, S) uint8, as uint8."""
        count = len(images)
        varied = images.float()
        if self.mirror_x or self.mirror_y or self.shift or self.scale or self.rotate:
            grid = functional.affine_grid(self._transforms(count, generator), list(varied.shape), align_corners=False)
            varied = functional.grid_sample(varied, grid, padding_mode="border", align_corners=False)
        if self.gain or self.offset:
            gain = 1 + self.gain * _either_side((count, 1, 1, 1), generator)
            offset = 255 * self.offset * _either_side((count, 1, 1, 1), generator)
            varied = (varied - 127.5) * gain + 127.5 + offset
        if self.noise:
            varied = varied + 255 * self.noise * torch.randn(varied.shape, generator=generator)
        if self.erase:
            self._blot(varied, generator)
        return varied.round_().clamp_(0, 255).to(torch.uint8)

    def _transforms(self, count: int, generator: torch.Generator) -> torch.Tensor:
        angle = math.radians(self.rotate) * _either_side((count,), generator)
        size = 1 + self.scale * _either_side((count,), generator)
        across = _signs(count, generator) if self.mirror_x else torch.ones(count)
        down = _signs(count, generator) if self.mirror_y else torch.ones(count)
        result = torch.zeros(count, 2, 3)
        result[:, 0, 0] = torch.cos(angle) * size * across
        result[:, 0, 1] = -torch.sin(angle) * size * down
        result[:, 1, 0] = torch.sin(angle) * size * across
        result[:, 1, 1] = torch.cos(angle) * size * down
        # The grid runs from -1 to 1, so a share of the side is twice as much there.
        result[:, :, 2] = 2 * self.shift * _either_side((count, 2), generator)
        return result

    def _blot(self, images: torch.Tensor, generator: torch.Generator) -> None:
        side = images.shape[-1]
        for image in images:
            extent = max(1, int(side * self.erase * float(torch.rand((), generator=generator))))
            top, left = torch.randint(0, side - extent + 1, (2,), generator=generator).tolist()
            image[:, top : top + extent, left : left + extent] = 127.5


def _either_side(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) * 2 - 1


def _signs(count: int, generator: torch.Generator) -> torch.Tensor:
    return (torch.rand(count, generator=generator) < 0.5).float() * 2 - 1
