"""Frozen layers of pretrained networks: what kinds that learn from a few pictures see with.

A backbone is an expert without labels in the store, `backbones/NAME`, where NAME is the kind of its network. An expert
of a `BackboneKind` is the backbone, which the store keeps once for all experts of the kind as their body, and its own
part. The networks are timm's, whose ResNets are torchvision's, cut after the last stage that is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from coe.core import Expert, Shown
from coe.errors import ConfigError
from coe.helpers.preprocessing import NORMALIZATIONS, Preprocessing
from coe.helpers.surroundings import quiet_timm
from coe.store.kinds import BACKBONE, Image, ModuleKind, TrainingPlan
from coe.store.skeletons import bare_skeleton
from coe.store.tensor_files import load_tensors
from experts import series
from experts.normalising import PADDING, normalised
from experts.one_thread import hasten

_BATCH = 8


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network whose layers may be frozen: timm's name of it, and the name of what its input is normalised by.

    `channels` are those of its stages, whose maps have a 2nd, 4th, 8th, 16th and 32nd of the input's side.
    """

    timm_name: str
    normalization: str
    channels: tuple[int, ...]

    @property
    def preprocessing(self) -> Preprocessing:
        """What its experts see: the whole picture in its aspect, padded with ImageNet's mean colour."""
        mean, std = NORMALIZATIONS[self.normalization]
        return Preprocessing(pad=PADDING, mean=mean, std=std)


ARCHITECTURES = {
    "efficientnet-lite0": Architecture("tf_efficientnet_lite0", "-1..1", (16, 24, 40, 112, 320)),
    "resnet18": Architecture("resnet18", "imagenet", (64, 64, 128, 256, 512)),
    "resnet34": Architecture("resnet34", "imagenet", (64, 64, 128, 256, 512)),
    "resnet50": Architecture("resnet50", "imagenet", (64, 256, 512, 1024, 2048)),
    "resnet101": Architecture("resnet101", "imagenet", (64, 256, 512, 1024, 2048)),
}
"""Networks by the names of their kinds."""


class Seeing(Protocol):
    """What shows the maps of several stages of its network: a kind with a backbone, or a network that was tuned."""

    stages: tuple[int, ...]

    @property
    def architecture(self) -> Architecture:
        """The network."""

    def maps(self, module: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
        """Return each stage's features (n, channels, h, w) of images (n, 3, S, S) uint8."""

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> Any:
        """Run a batch, as every kind of network does."""


class BackboneKind(ModuleKind):
    """The base class of kinds whose experts are a frozen backbone and an own part.

    The skeleton holds the backbone as its first submodule, `backbone`, made by `layers`; `forward` asks `maps` for what
    it sees. `backbone` is the kind of the network, and `stages` are the numbers of the stages that count, from 0.
    Training copies the weights of `plan.init` with `load_backbone`, and leaves them as they are.
    """

    backbone: str = "efficientnet-lite0"
    one_at_a_time = True
    stages: tuple[int, ...]

    @property
    def architecture(self) -> Architecture:
        """The network of the backbone."""
        return ARCHITECTURES[self.backbone]

    def layers(self) -> torch.nn.Module:
        """Build the backbone's layers as far as the last stage, with random weights, ready to infer."""
        network: Any = create(self.architecture.timm_name, labels=0)
        network.prune_intermediate_layers(list(self.stages), prune_norm=True, prune_head=True)
        layers: torch.nn.Module = network.eval().requires_grad_(False)
        hasten(layers)
        return layers

    @property
    def has_body_model(self) -> bool:  # type: ignore[override]
        """Whether onnxruntime can run the backbone."""
        return self.backbone == "efficientnet-lite0"

    def body_model(self, module: torch.nn.Module) -> bytes | None:
        """Return the backbone as a model from normalised images to what `maps` gives."""
        from experts.lite0_model import maps_model  # slow to import

        return maps_model(module.backbone, self._ends(module))

    def open_body(self, module: torch.nn.Module) -> None:
        """Let onnxruntime run the backbone of a skeleton whose weights are as they were trained, if it can."""
        from experts.lite0_model import open_maps  # slow to import

        if self.has_body_model:
            module.body_session = open_maps(module.backbone, self._ends(module))  # type: ignore[assignment]

    def _ends(self, module: torch.nn.Module) -> list[str]:
        """Return the names of the layers with which the stages end."""
        network: Any = module.backbone
        return [network.feature_info[stage]["module"] for stage in self.stages]

    def maps(self, module: torch.nn.Module, images: torch.Tensor) -> list[torch.Tensor]:
        """Return each stage's features (n, channels, h, w) of images (n, 3, S, S) uint8, as precise as the weights.

        The same images and weights give the same numbers on the same machine with as many threads.
        """
        seen = normalised(images, module, NORMALIZATIONS[self.architecture.normalization])
        if (body := getattr(module, "body_session", None)) is not None:
            maps: list[torch.Tensor] = body.run(seen.numpy())
            return maps
        seen = seen.contiguous(memory_format=torch.channels_last)
        found: list[torch.Tensor] = module.backbone.forward_intermediates(  # type: ignore[operator, union-attr]
            seen, indices=list(self.stages), intermediates_only=True, stop_early=True
        )
        return found

    def must_not_pass(self, image: Image) -> Iterable[tuple[Shown, Image]]:
        from experts import exam  # it imports the trainers

        return exam.made_of_whole(image)

    def parts_of(
        self, expert: Expert, plan: TrainingPlan, images: Iterable[Image], labels: Sequence[str]
    ) -> Sequence[int]:
        """Return the number of its part for each input (3, S, S) uint8; see `experts.series`."""
        from experts.trainers import computing

        with computing(plan.threads), torch.inference_mode():
            module = bare_skeleton(self, expert)
            load_backbone(module, self, expert, plan.init)
            left = iter(images)
            batches = (torch.from_numpy(np.stack(batch)) for batch in iter(lambda: [*islice(left, _BATCH)], []))
            features = torch.cat([pooled(self.maps(module, batch)) for batch in batches]).double().numpy()
        numbers = np.arange(len(features))
        for label in set(labels):
            places = np.flatnonzero(np.array(labels) == label)
            if (parts := series.parts_of(series.looks_of(features[places]))) is not None:
                for own in (places[parts == part] for part in np.unique(parts)):
                    numbers[own] = own[0]
        return list(map(int, numbers))


def create(timm_name: str, *, labels: int) -> torch.nn.Module:
    """Build a network of timm's without weights, ready to infer; with 0 labels it ends with pooled features."""
    quiet_timm()
    import timm

    network: torch.nn.Module = timm.create_model(timm_name, pretrained=False, num_classes=labels)
    return network.eval()


def pooled(maps: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return mean and largest of each channel of maps, (n, 2 * all channels): the means of all stages come first."""
    means = [functional.adaptive_avg_pool2d(one, 1).flatten(1) for one in maps]
    return torch.cat([*means, *(functional.adaptive_max_pool2d(one, 1).flatten(1) for one in maps)], dim=1)


def patches(maps: Sequence[torch.Tensor], grid: int) -> torch.Tensor:
    """Return maps averaged over 3 x 3 places, on a common grid, (n, grid, grid, all channels).

    Larger maps are averaged, smaller ones enlarged bilinearly (Roth et al., 2022, section 3.1).
    """
    return torch.cat([_on_grid(one, grid) for one in maps], dim=1).permute(0, 2, 3, 1)


def _on_grid(one: torch.Tensor, grid: int) -> torch.Tensor:
    one = smooth(one)
    side = int(one.shape[-1])
    if side > grid and side % grid == 0:
        return functional.avg_pool2d(one, side // grid)  # the same, and ONNX has it
    if side > grid:
        return functional.adaptive_avg_pool2d(one, grid)
    return functional.interpolate(one, size=(grid, grid), mode="bilinear", align_corners=False)


def load_backbone(module: torch.nn.Module, kind: BackboneKind, expert: Expert, init: Path | None) -> None:
    """Copy a backbone's weights, or those that another expert of the kind has, from a safetensors file into a module.

    What learns sees by the session by which a line sees, if there is one.

    Raises ConfigError if there is no file, or if it is of another network; StoreError if it cannot be read.
    """
    if init is None:
        raise ConfigError(
            f"expert '{expert.id}': kind '{kind.name}' uses the layers of a pretrained {kind.backbone}, but has "
            "none; name one with --init, or add it to the store with `coe-experts backbone add`"
        )
    tensors = load_tensors(init)
    wanted = module.backbone.state_dict()  # type: ignore[union-attr, operator]
    theirs = {name.removeprefix(BACKBONE): tensor for name, tensor in tensors.items()}
    for name, tensor in wanted.items():
        if name not in theirs or theirs[name].shape != tensor.shape:
            raise ConfigError(
                f"expert '{expert.id}': '{init}' is not a {kind.backbone} (its '{name}' is missing, or of another "
                f"shape); kind '{kind.name}' needs the weights of a {kind.backbone}"
            )
    module.backbone.load_state_dict({name: theirs[name] for name in wanted})  # type: ignore[union-attr, operator]
    kind.open_body(module)


def smooth(maps: torch.Tensor) -> torch.Tensor:
    """Return maps (n, c, H, W) averaged over 3 x 3 places."""
    return functional.avg_pool2d(maps, 3, stride=1, padding=1, count_include_pad=False)
