"""The kind `difference`: where a picture differs from its reference, without training: the expert of the first day.

Its network has two numbers. A difference, averaged over 3 x 3 pixels, is compared with the first, in units of the
second; in the place of the first comes the limit of the reference, where training has found one on good parts.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Image, Progress, Reference, Trained, TrainingPlan
from experts.difference_network import DifferenceNetwork
from experts.geometry import letterbox
from experts.pair import PairInput, PairKind, compared, in_picture, letterboxed, limits_for
from experts.proposals import OPENING, Grey, regions


class DifferenceKind(PairKind):
    """Everything that differs, with one label; `threshold` is the score from which a difference counts."""

    name = "difference"
    max_batch = 8
    good_only = True
    threshold, most = 0.5, 300

    def compare(self, image: Image, reference: Reference, expert: Expert) -> PairInput:
        """Align and compare. The first two channels hold the limit of the reference: whole grey levels, and 256ths."""
        pair, own = compared(image, reference), limits_for(expert, reference)
        prepared = letterboxed(image, pair, pair.stack, (0, 0, 0), expert)
        whole, part = divmod(0 if own is None else round(256 * own.largest), 256)
        prepared.pixels[0], prepared.pixels[1] = min(whole, 255), part
        return replace(prepared, unlike=self.unlike(pair, reference, expert))

    def largest(self, stack: Image, expert: Expert) -> float:
        fitting = letterbox(stack, expert.input_size, (0, 0, 0))
        return float(cv2.morphologyEx(_smooth(fitting.pixels[2]), cv2.MORPH_OPEN, OPENING).max())

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the expert has one label."""
        if len(expert.labels) != 1:
            raise ConfigError(f"expert '{expert.id}': this kind has one label for all differences; give it exactly one")
        return DifferenceNetwork().eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return scores (n, S, S)."""
        whole, part, difference = images.to(next(module.parameters()).dtype).split(1, dim=1)
        scores: torch.Tensor = module(difference, whole[:, :, :1, :1] + part[:, :, :1, :1] / 256)
        return scores

    def candidates(self, output: torch.Tensor, pair: PairInput, expert: Expert) -> torch.Tensor:
        """Return x1, y1, x2, y2 in the picture and the score of each region; of the whole picture if there is none."""
        if pair.to_picture is None:
            return torch.zeros(0, 5)
        scores = output.float().cpu().numpy()
        # An opening of the scores holds for every threshold the opening of what is above it.
        lasting = cv2.morphologyEx(scores, cv2.MORPH_OPEN, OPENING)
        rows = []
        for region in regions(lasting >= self.threshold):
            x1, y1, x2, y2 = region.xyxy
            rows.append((*region.xyxy, float(lasting[y1:y2, x1:x2].max())))
        if not rows:
            below = float(np.nextafter(np.float32(self.threshold), np.float32(0)))
            rows = [(0, 0, *scores.shape[::-1], min(below, float(lasting.max())))]
        table = np.array(rows, np.float64)
        boxes = in_picture(table[:, :4], pair.to_picture)
        return torch.from_numpy(np.hstack((boxes, table[:, 4:]))).float()

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import pair_limits

        return pair_limits.calibrate(self, expert, plan, progress)


def _smooth(grey: Grey) -> NDArray[np.float32]:
    """Return what the network compares with its limit: an image (H, W) averaged over 3 x 3 pixels, or fewer at edges.

    The same numbers as those of `experts.backbone.smooth`, in a tenth of its time.
    """
    sums, counts = (
        cv2.boxFilter(pixels.astype(np.float32), -1, (3, 3), normalize=False, borderType=cv2.BORDER_CONSTANT)
        for pixels in (grey, np.ones_like(grey))
    )
    return np.asarray(sums / counts, np.float32)


difference = DifferenceKind()
