"""`coe-experts import`: experts from the weights of other programs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.cli import experts_prepare
from coe.cli.common import err, out
from coe.cli.console import styled
from coe.cli.experts_new import BoardOption, KindOption, LabelsOption, NoPrepareOption, described
from coe.cli.options import AllowKindOption, InputOption, StoreOption
from coe.errors import ConfigError
from coe.prepare import accept, facts, unwrapping
from coe.store import kinds, torch_file
from coe.store.dotted import running
from coe.store.kinds import FileKind, ModuleKind
from coe.store.skeletons import bare_skeleton
from coe.store.store import Store


def import_(  # noqa: PLR0913
    id: Annotated[str, typer.Argument(help="Name of the expert in the store: BOARD/NAME.")],
    file: Annotated[
        Path, typer.Argument(help="A file of weights: .safetensors, .pt or .pth (a state dict), or .onnx.")
    ],
    board: BoardOption = None,
    kind: KindOption = None,
    labels: LabelsOption = None,
    input_size: InputOption = None,
    normalize: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="imagenet, 0..1, -1..1, 0..255, or MEAN,STD of values from 0 to 1."),
    ] = None,
    resize: Annotated[
        str | None, typer.Option(metavar="HOW", help="letterbox, stretch, center-crop, or center-crop:SHORTER_SIDE.")
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
    no_prepare: NoPrepareOption = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Bring weights from another program into the store. Code in a .pt or .pth file never runs.

    Only this command opens such pickled files; lines read the store's own safe format. What a network sees of a picture
    is a part of it: the file says it, or else the options do.

    Example: coe-experts import line7/joints best.pt --kind yolov5m --input 640
    """
    if not os.path.isfile(file):
        raise ConfigError(f"{file}: no such file")
    shelf = Store(store)
    shelf.folder(id)
    said = {"normalize": normalize, "resize": resize, "interpolation": interpolation, "channels": channels, "pad": pad}
    said |= {"output": output, "layout": layout, "activation": activation}
    wishes = facts.wishes(said, force=force)
    expert = described(id, board, kind, labels, input_size if board or input_size else 0)
    resolved = kinds.resolve(expert.kind, allow_kind or ())
    remarks: tuple[str, ...] = ()
    if isinstance(resolved, FileKind):
        with running("kind", expert.kind, f"run with {file}"):
            agreed = facts.agree(expert, resolved.read(file), resolved, wishes)
            expert = agreed.expert
            accept.check_labels(expert)
            expert = replace(expert, outputs=resolved.settle(file, expert))
            session = resolved.open(file, expert, 1)
        accept.check_session(resolved, expert, session)
        manifest = shelf.put_expert(expert, file=file, source=file.name)
    elif isinstance(resolved, ModuleKind):
        with running("kind", expert.kind, f"imported from {file}"):
            foreign = resolved.read(file)
            torch_file.check_tensors(str(file), foreign.state)
            agreed = facts.agree(expert, foreign, resolved, wishes)
            expert = agreed.expert
            accept.check_labels(expert)
            skeleton = bare_skeleton(resolved, expert)
            taken = unwrapping.unwrapped(foreign, skeleton.state_dict(), str(file))
            unwrapping.check_layers(taken.layers, skeleton, str(file))
            state = resolved.convert(taken.state, expert)
        remarks = taken.remarks
        accept.check_module(resolved, expert, state)
        manifest = shelf.put_expert(expert, state=state, source=file.name)
    else:
        raise ConfigError(f"kind '{expert.kind}' is neither a ModuleKind nor a FileKind; it cannot be imported")
    for remark in (*agreed.remarks, *remarks):
        err.print(styled(("note:", "yellow"), f" {remark}"), soft_wrap=True)
    out.print(f"{manifest.id}: {manifest.kind}, {config.format_bytes(manifest.bytes)}", soft_wrap=True)
    for sentence in facts.described(expert):
        out.print(sentence, soft_wrap=True)
    if not no_prepare:
        experts_prepare.prepare_new(store, id, allow_kinds=allow_kind or ())
