"""A greedy core set: a few rows of many, so that no row lies far from all of them (k-centre; Sener and Savarese, 2018).

Distances are taken in a random projection to fewer numbers, as PatchCore does (Roth et al., 2022, section 3.2).
"""

from __future__ import annotations

import torch

_NUMBERS = 32
"""How many numbers of a row are left for its distances."""


def core_set(rows: torch.Tensor, size: int, beside: torch.Tensor | None = None) -> torch.Tensor:
    """Return the places of at most `size` of the rows (n, d) float32: each next one lies farthest from those before.

    `beside` (n, k) are further numbers of the rows, which are not projected. The same rows give the same places. Equal
    rows are taken once.
    """
    chance = torch.Generator().manual_seed(0)
    numbers = min(_NUMBERS, rows.shape[1])
    seen = rows
    if numbers < rows.shape[1]:
        seen = rows @ (torch.randn(rows.shape[1], numbers, generator=chance) / numbers**0.5)
    if beside is not None:
        seen = torch.cat((seen, beside), dim=1)
    squares = seen.square().sum(dim=1)
    # From the row that lies farthest from their mean.
    distance = (seen - seen.mean(dim=0)).square().sum(dim=1)
    chosen = [int(distance.argmax())]
    distance = torch.full_like(distance, torch.inf)
    while len(chosen) < size:
        last = chosen[-1]
        distance = torch.minimum(distance, squares - 2 * (seen @ seen[last]) + squares[last])
        distance[last] = 0.0
        farthest = int(distance.argmax())
        if float(distance[farthest]) <= 1e-12:
            break
        chosen.append(farthest)
    return torch.tensor(chosen)
