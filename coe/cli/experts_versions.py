"""`coe-experts history` and `restore`: earlier versions of experts and references."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from coe import config
from coe.cli import experts_reference
from coe.cli.common import complain, err, out, point_out, wide
from coe.cli.console import table_of
from coe.cli.experts_new import measures_text
from coe.cli.options import StoreOption
from coe.errors import ConfigError, StoreError
from coe.files import alone
from coe.store import bodies
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceManifest
from coe.store.references import References, reference_named
from coe.store.store import Store

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
