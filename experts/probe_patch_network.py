"""The network of the kind `probe-patch`: that of `probe`, to whose features one is added: how far patches lie off."""

from __future__ import annotations

import torch

from experts.patch_network import ROWS, picture_logarithm
from experts.probe_network import ProbeNetwork

LEAST, MOST = -3.0, 5.0
"""Beyond these, in usual deviations, a picture is as good or as strange as any."""


class ProbePatchNetwork(ProbeNetwork):
    """A probe with a bank of patches of good parts, as kind `patch` has it without a reference.

    `bank` (ROWS, channels) is int8 in steps of `step` (1). `usual` (2) are mean and deviation of the logarithm of how
    far good parts lie off.
    """

    bank: torch.Tensor
    step: torch.Tensor
    usual: torch.Tensor

    def __init__(self, backbone: torch.nn.Module, features: int, labels: int, channels: int) -> None:
        super().__init__(backbone, features + 1, labels)
        self.register_buffer("bank", torch.zeros(ROWS, channels, dtype=torch.int8))
        self.register_buffer("step", torch.ones(1))
        self.register_buffer("usual", torch.ones(2))

    def deviations(self, seen: torch.Tensor) -> torch.Tensor:
        """Return how far pictures with patches (n, G, G, channels) lie off, (n, 1) in usual deviations."""
        squares = squares_to(seen, self.bank.float() * self.step.float()).amin(dim=2)
        centre, deviation = self.usual.float()
        return in_deviations(far_off(squares), centre, deviation)[:, None]


def squares_to(seen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return squared distances (n, G G, m) from patches (n, G, G, channels) of length 1 to rows (m, channels)."""
    return (1 + rows.square().sum(dim=1) - 2 * seen.flatten(1, 2) @ rows.T).clamp_min(0)


def far_off(squares: torch.Tensor) -> torch.Tensor:
    """Return the logarithm (n) of how far pictures lie off whose patches do by these squared distances (n, G G)."""
    return picture_logarithm(squares[:, None])


def in_deviations(far: torch.Tensor, centre: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Return logarithms in usual deviations from the usual."""
    return ((far - centre) / deviation).clamp(LEAST, MOST)
