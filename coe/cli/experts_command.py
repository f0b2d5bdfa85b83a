"""`coe-experts`: the experts of a store; this file lists, shows and verifies them, and makes random ones."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cv2
import numpy as np
import typer

from coe import config
from coe.board import rules
from coe.bring import verification
from coe.cli import (
    experts_bundle,
    experts_calibrate,
    experts_choose,
    experts_evaluate,
    experts_exam,
    experts_export,
    experts_import,
    experts_learn,
    experts_new,
    experts_pictures,
    experts_prepare,
    experts_reference,
    experts_versions,
)
from coe.cli.common import Exit, application, complain, counting, out, point_out, run, wide
from coe.cli.console import styled, table_of
from coe.cli.experts_new import measures_text
from coe.cli.options import AllowKindOption, StoreOption
from coe.cli.tool_options import SeedOption
from coe.core import Expert
from coe.errors import ConfigError, StoreError, sentence_of
from coe.helpers.allowed_text import pattern_fault
from coe.helpers.files import replacing, writing
from coe.learn.window_search import FoundWindow, WindowSearch
from coe.pictures import finding
from coe.pictures.image_source import ImageSource
from coe.store import kinds, random_weights
from coe.store.expert_id import ExpertId
from coe.store.kinds import Image, ModuleKind
from coe.store.manifest import Manifest
from coe.store.references import References, reference_named
from coe.store.store import Store

if TYPE_CHECKING:
    import torch

_MOST_PICTURES, _SIDE = 12, 240
_SHOWN = ("accuracy", "accuracy_at_least", "map50", "recall_at_least", "held_out")
"""The measures that the list shows."""

app = application(
    "Train, import, list, show and verify experts.\n\n"
    "The store keeps an expert under BOARD/NAME, as demo/chip-resistor; "
    "the expert NAME in the board's file then finds its weights there."
)

app.command()(experts_new.train)
app.command()(experts_choose.choose)
app.command("import")(experts_import.import_)
app.command()(experts_prepare.prepare)
app.command()(experts_export.export)
app.command()(experts_pictures.split)
app.command()(experts_pictures.boxes)
app.command()(experts_reference.reference)
app.command()(experts_calibrate.calibrate)
app.command()(experts_evaluate.evaluate)
app.command()(experts_pictures.overlay)
app.command()(experts_pictures.crop)
app.command()(experts_learn.learn)
app.command()(experts_bundle.bundle)
app.command()(experts_bundle.install)
app.command()(experts_versions.history)
app.command()(experts_versions.restore)
app.add_typer(experts_versions.app, name="backbone")


@app.command("list")
def list_(
    board: Annotated[str, typer.Option(help="Only the experts of this board.")] = "", store: StoreOption = None
) -> None:
    """List the experts of the store. Exit status 1 if a manifest cannot be read; the other experts are shown.

    "Lets pass" is what an expert is blind to, by its exam. The size of an expert is that of its whole weights. What
    experts have in common counts once in the sum below.

    Example: coe-experts list --board demo
    """
    shelf = Store(store)
    if not shelf.ids():
        point_out("note", f"the store {shelf.root} holds no experts; see coe-experts train, import and synth")
    columns = ("expert", "kind", "input", "labels", "size", "held out", "lets pass", "prepared")
    table = table_of(*columns, left=set(columns) - {"input", "size"})
    damaged = False
    shown: list[Manifest] = []
    for id in shelf.ids():
        if not board or ExpertId.of(id).board == board:
            try:
                m = shelf.manifest(id)
            except StoreError as error:
                damaged = True
                complain(error)
                continue
            shown.append(m)
            size = config.format_bytes(m.whole_bytes)
            metrics = {name: value for name, value in m.metrics.items() if name in _SHOWN}
            held_out = measures_text(metrics) + (", unproven" if m.unproven else "")
            labels = "(a backbone)" if m.is_backbone else ", ".join(m.labels)
            passes = "" if m.is_backbone else experts_exam.lets_pass(m.exam)
            table.add_row(id, m.kind, str(m.input_size), labels, size, held_out, passes, ", ".join(m.variants))
    wide(out).print(table)
    if shared := {body.digest: body.bytes for m in shown if (body := m.body) is not None}:
        now = config.format_bytes(sum(m.bytes for m in shown) + sum(shared.values()))
        out.print(f"together {now}, of {config.format_bytes(sum(m.whole_bytes for m in shown))} as whole experts")
    damaged = experts_reference.list_references(shelf, board) or damaged
    raise typer.Exit(Exit.NOT_GOOD if damaged else Exit.OK)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="An expert of the store, BOARD/NAME, or references/BOARD/NAME.")],
    images_at: Annotated[
        Path | None,
        typer.Option("--images", help="Pictures of good parts, in which a reader finds the window of --text."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="What stands on the parts of --images.")] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="Where the picture goes that shows the window on each part.")
    ] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Show the manifest of an expert: labels, checksums, measures of its training, and its prepared precisions.

    For a reference it shows version, size, checksum, and which pictures it was made from. With --images, --text and
    --out it shows in which window of the pictures an expert reads the text, as the board file has it: look at the
    picture before you use it. Exit status 1 if no window shows the text in all pictures.

    Example: coe-experts show demo/chip-resistor
    """
    shelf = Store(store)
    if images_at is not None or text is not None or to is not None:
        if images_at is None or text is None or to is None:
            raise ConfigError("--images, --text and --out belong together: what a reader reads in which pictures")
        raise typer.Exit(_show_window(shelf, id, images_at, text, to, allow_kind or ()))
    reference = reference_named(id)
    manifest = shelf.manifest(id) if reference is None else References(shelf).manifest(reference)
    out.print_json(manifest.model_dump_json())


def _show_window(shelf: Store, id: str, images_at: Path, text: str, to: Path, allowed: Sequence[str]) -> Exit:
    """Find the window in which a marking stands, draw it, and print it for the board file."""
    from PIL import Image as pillow

    if fault := pattern_fault(text):
        raise ConfigError(f"--text: {fault}")
    kind = kinds.resolve(shelf.manifest(id).kind, allowed)
    if not images_at.is_dir():
        raise ConfigError(f"{images_at}: there is no such folder; give --images a folder of pictures of good parts")
    paths = sorted(path for path in images_at.rglob("*") if path.suffix.lower() in finding.EXTENSIONS)
    if not paths:
        raise ConfigError(f"{images_at} holds no pictures")
    images = [np.asarray(ImageSource.of(path).decode(), np.uint8) for path in paths[:_MOST_PICTURES]]
    search = WindowSearch(shelf, id, kind, text)
    with counting("reading") as bar:
        found = search.find(images, bar.track)
    if found is None:
        point_out(
            "not found",
            f"no window shows '{text}' in all of {len(images)} pictures; are they all of this part, the same way up, "
            "and is the text at least 8 pixels high?",
        )
        return Exit.NOT_GOOD
    with writing(to), replacing(to) as file:
        pillow.fromarray(_sheet(images, found)).save(file, "PNG")
    shares = ", ".join(f"{share:g}" for share in found.window)
    out.print(f"reads: {{window: [{shares}], allowed: [{text!r}]}}")
    out.print(f"read in all of {len(images)} pictures with a score of {found.least:.2f} at least; look at {to}")
    return Exit.OK


def _sheet(images: list[Image], found: FoundWindow) -> Image:
    """Return the pictures side by side, (H, W, 3) uint8, each with its window and what is read in it."""

    tiles = []
    for image, one in zip(images, found.findings, strict=True):
        scale = _SIDE / max(image.shape[:2])
        size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
        tile = np.full((_SIDE + 24, _SIDE, 3), 255, np.uint8)
        tile[: size[1], : size[0]] = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else 2)
        left, top, width, height = found.window
        corner = round(left * size[0]), round(top * size[1])
        other = round((left + width) * size[0]), round((top + height) * size[1])
        cv2.rectangle(tile, corner, other, (255, 0, 200), 2)
        cv2.putText(tile, f"{one.read} {one.score:.2f}", (4, _SIDE + 17), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1)
        tiles.append(tile)
    return np.hstack(tiles)


@app.command()
def verify(
    ids: Annotated[list[str] | None, typer.Argument(help="Experts, as BOARD/NAME. Default: all of the store.")] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Check experts: manifest, checksums, that weights fit their kind, and a forward pass in each precision.

    Without names, the checksums of the golden references are checked, too. An expert that learned in the frame of a
    reference that was replaced counts as damaged: a line would refuse it. An expert whose held-out figures do not prove
    that it is better than one answer for all is sound, and named as unproven.

    All experts are checked, even after damage is found. Exit status 1 if an expert is damaged, or of a kind that is not
    here: its bytes are proved, and nothing runs it.

    Example: coe-experts verify demo/chip-resistor
    """
    shelf = Store(store)
    chosen = ids or shelf.ids()
    if not chosen and not References(shelf).ids():
        raise StoreError(f"the store {shelf.root} holds no experts")
    damaged, unknown, checksums = 0, 0, experts_reference.checksums(shelf)
    for id in chosen:
        try:
            shelf.check(id)
            experts_reference.check_frame(shelf.manifest(id), checksums)
            try:
                kinds.resolve(shelf.manifest(id).kind, allow_kind or ())
            except ConfigError as error:
                unknown += 1
                point_out("unknown", f"{id}: its files are whole; {error}")
                continue
            checked = shelf.steady(id, lambda manifest: verification.verify(shelf, manifest, allow_kind or ()))
            out.print(styled(("sound", "green"), f"    {id}{checked}"))
            if why := shelf.manifest(id).unproven:
                point_out("unproven", f"{id}: {why}")
        except (Exception, SystemExit) as error:  # a kind is foreign code, and the other experts must be checked
            damaged += 1
            complain(f"{id}: {sentence_of(error).removeprefix(f'{id}: ')}")
    sound = len(chosen) - damaged - unknown
    if not ids:
        references = experts_reference.verify_references(shelf)
        sound, damaged = sound + references.sound, damaged + references.damaged
    out.print(f"{sound} sound, {damaged} damaged" + (f", {unknown} of kinds that are not here" if unknown else ""))
    raise typer.Exit(Exit.NOT_GOOD if damaged or unknown else Exit.OK)


@app.command()
def synth(
    board: Annotated[str, typer.Option(help="Board: a name or a YAML file.")],
    files: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="Weights files for each kind; many experts share a file.")
    ] = 2,
    seed: SeedOption = 0,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Make random weights for every expert of a board, to try a box before there are trained experts.

    Verdicts mean nothing. Many experts share a file (hard links) to save disk space, but each expert is loaded and
    counted separately. Experts that are in the store already stay as they are.

    Example: coe-experts synth --board A
    """
    shelf = Store(store)
    stored = set(shelf.ids())
    originals_of: dict[tuple[str, int, int], list[str]] = {}
    wanted = [expert for expert in rules.load(board).experts.values() if expert.weights not in stored]
    with counting("making") as bar:
        for expert in bar.track(wanted):
            originals = originals_of.setdefault((expert.kind, len(expert.labels), expert.input_size), [])
            if len(originals) < files:
                shelf.put(
                    expert.weights,
                    kind=expert.kind,
                    labels=expert.labels,
                    input_size=expert.input_size,
                    state=_random_state(expert, seed + len(originals), allow_kind or ()),
                    source=f"synthetic, seed {seed}",
                )
                originals.append(expert.weights)
            else:
                # A stable choice that does not depend on the order of the rules.
                original = originals[zlib.crc32(expert.id.encode()) % len(originals)]
                shelf.link(expert.weights, original, labels=expert.labels)
    out.print(f"{len(wanted)} experts made, {sum(map(len, originals_of.values()))} files")


def _random_state(expert: Expert, seed: int, allowed: Sequence[str]) -> dict[str, torch.Tensor]:
    kind = kinds.resolve(expert.kind, allowed)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"expert '{expert.id}' is of kind '{kind.name}', for which random weights cannot be made")
    return random_weights.random_weights(kind, expert, seed)


main = partial(run, app)
