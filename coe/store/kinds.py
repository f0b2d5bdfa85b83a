"""The interface of a kind of expert, to be run, trained and imported. The framework knows no architecture by name."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import torch

from coe import config
from coe.core import Expert, GoodLimits, Shown
from coe.errors import ConfigError, StoreError, first_line, list_few
from coe.helpers import plugins, values
from coe.helpers.preprocessing import Outputs, Preprocessing
from coe.pictures.image_source import Reference
from coe.pictures.photographs import Photograph
from coe.store import runnable_kinds, safetensors_header, torch_file
from coe.store.blob_format import Identity
from coe.store.exam import Exam
from coe.store.learned import LearnedPictures
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
    "Progress",
    "Reference",
    "Session",
    "Trained",
    "TrainingPlan",
    "Unsaid",
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
            shown = made_for.preprocessing or self.preprocessing
            seen = dict(shown) if shown is not None else {}
            return Foreign(tensors, made_for.labels, input_size=made_for.input_size, seen=seen)
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
                f"{path}: its metadata are inconsistent ({first_line(error):.200}); export it again"
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
        raise ConfigError(f"kind '{name}' can only be run: it is not a coe.store.kinds.ModuleKind or FileKind")
    return kind


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train one expert.

    `data` is a labelled folder (a classifier: `data/<label>/*`, or `data/train/...` and `data/val/...`) or the YAML of
    a YOLO data set; `work` is a folder for the trainer's files; `threads` 0 means all cores. `init` is a safetensors
    file to start from; tensors whose shape differs (another number of labels) start from fresh values. `held_out` is
    the share to hold out if the data has no split; 0 holds out nothing.

    `freeze` holds prefixes of tensor names: those tensors keep the values of `init`, statistics of batch norms
    included. A few images of a new expert then train its last layers alone, in a fraction of the time. Kinds that
    cannot freeze raise ConfigError.

    `references` and `false_calls` are for kinds that learn from good parts alone: the references with which these are
    aligned, by component, and the share of good parts that may be called (None: the kind decides). `data` is then a
    folder of images of good parts.

    `photographs` are the pictures of `data` with their true labels, where the rules of a board say what its folders
    mean; None: the kind reads `data` by the labels of the expert alone.

    `bf16` says whether products are computed in bf16, with weights in fp32; None: where the processor has bf16. `bits`
    says how many low bits of 16-bit samples count in the images (`coe.pictures.decoding.decode`).

    `turned`: parts lie turned by any angle in their pictures, and that is no defect; each picture is learned in several
    turns. `polarity`: a part that is turned by 180 degrees is a defect.
    """

    data: Path
    work: Path
    epochs: int
    batch: int
    learning_rate: float
    seed: int = 0
    threads: int = 0
    init: Path | None = None
    held_out: float = 0.2
    freeze: tuple[str, ...] = ()
    references: Mapping[str, Reference] = field(default_factory=dict)
    false_calls: float | None = None
    photographs: tuple[Photograph, ...] | None = None
    bf16: bool | None = None
    bits: int | None = None
    turned: bool = False
    polarity: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError for numbers with which nothing can be trained."""
        values.whole("epochs", self.epochs, least=1, most=1_000_000)
        values.whole("batch", self.batch, least=1, most=1_000_000)
        values.whole("seed", self.seed, least=-(1 << 63), most=(1 << 63) - 1)
        values.whole("threads", self.threads, least=0, most=config.MAX_THREADS)
        values.real("learning_rate", self.learning_rate, least=0, most=1e3)
        values.real("held_out", self.held_out, least=0, most=1)
        if self.false_calls is not None:
            values.real("false_calls", self.false_calls, least=1e-6, most=0.5)
        if self.bf16 is not None:
            values.flag("bf16", self.bf16)
        values.flag("turned", self.turned)
        values.flag("polarity", self.polarity)
        if self.bits is not None:
            values.whole("bits", self.bits, least=config.MIN_SAMPLE_BITS, most=config.MAX_SAMPLE_BITS)


@dataclass(frozen=True, slots=True)
class Trained:
    """The best epoch of a training: weights by the skeleton's names, labels in output order, held-out measures.

    `remarks` are sentences for people, such as which images were left out; `took` says how many pictures came from
    which folder. `in_frame` says that the weights hold in the frame of the plan's reference alone: a line does not open
    with another. `looks` is in how many ways good parts look to an expert without a reference, each with its own
    tensors along their first axes. `learned` are the pictures that something was learned from, or chosen by:
    `coe-experts evaluate` and `calibrate` refuse them. None: the kind does not tell. `preprocessing` is what the
    training showed the network; None if the kind decides. `unproven` says why the held-out figures do not prove that
    the expert is better than one answer for all; "" if they prove it, None if nothing was measured. `exam` is what the
    expert was shown that must not pass, and `limits` how far good parts lie from their references, by their ids.
    `frozen` are the beginnings of the names of tensors that the training left as they were: the expert's body.
    """

    state: dict[str, torch.Tensor]
    labels: tuple[str, ...]
    metrics: dict[str, float]
    remarks: tuple[str, ...] = ()
    took: str = ""
    in_frame: bool = False
    looks: int = 1
    learned: LearnedPictures | None = None
    preprocessing: Preprocessing | None = None
    unproven: str | None = None
    exam: Exam | None = None
    limits: Mapping[str, GoodLimits] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackagedWeights:
    """Weights of a pretrained network inside an installed package, so that nothing is downloaded from elsewhere.

    `distribution` is the package as pip names it, `package` the folder that it installs, `file` a path in it; `sha256`
    proves the file, in hexadecimal. `input_size` is the side in pixels of the pictures of the pretraining.
    """

    distribution: str
    package: str
    file: str
    sha256: str
    licence: str
    input_size: int


Progress = Callable[[int, int, dict[str, float]], None]
"""Called with (epochs done, epochs in all, measures so far)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a network: the name of its class, and its settings (numbers, truths, texts, lists of them) by name."""

    name: str
    settings: Mapping[str, Any]


class Unsaid(StoreError):
    """What neither a record nor the user says of a model: by name (`layout`, ...) why it is asked, "" without a reason.

    Names are those of fields of `Preprocessing` and `Outputs`, and `labels` and `input`.
    """

    def __init__(self, missing: Mapping[str, str]) -> None:
        super().__init__(list_few(missing))
        self.missing = dict(missing)


@dataclass(frozen=True, slots=True)
class Foreign:
    """The content of an imported weights file: tensors by name, and what its writer recorded of the model.

    `labels` are in the order of the outputs; `input_size` is in pixels; None for what the file does not name. `layers`
    says of a whole network what it is made of, by the names of its parts. `seen` holds the fields of `Preprocessing`
    that are recorded; `unsaid` says of fields why what is recorded is not done here. `settings` are what else the
    writer keeps beside the weights, and `remarks` sentences for the user. In the names of tensors and layers of nested
    dicts, a `/` stands behind each key. `columns` is how many scores a classifier gives, 0 if that is open. For `looks`
    see `Trained`. A kind that opens files itself leaves `state` empty.
    """

    state: dict[str, torch.Tensor]
    labels: tuple[str, ...] | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    input_size: int | None = None
    seen: Mapping[str, Any] = field(default_factory=dict)
    unsaid: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    columns: int = 0
    looks: int = 1
