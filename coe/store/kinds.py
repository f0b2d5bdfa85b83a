"""The interface of a kind of expert, to be run, trained and imported. The framework knows no architecture by name."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import safetensors
import torch

from coe.core import Expert, Shown
from coe.errors import ConfigError, StoreError, first_line
from coe.helpers import plugins
from coe.helpers.preprocessing import WHOLLY, Outputs
from coe.pictures.image_source import Reference
from coe.store import runnable_kinds, safetensors_header, torch_file
from coe.store.blob_format import Identity
from coe.store.kind_data import Foreign, Layer, PackagedWeights, Progress, Trained, TrainingPlan
from coe.store.runnable_kinds import (
    BACKBONE,
    GROUP,
    Comparing,
    ExpertInput,
    Image,
    NetworkKind,
    RunnableKind,
    Session,
    SessionKind,
    check_experts,
)
from coe.store.tensor_files import load_tensors

if TYPE_CHECKING:
    import onnx

Prepared = ExpertInput
"""The former name of `ExpertInput`, which kinds of users have."""
__all__ = [  # who writes a kind imports from here alone
    "BACKBONE",
    "Comparing",
    "ExpertInput",
    "FileKind",
    "Foreign",
    "Image",
    "Kind",
    "Layer",
    "ModuleKind",
    "PackagedWeights",
    "Prepared",
    "Progress",
    "Reference",
    "Session",
    "Trained",
    "TrainingPlan",
    "check_experts",
    "names",
    "resolve",
]


class Kind(RunnableKind):
    """A kind whose experts can be prepared.

    `good_only` kinds learn from good parts; those with `learns_turned` heed `TrainingPlan.turned`. `least_of_label` is
    how many pictures of each label it takes, and `early_layers` names layers that are best left as a pretrained network
    has them (beginnings of tensor names).
    """

    good_only: bool = False
    learns_turned: bool = False
    least_of_label: int = 2
    early_layers: tuple[str, ...] = ()

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Train an expert of this kind; raises ConfigError if the kind cannot be trained here."""
        raise ConfigError(f"experts of kind '{self.name}' cannot be trained here; train elsewhere and import them")

    def parts_of(
        self, expert: Expert, plan: TrainingPlan, images: Iterable[Image], labels: Sequence[str]
    ) -> Sequence[int] | None:
        """Return the number of its part for each input, as of a burst; None if the kind cannot tell.

        A part has one of the labels (n,): those of another have other numbers.
        """
        return None

    def must_not_pass(self, image: Image) -> Iterable[tuple[Shown, Image]]:
        """Yield pictures made of a good one, (H, W, 3) uint8 RGB, of which none may pass, for an exam of any expert."""
        yield Shown.TURNED, np.ascontiguousarray(image[::-1, ::-1])


class ModuleKind(NetworkKind, Kind):
    """A kind that runs as a torch module whose weights are views of a blob.

    `backbone` is the kind of the pretrained network whose frozen layers its experts have, "" for none. The names of
    these layers begin with `BACKBONE`, the store keeps them once for all these experts, and trainings start from
    `backbones/<that kind>`.
    `packaged` are weights of such a network that come in an installed package.
    `common` holds beginnings of the names of tensors that all its experts have in common: import stores them as a body.
    """

    backbone: str = ""
    packaged: PackagedWeights | None = None
    common: tuple[str, ...] = ()

    def read(self, path: Path) -> Foreign:
        """Open a foreign weights file for import: safetensors, or a state dict that torch saved.

        A pickle is opened with `weights_only=True`: nothing in it runs. Raises StoreError for any other file.
        """
        if path.suffix == ".safetensors":
            tensors, made_for = load_tensors(path), _stated(path)
            if made_for is None:
                return Foreign(tensors)
            return Foreign(
                tensors,
                made_for.labels,
                input_size=made_for.input_size,
                preprocessing=made_for.preprocessing,
                stated=WHOLLY if made_for.preprocessing is not None else frozenset(),
            )
        torch_file.check_file(path)
        try:
            state = torch_file.load(path)
        except pickle.UnpicklingError as error:
            raise StoreError(f"{path}: cannot be opened safely as weights ({first_line(error):.300})") from error
        if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
            raise StoreError(f"{path}: does not hold a state dict, tensors by name")
        torch_file.check_tensors(str(path), state, most_bytes=path.stat().st_size)
        return Foreign(dict(state))

    def convert(self, state: dict[str, torch.Tensor], expert: Expert) -> dict[str, torch.Tensor]:
        """Map the state dict that `read` returned to the skeleton's names."""
        return state


def _stated(path: Path) -> Identity | None:
    """Return the identity that a safetensors file of this program states; raises StoreError if it makes no sense."""
    with safetensors.safe_open(path, "pt") as file:
        try:
            return safetensors_header.identity_of(file.metadata())
        except ValueError as error:
            raise StoreError(
                f"{path}: its metadata make no sense ({first_line(error):.200}); export it again"
            ) from error


class FileKind(SessionKind, Kind):
    """A kind whose runtime opens the weights file itself, such as ONNX."""

    def read(self, path: Path) -> Foreign:
        """Return what a file for import says of its model; raises StoreError. The default knows nothing."""
        return Foreign({})

    def bundled(self, path: Path, work: Path) -> Path:
        """Return a file for import that needs no other: `path`, or a new one in the folder `work`.

        Raises StoreError.
        """
        return path

    def settle(self, path: Path, expert: Expert) -> Outputs | None:
        """Return what the outputs of a file for import mean; `expert.outputs` holds what the user said of them.

        Raises StoreError if that stays open. The default leaves it to the kind.
        """
        return None

    def network(self, path: Path, expert: Expert) -> onnx.ModelProto | None:
        """Return an expert's network as an ONNX model, from which the variant `int8` is made.

        Its one input, `images`, takes (n, 3, S, S) uint8 RGB, n open or 1, and its one output is what `postprocess`
        takes. Raises StoreError for a network of which there can be no such model. The default, None, says that the
        kind has no `int8`.
        """
        return None

    @property
    def has_int8(self) -> bool:
        """Whether the kind gives a model of a file, and experts do not compare."""
        return not isinstance(self, Comparing) and type(self).network is not FileKind.network


def names() -> list[str]:
    """Return the names of the kinds that are installed."""
    return plugins.names(GROUP)


def resolve(name: str, allowed: Iterable[str] = ()) -> Kind:
    """Return a kind as `coe.store.runnable_kinds.resolve` does; raises ConfigError too if it can only be run."""
    kind = runnable_kinds.resolve(name, allowed)
    if not isinstance(kind, ModuleKind | FileKind):
        raise ConfigError(f"kind '{name}' can only be run: it is no coe.store.kinds.ModuleKind or FileKind")
    return kind
