"""The interface of a kind of expert. The framework knows no architecture by name; `resolve` finds kinds.

Longer than other files because all that a kind promises stands in one place.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import safetensors
import torch
from numpy.typing import NDArray

from coe import config, plugins, values
from coe.core import Expert, Finding
from coe.errors import ConfigError, StoreError, first_line
from coe.preprocessing import WHOLLY, Colour, Outputs, Preprocessing
from coe.store import safetensors_header, torch_file
from coe.store.blob_format import Identity
from coe.store.learned import LearnedPictures
from coe.store.store import load_tensors
from coe.store.weights_file import holds
from coe.surroundings import quiet_torch

quiet_torch()  # before a kind imports torchvision, which imports torch's compiler

_WILD = 1e3
"""Numbers beyond this may soon exceed the range of fp16, which ends at 65,504."""

GROUP = "coe.kinds"
Image = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ExpertInput:
    """An image ready for one expert.

    pixels: (3, S, S) uint8, in the order of channels that the expert takes. `scale` and `left`, `top` (pixels) map the
    original image of `height` x `width` pixels to the input: x_input = x * scale + left. `scale_y` is the scale of y
    where it differs, in a stretched image.
    """

    pixels: Image
    height: int
    width: int
    scale: float = 1.0
    left: float = 0.0
    top: float = 0.0
    scale_y: float | None = None


Prepared = ExpertInput
"""The former name of `ExpertInput`, which kinds of users have."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A good part, `image` (H, W, 3) uint8 RGB, and by how many grey levels good parts vary, `spread` (H, W) uint8."""

    image: Image
    spread: Image


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How to train one expert.

    `data` is a labelled folder (a classifier: `data/<label>/*`, or `data/train/...` and `data/val/...`) or the YAML of
    a YOLO data set; `work` is a folder for the trainer's files; `threads` 0 means all cores. `init` is a safetensors
    file to start from; tensors whose shape differs (another number of labels) start from fresh values. `held_out` is
    the share to hold out if the data has no split.

    `freeze` holds prefixes of tensor names: those tensors keep the values of `init`, statistics of batch norms
    included. A few images of a new expert then train its last layers alone, in a fraction of the time. Kinds that
    cannot freeze raise ConfigError.

    `references` and `false_calls` are for kinds that learn from good parts alone: the references with which these are
    aligned, by component, and the share of good parts that may be called (None: the kind decides). `data` is then a
    folder of images of good parts.

    `bf16` says whether products are computed in bf16, with weights in fp32; None: where the processor has bf16. `bits`
    says how many low bits of 16-bit samples count in the images (`coe.pictures.decoding.decode`).
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
    bf16: bool | None = None
    bits: int | None = None

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
        if self.bits is not None:
            values.whole("bits", self.bits, least=config.MIN_SAMPLE_BITS, most=config.MAX_SAMPLE_BITS)


@dataclass(frozen=True, slots=True)
class Trained:
    """The best epoch of a training: weights by the skeleton's names, labels in output order, held-out measures.

    `remarks` are sentences for people, such as which images were left out; `took` says how many pictures came from
    which folder. `in_frame` says that the weights hold in the frame of the plan's reference alone: a line does not open
    with another. `learned` are the pictures that something was learned from, or chosen by: `coe-experts evaluate` and
    `calibrate` refuse them. None: the kind does not tell. `preprocessing` is what the training showed the network; None
    if the kind decides. `unproven` says why the held-out figures do not prove that the expert is better than one answer
    for all; "" if they prove it, None if nothing was measured.
    """

    state: dict[str, torch.Tensor]
    labels: tuple[str, ...]
    metrics: dict[str, float]
    remarks: tuple[str, ...] = ()
    took: str = ""
    in_frame: bool = False
    learned: LearnedPictures | None = None
    preprocessing: Preprocessing | None = None
    unproven: str | None = None


Progress = Callable[[int, int, dict[str, float]], None]
"""Called with (epochs done, epochs in all, measures so far)."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a network: the name of its class, and its settings (numbers, truths, texts, lists of them) by name."""

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Foreign:
    """The content of an imported weights file: tensors by name, and what the file says of them.

    `labels` are in the order of the outputs; `input_size` is in pixels; None for what the file does not name. `layers`
    says of a whole network what it is made of, by the names of its parts ("" for the network itself). `preprocessing`
    is what its networks usually see, and `stated` holds those of its fields that the file itself says. `arguments` are
    those of the training. A kind that opens files itself leaves `state` empty.
    """

    state: dict[str, torch.Tensor]
    labels: tuple[str, ...] | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    input_size: int | None = None
    preprocessing: Preprocessing | None = None
    stated: frozenset[str] = frozenset()
    arguments: Mapping[str, Any] = field(default_factory=dict)


class Kind(ABC):
    """What experts of one architecture share.

    Instances are stateless and shared between threads. `name` is the word in the rules; `task` says what a finding
    of this kind holds; `max_batch` bounds a batch even if memory allows more; `good_only` kinds learn from good parts.
    `preprocessing` is what experts see whose manifests do not say it; None: the kind prepares images in its own way.
    """

    name: str
    task: Literal["classify", "detect"]
    max_batch: int = 32
    good_only: bool = False
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

    def train(self, expert: Expert, plan: TrainingPlan, progress: Progress) -> Trained:
        """Train an expert of this kind; raises ConfigError if the kind cannot be trained here."""
        raise ConfigError(f"experts of kind '{self.name}' cannot be trained here; train elsewhere and import them")


class Comparing(ABC):
    """A second base class, after `ModuleKind` or `FileKind`, of a kind whose experts compare an image with a reference.

    Its `preprocess` prepares an image without a reference, for measurements and proofs alone: a line calls `compare`.
    """

    @abstractmethod
    def compare(self, image: Image, reference: Reference, expert: Expert) -> ExpertInput:
        """Bring an image (h, w, 3) uint8 RGB and its reference to the expert's input. Runs on decode workers.

        An image that cannot be compared is prepared too; `postprocess` then gives a finding with a `doubt`.
        """


class ModuleKind(Kind):
    """A kind that runs as a torch module whose weights are views of a blob."""

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


def random_weights(kind: ModuleKind, expert: Expert, seed: int) -> dict[str, torch.Tensor]:
    """Return seeded random weights, by name, for trials: their findings mean nothing.

    If numbers grow from layer to layer, as in a ResNet101, which would leave the range of fp16, batch norms take
    the statistics of random images.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        module = kind.skeleton(expert)
        # More images if they are small, because little is left of each at the end of the network.
        size = expert.input_size
        noise = torch.randint(0, 256, (max(2, 512 // size), 3, size, size), dtype=torch.uint8)
        if _largest(kind, module, noise) > _WILD:
            norms = [layer for layer in module.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
            for norm in norms:
                norm.train()
                norm.momentum = 1.0
            kind.forward(module, noise)
        return dict(module.state_dict())


def _largest(kind: ModuleKind, module: torch.nn.Module, images: torch.Tensor) -> float:
    """Return the largest number that any convolution of the network puts out."""
    largest = [0.0]
    hooks = [
        layer.register_forward_hook(lambda _, __, output: largest.append(float(output.abs().max())))
        for layer in module.modules()
        if isinstance(layer, torch.nn.Conv2d)
    ]
    kind.forward(module, images)
    for hook in hooks:
        hook.remove()
    return max(largest)


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


def _check(name: str, kind: Kind) -> None:
    """Raise ConfigError for a kind that lacks a name, a task or a maximum batch."""
    if not isinstance(getattr(kind, "name", None), str) or not kind.name:
        raise ConfigError(f"kind '{name}' has no `name`; give its class one, the word in the rules")
    if getattr(kind, "task", None) not in ("classify", "detect"):
        raise ConfigError(f"kind '{name}' has no `task`; give its class 'classify' or 'detect'")
    if isinstance(kind.max_batch, bool) or not isinstance(kind.max_batch, int) or kind.max_batch < 1:
        raise ConfigError(f"kind '{name}' has a `max_batch` of {kind.max_batch!r:.40}; give a whole number from 1")
