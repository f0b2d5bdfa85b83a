"""What a `probe-patch` learns beside its head: a bank of patches of good parts, and how far pictures lie from it.

No part is judged by its own rows: a good one lies as far off as the next good part would.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from coe.board.photo_labels import Answers
from coe.core import Expert
from coe.errors import ConfigError, TooFewPictures
from experts.core_set import core_set
from experts.good_train import Scale
from experts.logistic import Chosen, Numbers, Places
from experts.patch_network import ROWS
from experts.probe_network import ProbeNetwork
from experts.probe_patch_network import ProbePatchNetwork, far_off, in_deviations, squares_to
from experts.probe_train import BATCH, Features, Learning

MOST = 64
"""The most good parts whose patches are learned: a bank has no room for what more of them show."""
_CANDIDATES = 50_000
"""The most patches of which a bank is chosen."""
_STEPS = 127
_SPREAD, _WORTH = np.array([0.1]), 10
"""How much the logarithms of good parts' deviations usually spread, and how many parts this is worth."""
_NOTHING = 4.0
"""The largest squared distance of patches of length 1."""

See = Callable[[torch.nn.Module, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Gives pooled features (n, d - 1) and patches (n, G, G, channels) of a batch."""


def check(expert: Expert) -> None:
    """Raise ConfigError for an expert without a label of good parts."""
    if not Answers.of_labels(expert).good:
        raise ConfigError(
            f"expert '{expert.id}': kind 'probe-patch' compares with good parts, and none of its labels "
            f"({', '.join(expert.labels)}) is one of a good part; take kind 'probe'"
        )


def seen_with_others(see: See, least: int, network: ProbeNetwork, learning: Learning) -> Features:
    """Fill the bank and the usual deviation of a network, and return what it sees of the pictures.

    Raises ConfigError for fewer good parts than `least`.
    """
    assert isinstance(network, ProbePatchNetwork)
    parts = np.unique(learning.groups[learning.good])
    if len(parts) < least:
        raise TooFewPictures(f"{len(parts)} good parts are too few to compare with; give {least}, and better twenty")
    parts = parts[np.linspace(0, len(parts) - 1, min(MOST, len(parts))).round().astype(np.intp)]
    owners = _fill_bank(see, network, learning, parts)
    pooled, squares = [], []
    for batch in learning.images.split(BATCH):
        features, seen = see(network, batch)
        pooled.append(features)
        found = squares_to(seen, network.bank.float() * network.step)
        nearest = torch.full((*found.shape[:2], len(parts)), _NOTHING)
        squares.append(nearest.scatter_reduce(2, owners.expand(*found.shape[:2], -1), found, "amin").half())
    features, apart = torch.cat(pooled).double().numpy(), torch.cat(squares)
    first = np.array([np.flatnonzero(learning.groups == part)[0] for part in parts])

    def without(out: Chosen, groups: Places) -> Numbers:
        whose = groups[first]
        unknown = (groups[:, None] == whose[None, :]) | np.isin(whose, groups[out])[None, :]
        far = torch.stack(
            [
                far_off(one.float().masked_fill(torch.from_numpy(hidden), _NOTHING).amin(dim=1)[None])[0]
                for one, hidden in zip(apart, unknown, strict=True)
            ]
        )
        scale = Scale.of(far[learning.good & ~out].double().numpy()[:, None], _SPREAD, _WORTH)
        network.usual.copy_(torch.from_numpy(np.concatenate((scale.centre, scale.deviation))))
        column = in_deviations(far, *network.usual).double().numpy()
        return np.column_stack((features, column))

    return without


def _fill_bank(see: See, network: ProbePatchNetwork, learning: Learning, parts: Numbers) -> torch.Tensor:
    """Write the bank of patches of the good parts of these numbers into a network; return whose each row is (ROWS,)."""
    places = np.flatnonzero(learning.good & np.isin(learning.groups, parts))
    rows, owners = [], []
    for place in places:
        seen = see(network, learning.images[place : place + 1])[1].flatten(0, 2)
        thinned = seen[:: -(-len(places) * len(seen) // _CANDIDATES)]
        rows.append(thinned)
        owners.append(torch.full((len(thinned),), int(np.searchsorted(parts, learning.groups[place]))))
    patches = torch.cat(rows)
    chosen = core_set(patches, ROWS)
    chosen = chosen[torch.arange(ROWS) % len(chosen)]
    step = float(patches.abs().max()) / _STEPS
    network.bank.copy_((patches[chosen] / step).round().to(torch.int8))
    network.step.fill_(step)
    return torch.cat(owners)[chosen]
