"""ResNet classifiers. They see the whole image in its aspect, padded to a square.

Layers have torchvision's names, so its weights fit. torchvision itself would import torch's compiler, too: over a
second and 130 MB at each start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coe.core import Expert, Finding, Shown
from coe.helpers.preprocessing import Preprocessing
from coe.store.kinds import ExpertInput, Foreign, Image, ModuleKind, Progress, Trained, TrainingPlan
from experts.augment import Augment
from experts.backbone import ARCHITECTURES, Architecture
from experts.findings import classified
from experts.fitting_state import fitted
from experts.geometry import fitted_image
from experts.near_good import near_good
from experts.normalising import DEVIATION, MEAN, PADDING, normalised
from experts.patch_network import seen_and_whole
from experts.probe_network import beside_head

_SHAPES: dict[str, tuple[tuple[int, ...], bool]] = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
}
"""The blocks of each layer, and whether these are bottlenecks (`deep`)."""
_WIDER = 4
"""How many times as many channels a bottleneck gives as it has inside."""


class Block(nn.Module):
    """A residual block (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, figure 5).

    The stride of a bottleneck is that of its 3 x 3 convolution, as in all published weights.
    """

    def __init__(self, inputs: int, width: int, *, stride: int = 1, deep: bool = False) -> None:
        super().__init__()
        outputs = width * _WIDER if deep else width
        shortcut = None
        if stride != 1 or inputs != outputs:  # drawn first, as in torchvision: trainings of a seed give equal weights
            shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        first = (1, 1, 0) if deep else (3, stride, 1)
        self.conv1 = nn.Conv2d(inputs, width, *first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride if deep else 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False) if deep else None
        self.bn3 = nn.BatchNorm2d(outputs) if deep else None
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps (n, channels, h, w)."""
        seen: torch.Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(maps)))))
        if self.conv3 is not None and self.bn3 is not None:
            seen = self.bn3(self.conv3(self.relu(seen)))
        seen += maps if self.downsample is None else self.downsample(maps)
        relu: torch.Tensor = self.relu(seen)
        return relu


class Network(nn.Module):
    """A ResNet whose four layers have so many `blocks`, for images (n, 3, S, S) and a number of labels."""

    def __init__(self, blocks: tuple[int, ...], deep: bool, labels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for number, count in enumerate(blocks):
            width, stride = 64 << number, 2 if number else 1
            layer = [Block(inputs, width, stride=stride, deep=deep)]
            inputs = width * _WIDER if deep else width
            layer += [Block(inputs, width, deep=deep) for _ in range(count - 1)]
            setattr(self, f"layer{number + 1}", nn.Sequential(*layer))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, labels)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits; no map is kept longer than the next layer needs it."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            maps = layer(maps)
        logits: torch.Tensor = self.fc(self.avgpool(maps).flatten(1))
        return logits


class ResNet(ModuleKind):
    """A ResNet of `depth` layers.

    Images keep their aspect, because a stretched component looks like a bent one. `augment` says how training varies
    its images; the default leaves every label true, even if the label says that a part is rotated or reversed.
    """

    task = "classify"
    learns_turned = True
    stages: tuple[int, ...] = (1, 2, 3)
    """Those by which pictures are compared with good parts: what the last one sees of learned pictures is biased."""
    activation = "relu"
    preprocessing = Preprocessing(pad=PADDING, mean=MEAN, std=DEVIATION)

    def __init__(self, depth: int, augment: Augment | None = None) -> None:
        self.name = f"resnet{depth}"
        self.augment = augment or Augment()

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Scale to fit, centre, and pad with the mean colour, unless the expert's manifest says otherwise."""
        return fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        return self.with_parts(Network(*_SHAPES[self.name], labels=len(expert.labels)))

    @property
    def architecture(self) -> Architecture:
        """The network."""
        return ARCHITECTURES[self.name]

    def with_parts(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return a network, ready to infer, with an `optional` part that says how good parts look."""
        module.optional = beside_head([self.architecture.channels[stage] for stage in self.stages])
        return module.eval()

    def maps(self, module: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
        """Return the features (n, channels, h, w) of each of `stages` of images (n, 3, S, S) uint8."""
        return self.passed(module, normalised(images, module, (MEAN, DEVIATION)))[0]

    def passed(self, module: Any, images: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return the maps of `stages` and the logits of normalised images (n, 3, S, S)."""
        maps = [module.maxpool(module.relu(module.bn1(module.conv1(images))))]
        for layer in (module.layer1, module.layer2, module.layer3, module.layer4):
            maps.append(layer(maps[-1]))
        return [maps[stage] for stage in self.stages], module.fc(module.avgpool(maps[-1]).flatten(1))

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return logits; beside them what a `PatchNetwork` says, if the expert knows how good parts look."""
        shown = normalised(images, module, (MEAN, DEVIATION))
        if (parts := getattr(module, "optional", None)) is None:
            logits: torch.Tensor = module(shown)
            return logits
        maps, logits = self.passed(module, shown)
        return {"logits": logits, **parts(*seen_and_whole(maps), images)}

    def postprocess(
        self, outputs: torch.Tensor | dict[str, torch.Tensor], prepared: Sequence[ExpertInput], expert: Expert
    ) -> list[Finding]:
        """Return the likeliest label and its probability; see `near_good` if the expert knows how good parts look."""
        if isinstance(outputs, torch.Tensor):
            return classified(outputs.float().softmax(dim=1), expert)
        return near_good(outputs, prepared, expert)

    def read(self, path: Path) -> Foreign:
        """Open a file for import: safetensors, or a state dict, bare or under a usual key; raises StoreError."""
        from experts import checkpoint

        foreign = super().read(path) if path.suffix == ".safetensors" else None
        if foreign and foreign.labels is not None:
            return foreign
        return checkpoint.read_classifier(self, self.activation, path, foreign)

    convert = fitted

    def must_not_pass(self, image: Image) -> Iterable[tuple[Shown, Image]]:
        from experts import exam  # it imports the trainers

        return exam.made_of_whole(image)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import classifier_train

        return classifier_train.train(self, expert, plan, progress, self.augment)


resnet18 = ResNet(18)
resnet34 = ResNet(34)
resnet50 = ResNet(50)
resnet101 = ResNet(101)
