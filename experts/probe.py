"""The kind `probe`: a classifier that learns in seconds from some twenty pictures, on what a pretrained network sees.

A linear probe (Alain and Bengio, 2016) on means and maxima of several stages of a frozen backbone, and on how far
patches lie off those of good parts. Good is only what lies near a good part as well: see `experts.nearness`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from coe.core import Expert, Finding
from coe.errors import ConfigError
from coe.store.kinds import ExpertInput, Image, Progress, Trained, TrainingPlan
from experts.backbone import ARCHITECTURES, BackboneKind
from experts.geometry import fitted_image
from experts.near_good import near_good
from experts.patch_network import CELL
from experts.probe_network import ProbeNetwork


class Probe(BackboneKind):
    """A classifier of any number of labels on the last three stages of a frozen backbone.

    Pictures keep their aspect. Nothing is varied in learning: neither colour nor brightness nor place, because a wrong
    part may differ in these alone.
    """

    name = "probe"
    task = "classify"
    max_batch = 16
    learns_turned = True
    least_of_label = 4
    stages = (1, 2, 3, 4)
    preprocessing = ARCHITECTURES["efficientnet-lite0"].preprocessing

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Scale to fit, centre, and pad with the mean colour, unless the expert's manifest says otherwise."""
        return fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the input is a multiple of 8, of 64 or more."""
        if expert.input_size < 64 or expert.input_size % CELL:
            raise ConfigError(
                f"expert '{expert.id}': kind '{self.name}' takes an input of 64 pixels or more, a multiple of {CELL}, "
                f"not {expert.input_size}; 224 does for most parts"
            )
        channels = [self.architecture.channels[stage] for stage in self.stages]
        return ProbeNetwork(self.layers(), channels, len(expert.labels)).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what `ProbeNetwork` says of images (n, 3, S, S) uint8 RGB."""
        outputs: dict[str, torch.Tensor] = module(self.maps(module, images))
        return outputs

    def postprocess(
        self, outputs: dict[str, torch.Tensor], prepared: Sequence[ExpertInput], expert: Expert
    ) -> list[Finding]:
        """Return the likeliest label and its probability, in doubt if the picture looks unlike every good part.

        Raises StoreError for outputs that are not finite numbers.
        """
        return near_good(outputs, prepared, expert)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Learn from a labelled folder; see `experts.probe_train`."""
        from experts import probe_train

        return probe_train.train(self, expert, plan, progress)


probe = Probe()
