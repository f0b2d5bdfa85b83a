"""ResNet classifiers: torchvision's networks. They see the whole image in its aspect, padded to a square."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from coe.core import Expert, Finding
from coe.errors import StoreError, list_few
from coe.helpers.preprocessing import NORMALIZATIONS, Colour, Preprocessing
from coe.store.blob_format import optional_of
from coe.store.kinds import ExpertInput, Foreign, Image, ModuleKind, Progress, Trained, TrainingPlan
from coe.store.skeletons import bare_skeleton
from experts.augment import Augment
from experts.findings import classified
from experts.geometry import fitted_image

if TYPE_CHECKING:
    from experts.backbone import Architecture

MEAN, DEVIATION = NORMALIZATIONS["imagenet"]
_ANOTHER_WAY = "is it of another kind? Any network can be exported as ONNX and imported with --kind onnx"
PADDING = (124, 116, 104)
"""The mean colour of ImageNet, which normalisation turns into 0."""


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
        from torchvision import models

        return self.with_parts(getattr(models, self.name)(weights=None, num_classes=len(expert.labels)))

    @property
    def architecture(self) -> Architecture:
        """The network."""
        from experts.backbone import ARCHITECTURES

        return ARCHITECTURES[self.name]

    def with_parts(self, module: torch.nn.Module) -> torch.nn.Module:
        """Return a network, ready to infer, with an `optional` part that says how good parts look."""
        from experts.probe_network import beside_head

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
        from experts.patch_network import seen_and_whole

        maps, logits = self.passed(module, shown)
        return {"logits": logits, **parts(*seen_and_whole(maps), images)}

    def postprocess(
        self, outputs: torch.Tensor | dict[str, torch.Tensor], prepared: Sequence[ExpertInput], expert: Expert
    ) -> list[Finding]:
        """Return the likeliest label and its probability; see `near_good` if the expert knows how good parts look."""
        if isinstance(outputs, torch.Tensor):
            return classified(outputs.float().softmax(dim=1), expert)
        from experts.near_good import near_good

        return near_good(outputs, prepared, expert)

    def read(self, path: Path) -> Foreign:
        """Open a file for import: safetensors, or a state dict, bare or under a usual key; raises StoreError."""
        from experts import resnet_reading

        foreign = super().read(path) if path.suffix == ".safetensors" else None
        if foreign and foreign.labels is not None:
            return foreign
        return resnet_reading.read(self, self.activation, path, foreign)

    def convert(self, state: dict[str, torch.Tensor], expert: Expert) -> dict[str, torch.Tensor]:
        """Map a torchvision state dict, with or without the `module.` of a parallel training, to our names.

        Raises StoreError if tensors are missing or have another shape.
        """
        return fitted({name.removeprefix("module."): value for name, value in state.items()}, self, expert)

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        from experts import classifier_train

        return classifier_train.train(self, expert, plan, progress, self.augment)


def normalised(images: torch.Tensor, module: torch.nn.Module, usual: tuple[Colour, Colour]) -> torch.Tensor:
    """Return images (n, 3, S, S) uint8 normalised as a network remembers, in its precision; else as is `usual`."""
    mean, deviation = getattr(module, "normalization", usual)
    return normalise(images, next(module.parameters()).dtype, mean, deviation)


def normalise(
    images: torch.Tensor, dtype: torch.dtype, mean: Colour = MEAN, deviation: Colour = DEVIATION
) -> torch.Tensor:
    """Return uint8 images (n, 3, S, S) normalised, as for ImageNet; with plain scalars, which any device takes."""
    scaled = images.to(dtype).div_(255.0)
    if (mean, deviation) == NORMALIZATIONS["0..1"]:
        return scaled
    # Stacked rather than written in place: ONNX's exporter loses in-place operators on a slice.
    channels = enumerate(zip(mean, deviation, strict=True))
    return torch.stack([scaled[:, channel].sub(middle).div_(width) for channel, (middle, width) in channels], dim=1)


def _counts(name: str) -> bool:
    return name.endswith("num_batches_tracked")


def _way_out(given: torch.Tensor, wanted: torch.Tensor, labels: int) -> str:
    """Say what to do about a tensor of another shape: of the last layer, of the first, or of one between them."""
    if given.shape[1:] == wanted.shape[1:] and len(wanted) == labels:
        if len(given) == 1:
            return "one output tells two labels apart; export it as ONNX and import that with --activation sigmoid"
        return f"it has {len(given)} outputs; give as many labels, in their order"
    if given.dim() == wanted.dim() == 4 and wanted.shape[1] == 3 != given.shape[1]:
        if given.shape[1] == 1:
            return "it takes grey, one channel; export it as ONNX, and import that with --kind onnx"
        return (
            f"it takes {given.shape[1]} channels; export it as ONNX behind a layer that makes them of red, green and "
            "blue, and import that with --kind onnx"
        )
    return _ANOTHER_WAY


def fitted(state: dict[str, torch.Tensor], kind: ModuleKind, expert: Expert) -> dict[str, torch.Tensor]:
    """Return exactly the tensors of the kind's skeleton, taken from `state`; missing batch counters become 0.

    Raises StoreError that names the first tensor that is missing, surplus, or of another shape or type, and how many
    are missing or surplus.
    """
    wanted = bare_skeleton(kind, expert, optional=optional_of(state)).state_dict()
    wrong = [f"has no tensor '{name}'" for name in state if name not in wanted]
    wrong += [
        f"needs a tensor '{name}', which the file lacks" for name in wanted if name not in state and not _counts(name)
    ]
    if wrong:
        raise StoreError(f"weights of '{expert.id}': {kind.name} {list_few(wrong, 1, '; ')}; {_ANOTHER_WAY}")
    result: dict[str, torch.Tensor] = {}
    for name, tensor in wanted.items():
        if _counts(name):  # nothing is computed with it, and half precision rounds it
            kept = state.get(name)
            is_sound = kept is not None and (kept.dtype, kept.shape) == (tensor.dtype, tensor.shape)
            result[name] = kept.detach() if kept is not None and is_sound else torch.zeros_like(tensor)
        elif state[name].shape != tensor.shape:
            raise StoreError(
                f"weights of '{expert.id}': '{name}' is {tuple(state[name].shape)}, {kind.name} with "
                f"{len(expert.labels)} labels needs {tuple(tensor.shape)}: "
                f"{_way_out(state[name], tensor, len(expert.labels))}"
            )
        elif state[name].is_floating_point() != tensor.is_floating_point():
            actual, needed = (str(value.dtype).removeprefix("torch.") for value in (state[name], tensor))
            raise StoreError(f"weights of '{expert.id}': '{name}' holds {actual}, {kind.name} needs {needed}")
        else:
            result[name] = state[name].detach().to(tensor.dtype).contiguous()
    return result


resnet18 = ResNet(18)
resnet34 = ResNet(34)
resnet50 = ResNet(50)
resnet101 = ResNet(101)
