"""How far a picture as a whole lies from the good parts: Mahalanobis' distance of its pooled features.

Patches see small defects wherever they are. A part that is missing, turned or of another type may show no patch that
good parts do not show somewhere, and its features as a whole are unlike theirs. Along the principal axes of the good
parts a distance is measured by their own spread, in all other directions by the mean of these spreads (a probabilistic
principal component analysis; Tipping and Bishop, 1999). Logarithms of these distances are in deviations of those that
good parts have from the others (leave-one-out), and the limit is a prediction limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from coe.helpers.rates import prediction_factor
from experts.scale import Numbers, Scale

AXES = 64
"""The most good parts whose spread is kept."""
LEAST_DEVIATIONS = 1.25
"""An exam tightens the limit no further than to so many deviations: every ninth good part would be in doubt."""
_SPREAD, _WORTH = np.array([0.1]), 5
"""How much the logarithms of good parts' distances usually spread, and how many further parts this is worth."""
_LEAST_SPREAD = 0.1
"""Of the mean spread of all features: one that hardly varies in a few parts may vary in the next."""
_LEAST_VARIANCE = 0.1
"""The same of an axis: pictures that are nearly the same span one along which others are not as near."""
_NOTHING = 1e-12


@dataclass(frozen=True, slots=True)
class Cloud:
    """Good parts in the space of their features: `centre` and `scale` (d,) standardise, `axes` (k, d) are principal.

    `variances` (k,) are those along the axes, and `rest` is that in any other direction.
    """

    centre: Numbers
    scale: Numbers
    axes: Numbers
    variances: Numbers
    rest: float

    @classmethod
    def of(cls, features: Numbers) -> Cloud:
        """Return the cloud of parts with these features (n, d), two or more."""
        centre, spread = features.mean(axis=0), features.std(axis=0)
        scale = 1 / np.maximum(spread, max(_LEAST_SPREAD * float(spread.mean()), 1e-6))
        rows = (features - centre) * scale
        _, singular, axes = np.linalg.svd(rows, full_matrices=False)
        count = min(len(features) - 1, AXES)
        variances = singular[:count] ** 2 / (len(features) - 1)
        rest = max(float(variances.mean()), _NOTHING)
        return cls(centre, scale, axes[:count], np.maximum(variances, _LEAST_VARIANCE * rest), rest)

    def logarithms(self, features: Numbers) -> Numbers:
        """Return the logarithms (n,) of the distances of pictures with these features (n, d)."""
        rows = (features - self.centre) * self.scale
        along = rows @ self.axes.T
        beside = ((rows**2).sum(axis=1) - (along**2).sum(axis=1)).clip(0)
        squares = (along**2 / self.variances).sum(axis=1) + beside / self.rest
        return np.asarray(np.log(squares.clip(_NOTHING)) / 2)


@dataclass(frozen=True, slots=True)
class Nearness:
    """What good parts with features (n, d) of parts (n,) look like as wholes, and how each lies off the others.

    `without` has the cloud of the others for each number of a part, `deviations` (n,) are in units of the
    leave-one-out, of which `limit` many are allowed.
    """

    cloud: Cloud
    without: dict[int, Cloud]
    scale: Scale
    limit: float

    @classmethod
    def of(cls, features: Numbers, parts: Numbers, share: float) -> Nearness:
        """Learn from parts; a `share` of further good parts is to lie beyond the limit."""
        different = np.unique(parts)
        without = {int(part): Cloud.of(features[parts != part]) for part in different}
        far = np.empty(len(features))
        for part, cloud in without.items():
            far[parts == part] = cloud.logarithms(features[parts == part])
        scale = Scale.of(far[:, None], _SPREAD, _WORTH)
        return cls(Cloud.of(features), without, scale, prediction_factor(len(different), share, _WORTH))

    @property
    def deviations(self) -> Numbers:
        """How far each of the parts lies from the others, (n,)."""
        return self.scale.deviations

    def of_changed(self, features: Numbers, parts: Numbers) -> Numbers:
        """Return the deviations (n,) of pictures (n, d) made from the parts of these numbers, each without its own."""
        far = np.concatenate(
            [self.without.get(int(p), self.cloud).logarithms(f[None]) for f, p in zip(features, parts, strict=True)]
        )
        return self.of_logarithms(far)

    def of_others(self, features: Numbers) -> Numbers:
        """Return the deviations (n,) of further pictures (n, d)."""
        return self.of_logarithms(self.cloud.logarithms(features))

    def of_logarithms(self, far: Numbers) -> Numbers:
        """Return logarithms of distances (n,) in deviations."""
        return np.asarray((far - self.scale.centre[0]) / self.scale.deviation[0])


class NearnessNetwork(nn.Module):
    """A `Nearness` as tensors, those of `alternates` behind each other along the first axes, in halves of floats.

    Halves, and no parameters, so that every variant has them as they are.
    """

    centre: torch.Tensor
    scale: torch.Tensor
    axes: torch.Tensor
    inverse: torch.Tensor
    rest: torch.Tensor
    usual: torch.Tensor

    def __init__(self, features: int, alternates: int = 1) -> None:
        super().__init__()
        self.alternates = alternates
        shapes = {"centre": (features,), "scale": (features,), "axes": (AXES, features), "inverse": (AXES,)}
        for name, shape in {**shapes, "rest": (1,), "usual": (3,)}.items():
            rows = torch.ones(alternates * shape[0], *shape[1:], dtype=torch.float16)
            self.register_buffer(name, rows)

    def fill(self, nearness: Nearness) -> None:
        """Take over what was learned; of one alternate."""
        cloud, count = nearness.cloud, len(nearness.cloud.axes)
        self.centre.copy_(torch.from_numpy(cloud.centre))
        self.scale.copy_(torch.from_numpy(cloud.scale))
        self.axes.zero_()[:count].copy_(torch.from_numpy(cloud.axes))
        self.inverse.zero_()[:count].copy_(torch.from_numpy(1 / cloud.variances))
        self.rest.fill_(1 / cloud.rest)
        usual = (nearness.scale.centre[0], nearness.scale.deviation[0], nearness.limit)
        self.usual.copy_(torch.tensor(usual))

    def forward(self, features: torch.Tensor, alternate: int = 0) -> torch.Tensor:
        """Return by how many deviations pictures with features (n, d) lie beyond the limit, (n,) float32."""
        centre, scale, axes, inverse, rest, usual = (
            getattr(self, name).chunk(self.alternates)[alternate].float()
            for name in ("centre", "scale", "axes", "inverse", "rest", "usual")
        )
        rows = (features.float() - centre) * scale
        # With a bias it is an operator whose results `int8` leaves in floats.
        along = functional.linear(rows, axes, torch.zeros(len(axes), device=axes.device)).square()
        beside = (rows.square().sum(dim=1) - along.sum(dim=1)).clamp_min(0)
        squares = (along * inverse).sum(dim=1) + beside * rest
        return (squares.clamp_min(_NOTHING).log() / 2 - usual[0]) / usual[1] - usual[2]
