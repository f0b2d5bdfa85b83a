"""`coe-experts import`: experts from the weights of other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from coe.bring import facts
from coe.cli.experts_new import BoardOption, KindOption, LabelsOption, NoPrepareOption
from coe.cli.import_answers import Asked, import_file, import_folder, import_packaged
from coe.cli.options import AllowKindOption, StoreOption
from coe.cli.tool_options import InputOption
from coe.errors import ConfigError
from coe.store.store import Store


def import_(  # noqa: PLR0913
    id: Annotated[
        str, typer.Argument(help="Name of the expert in the store, BOARD/NAME; for a folder the name of the board.")
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A file of weights: .safetensors, .pt, .pth or .ckpt, or .onnx; or a folder of such files, each an "
            "expert. Default, for a kind like marking: the weights in an installed package."
        ),
    ] = None,
    board: BoardOption = None,
    kind: KindOption = None,
    labels: LabelsOption = None,
    input_size: InputOption = None,
    normalize: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="imagenet, 0..1, -1..1, 0..255, or MEAN,STD of values from 0 to 1."),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            metavar="HOW", help="letterbox, stretch, center-crop; with :SIDE, as center-crop:256, before the crop."
        ),
    ] = None,
    interpolation: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="area, bilinear or bicubic as OpenCV; bilinear-antialias as torchvision."),
    ] = None,
    channels: Annotated[str | None, typer.Option(metavar="rgb|bgr", help="The order that the network takes.")] = None,
    pad: Annotated[str | None, typer.Option(metavar="GREY", help="The colour around a letterbox, as 114.")] = None,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="The output of an ONNX model that counts, if several could.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="NAME", help="scores, yolov8, yolov5 or end2end, if several could be.")
    ] = None,
    activation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the scores need: softmax, sigmoid, or none for probabilities."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Import although the file itself says other labels, sizes or preprocessing.")
    ] = False,
    as_backbone: Annotated[
        bool,
        typer.Option(
            "--as-backbone",
            help="Leave out the head, which depends on the labels: weights from which `train --init` starts.",
        ),
    ] = False,
    images_at: Annotated[
        Path | None,
        typer.Option(
            "--images",
            help="A few labelled pictures that are judged at once: a folder <label>/<picture>; with several "
            "experts <expert>/<label>/<picture>.",
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            help="For a folder: where to write a draft of the board file. Default: BOARD.yaml, unless it is there."
        ),
    ] = None,
    no_prepare: NoPrepareOption = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Bring weights from another program into the store. Code in a .pt or .pth file never runs.

    Only this command opens such pickled files; lines read the store's own safe format. What a network sees of a picture
    is a part of it: the file says it, or else the options do. With --images it says how many pictures the expert judges
    as they are labelled.

    Exit status 1 if a file of a folder could not be imported, or a picture could not be judged.

    Example: coe-experts import line7/joints best.pt --kind yolov5m --input 640 --images labelled/
    """
    said = {"normalize": normalize, "resize": resize, "interpolation": interpolation, "channels": channels, "pad": pad}
    said |= {"output": output, "layout": layout, "activation": activation}
    asked = Asked(
        board,
        kind,
        labels,
        input_size,
        facts.wishes(said, force=force),
        as_backbone=as_backbone,
        images_at=images_at,
        prepares=not (no_prepare or as_backbone),
        allowed=tuple(allow_kind or ()),
    )
    if as_backbone and (labels or images_at or board):
        raise ConfigError("a backbone has no labels yet, and judges nothing; leave --labels, --board and --images out")
    shelf = Store(store)
    if file is None:
        raise typer.Exit(import_packaged(shelf, id, asked))
    if os.path.isdir(file):  # unlike `Path.is_dir`, it does not raise for a name that is too long
        raise typer.Exit(import_folder(shelf, id, file, asked, draft))
    if draft is not None:
        raise ConfigError("--draft belongs to a folder of weights; leave it out")
    if not os.path.isfile(file):
        raise ConfigError(f"{file}: no such file")
    raise typer.Exit(import_file(shelf, id, file, asked))
