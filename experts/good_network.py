"""The network of the kind `good`: how far each place of a picture lies from what good parts show there.

Two comparisons are made, and the larger deviation counts: of pixels, averaged to a grid, and of the features of a
frozen network's first layers, each a normal distribution for each place. The second is PaDiM (Defard et al., 2021) with
a diagonal covariance, because ten good parts do not tell more. Grids have the same size for every input, so that all
experts of the kind share a network.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from coe.store.outputs import unhidden
from experts.resnet import normalise

PIXELS, GRID = 64, 32
"""The sides of the grids of pixels and of features, the second being that of the heat map."""
CHANNELS = 64
_LEAST = 1e-2
"""Deviations under this are as good as none."""


class GoodNetwork(nn.Module):
    """The first layers of a ResNet18, the means and spreads of good parts, and what deviations they show.

    Spreads are kept as logarithms, because small spreads would be rounded to 0 in 8 bits beside large ones.
    `centre` and `deviation` (2) are those of the logarithm of a good part's largest deviation, for pixels and for
    features; `limit` (1) is how many of these deviations a part may show. The numbers of alternates follow each other
    along the first axis.
    """

    def __init__(self, alternates: int = 1) -> None:
        super().__init__()
        from torchvision import models

        self.alternates = alternates
        resnet = models.resnet18(weights=None)
        self.conv1, self.bn1, self.layer1 = resnet.conv1, resnet.bn1, resnet.layer1
        self.pixel_mean = nn.Parameter(torch.zeros(3 * alternates, PIXELS, PIXELS))
        self.pixel_log_spread = nn.Parameter(torch.zeros(3 * alternates, PIXELS, PIXELS))
        self.feature_mean = nn.Parameter(torch.zeros(CHANNELS * alternates, GRID, GRID))
        self.feature_log_spread = nn.Parameter(torch.zeros(CHANNELS * alternates, GRID, GRID))
        self.centre = nn.Parameter(torch.zeros(2 * alternates))
        self.deviation = nn.Parameter(torch.ones(2 * alternates))
        self.limit = nn.Parameter(torch.full((alternates,), 3.0))

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Return images (n, 3, S, S) uint8 on the grid of pixels, in grey levels, averaged over 3 x 3 places."""
        return smooth(functional.adaptive_avg_pool2d(images.to(self.pixel_mean.dtype), PIXELS))

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """Return the features (n, CHANNELS, GRID, GRID) of images (n, 3, S, S) uint8."""
        seen = functional.relu(self.bn1(self.conv1(normalise(images, self.conv1.weight.dtype))))
        seen = self.layer1(functional.max_pool2d(seen, 3, 2, 1))
        return functional.adaptive_avg_pool2d(smooth(seen), GRID)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores (n, GRID, GRID) of images (n, 3, S, S) uint8: 0.5 at the limit.

        With alternates they are (n, alternates, GRID, GRID): by each of them, whichever the images were compared with.
        """
        pixels, features = self.pixels(images), self.features(images)
        scores = [self._scores(pixels, features, place) for place in range(self.alternates)]
        return scores[0] if self.alternates == 1 else torch.stack(scores, dim=1)

    def _scores(self, pixels: torch.Tensor, features: torch.Tensor, place: int) -> torch.Tensor:
        def own(numbers: torch.Tensor) -> torch.Tensor:
            return numbers.chunk(self.alternates)[place]

        maps = torch.stack(
            (
                of_pixels(pixels, own(self.pixel_mean), unhidden(own(self.pixel_log_spread).exp())),
                of_features(features, own(self.feature_mean), unhidden(own(self.feature_log_spread).exp())),
            ),
            dim=1,
        )
        deviations = (maps - own(self.centre)[:, None, None]) / own(self.deviation)[:, None, None]
        return torch.sigmoid(unhidden(deviations.amax(dim=1) - own(self.limit)))


def of_pixels(pixels: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (n, GRID, GRID) of the deviations of pixels (n, 3, PIXELS, PIXELS) from good parts."""
    deviations = ((pixels - mean).abs() / spread).amax(dim=1)
    return _logarithms(functional.max_pool2d(deviations, PIXELS // GRID)[:, None])


def of_features(features: torch.Tensor, mean: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
    """Return the logarithms (n, GRID, GRID) of the deviations of features (n, CHANNELS, GRID, GRID) from good parts."""
    deviations = ((features - mean) / spread).square().mean(dim=1, keepdim=True)
    return _logarithms(deviations.sqrt())


def smooth(maps: torch.Tensor) -> torch.Tensor:
    """Return maps (n, c, H, W) averaged over 3 x 3 places."""
    return functional.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False)


def _logarithms(deviations: torch.Tensor) -> torch.Tensor:
    return smooth(deviations.clamp_min(_LEAST).log())[:, 0]
