"""`coe-experts bundle` and `install`: all that a second box needs for a board, as one file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import coe
from coe import config
from coe.board import calibration_file, rules
from coe.bring import verification
from coe.cli.common import counting, err, out, point_out
from coe.cli.experts_options import InStore, WithKinds
from coe.cli.options import OfBoard, argument, option, why_not
from coe.config import counted
from coe.errors import ConfigError, StoreError, list_few, sentence_of
from coe.helpers.files import DiskFull, alone, is_full, is_other
from coe.inspector import weights_used
from coe.store import bundle_file
from coe.store.bundle_file import FILES, RULES, STORE, BundleContents
from coe.store.reference_reader import FOLDER as REFERENCES
from coe.store.references import References
from coe.store.store import Store
from coe.store.store_reader import MANIFEST

_SHOWN = 5


class Bundle(OfBoard, InStore):
    """Pack a board for another machine: board file, calibration, experts with bodies and variants, and references.

    The command first checks all files. Earlier versions of experts are not included.

    Example: coe-experts bundle line7.yaml --file recipe.yaml
    """

    to: Path | None = option("Bundle to write. Default: <board>.coe.", metavar="FILE")
    files: list[Path] | None = option(
        "Recipe, placement file or BOM to include. Repeatable.", None, "--file", metavar="FILE"
    )

    def run(self) -> None:
        board, shelf = self.rules, self.shelf
        target = self.to or Path(f"{board.board}.coe")
        if reason := why_not(target):
            raise ConfigError(f"--to: {target} {reason}; name a file")
        if is_other(target, b"PK"):
            raise ConfigError(f"--to: {target} is not a bundle, and would be overwritten; name another file")
        weights_used.read_manifests(board, shelf)
        experts = tuple(sorted({expert.weights for expert in board.experts.values()}))
        names: dict[str, Path] = {f"{RULES}/{board.path.name}": board.path}
        if calibration_file.content(board.path) is not None:
            path = calibration_file.path_for(board.path)
            names[f"{RULES}/{path.name}"] = path
        for id in experts:
            manifest = shelf.check(id)
            folder = shelf.folder(id)
            names |= {f"{STORE}/{id}/{name}": folder / name for name in (MANIFEST, *manifest.files)}
            names |= {f"{STORE}/{shelf.bodies.name}/{body.file}": shelf.bodies / body.file for body in manifest.bodies}
        kept = References(shelf)
        for id in board.references:
            kept.load(id)
            names |= {f"{STORE}/{REFERENCES}/{id}/{path.name}": path for path in kept.files(id)}
        for extra in self.files or ():
            if f"{FILES}/{extra.name}" in names or not extra.is_file():
                raise ConfigError(f"--file: {extra} is not a file, or is named twice")
            names[f"{FILES}/{extra.name}"] = extra
        contents = BundleContents(
            board=board.board,
            board_file=f"{RULES}/{board.path.name}",
            experts=experts,
            references=board.references,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            made_by=f"coe {coe.__version__}",
        )
        with counting("packing") as bar:
            task = bar.add_task("", total=len(names))
            packed = bundle_file.pack(target, contents, names, lambda name: bar.advance(task))
        size = config.format_bytes(packed.total_bytes)
        references = counted(len(board.references), "reference")
        out.print(f"{target}: board {board.board}, {counted(len(experts), 'expert')}, {references}, {size}")


class Install(WithKinds):
    """Install a board from a bundle, after all files are checked and each expert has run once.

    If the command is killed, lines refuse the board until you repeat the command and it finishes.

    Example: coe-experts install line7.coe
    """

    file: Path = argument("File made by coe-experts bundle.", ..., metavar="FILE")
    rules_at: Path | None = option(
        f"Folder for the board file. Default: {config.RULES_FOLDER}.", None, "--rules", metavar="FOLDER"
    )
    replace: bool = option(
        "Replace files and experts of the same names; earlier versions are kept. Default: refuse if one differs.", False
    )

    def run(self) -> None:
        shelf, folder, file = self.shelf, self.rules_at or Path(config.RULES_FOLDER), self.file
        contents = bundle_file.read(file)
        try:
            shelf.root.mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            with alone(shelf.root):
                self._install(contents, folder)
        except OSError as error:
            half = f"board {contents.board} is only partly installed; no line opens it until the same command succeeds"
            state = half if shelf.install_mark(contents.board).exists() else "nothing was replaced"
            if is_full(error):
                raise DiskFull(f"no space for {file} ({error.strerror}); free some; {state}") from error
            why = error.strerror or error
            raise StoreError(f"{error.filename or shelf.root} cannot be written: {why}; {state}") from error
        references = counted(len(contents.references), "reference")
        out.print(
            f"{contents.board}: {counted(len(contents.experts), 'expert')} and {references}, each checked "
            f"and run once; the board file is {folder / Path(contents.board_file).name}"
        )

    def _install(self, contents: BundleContents, folder: Path) -> None:
        shelf, file = self.shelf, self.file
        place = bundle_file.folder_of(shelf)
        shutil.rmtree(place, ignore_errors=True)  # a kill may have left it
        if (free := bundle_file.free_bytes(shelf.root)) < contents.total_bytes:
            need = config.format_bytes(contents.total_bytes)
            raise DiskFull(f"{file} needs {need}, and {shelf.root} has {config.format_bytes(free)}; make room")
        try:
            place.mkdir()
            with counting("proving") as bar:
                task = bar.add_task("", total=len(contents.files) + len(contents.experts))
                bundle_file.unpack(file, contents, place, lambda name: bar.advance(task))
                staged = Store(place / STORE)
                _prove(file, contents, staged, place, self.allowed, lambda: bar.advance(task))
            others = bundle_file.differing(shelf, staged, contents.experts, contents.references)
            targets = bundle_file.targets_of(contents, place, folder)
            new = [path for path, source in targets.items() if not bundle_file.is_there(path, source)]
            others += [str(path) for path in new if path.exists()]
            goes_on = bundle_file.half_installed(shelf, contents.board) == str(file.resolve())
            if others and not self.replace and not goes_on:
                raise ConfigError(
                    f"{list_few(others, _SHOWN)}: there already, with other content; nothing was changed. --replace "
                    "installs those of the bundle, and keeps the former versions"
                )
            # The files beside their places first: without room for them, or the right to, no expert is replaced.
            try:
                for path in new:
                    bundle_file.stage(path, targets[path])
                with bundle_file.marked(shelf, contents.board, str(file.resolve())):
                    bundle_file.put_all(shelf, staged, contents.experts, contents.references)
                    for path in new:
                        if before := bundle_file.put_staged(path):
                            point_out("kept", str(before), err)
            finally:
                for path in new:
                    bundle_file.beside(path).unlink(missing_ok=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _prove(
    file: Path, contents: BundleContents, staged: Store, place: Path, allowed: Sequence[str], step: Callable[[], None]
) -> None:
    """Raise StoreError, or what a kind raises, unless all that a bundle states is there, fits and runs."""
    board = rules.load(place / contents.board_file)
    weights_used.read_manifests(board, staged)
    wanted = {expert.weights for expert in board.experts.values()}
    if (
        board.board != contents.board
        or wanted != set(contents.experts)
        or set(board.references) != set(contents.references)
    ):
        raise StoreError(f"{file} states another board, experts or references than it holds; pack it again")
    for id in contents.references:
        References(staged).load(id)
    for id in contents.experts:
        staged.check(id)
        try:
            verification.verify(staged, staged.manifest(id), allowed)
        except (StoreError, ConfigError):
            raise
        except (Exception, SystemExit) as error:  # a kind is foreign code
            raise StoreError(f"{id} does not run here: {sentence_of(error)}; nothing was changed") from error
        step()
