"""The network of the kind `probe`: a linear head on pooled features of a frozen backbone, beside the good parts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from coe.store.outputs import unhidden
from experts.patch_network import PatchNetwork, seen_and_whole

ROWS = 512
"""The rows of a bank of patches beside a head, which sees small defects as well, so that fewer do than of `patch`."""
LEAST, MOST = -3.0, 5.0
"""Beyond these, in usual deviations, patches are as good or as strange as any."""


def beside_head(channels: Sequence[int]) -> PatchNetwork:
    """Return what says how good parts look beside a head, of stages of so many channels: see `seen_and_whole`."""
    parts = PatchNetwork(None, sum(channels[:-1]), 2 * sum(channels[1:]), rows=ROWS)
    parts.optional = parts.leeway = None
    return parts


class ProbeNetwork(torch.nn.Module):
    """A backbone, a linear head, and what good parts look like, `parts`, as kind `patch` has it without a reference.

    The head sees pooled features (n, d) and, as the last one, by how many usual deviations the patches lie off.
    `centre` and `scale` (d + 1,) standardise the features, `weights` (labels, d + 1) and `bias` (labels,) give logits.
    `is_good` (labels,) is 1 for labels of good parts. All are fp16, so that every variant has them as they are.
    """

    centre: torch.Tensor
    scale: torch.Tensor
    weights: torch.Tensor
    bias: torch.Tensor
    is_good: torch.Tensor

    def __init__(self, backbone: torch.nn.Module, channels: Sequence[int], labels: int) -> None:
        """`channels` are those of the stages."""
        super().__init__()
        self.backbone = backbone
        self.parts = beside_head(channels)
        features = len(self.parts.near.centre)
        shapes = {"centre": (features + 1,), "scale": (features + 1,), "weights": (labels, features + 1)}
        for name, shape in {**shapes, "bias": (labels,), "is_good": (labels,)}.items():
            self.register_buffer(name, torch.ones(shape, dtype=torch.float16))

    def forward(self, maps: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return what a backbone's maps (n, channels, h, w) of images say.

        `logits` (n, labels), and `score`, `scores`, `unlike` and `shown` as of a `PatchNetwork`. Where the likeliest
        label speaks against the part, `scores` (n, G, G) are what speaks for this label, and `shown` is of that place.
        """
        seen, whole = seen_and_whole(maps)
        beside = self.parts.beside(seen)
        outputs = self.parts.judged(beside, whole)
        # In fp32 whatever the weights are: logits are sums of a thousand products.
        beyond = torch.logit(outputs["score"], eps=1e-6) + self.parts.limit.float()
        features = torch.cat((whole, beyond.clamp(LEAST, MOST)[:, None]), dim=1)
        weights, scale = self.weights.float(), self.scale.float()
        logits = functional.linear((features - self.centre.float()) * scale, weights, self.bias.float())
        best = logits.argmax(dim=1)
        good = (logits - 1e4 * (1 - self.is_good.float())).argmax(dim=1)
        speaks = ((weights[best] - weights[good]) * scale)[:, :-1]
        places = self._places(maps[1:], speaks, int(seen.shape[1]))
        bad = (1 - self.is_good.float()[best])[:, None, None]
        scores = bad * places + (1 - bad) * outputs["scores"]
        shown = self.parts.shown_near(beside, scores.flatten(1).argmax(dim=1))
        return {"logits": logits, **outputs, "scores": scores, "shown": shown}

    def _places(self, maps: list[torch.Tensor], speaks: torch.Tensor, grid: int) -> torch.Tensor:
        """Return what each place adds for a label, (n, grid, grid), 1 where it adds most; `speaks` (n, d) are weights.

        The head is linear, so that each place of a map has its share of a mean, and the place of the largest value all
        of that (class activation maps; Zhou et al., 2016).
        """
        channels = [int(one.shape[1]) for one in maps]
        of_means, of_largest = speaks.chunk(2, dim=1)
        usual, _ = self.centre.float()[:-1].chunk(2)
        added = torch.zeros(1, device=speaks.device)
        for one, means, largest, middle in zip(
            maps, of_means.split(channels, 1), of_largest.split(channels, 1), usual.split(channels), strict=True
        ):
            own = one.float()
            places = int(own.shape[2]) * int(own.shape[3])  # a number for what exports this for `int8`
            of_place = torch.einsum("nchw,nc->nhw", own - middle[:, None, None], means) / places
            peaks = own * (own >= own.amax(dim=(2, 3), keepdim=True))
            of_place = of_place + torch.einsum("nchw,nc->nhw", peaks, largest)
            on_grid = functional.interpolate(of_place[:, None], (grid, grid), mode="bilinear", align_corners=False)
            added = added + on_grid * (places / grid**2)
        added = functional.avg_pool2d(added, 3, 1, 1, count_include_pad=False)[:, 0].clamp_min(0)
        return unhidden(added / added.amax(dim=(1, 2), keepdim=True).clamp_min(1e-6))
