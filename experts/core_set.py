"""A greedy core set: a few rows of many, so that no row lies far from all of them (k-centre; Sener and Savarese, 2018).

Distances are taken in a random projection to fewer numbers, as PatchCore does (Roth et al., 2022, section 3.2).
"""

from __future__ import annotations

import numpy as np
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
    # In memory that stays, and numpy's operators, of which each call takes a third of the time of torch's.
    product = torch.empty(len(seen))
    to_last, squared, distances = product.numpy(), squares.numpy(), np.full(len(seen), np.inf, np.float32)
    while len(chosen) < size:
        last = chosen[-1]
        torch.mv(seen, seen[last], out=product)
        to_last *= -2
        to_last += squared
        to_last += squared[last]
        np.minimum(distances, to_last, out=distances)
        distances[last] = 0.0
        farthest = int(distances.argmax())
        if distances[farthest] <= 1e-12:
            break
        chosen.append(farthest)
    return torch.tensor(chosen)
