"""The network of the kind `probe`: a linear head on pooled features of a frozen backbone, and examples of these."""

from __future__ import annotations

import torch
from torch.nn import functional

EXAMPLES = 16
"""How many pictures of each label an expert remembers, to know what it has never seen."""


class ProbeNetwork(torch.nn.Module):
    """A backbone, a linear head on its pooled features (n, d), and examples of these features.

    `centre` and `scale` (d,) standardise the features, `weights` (labels, d) and `bias` (labels,) give logits.
    `examples` (labels * EXAMPLES, d) are standardised, and `limit` (1,) is the largest mean squared distance from the
    nearest of them that a picture of this part has. All are fp16, so that every variant has them as they are.
    """

    def __init__(self, backbone: torch.nn.Module, features: int, labels: int) -> None:
        super().__init__()
        self.backbone = backbone
        shapes = {"centre": (features,), "scale": (features,), "weights": (labels, features), "bias": (labels,)}
        for name, shape in {**shapes, "examples": (labels * EXAMPLES, features), "limit": (1,)}.items():
            self.register_buffer(name, torch.ones(shape, dtype=torch.float16))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits, and the distance in units of the limit, (n, labels + 1) float32, of features (n, d)."""
        # In fp32 whatever the weights are: distances are sums of a thousand squares.
        rows = (features.float() - self.centre.float()) * self.scale.float()
        logits = functional.linear(rows, self.weights.float(), self.bias.float())
        distances = distances_of(rows, self.examples.float()).amin(dim=1, keepdim=True)
        return torch.cat((logits, distances / self.limit.float()), dim=1)


def distances_of(rows: torch.Tensor, examples: torch.Tensor) -> torch.Tensor:
    """Return mean squared distances (n, m) between rows (n, d) and examples (m, d)."""
    return torch.cdist(rows, examples, compute_mode="donot_use_mm_for_euclid_dist").square() / rows.shape[1]
