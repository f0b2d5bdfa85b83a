"""`coe-experts history` and `restore`: earlier versions of experts and references; `backbone`: pretrained networks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coe import config
from coe.cli import experts_reference
from coe.cli.common import application, complain, err, out, point_out, wide
from coe.cli.console import table_of
from coe.cli.experts_new import measures_text
from coe.cli.options import AllowKindOption, StoreOption
from coe.cli.tool_options import InputOption
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.files import alone
from coe.learn import backbones
from coe.store import bodies
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceManifest
from coe.store.references import References, reference_named
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


IdArgument = Annotated[str, typer.Argument(help="An expert of the store, BOARD/NAME, or references/BOARD/NAME.")]


def history(
    id: IdArgument,
    keep: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=config.MAX_COUNT,
            help="Remove all earlier versions but so many of the newest. Default: none is removed; what replaces an "
            f"expert keeps {config.KEPT_VERSIONS} (${config.KEPT_VERSIONS_VARIABLE}), one if the disk is almost full.",
        ),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Show the versions of an expert or a reference: the present one, and earlier ones that the store keeps.

    Training, importing and restoring keep what they replace. Bytes that versions share lie on the disk once; `alone`
    is what only this version takes.

    Example: coe-experts history demo/chip-resistor
    """
    shelf = Store(store)
    among, name = _kept(shelf, id)
    kept = among.history(name)
    if not kept.versions():
        among.manifest(name)  # names what is not there
    if keep is not None:
        try:
            with alone(kept.folder):
                kept.thin(keep)
        except OSError as error:
            raise StoreError(f"{id}: cannot be written: {error.strerror or error}") from error
        bodies.sweep(shelf)
    table = table_of("version", "made", "checksum", "alone", "from", left=["version", "made", "checksum", "from"])
    for version in kept.versions():
        try:
            _add(table, among.earlier(name, version), "", kept.place(version))
        except StoreError as error:
            complain(error)
    try:
        _add(table, among.manifest(name), " (in use)", None)
    except StoreError as error:
        complain(error)
    wide(out).print(table)


def restore(
    id: Annotated[str, typer.Argument(help="A version, as BOARD/NAME@3 or references/BOARD/NAME@3.")],
    store: StoreOption = None,
) -> None:
    """Put an earlier version of an expert or a reference into its place again, in one step.

    Its files are proved first. What it replaces is kept, so that this can be undone in the same way. Lines that are
    open keep to what they were opened with, and name the expert as changed; open them again.

    Example: coe-experts restore demo/chip-resistor@3
    """
    match = re.fullmatch(r"(.+)@([0-9]{1,9})", id)
    if match is None:
        raise ConfigError(f"'{id}' names no version; write it like BOARD/NAME@3 (`coe-experts history` shows them)")
    shelf = Store(store)
    among, name = _kept(shelf, match[1])
    restored = among.restore(name, version := int(match[2]))
    if isinstance(restored, Manifest):
        try:
            experts_reference.check_frame(restored, experts_reference.checksums(shelf))
        except StoreError as error:
            way_out = "`coe-experts history references/BOARD/NAME` shows versions"
            point_out("note", f"{restored.id}: {error} ({way_out})", err)
    out.print(f"{match[1]}: version {version} is in use again, as version {restored.version}")


def _kept(shelf: Store, id: str) -> tuple[Store | References, str]:
    """Return what keeps the versions of an expert or a reference, and its id there."""
    reference = reference_named(id)
    return (shelf, id) if reference is None else (References(shelf), reference)


def _add(table: Table, manifest: Manifest | ReferenceManifest, in_use: str, place: Path | None) -> None:
    """Add the row of a version, whose files lie at a place."""
    measures = measures_text(manifest.metrics) if isinstance(manifest, Manifest) else f"{manifest.images} pictures"
    restored = manifest.restored if isinstance(manifest, Manifest) else 0
    was = f"version {restored} again" if restored else manifest.source
    alone = "" if place is None else config.format_bytes(_own_bytes(place))
    cells = (f"{manifest.version}{in_use}", manifest.created, manifest.checksum[:12], alone)
    table.add_row(*cells, ", ".join(filter(None, (was, measures))))


def _own_bytes(folder: Path) -> int:
    """Return the bytes of files that lie nowhere else."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and path.stat().st_nlink == 1)
