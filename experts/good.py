"""The kind `good`: an expert that learned from good parts alone, and shows where a picture does not look like them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np
import torch

from coe.comparing.motion import Numbers
from coe.core import Expert, Finding, Heat
from coe.errors import ConfigError
from coe.store.kinds import ExpertInput, Image, Progress, Reference, Trained, TrainingPlan
from experts.findings import Floats
from experts.good_network import GRID, GoodNetwork
from experts.pair import PairInput, PairKind, compared, in_picture, letterboxed
from experts.resnet import PADDING

LEAST_INPUT = 64
_HEAT_FROM = 0.1
"""The least score of a picture whose heat map is kept."""


class Good(PairKind):
    """Whatever does not look as good parts do there, with one label; `threshold` is the score from which it counts.

    The picture is aligned with its reference first. A finding has a heat map.
    """

    name = "good"
    max_batch = 16
    good_only = True
    threshold, most = 0.5, 100

    def compare(self, image: Image, reference: Reference, expert: Expert) -> PairInput:
        pair = compared(image, reference)
        prepared = letterboxed(image, pair, pair.alignment and pair.alignment.image, PADDING, expert)
        return replace(prepared, place=reference.place)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the expert has one label and a large enough input."""
        if len(expert.labels) != 1:
            raise ConfigError(f"expert '{expert.id}': this kind has one label for all that it sees; give exactly one")
        if expert.input_size < LEAST_INPUT:
            size = f"an input of {expert.input_size} pixels is too small for this kind; give at least {LEAST_INPUT}"
            raise ConfigError(f"expert '{expert.id}': {size}")
        return GoodNetwork(expert.alternates).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return scores (n, GRID, GRID), with alternates (n, alternates, GRID, GRID)."""
        scores: torch.Tensor = module(images)
        return scores

    def candidates(self, output: torch.Tensor, pair: PairInput, expert: Expert) -> torch.Tensor:
        """Return x1, y1, x2, y2 in the picture and the score of each region that counts, else of the whole input."""
        if pair.to_picture is None:
            return torch.zeros(0, 5)
        rows = self._rows(scores_of(output, pair), expert.input_size / GRID)
        boxes = in_picture(rows[:, :4], pair.to_picture)
        return torch.from_numpy(np.hstack((boxes, rows[:, 4:]))).float()

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        findings = super().postprocess(outputs, prepared, expert)
        for place, (output, pair) in enumerate(zip(outputs, prepared, strict=True)):
            assert isinstance(pair, PairInput)
            scores = scores_of(output, pair)
            if pair.to_picture is not None and scores.max() >= _HEAT_FROM:
                heat = heat_of(scores, pair, pair.to_picture, expert.input_size)
                findings[place] = replace(findings[place], heat=heat)
        return findings

    def _rows(self, scores: Floats, cell: float) -> Numbers:
        """Return x1, y1, x2, y2 in the input and the score of each region that counts, else of the whole input."""
        count, labels, stats, _ = cv2.connectedComponentsWithStats((scores >= self.threshold).astype(np.uint8))
        rows = []
        for number in range(1, count):
            x, y, width, height = (int(value) for value in stats[number, :4])
            best = float(scores[labels == number].max())
            rows.append((x * cell, y * cell, (x + width) * cell, (y + height) * cell, best))
        if not rows:
            rows = [(0.0, 0.0, GRID * cell, GRID * cell, float(scores.max()))]
        return np.array(rows, np.float64)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import good_train

        return good_train.train(self, expert, plan, progress)


def scores_of(output: torch.Tensor, pair: PairInput) -> Floats:
    """Return the scores (G, G) of a picture, of (alternates, G, G) those of the alternate that it is compared with."""
    scores: Floats = (output[pair.place] if output.ndim > 2 else output).float().cpu().numpy()
    return scores


def heat_of(scores: Floats, pair: PairInput, to_picture: Numbers, size: int) -> Heat:
    """Return scores (G, G) of an input of `size` pixels as a map of the whole picture."""
    grid = len(scores)
    cell, to_cells = size / grid, np.diag([grid / pair.width, grid / pair.height, 1.0])
    # The middle of the first place is at half a cell, in the input and in the picture.
    from_places = np.array([[cell, 0.0, cell / 2], [0.0, cell, cell / 2], [0.0, 0.0, 1.0]])
    motion = (to_cells @ np.vstack((to_picture, (0.0, 0.0, 1.0))) @ from_places)[:2] - [[0, 0, 0.5], [0, 0, 0.5]]
    moved = cv2.warpAffine(scores, motion, (grid, grid), flags=cv2.INTER_LINEAR)
    return Heat(grid, grid, (moved * 255).round().astype(np.uint8).tobytes())


good = Good()
