"""The network of the kind `marking`: PP-OCRv6's small recognition model (PaddleOCR, Apache-2.0), for ASCII alone.

A convolutional trunk, two layers of attention over the columns of a line of text (SVTR, Du et al. 2022), and for each
column the probability of each character or of none (CTC, Graves et al. 2006). The parts stand in the order of the
published model's tensors, by which they are taken from its file.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

HEIGHT = 48
"""The height in pixels of a line of text as the network takes it."""
CHARACTERS = "".join(map(chr, range(33, 127))) + " "
"""The characters that are told apart: those of ASCII that can be seen, and the space. Before them comes none."""
_CHANNELS, _WIDTH, _HEADS = 96, 120, 8


class Stem(nn.Module):
    """From pixels (n, 3, 48, W) to features (n, 96, 12, W / 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 48, 3, 2, 1)
        self.narrow = nn.Conv2d(48, 24, 2)
        self.wide = nn.Conv2d(24, 48, 2)
        self.joined = nn.Conv2d(96, 48, 3, 2, 1)
        self.last = nn.Conv2d(48, _CHANNELS, 1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        start = functional.pad(functional.relu(self.first(pixels)), (0, 1, 0, 1))
        convolved = functional.pad(functional.relu(self.narrow(start)), (0, 1, 0, 1))
        both = (functional.max_pool2d(start, 2, 1), functional.relu(self.wide(convolved)))
        return functional.relu(self.last(functional.relu(self.joined(torch.cat(both, 1)))))


class Excitation(nn.Module):
    """Weighs channels by what the whole line shows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        whole = functional.relu(self.down(features.mean((2, 3), keepdim=True)))
        return features * functional.hardsigmoid(self.up(whole))


class Block(nn.Module):
    """A depthwise convolution, and two of single pixels; with a stride of 2 it halves the height."""

    def __init__(self, channels: int, to: int | None = None, *, excited: bool = False) -> None:
        super().__init__()
        self.depth = nn.Conv2d(channels, channels, 3, 1 if to is None else (2, 1), 1, groups=channels)
        self.excite = Excitation(channels) if excited else nn.Identity()
        self.up = nn.Conv2d(channels, 2 * channels, 1)
        self.down = nn.Conv2d(2 * channels, to or channels, 1)
        self.adds = to is None

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        features = self.excite(self.depth(features))
        further: torch.Tensor = self.down(functional.gelu(self.up(features)))
        return features + further if self.adds else further


class Normed(nn.Module):
    """A convolution along the line, a batch norm and a SiLU."""

    def __init__(self, channels: int, width: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, _WIDTH, (1, width), 1, (0, width // 2), groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(_WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return functional.silu(self.norm(self.conv(features)))


class Mixer(nn.Module):
    """Attention over the columns of a line, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(_WIDTH)
        self.queries = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.joined = nn.Linear(_WIDTH, _WIDTH)
        self.between = nn.LayerNorm(_WIDTH)
        self.up = nn.Linear(_WIDTH, 2 * _WIDTH)
        self.down = nn.Linear(2 * _WIDTH, _WIDTH)

    def forward(self, columns: torch.Tensor) -> torch.Tensor:
        count, length, width = columns.shape
        parts = self.queries(self.before(columns)).reshape(count, length, 3, _HEADS, width // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        columns = columns + self.joined(seen.reshape(count, length, width))
        further: torch.Tensor = self.down(functional.silu(self.up(self.between(columns))))
        return columns + further


class MarkingNetwork(nn.Module):
    """From lines of text, (n, 3, 48, W) BGR from -1 to 1, to logits (n, W / 8, 1 + characters)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Stem()
        low, middle, high = _CHANNELS, 2 * _CHANNELS, 4 * _CHANNELS
        self.blocks = nn.Sequential(
            *(Block(low, excited=number == 0) for number in range(3)),
            Block(low, middle),
            *(Block(middle, excited=number % 2 == 0) for number in range(6)),
            Block(middle, high),
            *(Block(high, excited=number == 0) for number in range(2)),
        )
        self.beside = Normed(high)
        self.narrow = Normed(high)
        self.near = Normed(_WIDTH, 7, _WIDTH)
        self.mixers = nn.Sequential(Mixer(), Mixer())
        self.norm = nn.LayerNorm(_WIDTH, eps=1e-6)
        self.head = nn.Linear(_WIDTH, 1 + len(CHARACTERS))

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        features = functional.avg_pool2d(self.blocks(self.stem(lines)), (3, 2))
        narrow = self.narrow(features)
        columns = (narrow + self.near(narrow)).flatten(2).transpose(1, 2)
        mixed = self.norm(self.mixers(columns)) + self.beside(features).flatten(2).transpose(1, 2)
        logits: torch.Tensor = self.head(mixed)
        return logits
