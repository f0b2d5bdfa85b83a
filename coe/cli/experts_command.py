"""`coe-experts`: the experts of a store; this file lists, shows, verifies and restores them, and makes random ones."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from coe import config
from coe.board import rules
from coe.bring import verification
from coe.cli.common import Exit, application, complain, counting, err, out, point_out, run, show
from coe.cli.console import styled
from coe.cli.experts_bundle import Bundle, Install
from coe.cli.experts_choose import Choose
from coe.cli.experts_import import Import
from coe.cli.experts_options import InputOption, InStore, WithKinds
from coe.cli.experts_pictures import Boxes, Crop, Overlay, Split
from coe.cli.experts_prepare import Prepare
from coe.cli.experts_reference import Reference
from coe.cli.experts_train import Learn, Train, measures_text
from coe.cli.experts_verified import Calibrate, Evaluate, lets_pass
from coe.cli.options import Record, SeedOption, Size, add, argument, option
from coe.config import counted
from coe.core import Expert
from coe.errors import ConfigError, StoreError, sentence_of
from coe.helpers.allowed_text import pattern_fault
from coe.helpers.files import alone, replacing, writing
from coe.learn import backbones, frames
from coe.learn.window_search import FoundWindow, WindowSearch
from coe.pictures.formats import EXTENSIONS
from coe.pictures.image_source import ImageSource
from coe.store import bodies, kinds, skeletons
from coe.store.expert_id import ExpertId
from coe.store.kinds import Image, ModuleKind
from coe.store.manifest import Manifest
from coe.store.reference_reader import FOLDER, ReferenceManifest
from coe.store.references import References, reference_named
from coe.store.store import Store

if TYPE_CHECKING:
    import torch

_MOST_PICTURES, _SIDE = 12, 240
_SHOWN = ("accuracy", "accuracy_at_least", "map50", "recall_at_least", "held_out")
"""The measures that the list shows."""


class List(InStore):
    """List the experts and references of the store.

    Column "lets pass" names exam items that the expert lets pass, and small defects if its training pictures had too
    few pixels. Column "size" includes layers that experts share; the sum counts them once. Exit status 1 if a manifest
    cannot be read.

    Example: coe-experts list --board demo
    """

    board: str = option("Only the experts of this board.", "")

    def run(self) -> Record:
        shelf, rows, of_references, shown, damaged = self.shelf, [], [], list[Manifest](), False
        references = References(shelf)
        if not shelf.ids():
            point_out("note", f"the store {shelf.root} holds no experts; see coe-experts train, import and synth")
        for id in (*shelf.ids(), *(f"{FOLDER}/{id}" for id in references.ids())):
            named = reference_named(id)
            if self.board and ExpertId.of(named or id).board != self.board:
                continue
            try:
                if named is None:
                    shown.append(shelf.manifest(id))
                    rows.append(_expert_row(shown[-1]))
                else:
                    of_references.append(_reference_row(references.manifest(named)))
            except StoreError as error:
                damaged = True
                complain(error)
        show(of_references)
        if shared := {body.digest: body.bytes for m in shown if (body := m.body) is not None}:
            now = config.format_bytes(sum(m.bytes for m in shown) + sum(shared.values()))
            out.print(f"together {now}, of {config.format_bytes(sum(m.whole_bytes for m in shown))} as whole experts")
        return Record(rows, Exit.NOT_GOOD if damaged else Exit.OK)


def _expert_row(m: Manifest) -> dict[str, Any]:
    measures = measures_text({name: value for name, value in m.metrics.items() if name in _SHOWN})
    return {
        "expert": m.id,
        "kind": m.kind,
        "input": m.input_size,
        "labels": "(a backbone)" if m.is_backbone else ", ".join(m.labels),
        "size": Size(m.whole_bytes),
        "held out": ", ".join(filter(None, (measures, "unproven" if m.unproven else ""))),
        "lets pass": None if m.is_backbone else lets_pass(m),
        "prepared": ", ".join(m.variants),
    }


def _reference_row(m: ReferenceManifest) -> dict[str, Any]:
    return {
        "reference": f"{FOLDER}/{m.id}",
        "version": m.version,
        "size": f"{m.width} x {m.height}",
        "pictures": m.images,
        "left out": len(m.left_out),
    }


class Show(WithKinds):
    """Show the manifest of an expert (labels, checksums, training results, variants) or of a reference.

    For an expert that reads, give --images, --text and --out: the command finds the window of the text, and prints it
    for the board file. Check the picture before you use the window. Exit status 1 if no window shows the text in all
    pictures.

    Example: coe-experts show demo/chip-resistor
    """

    id: str = argument("An expert of the store, BOARD/NAME, or references/BOARD/NAME.", ...)
    weights: Path | None = option(
        "Write the complete weights, with shared layers, to this file. An existing file is replaced.", metavar="FILE"
    )
    images_at: Path | None = option("Folder with pictures of good parts that carry the text.", None, "--images")
    text: str | None = option("Text on the parts.")
    to: Path | None = option("PNG file to write: the parts with the window.", None, "--out")

    def run(self) -> Exit:
        if self.images_at is not None or self.text is not None or self.to is not None:
            if self.images_at is None or self.text is None or self.to is None:
                raise ConfigError("--images, --text and --out belong together")
            return self._show_window(self.images_at, self.text, self.to)
        reference = reference_named(self.id)
        manifest = self.shelf.manifest(self.id) if reference is None else References(self.shelf).manifest(reference)
        if self.weights is None:
            out.print_json(manifest.model_dump_json())
            return Exit.OK
        try:
            bodies.export(self.shelf, self.id, self.weights)
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"{self.weights} cannot be written: {reason}; give another place") from error
        out.print(f"{self.id}: {config.format_bytes(self.weights.stat().st_size)} in {self.weights}")
        return Exit.OK

    def _show_window(self, images_at: Path, text: str, to: Path) -> Exit:
        """Find the window in which a marking stands, draw it, and print it for the board file."""
        from PIL import Image as pillow

        if fault := pattern_fault(text):
            raise ConfigError(f"--text: {fault}")
        kind = kinds.resolve(self.shelf.manifest(self.id).kind, self.allowed)
        if not images_at.is_dir():
            raise ConfigError(f"{images_at}: there is no such folder; give --images a folder of pictures of good parts")
        paths = sorted(path for path in images_at.rglob("*") if path.suffix.lower() in EXTENSIONS)
        if not paths:
            raise ConfigError(f"{images_at} holds no pictures")
        images = [np.asarray(ImageSource.of(path).decode(), np.uint8) for path in paths[:_MOST_PICTURES]]
        with counting("reading") as bar:
            found = WindowSearch(self.shelf, self.id, kind, text).find(images, bar.track)
        if found is None:
            point_out(
                "not found",
                f"no window shows '{text}' in all of {len(images)} pictures; are they all of this part, the same way "
                "up, and is the text at least 8 pixels high?",
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


class Verify(WithKinds):
    """Check experts: manifest, checksums, weights, and a forward pass in each precision.

    Without names, the command also checks the references of the store. An expert also counts as damaged if the
    reference it was trained with has been replaced. An expert is unproven if held-out pictures do not show that it is
    better than always giving the same answer.

    If the kind of an expert is not installed, only checksums are checked. Exit status 1 if an expert is damaged, or if
    a kind is not installed.

    Example: coe-experts verify demo/chip-resistor
    """

    ids: list[str] | None = argument("Experts, as BOARD/NAME. Default: all experts of the store.")

    def run(self) -> Exit:
        shelf, references = self.shelf, References(self.shelf)
        chosen = [*(self.ids or shelf.ids()), *(() if self.ids else (f"{FOLDER}/{id}" for id in references.ids()))]
        if not chosen:
            raise StoreError(f"the store {shelf.root} holds no experts")
        damaged, unknown, checksums = 0, 0, frames.checksums(shelf)
        for id in chosen:
            try:
                named = reference_named(id)
                if named is not None:
                    references.load(named)
                    checked = ""
                else:
                    shelf.check(id)
                    frames.check_frame(shelf.manifest(id), checksums)
                    try:
                        kinds.resolve(shelf.manifest(id).kind, self.allowed)
                    except ConfigError as error:
                        unknown += 1
                        point_out("unknown", f"{id}: its files are undamaged; {error}")
                        continue
                    checked = shelf.steady(id, lambda manifest: verification.verify(shelf, manifest, self.allowed))
                out.print(styled(("sound", "green"), f"    {id}{checked}"))
                if named is None and (why := shelf.manifest(id).unproven):
                    point_out("unproven", f"{id}: {why}")
            except (Exception, SystemExit) as error:  # a kind is foreign code, and the other experts must be checked
                damaged += 1
                complain(f"{id}: {sentence_of(error).removeprefix(f'{id}: ')}")
        sound = len(chosen) - damaged - unknown
        out.print(
            f"{sound} sound, {damaged} damaged" + (f", {unknown} of kinds that are not installed" if unknown else "")
        )
        return Exit.NOT_GOOD if damaged or unknown else Exit.OK


class Synth(WithKinds):
    """Make random weights for every expert of a board, to test a machine before training.

    Verdicts of these experts mean nothing. Experts that are in the store are kept. To save disk space, the new experts
    share files (hard links), but each is loaded separately.

    Example: coe-experts synth --board A
    """

    board: str = option("Board: a name or a YAML file.", ...)
    files: int = option("Number of weights files for each kind.", 2, min=1, max=config.MAX_COUNT)
    seed: SeedOption = 0

    def run(self) -> None:
        shelf, stored = self.shelf, set(self.shelf.ids())
        originals_of: dict[tuple[str, int, int], list[str]] = {}
        wanted = [expert for expert in rules.load(self.board).experts.values() if expert.weights not in stored]
        with counting("making") as bar:
            for expert in bar.track(wanted):
                originals = originals_of.setdefault((expert.kind, len(expert.labels), expert.input_size), [])
                if len(originals) < self.files:
                    shelf.put(
                        expert.weights,
                        kind=expert.kind,
                        labels=expert.labels,
                        input_size=expert.input_size,
                        state=_random_state(expert, self.seed + len(originals), self.allowed),
                        source=f"synthetic, seed {self.seed}",
                    )
                    originals.append(expert.weights)
                else:
                    # A stable choice that does not depend on the order of the rules.
                    original = originals[zlib.crc32(expert.id.encode()) % len(originals)]
                    shelf.link(expert.weights, original, labels=expert.labels)
        out.print(f"{counted(len(wanted), 'expert')} made, {counted(sum(map(len, originals_of.values())), 'file')}")


def _random_state(expert: Expert, seed: int, allowed: Sequence[str]) -> dict[str, torch.Tensor]:
    kind = kinds.resolve(expert.kind, allowed)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"expert '{expert.id}' is of kind '{kind.name}', for which random weights cannot be made")
    return skeletons.random_weights(kind, expert, seed)


class Add(WithKinds):
    """Add the layers of a pretrained network to the store, as backbones/NAME. Nothing is downloaded.

    The head is left out. Training of patch, probe and similar kinds adds a missing backbone itself, if an installed
    package contains it.

    Example: coe-experts backbone add resnet18.pth --kind resnet18 --licence BSD-3-Clause
    """

    what: str | None = argument(
        "Kind whose weights an installed package contains, or a file of weights. Default: all such kinds.",
        metavar="[NAME|FILE]",
    )
    kind: str | None = option("For a FILE: its network, e.g. resnet18.")
    name: str | None = option("For a FILE: name under backbones/. Default: its kind.")
    licence: str = option("For a FILE: licence of the weights; the store keeps it.", "")
    input_size: InputOption = None

    def run(self) -> None:
        what, kind, shelf, allowed = self.what, self.kind, self.shelf, self.allowed
        if what is not None and (kind is not None or os.path.sep in what or os.path.isfile(what)):
            if not os.path.isfile(what):
                raise ConfigError(f"{what}: no such file")
            if kind is None:
                raise ConfigError(f"{what}: name its network, e.g. --kind resnet18")
            id = f"{backbones.BOARD}/{self.name or kind}"
            shelf.folder(id)
            expert = Expert(self.name or kind, kind, (), self.input_size or 0, id)
            added = [backbones.add_file(shelf, Path(what), expert, self.licence, allowed)]
        elif kind or self.name or self.licence or self.input_size:
            raise ConfigError("--kind, --name, --licence and --input describe a file; give the file, or leave them out")
        else:
            kinds = backbones.packaged(allowed) if what is None else [what]
            added = [backbones.add_packaged(shelf, one, allowed) for one in kinds]
        for one in added:
            manifest = one.manifest
            for remark in one.remarks:
                point_out("note", f"{manifest.id}: {remark}")
            there = "is there already: " if one.was_there else ""
            licence = manifest.licence or "licence not said"
            size = config.format_bytes(manifest.bytes)
            out.print(f"{manifest.id}: {there}{manifest.kind}, {size}, digest {manifest.checksum}, {licence}")


class History(InStore):
    """Show the versions of an expert or a reference that the store keeps.

    When training, import or restore replaces a version, the store keeps it. Column "alone" shows the bytes that no
    other version shares.

    Example: coe-experts history demo/chip-resistor
    """

    id: str = argument("An expert of the store, BOARD/NAME, or references/BOARD/NAME.", ...)
    keep: int | None = option(
        "Keep this many of the newest earlier versions, and remove the others. Default: remove none. Commands that "
        f"replace an expert keep {config.KEPT_VERSIONS} (${config.KEPT_VERSIONS_VARIABLE}), or one if the disk is "
        "almost full.",
        min=0,
        max=config.MAX_COUNT,
    )

    def run(self) -> Record:
        among, name = _kept(self.shelf, self.id)
        kept = among.history(name)
        if not kept.versions():
            among.manifest(name)  # names what is not there
        if self.keep is not None:
            try:
                with alone(kept.folder):
                    kept.thin(self.keep)
            except OSError as error:
                raise StoreError(f"{self.id}: cannot be written: {error.strerror or error}") from error
            bodies.sweep(self.shelf)
        rows = []
        for version in (*kept.versions(), None):
            try:
                manifest = among.manifest(name) if version is None else among.earlier(name, version)
                rows.append(_row(manifest, None if version is None else kept.place(version)))
            except StoreError as error:
                complain(error)
        return Record(rows)


class Restore(InStore):
    """Restore an earlier version of an expert or a reference.

    The files of the earlier version are checked first. The store keeps the replaced version, so you can undo this.
    Lines that are open cannot load the expert any more; reopen them.

    Example: coe-experts restore demo/chip-resistor@3
    """

    id: str = argument("Version: BOARD/NAME@3 or references/BOARD/NAME@3.", ...)

    def run(self) -> None:
        id, shelf = self.id, self.shelf
        match = re.fullmatch(r"(.+)@([0-9]{1,9})", id)
        if match is None:
            raise ConfigError(f"'{id}' names no version; write it like BOARD/NAME@3 (`coe-experts history` shows them)")
        among, name = _kept(shelf, match[1])
        restored = among.restore(name, version := int(match[2]))
        if isinstance(restored, Manifest):
            try:
                frames.check_frame(restored, frames.checksums(shelf))
            except StoreError as error:
                way_out = "`coe-experts history references/BOARD/NAME` shows versions"
                point_out("note", f"{restored.id}: {error} ({way_out})", err)
        out.print(f"{match[1]}: version {version} is in use again, as version {restored.version}")


def _kept(shelf: Store, id: str) -> tuple[Store | References, str]:
    """Return what keeps the versions of an expert or a reference, and its id there."""
    reference = reference_named(id)
    return (shelf, id) if reference is None else (References(shelf), reference)


def _row(manifest: Manifest | ReferenceManifest, place: Path | None) -> dict[str, Any]:
    """Return the row of a version; its files lie at `place`, or in use."""
    measures = (
        measures_text(manifest.metrics) if isinstance(manifest, Manifest) else counted(manifest.images, "picture")
    )
    restored = manifest.restored if isinstance(manifest, Manifest) else 0
    was = f"version {restored} again" if restored else manifest.source
    own = [file.stat() for file in place.iterdir() if file.is_file()] if place is not None else []
    return {
        "version": f"{manifest.version}{'' if place else ' (in use)'}",
        "made": manifest.created,
        "checksum": manifest.checksum[:12],
        # Of files that lie nowhere else.
        "alone": Size(sum(file.st_size for file in own if file.st_nlink == 1)) if place is not None else None,
        "from": ", ".join(filter(None, (was, measures))),
    }


backbone_app = application(
    "Manage pretrained networks. Kinds that learn from a few pictures use such a network with frozen layers.",
    is_group=True,
)
add(backbone_app, Add)
app = application(
    "Train, import, list, show and verify experts.\n\n"
    "The store knows an expert by BOARD/NAME, e.g. demo/chip-resistor: the board, and the expert's name in the board "
    "file."
)
add(app, Train, Choose, Import, Prepare, Split, Boxes, Reference, Calibrate, Evaluate, Overlay, Crop, Learn, Bundle)
add(app, Install, History, Restore, List, Show, Verify, Synth)
app.add_typer(backbone_app, name="backbone")

main = partial(run, app)
