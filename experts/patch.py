"""The kind `patch`: learned from good parts alone, with a reference or without; shows where a picture is unlike them.

PatchCore (Roth et al., 2022) on the stages of a frozen backbone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from coe.comparing.motion import Numbers
from coe.core import Expert, Finding, Likeness
from coe.errors import ConfigError, StoreError
from coe.store import outputs as network_outputs
from coe.store.kinds import Comparing, ExpertInput, Foreign, Image, Progress, Reference, Trained, TrainingPlan
from experts.backbone import ARCHITECTURES, BackboneKind
from experts.findings import Cut, Floats, detected, of_corners
from experts.geometry import back, fitted_image
from experts.pair import PairInput, compared, heat_of, in_picture, letterboxed
from experts.patch_network import CELL, NEVER, SHOWN, SIDE, PatchNetwork, seen_and_whole, window

LEAST_INPUT = 64
UNLIKE = "it looks unlike every good training part"
AT_LIMIT = 0.5
"""The score of a picture, or of one as a whole, that deviates as much as good parts may."""
_HEAT_FROM = 0.1
"""The least score of a picture whose heat map is kept."""


class Patch(BackboneKind, Comparing):
    """Whatever does not look like good parts, with one label; `threshold` is the score from which it counts.

    A component with a reference has its pictures aligned: neighbours near the same place count, and pixels as well.
    Without one the part may lie and turn as its good parts do, and look in two ways.
    """

    name = "patch"
    task = "detect"
    max_batch = 16
    good_only = True
    needs_reference = False
    preprocessing = ARCHITECTURES["efficientnet-lite0"].preprocessing
    stages = (1, 2, 3, 4)
    threshold, most = 0.5, 100

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Scale to fit, centre, and pad, unless the expert's manifest says otherwise."""
        fitting = fitted_image(image, expert.input_size, self._seen(expert))
        return PairInput(fitting.pixels, fitting.height, fitting.width, to_picture=back(fitting), place=-1)

    def compare(self, image: Image, reference: Reference, expert: Expert) -> PairInput:
        """Align with the reference, and scale to fit."""
        pair = compared(image, reference)
        shown = pair.alignment and pair.alignment.image
        prepared = letterboxed(image, pair, shown, self._seen(expert).pad, expert)
        return replace(prepared, place=reference.place)

    def _seen(self, expert: Expert) -> Any:
        return expert.preprocessing or self.preprocessing

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the expert has one label and an input of a multiple of 8."""
        if len(expert.labels) != 1:
            raise ConfigError(f"expert '{expert.id}': this kind has one label for all that it sees; give exactly one")
        if expert.input_size < LEAST_INPUT or expert.input_size % CELL:
            raise ConfigError(
                f"expert '{expert.id}': kind '{self.name}' takes an input of {LEAST_INPUT} pixels or more, a multiple "
                f"of {CELL}, not {expert.input_size}; 224 does for most parts"
            )
        channels = [self.architecture.channels[stage] for stage in self.stages]
        return PatchNetwork(self.layers(), sum(channels[:-1]), 2 * sum(channels[1:]), expert.alternates).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what `PatchNetwork` says of images (n, 3, S, S) uint8 RGB, with alternates as second axis."""
        outputs: dict[str, torch.Tensor] = module(*seen_and_whole(self.maps(module, images)), images)
        return outputs

    def postprocess(self, outputs: Any, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn scores into boxes in pixels of the pictures, heat maps, and what good parts show instead.

        Raises StoreError for outputs that are not finite numbers.
        """
        network_outputs.prove(outputs)
        findings, cut = [], Cut(self.threshold, overlap=1.0, most=self.most)
        for place, pair in enumerate(prepared):
            assert isinstance(pair, PairInput)
            if pair.to_picture is None:
                (finding,) = detected(of_corners(torch.zeros(0, 5)), [pair], expert, cut)
                findings.append(replace(finding, doubt=pair.doubt))
                continue
            own: tuple[int, ...] = (place,)
            if expert.alternates > 1:
                # Without a reference a part is of the look from which it deviates least.
                most = torch.maximum(outputs["score"][place], outputs["unlike"][place])
                own += (pair.place if pair.place >= 0 else int(most.argmin()),)
            scores, score = outputs["scores"][own].float().cpu().numpy(), float(outputs["score"][own])
            is_unlike = float(outputs["unlike"][own]) > AT_LIMIT
            rows = _regions(scores, score, self.threshold, CELL)
            rows[:, :4] = in_picture(rows[:, :4], pair.to_picture)
            (finding,) = detected(of_corners(torch.from_numpy(rows).float()), [pair], expert, cut)
            if is_unlike:  # with a box as well: the rules may ignore the box
                finding = replace(finding, doubt=UNLIKE)
            if score >= _HEAT_FROM or is_unlike:
                finding = replace(
                    finding,
                    heat=heat_of(scores, pair, pair.to_picture, expert.input_size),
                    likeness=likeness_of(scores, outputs["shown"][own], pair.to_picture, expert.input_size),
                )
            findings.append(finding)
        return findings

    def read(self, path: Path) -> Foreign:
        """Take an expert that learned without a reference; raises StoreError for one that needs its own."""
        foreign = super().read(path)
        centre = foreign.state.get("centre", torch.full((2,), NEVER)).flatten()
        if bool((centre[::2] != NEVER).any()):
            raise StoreError(
                f"{path}: it was trained with a reference, which is not in this file; transfer it with "
                "`coe-experts bundle` and `install`, or train it again with --board"
            )
        return replace(foreign, looks=max(1, len(centre) // 2))

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Learn from a folder of good parts; see `experts.patch_train`."""
        from experts import patch_train

        return patch_train.train(self, expert, plan, progress)


def _regions(scores: Floats, score: float, threshold: float, cell: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return x1, y1, x2, y2 in the input and the score of each region that counts, else of the whole input.

    A region counts for no more than its picture does.
    """
    rows = []
    if score >= threshold:
        count, labels, stats, _ = cv2.connectedComponentsWithStats((scores >= threshold).astype(np.uint8))
        for number in range(1, count):
            x, y, width, height = (int(value) for value in stats[number, :4])
            best = min(score, float(scores[labels == number].max()))
            rows.append((x * cell, y * cell, (x + width) * cell, (y + height) * cell, best))
    if not rows or max(row[4] for row in rows) < score:
        side = len(scores) * cell
        rows = [(0.0, 0.0, side, side, score), *rows]
    return np.array(rows, np.float64)


def likeness_of(scores: Floats, shown: torch.Tensor, to_picture: Numbers, size: int) -> Likeness:
    """Return what good parts show that is nearest to the place of the highest score, and that place in the picture."""
    row, column = np.unravel_index(int(scores.argmax()), scores.shape)
    left, top = window(int(column), int(row), len(scores), size)
    width = size * SHOWN / SIDE
    (corners,) = in_picture(np.array([[left, top, left + width, top + width]]), to_picture)
    x1, y1, x2, y2 = (float(value) for value in corners)
    return Likeness(SHOWN, shown.cpu().numpy().tobytes(), (x1, y1, x2, y2))


patch = Patch()
