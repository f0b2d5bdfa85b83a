"""The interface of a kind of expert. The framework knows no architecture by name; `resolve` finds kinds."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import safetensors
import torch

from coe import plugins
from coe.comparing.alternates import best_of
from coe.core import Expert, Finding
from coe.errors import ConfigError, StoreError, first_line
from coe.pictures.image_source import Reference
from coe.preprocessing import WHOLLY, Colour, Outputs, Preprocessing
from coe.store import safetensors_header, torch_file
from coe.store.blob_format import Identity
from coe.store.kind_data import (
    BACKBONE,
    ExpertInput,
    Foreign,
    Image,
    Layer,
    PackagedWeights,
    Prepared,
    Progress,
    Trained,
    TrainingPlan,
)
from coe.store.weights_file import holds, load_tensors
from coe.surroundings import quiet_torch

if TYPE_CHECKING:
    import onnx

quiet_torch()  # before a kind imports torchvision, which imports torch's compiler

GROUP = "coe.kinds"
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


class Kind(ABC):
    """What experts of one architecture share.

    Instances are stateless and shared between threads. `name` is the word in the rules; `task` says what a finding
    of this kind holds; `max_batch` bounds a batch even if memory allows more; `good_only` kinds learn from good parts;
    those with `learns_turned` heed `TrainingPlan.turned`. `least_of_label` is how many pictures of each label it takes,
    and `early_layers` names layers that are best left as a pretrained network has them (beginnings of tensor names).
    Experts of `is_reader` kinds read as `Expert.reads` says.
    `preprocessing` is what experts see whose manifests do not say it; None: the kind prepares images in its own way.
    """

    name: str
    task: Literal["classify", "detect"]
    max_batch: int = 32
    good_only: bool = False
    learns_turned: bool = False
    least_of_label: int = 2
    early_layers: tuple[str, ...] = ()
    is_reader: bool = False
    preprocessing: Preprocessing | None = None

    @abstractmethod
    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Bring an image (H, W, 3) uint8 RGB to the expert's input. Runs on decode workers."""

    @abstractmethod
    def postprocess(self, outputs: Any, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn a batch's outputs into one finding for each image, in order."""

    def normalization(self, expert: Expert) -> tuple[Colour, Colour] | None:
        """Return the mean and the standard deviation of an expert's input; None if the kind decides them itself."""
        seen = expert.preprocessing or self.preprocessing
        return seen.normalization if seen is not None else None

    def misfit(self, expert: Expert) -> str:
        """Return why this kind cannot run an expert as the rules have it, as the end of a sentence; "" if it can."""
        return "" if expert.reads is None or self.is_reader else f"kind '{self.name}' does not read; leave `reads` out"

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Train an expert of this kind; raises ConfigError if the kind cannot be trained here."""
        raise ConfigError(f"experts of kind '{self.name}' cannot be trained here; train elsewhere and import them")


class Comparing(ABC):
    """A second base class, after `ModuleKind` or `FileKind`, of a kind whose experts compare an image with a reference.

    Its `preprocess` prepares an image without a reference, for measurements and proofs alone: a line calls `compare`.
    A kind that does not need a reference (`needs_reference`) gets images of components without one by `preprocess`.
    """

    needs_reference: bool = True

    def compare_best(self, image: Image, reference: Reference, expert: Expert) -> ExpertInput:
        """Compare an image with the alternate of a reference that it fits best; the input says which, if it has any."""
        taken = best_of(image, reference.alternates)
        prepared = self.compare(image, taken, expert)
        return replace(prepared, reference=taken.id) if reference.others else prepared

    @abstractmethod
    def compare(self, image: Image, reference: Reference, expert: Expert) -> ExpertInput:
        """Bring an image (h, w, 3) uint8 RGB and its reference to the expert's input. Runs on decode workers.

        An image that cannot be compared is prepared too; `postprocess` then gives a finding with a `doubt`.
        """


class ModuleKind(Kind):
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

    @abstractmethod
    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network of this kind for `len(expert.labels)` labels; called once per slot, never per expert."""

    @abstractmethod
    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> Any:
        """Run a batch, (n, 3, S, S) uint8 RGB on the module's device, under inference mode.

        If the kind has a `preprocessing`, `module.normalization` holds mean and standard deviation of the input.

        Return tensors, bare or in tuples, lists or dicts, whose first axis is the image. On a GPU this is captured once
        as a graph: its operations must not depend on the numbers in its tensors.
        """

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


class Session(Protocol):
    """A loaded expert of a `FileKind`."""

    def run(self, images: Image) -> Any:
        """Run a batch, (n, 3, S, S) uint8 RGB, and return what `postprocess` takes."""
        ...


class FileKind(Kind):
    """A kind whose runtime opens the weights file itself, such as ONNX."""

    suffix: str

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

    @abstractmethod
    def open(self, path: Path, expert: Expert, threads: int) -> Session:
        """Open the file, to compute with `threads` threads."""

    def open_bytes(self, weights: bytes, path: Path, expert: Expert, threads: int) -> Session:
        """Open the weights that were read from `path` and proved to be the expert's.

        Override this if the runtime takes bytes. The default opens the file, and raises StoreError if the file no
        longer holds these bytes afterwards.
        """
        session = self.open(path, expert, threads)
        if not holds(path, weights):
            raise StoreError(f"{path} changed while it was opened; try again")
        return session


def names() -> list[str]:
    """Return the names of the kinds that are installed."""
    return plugins.names(GROUP)


def resolve(name: str, allowed: Iterable[str] = ()) -> Kind:
    """Return the kind of that name: an installed entry point, or a dotted path `package.module:attribute`.

    A dotted path that is no installed entry point is imported only from the packages `allowed`. Raises ConfigError if
    there is no such kind, if it is not allowed, if it cannot be imported or made, or if it is no `Kind` that can run.
    """
    kind = plugins.load(name, allowed, group=GROUP, noun="kind")
    if isinstance(kind, type) and issubclass(kind, Kind):
        if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
            raise ConfigError(f"kind '{name}' is abstract: its class lacks {', '.join(lacking)}")
        with plugins.running("kind", name, "made"):
            kind = kind()
    if not isinstance(kind, ModuleKind | FileKind):
        what = f"the class {kind.__name__}" if isinstance(kind, type) else f"a {type(kind).__name__}"
        raise ConfigError(f"kind '{name}' is {what}, not a coe.store.kinds.ModuleKind or FileKind")
    with plugins.running("kind", name, "used"):
        _check(name, kind)
    return kind


def check_experts(experts: Iterable[Expert], known: Mapping[str, Kind], where: str) -> None:
    """Raise ConfigError, which begins with `where`, if kinds cannot run experts as the rules have them."""
    faults = {expert.id: known[expert.kind].misfit(expert) for expert in experts}
    if wrong := [f"expert '{id}': {fault}" for id, fault in faults.items() if fault]:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")


def _check(name: str, kind: Kind) -> None:
    """Raise ConfigError for a kind that lacks a name, a task or a maximum batch."""
    if not isinstance(getattr(kind, "name", None), str) or not kind.name:
        raise ConfigError(f"kind '{name}' has no `name`; give its class one, the word in the rules")
    if getattr(kind, "task", None) not in ("classify", "detect"):
        raise ConfigError(f"kind '{name}' has no `task`; give its class 'classify' or 'detect'")
    if isinstance(kind.max_batch, bool) or not isinstance(kind.max_batch, int) or kind.max_batch < 1:
        raise ConfigError(f"kind '{name}' has a `max_batch` of {kind.max_batch!r:.40}; give a whole number from 1")
