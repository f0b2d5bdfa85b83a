"""The kind `probe`: a classifier that learns in seconds from some twenty pictures, on what a pretrained network sees.

A linear probe (Alain and Bengio, 2016) on means and maxima of several stages of a frozen backbone, and on how far
patches lie off those of good parts. Good is only what lies near a good part as well: see `experts.nearness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from coe.core import FULL, Expert, Finding
from coe.errors import ConfigError
from coe.store import outputs as network_outputs
from coe.store.kinds import ExpertInput, Image, Progress, Trained, TrainingPlan
from experts.backbone import ARCHITECTURES, BackboneKind
from experts.findings import classified
from experts.geometry import back, fitted_image
from experts.pair import PairInput, heat_of
from experts.patch import AT_LIMIT, UNLIKE, likeness_of
from experts.patch_network import CELL
from experts.probe_network import ProbeNetwork

_NEARLY = 0.4
"""From this score on, instead of 0.5, a finding of a lesser variant is in doubt, and looked at again in full precision.

Rounding makes pictures look farther off.
"""


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
        fitting = fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)
        return PairInput(fitting.pixels, fitting.height, fitting.width, to_picture=back(fitting), place=-1)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network; raises ConfigError unless the input is a multiple of 8, of 64 or more."""
        if expert.input_size < 64 or expert.input_size % CELL:
            raise ConfigError(
                f"expert '{expert.id}': kind '{self.name}' takes an input of 64 pixels or more, a multiple of {CELL}, "
                f"not {expert.input_size}; 224 does for most parts"
            )
        channels = [self.architecture.channels[stage] for stage in self.stages]
        return ProbeNetwork(self.layers(), sum(channels[:-1]), 2 * sum(channels[1:]), len(expert.labels)).eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what `ProbeNetwork` says of images (n, 3, S, S) uint8 RGB."""
        outputs: dict[str, torch.Tensor] = module(self.maps(module, images))
        return outputs

    def postprocess(
        self, outputs: dict[str, torch.Tensor], prepared: Sequence[ExpertInput], expert: Expert
    ) -> list[Finding]:
        """Return the likeliest label and its probability, in doubt if the picture looks unlike every good part.

        Such a finding has no margin. No label against a part is in doubt, since bad parts are unlike good ones. With
        such a label, or in doubt, a finding says where. Raises StoreError for outputs that are not finite numbers.
        """
        network_outputs.prove(outputs)
        found = classified(outputs["logits"].float().softmax(dim=1), expert)
        farthest = torch.maximum(outputs["score"], outputs["unlike"]).float()
        is_far = (farthest > (AT_LIMIT if expert.variant == FULL else _NEARLY)).tolist()
        for place, pair in enumerate(prepared):
            assert isinstance(pair, PairInput)
            assert pair.to_picture is not None
            is_bad = found[place].label in expert.reject
            if is_far[place] and not is_bad:
                found[place] = replace(found[place], doubt=UNLIKE, margin=0.0)
            if is_far[place] or is_bad:
                scores = outputs["scores"][place].float().cpu().numpy()
                found[place] = replace(
                    found[place],
                    heat=heat_of(scores, pair, pair.to_picture, expert.input_size),
                    likeness=likeness_of(scores, outputs["shown"][place], pair, expert.input_size),
                )
        return found

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Learn from a labelled folder; see `experts.probe_train`."""
        from experts import probe_train

        return probe_train.train(self, expert, plan, progress)


probe = Probe()
