"""The network of the kind `probe-patch`: that of `probe`, to whose features one is added: how far patches lie off."""

from __future__ import annotations

import torch

from experts.patch_network import ROWS, picture_logarithm, worst_count
from experts.probe_network import ProbeNetwork

LEAST, MOST = -3.0, 5.0
"""Beyond these, in usual deviations, a picture is as good or as strange as any."""
_FIRST = 512
"""So many rows of a bank are compared with all patches, the others with those that may count."""
_LIKELY = 8
"""So many times as many patches as count are first compared with all rows."""


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
        rows = self.bank.float() * self.step.float()
        # Which patches are asked again depends on numbers, for which a GPU would wait.
        squares = worst_squares(seen, rows) if seen.device.type == "cpu" else squares_to(seen, rows).amin(dim=2)
        centre, deviation = self.usual.float()
        return in_deviations(far_off(squares), centre, deviation)[:, None]


def squares_to(seen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return squared distances (n, G G, m) from patches (n, G, G, channels) of length 1 to rows (m, channels).

    Rounding may make them a little less than 0.
    """
    # One product of matrices: each further operator goes through a million numbers.
    found = torch.addmm(1 + rows.square().sum(dim=1), seen.flatten(0, 2), (-2 * rows).T)
    return found.view(-1, int(seen.shape[1]) * int(seen.shape[2]), len(rows))


def worst_squares(seen: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return squared distances (n, G G) from patches (n, G, G, channels) to their nearest rows (m, channels).

    Those that `far_off` counts are exact, and no other is larger, in some half of the time: the first rows, which a
    core set spreads widest, tell how far a patch can lie off at most; all rows are asked about those that may count.
    """
    patches, others = seen.flatten(1, 2), rows[_FIRST:]
    squares = squares_to(seen, rows[:_FIRST]).amin(dim=2)
    counted = worst_count(int(squares.shape[1]))
    # No number decides how the code goes on, so that an exported model does the same.
    likely = squares.topk(_LIKELY * counted, dim=1).indices
    asked = patches.gather(1, likely[:, :, None].expand(-1, -1, patches.shape[2]))
    exact = torch.minimum(squares.gather(1, likely), squares_to(asked[:, :, None], others).amin(dim=2))
    squares = squares.scatter(1, likely, exact)
    # As many lie at least as far off as that, so others that do not are left.
    places = (squares > exact.topk(counted, dim=1).values[:, -1:]).nonzero(as_tuple=True)
    asked = patches[places][:, None, None]
    squares[places] = torch.minimum(squares[places], squares_to(asked, others)[:, 0].amin(dim=1))
    return squares


def far_off(squares: torch.Tensor) -> torch.Tensor:
    """Return the logarithm (n) of how far pictures lie off whose patches do by these squared distances (n, G G)."""
    return picture_logarithm(squares[:, None])


def in_deviations(far: torch.Tensor, centre: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
    """Return logarithms in usual deviations from the usual."""
    return ((far - centre) / deviation).clamp(LEAST, MOST)
