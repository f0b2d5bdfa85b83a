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
from coe.prepare import accept, unwrapping
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
    no_prepare: NoPrepareOption = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Bring weights from another program into the store. Code in a .pt or .pth file never runs.

    Only this command opens such pickled files; lines read the store's own safe format.

    Example: coe-experts import line7/joints best.pt --kind yolov5m --input 640
    """
    if not os.path.isfile(file):
        raise ConfigError(f"{file}: no such file")
    shelf = Store(store)
    shelf.folder(id)
    expert = described(id, board, kind, labels, input_size)
    resolved = kinds.resolve(expert.kind, allow_kind or ())
    remarks: tuple[str, ...] = ()
    if isinstance(resolved, FileKind):
        accept.check_labels(expert)
        with running("kind", expert.kind, f"run with {file}"):
            session = resolved.open(file, expert, 1)
        accept.check_session(resolved, expert, session)
        manifest = shelf.put(
            id, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, file=file, source=file.name
        )
    elif isinstance(resolved, ModuleKind):
        with running("kind", expert.kind, f"imported from {file}"):
            foreign = resolved.read(file)
            torch_file.check_tensors(str(file), foreign.state)
            expert = expert if expert.labels else replace(expert, labels=foreign.labels or ())
            accept.check_labels(expert)
            skeleton = bare_skeleton(resolved, expert)
            taken = unwrapping.unwrapped(foreign, skeleton.state_dict(), str(file))
            unwrapping.check_layers(taken.layers, skeleton, str(file))
            state = resolved.convert(taken.state, expert)
        remarks = taken.remarks
        accept.check_module(resolved, expert, state)
        manifest = shelf.put(
            id, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state, source=file.name
        )
    else:
        raise ConfigError(f"kind '{expert.kind}' is neither a ModuleKind nor a FileKind; it cannot be imported")
    for remark in remarks:
        err.print(styled(("note:", "yellow"), f" {remark}"), soft_wrap=True)
    out.print(f"{manifest.id}: {manifest.kind}, {config.format_bytes(manifest.bytes)}", soft_wrap=True)
    if not no_prepare:
        experts_prepare.prepare_new(store, id, allow_kinds=allow_kind or ())
