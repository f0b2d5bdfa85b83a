"""What a line needs of a kind of expert: inputs are made, batches run, outputs become findings; `resolve` finds kinds.

Who writes a kind derives it from the classes of `coe.store.kinds`, which can also be trained and imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from coe.comparing.alternates import best_of
from coe.core import Expert, Finding
from coe.errors import ConfigError, StoreError
from coe.helpers import plugins
from coe.helpers.preprocessing import Colour, Preprocessing
from coe.helpers.surroundings import quiet_torch
from coe.pictures.image_source import Reference
from coe.store.weights_file import holds

quiet_torch()  # before torchvision's operators import torch's compiler

GROUP = plugins.KINDS
BACKBONE = "backbone."
"""How the names of an expert's frozen layers begin, if its kind has a backbone."""
Image = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ExpertInput:
    """An image ready for one expert.

    pixels: (3, S, S) uint8, in the order of channels that the expert takes. `scale` and `left`, `top` (pixels) map the
    original image of `height` x `width` pixels to the input: x_input = x * scale + left. `scale_y` is the scale of y
    where it differs, as sides are whole pixels. `reference` is the id of the alternate that was taken, where
    there are several.
    """

    pixels: Image
    height: int
    width: int
    scale: float = 1.0
    left: float = 0.0
    top: float = 0.0
    scale_y: float | None = None
    reference: str = ""


class RunnableKind(ABC):
    """What experts of one architecture share.

    Instances are stateless and shared between threads. `name` is the word in the rules; `task` says what a finding
    of this kind holds; `max_batch` bounds a batch even if memory allows more. Experts of `is_reader` kinds read as
    `Expert.reads` says.
    `preprocessing` is what experts see whose manifests do not say it; None: the kind prepares images in its own way.
    In `int8` the images of a batch run `one_at_a_time` where small weights make large maps: the system clears memory
    for the maps of several images anew in each batch.
    """

    name: str
    task: Literal["classify", "detect"]
    max_batch: int = 32
    one_at_a_time: bool = False
    is_reader: bool = False
    preprocessing: Preprocessing | None = None

    @property
    def has_int8(self) -> bool:
        """Whether experts can be prepared in `int8`; not if they compare: their samples are without a reference."""
        return not isinstance(self, Comparing)

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


class Comparing:
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


class NetworkKind(RunnableKind):
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

    has_body_model: bool = False
    """Whether `body_model` gives a model."""

    def body_model(self, module: torch.nn.Module) -> bytes | None:
        """Return the frozen layers of a skeleton, its `backbone`, as an ONNX model, which a CPU runs in fp32.

        Its weights lie elsewhere, by the names of the skeleton's. `forward` finds the session that runs it as
        `module.body_session`. None: torch runs this skeleton, as one whose batch norms are not folded.
        """
        return None


class Session(Protocol):
    """A loaded expert of a `FileKind`."""

    def run(self, images: Image) -> Any:
        """Run a batch, (n, 3, S, S) uint8 RGB, and return what `postprocess` takes."""


class SessionKind(RunnableKind):
    """A kind whose runtime opens the weights file itself, such as ONNX."""

    suffix: str

    @property
    def has_int8(self) -> bool:
        """No: the runtime opens the file alone, unless the kind is a `FileKind` too."""
        return False

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


def resolve(name: str, allowed: Iterable[str] = ()) -> RunnableKind:
    """Return the kind of that name: an installed entry point, or a dotted path `package.module:attribute`.

    A dotted path that is no installed entry point is imported only from the packages `allowed`. Raises ConfigError if
    there is no such kind, if it is not allowed, if it cannot be imported or made, or if it is no `Kind` that can run.
    """
    kind = plugins.load(name, allowed, group=GROUP, noun="kind")
    if isinstance(kind, type) and issubclass(kind, RunnableKind):
        if lacking := sorted(getattr(kind, "__abstractmethods__", ())):
            raise ConfigError(f"kind '{name}' is abstract: its class lacks {', '.join(lacking)}")
        with plugins.running("kind", name, "made"):
            kind = kind()
    if not isinstance(kind, NetworkKind | SessionKind):
        what = f"the class {kind.__name__}" if isinstance(kind, type) else f"a {type(kind).__name__}"
        raise ConfigError(f"kind '{name}' is {what}, not a coe.store.kinds.ModuleKind or FileKind")
    with plugins.running("kind", name, "used"):
        _check(name, kind)
    return kind


def check_experts(experts: Iterable[Expert], known: Mapping[str, RunnableKind], where: str) -> None:
    """Raise ConfigError, which begins with `where`, if kinds cannot run experts as the rules have them."""
    faults = {expert.id: known[expert.kind].misfit(expert) for expert in experts}
    if wrong := [f"expert '{id}': {fault}" for id, fault in faults.items() if fault]:
        raise ConfigError(f"{where}: {'; '.join(wrong)}")


def _check(name: str, kind: RunnableKind) -> None:
    """Raise ConfigError for a kind that lacks a name, a task or a maximum batch."""
    if not isinstance(getattr(kind, "name", None), str) or not kind.name:
        raise ConfigError(f"kind '{name}' has no `name`; give its class one, as used in the rules")
    if getattr(kind, "task", None) not in ("classify", "detect"):
        raise ConfigError(f"kind '{name}' has no `task`; give its class 'classify' or 'detect'")
    if isinstance(kind.max_batch, bool) or not isinstance(kind.max_batch, int) or kind.max_batch < 1:
        raise ConfigError(f"kind '{name}' has a `max_batch` of {kind.max_batch!r:.40}; give a whole number from 1")
