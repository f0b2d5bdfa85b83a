"""`coe-experts backbone`: pretrained networks for kinds that look through their layers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.cli.common import application, out, point_out
from coe.cli.options import AllowKindOption, StoreOption
from coe.cli.tool_options import InputOption
from coe.core import Expert
from coe.errors import ConfigError
from coe.prepare import backbones
from coe.store.store import Store

app = application(
    "Pretrained networks, through whose frozen layers experts look that learn from a few pictures.", is_group=True
)


@app.command()
def add(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME|FILE]",
            help="A kind whose weights come in an installed package, or a file of weights. Default: all in packages.",
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="The network of a FILE: resnet18, efficientnet-lite0, ...")] = None,
    name: Annotated[str | None, typer.Option(help="Its name under backbones/. Default: its kind.")] = None,
    licence: Annotated[str, typer.Option(help="The licence of a FILE's weights, which the store keeps.")] = "",
    input_size: InputOption = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Bring the layers of a pretrained network into the store, as backbones/NAME. Nothing is downloaded.

    The head, which depends on the labels, is left out. Training of kinds like patch takes the backbone of their network
    by itself, and adds that which a package holds if it is not there.

    Example: coe-experts backbone add resnet18.pth --kind resnet18 --licence BSD-3-Clause
    """
    shelf, allowed = Store(store), tuple(allow_kind or ())
    if what is not None and (kind is not None or os.path.sep in what or os.path.isfile(what)):
        if not os.path.isfile(what):
            raise ConfigError(f"{what}: no such file")
        if kind is None:
            raise ConfigError(f"{what}: say of which network it is, as --kind resnet18")
        id = f"{backbones.BOARD}/{name or kind}"
        shelf.folder(id)
        expert = Expert(name or kind, kind, (), input_size or 0, id)
        added = [backbones.add_file(shelf, Path(what), expert, licence, allowed)]
    elif kind or name or licence or input_size:
        raise ConfigError("--kind, --name, --licence and --input describe a file; give the file, or leave them out")
    else:
        added = [backbones.add_packaged(shelf, one, allowed) for one in [what] if one is not None]
        added = added or [backbones.add_packaged(shelf, one, allowed) for one in backbones.packaged(allowed)]
    for one in added:
        tell(one)


def tell(added: backbones.Added) -> None:
    """Print what a backbone is, and what was decided."""
    manifest = added.manifest
    for remark in added.remarks:
        point_out("note", f"{manifest.id}: {remark}")
    there = "is there already: " if added.was_there else ""
    licence = manifest.licence or "licence not said"
    size = config.format_bytes(manifest.bytes)
    out.print(f"{manifest.id}: {there}{manifest.kind}, {size}, digest {manifest.checksum}, {licence}")
