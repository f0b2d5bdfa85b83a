"""The kind `probe`: a classifier that learns in seconds from some twenty pictures, on what a pretrained network sees.

A linear probe (Alain and Bengio, 2016) on means and maxima of several stages of a frozen backbone. What looks unlike
every picture that was learned from is in doubt, whatever the classifier says of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from coe.core import FULL, Expert, Finding
from coe.errors import ConfigError
from coe.store import outputs as network_outputs
from coe.store.kinds import ExpertInput, Image, Progress, Trained, TrainingPlan
from experts.backbone import ARCHITECTURES, BackboneKind, pooled
from experts.findings import classified
from experts.geometry import fitted_image
from experts.probe_network import ProbeNetwork

UNLIKE = "it looks unlike every picture that was learned from"
_NEARLY = 0.85
"""From this share of the limit on a finding of a lesser variant is in doubt, and looked at again in full precision.

Rounding makes pictures look farther off, by up to 2.5 times in int8; the most that brought one nearer was 14 %.
"""


class Probe(BackboneKind):
    """A classifier of any number of labels on the last three stages of a frozen backbone.

    Pictures keep their aspect. Nothing is varied in learning: neither colour nor brightness nor place, because a wrong
    part may differ in these alone.
    """

    name = "probe"
    task = "classify"
    learns_turned = True
    least_of_label = 4
    stages = (2, 3, 4)
    preprocessing = ARCHITECTURES["efficientnet-lite0"].preprocessing

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Scale to fit, centre, and pad with the mean colour, unless the expert's manifest says otherwise."""
        return fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError for an input that the backbone makes smaller than a pixel."""
        if expert.input_size < 1 << len(self.architecture.channels):
            raise ConfigError(
                f"expert '{expert.id}': an input of {expert.input_size} pixels is too small for kind '{self.name}'; "
                "give 64 or more"
            )
        features = 2 * sum(self.architecture.channels[stage] for stage in self.stages)
        return ProbeNetwork(self.layers(), features, len(expert.labels)).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return logits and distances, (n, labels + 1), of images (n, 3, S, S) uint8 RGB."""
        outputs: torch.Tensor = module(self.features(module, images))
        return outputs

    def features(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return what the head sees of images (n, 3, S, S) uint8 RGB: (n, d)."""
        return pooled(self.maps(module, images))

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Return the likeliest label and its probability, in doubt if the picture looks unlike all that was learned.

        Such a finding has no margin. Raises StoreError for outputs that are not finite numbers.
        """
        network_outputs.prove(outputs)
        rows = outputs.float()
        found = classified(rows[:, :-1].softmax(dim=1), expert)
        far = (rows[:, -1] > (1.0 if expert.variant == FULL else _NEARLY)).tolist()
        return [replace(one, doubt=UNLIKE, margin=0.0) if off else one for one, off in zip(found, far, strict=True)]

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import probe_train

        look = partial(probe_train.seen_alone, self.features)
        return probe_train.train(self, expert, plan, progress, look)


probe = Probe()
