"""What kinds take and give when experts are prepared: plans of trainings and their results, foreign files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from coe import config
from coe.core import GoodLimits
from coe.helpers import values
from coe.helpers.preprocessing import Preprocessing
from coe.pictures.image_source import Reference
from coe.pictures.photographs import LabelledPhotograph
from coe.store.exam import Exam
from coe.store.learned import LearnedPictures


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
    photographs: tuple[LabelledPhotograph, ...] | None = None
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


@dataclass(frozen=True, slots=True)
class Foreign:
    """The content of an imported weights file: tensors by name, and what the file says of them.

    `labels` are in the order of the outputs; `input_size` is in pixels; None for what the file does not name. `layers`
    says of a whole network what it is made of, by the names of its parts ("" for the network itself). `preprocessing`
    is what its networks usually see, and `stated` holds those of its fields that the file itself says; `unsaid` those
    that the user must say, with the sentence that asks (other names need force). `arguments` are those of the training,
    and `remarks` sentences for the user; `beside` names files beside it that said a part of this, and
    `has_labels_beside` tells if they said its labels. For `looks` see `Trained`. A kind that opens files itself leaves
    `state` empty.
    """

    state: dict[str, torch.Tensor]
    labels: tuple[str, ...] | None = None
    layers: Mapping[str, Layer] = field(default_factory=dict)
    input_size: int | None = None
    preprocessing: Preprocessing | None = None
    stated: frozenset[str] = frozenset()
    unsaid: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    beside: str = ""
    has_labels_beside: bool = False
    looks: int = 1
