"""Options that commands about the experts of a store share."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import typer

from coe import config
from coe.cli.options import AllowKindOption, Options, StoreOption, option
from coe.store.store import Store

InputOption = Annotated[
    int | None,
    typer.Option("--input", min=config.MIN_INPUT, max=config.MAX_INPUT, help="Longer side of the input in pixels."),
]
EpochsOption = Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="Passes over the training images.")]
BatchOption = Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="Images in a training step.")]
ThreadsOption = Annotated[
    int, typer.Option(min=0, max=config.MAX_THREADS, help="Threads of the CPU; 0 uses all cores.")
]
NoPrepareOption = Annotated[bool, typer.Option("--no-prepare", help="Do not make variants (see coe-experts prepare).")]
TurnedOption = Annotated[bool, typer.Option("--turned", help="Parts may lie at any angle: rotation is no defect.")]
PolarityOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Components whose parts are defective when rotated by 180 degrees, separated by commas; - for none. "
        "Leave out those that CoE recognises by name. Default: ask on a terminal.",
    ),
]
BitsOption = Annotated[
    int | None,
    typer.Option(
        min=config.MIN_SAMPLE_BITS,
        max=config.MAX_SAMPLE_BITS,
        help="Significant bits of 16-bit samples. Default: `bits` of the board file, otherwise what the image states.",
    ),
]


class InStore(Options):
    """A command about what a store holds."""

    store: StoreOption = None

    @cached_property
    def shelf(self) -> Store:
        """The store."""
        return Store(self.store)


class WithKinds(InStore):
    """A command that runs experts of a store."""

    allow_kind: AllowKindOption = None

    @property
    def allowed(self) -> tuple[str, ...]:
        """The packages whose kinds may run."""
        return tuple(self.allow_kind or ())


class Described(WithKinds):
    """How an expert that comes into the store is described, and what is done with it there."""

    board: str | None = option("Board whose file states kind, labels and input size.")
    kind: str | None = option("Architecture: resnet18, yolov5n, onnx, ... or package.module:Class.")
    labels: str | None = option("Labels in the order of the network's outputs, e.g. ok,missing,cracked.")
    input_size: InputOption = None
    no_prepare: NoPrepareOption = False
