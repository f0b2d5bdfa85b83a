"""`coe-experts share` and `export`: experts that hold equal layers store them once; whole weights come out again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, get_args

import typer

from coe import config
from coe.board import rules
from coe.cli.common import Exit, complain, counting, out, wide
from coe.cli.console import table_of
from coe.cli.options import AllowKindOption, StoreOption
from coe.errors import ConfigError, StoreError
from coe.prepare.sharing import Sharing, SharingOutcome, stored
from coe.store import bodies
from coe.store.blob_format import Variant
from coe.store.expert_id import ExpertId
from coe.store.kinds import Kind, ModuleKind
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.store import Store


def share(
    board: Annotated[str, typer.Argument(help="A board of the store, as demo; or a board's YAML file.")],
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Store the layers that a board's experts have in common once, and load them once.

    Experts that were fine-tuned from one network with its first layers frozen hold the same numbers there. These become
    a body, and each expert keeps the rest. No number changes, so every verdict stays as it is. A line that runs goes on
    with what it has loaded; open it again afterwards.

    Exit status 1 if an expert could not be read or changed meanwhile; the others are shared.

    Example: coe-experts share demo
    """
    shelf = Store(store)
    ids = experts_of(shelf, board)
    with counting("sharing {task.fields[expert]}", transient=True) as bar:
        task = bar.add_task("", total=len(ids), expert="")

        def say(expert: str) -> None:
            bar.update(task, expert=expert, advance=1)

        outcome = Sharing(shelf, allow_kinds=allow_kind or (), say=say).share(ids)
    for reason in outcome.failed.values():
        complain(reason)
    out.print(_sentence(outcome))
    raise typer.Exit(Exit.NOT_GOOD if outcome.failed else Exit.OK)


def export(
    id: Annotated[str, typer.Argument(help="An expert of the store, as BOARD/NAME.")],
    file: Annotated[Path, typer.Argument(help="The file to write; a file that is there is replaced.")],
    store: StoreOption = None,
) -> None:
    """Write the weights of an expert as one plain file, with the layers that it shares with others.

    Example: coe-experts export demo/chip-resistor chip-resistor.safetensors
    """
    shelf = Store(store)
    shelf.manifest(id)
    try:
        bodies.export(shelf, id, file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror or error}; give another place") from error
    out.print(f"{id}: {config.format_bytes(file.stat().st_size)} in {file}")


def experts_of(shelf: Store, board: str) -> list[str]:
    """Return the experts of a board in the store; raises StoreError if there is none, ConfigError, RulesError."""
    ids = [id for id in shelf.ids() if board and ExpertId.of(id).board == board]
    if not ids:
        wanted = {expert.weights for expert in rules.load(board).experts.values()}
        ids = [id for id in shelf.ids() if id in wanted]
    if not ids:
        raise StoreError(f"the store {shelf.root} holds no experts of board '{board}'")
    return ids


def share_trained(shelf: Store, id: str, body: str | None, kind: Kind, allow_kinds: Sequence[str]) -> Exit:
    """Let an expert that was just trained share its frozen layers: those of its backbone, or those of `body`."""
    if isinstance(kind, ModuleKind) and kind.backbone:
        bodies.divide_backbone(shelf, id)
    return Exit.OK if body is None else _share_new(shelf, id, body, allow_kinds)


def _share_new(shelf: Store, id: str, parent: str, allow_kinds: Sequence[str]) -> Exit:
    """Let an expert that was just trained share the frozen layers of its parent, and say what that saves."""
    # If it cannot, as when the parent changed during the training, the expert stays whole, and the reason is said.
    board = ExpertId.of(id).board or "BOARD"
    try:
        body = Sharing(shelf, allow_kinds=allow_kinds).share_new(id, parent)
    except StoreError as error:
        complain(f"{error}; {id} is stored whole, and `coe-experts share {board}` may divide it later")
        return Exit.NOT_GOOD
    if body is None:
        why = f"what it has in common with {parent} is too small to be a body"
        if shelf.manifest(parent).is_backbone:
            why = f"{parent} is a backbone; `coe-experts share {board}` divides experts that start from it"
        out.print(f"{id}: {why}; it is stored whole")
        return Exit.OK
    manifest = shelf.manifest(id)
    common, whole = config.format_bytes(body.bytes), config.format_bytes(manifest.whole_bytes)
    holders = [other for other in shelf.ids() if _body(shelf, other) == manifest.body]
    count = "1 expert" if len(holders) == 1 else f"{len(holders)} experts"
    sentence = f"{id}: {common} of its {whole} are a body, stored and loaded once for {count}"
    if parent not in holders:
        sentence += f"; {parent} holds the same layers, and `coe-experts share {board}` lets it join"
    out.print(sentence)
    return Exit.OK


def show_bytes(manifests: Sequence[Manifest]) -> None:
    """Print the bytes of experts that have bodies: stored whole and with bodies, and in memory in each variant."""
    if not any(manifest.bodies for manifest in manifests):
        return
    records: dict[str, Sequence[Manifest | PreparedVariant]] = {"stored, as trained": manifests}
    for variant in get_args(Variant):
        records[f"in memory, {variant}"] = [one.variants[variant] for one in manifests if variant in one.variants]
    table = table_of("bytes", "experts", "whole", "with bodies", "bodies", left=["bytes"])
    for name, each in records.items():
        if each:
            sizes = sum(one.whole_bytes for one in each), stored(each)
            bodies = {one.body.digest for one in each if one.body is not None}
            table.add_row(name, str(len(each)), *map(config.format_bytes, sizes), str(len(bodies)))
    wide(out).print(table)


def _body(shelf: Store, id: str) -> object:
    try:
        return shelf.manifest(id).body
    except StoreError:
        return None


def _sentence(outcome: SharingOutcome) -> str:
    whole, now = config.format_bytes(outcome.whole_bytes), config.format_bytes(outcome.bytes)
    if not outcome.shared:
        return f"no two experts begin with equal layers: {whole}, as before"
    experts = sum(len(body.experts) for body in outcome.shared)
    bodies = "1 body" if len(outcome.shared) == 1 else f"{len(outcome.shared)} bodies"
    return (
        f"{experts} experts share {bodies}: {whole} as whole experts, {now} with bodies; "
        f"{len(outcome.divided)} experts were changed"
    )
