"""The kind `probe-patch`: a `probe` that also sees how far a picture lies from good parts, as kind `patch` does.

Defects of which no two are alike lie on no side of a line between pooled features; what they have in common is that
good parts show no such patch.
"""

from __future__ import annotations

from functools import partial

import torch

from coe.core import Expert
from coe.errors import ConfigError
from coe.store.kinds import Progress, Trained, TrainingPlan
from experts.backbone import pooled
from experts.patch_network import CELL, features
from experts.probe import Probe
from experts.probe_patch_network import ProbePatchNetwork


class ProbePatch(Probe):
    """A classifier with a label of good parts, and any number of others."""

    name = "probe-patch"
    max_batch = 16
    stages = (1, 2, 3, 4)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the input is a multiple of 8, of 64 or more."""
        if expert.input_size < 64 or expert.input_size % CELL:
            raise ConfigError(
                f"expert '{expert.id}': kind '{self.name}' takes an input of 64 pixels or more, a multiple of {CELL}, "
                f"not {expert.input_size}; 224 does for most parts"
            )
        channels = [self.architecture.channels[stage] for stage in self.stages]
        return ProbePatchNetwork(self.layers(), 2 * sum(channels[1:]), len(expert.labels), sum(channels[:-1])).eval()

    def features(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return what the head sees of images (n, 3, S, S) uint8 RGB, (n, d): how far each lies off comes last."""
        both = self.both(module, images)
        return torch.cat((both[0], module.deviations(both[1])), dim=1)  # type: ignore[operator]

    def both(self, module: torch.nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return pooled features (n, d - 1) of the last three stages, and patches (n, G, G, channels) of the first."""
        maps = self.maps(module, images)
        grid = int(images.shape[-1]) // CELL  # a number for the exporter of `int8` too, which traces shapes
        return pooled(maps[1:]).float(), features(maps[:-1], grid)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Learn from a labelled folder; see `experts.probe_train` and `experts.probe_patch_train`."""
        from experts import probe_patch_train, probe_train

        probe_patch_train.check(expert)
        look = partial(probe_patch_train.seen_with_others, self.both, self.least_of_label)
        return probe_train.train(self, expert, plan, progress, look, given=1)


probe_patch = ProbePatch()
