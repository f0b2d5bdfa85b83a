"""`coe-experts import`: experts from the weights of other programs, a file or a folder of them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer
from PIL import Image

from coe import config
from coe.board import drafting as drafts
from coe.board import rules
from coe.bring import facts, importing, proving
from coe.bring.facts import Wishes
from coe.bring.importing import Brought
from coe.bring.proving import Shown
from coe.cli import experts_prepare
from coe.cli.common import Exit, complain, out, point_out
from coe.cli.experts_options import Described
from coe.cli.experts_train import described
from coe.cli.experts_verified import tell
from coe.cli.options import argument, option
from coe.config import counted
from coe.core import Expert, Finding
from coe.errors import ConfigError, ImageError, StoreError, list_few, readable, sentence_of
from coe.helpers import regular
from coe.helpers.files import DiskFull, replacing, write_atomically, writing
from coe.helpers.plugins import running
from coe.learn import backbones, data_set
from coe.pictures.decoding import decode
from coe.pictures.finding import photographs_in
from coe.pictures.photographs import TABLE, natural
from coe.store import bodies, kinds
from coe.store.expert_id import ExpertId
from coe.store.kinds import Comparing, ExpertInput, FileKind, Kind, ModuleKind

if TYPE_CHECKING:
    from coe.pictures.photographs import Photograph

_ENDINGS = (".safetensors", ".pth.tar", ".pth", ".pt", ".ckpt", ".onnx", ".bin", ".pkl")
_ONNX = ".onnx"
_UNCHECKED = "nothing was checked: no picture was judged (--images takes a few labelled ones)"


class Import(Described):
    """Import weights from another program into the store. Code in a .pt or .pth file never runs.

    State how the network sees pictures, unless the file records it. With --images, the command shows how many pictures
    the expert judges as labelled. Exit status 1 if a file or picture failed, or too few were right (--right).

    Example: coe-experts import line7/joints best.pt --kind yolov5m --input 640 --images labelled/
    """

    id: str = argument("Name of the expert in the store: BOARD/NAME. For a folder: BOARD.", ...)
    file: Path | None = argument(
        "Weights: .safetensors, .pt, .pth, .ckpt or .onnx; or a folder of such files, each an expert. Default: "
        "weights of an installed package, for kinds such as marking."
    )
    normalize: str | None = option("Normalisation: imagenet, 0..1, -1..1, 0..255, or MEAN,STD (0 to 1).", metavar="HOW")
    resize: str | None = option(
        "letterbox, stretch or center-crop. center-crop:256 resizes to 256 pixels first.", metavar="HOW"
    )
    interpolation: str | None = option("area, bilinear, bicubic, or torchvision's bilinear-antialias.", metavar="HOW")
    channels: str | None = option("Order of the network's colours.", metavar="rgb|bgr")
    pad: str | None = option("Grey level of letterbox borders, e.g. 114.", metavar="GREY")
    output: str | None = option("Name of the ONNX output to use, if not clear.", metavar="NAME")
    layout: str | None = option("ONNX output, if not clear: scores, yolov8, corners, yolov5, end2end.", metavar="NAME")
    activation: str | None = option("To get probabilities: softmax, sigmoid or none.", metavar="NAME")
    prefix: str | None = option("Network to take from a file of several: model_ema, ...", metavar="NAME")
    force: bool = option("Import even if the file or pictures contradict you.", False)
    as_backbone: bool = option("Import without the head, for `train --init`.", False)
    images_at: Path | None = option(
        "Pictures that check the import: 20 or more in <label>/<picture>; for a detector, YOLO's images/ and "
        "labels/; or unlabelled pictures. For a folder: <expert>/<label>/<picture>.",
        None,
        "--images",
    )
    sheet: Path | None = option(
        "Draw the results on --images into this PNG file, and ask whether they are right.", metavar="FILE"
    )
    right: float = option("Share of labelled pictures that must be judged right.", 0.8)
    draft: Path | None = option(
        "For a folder: draft of the board file to write. Default: BOARD.yaml, unless it exists."
    )

    def run(self) -> Exit:
        if self.as_backbone and (self.labels or self.images_at or self.board):
            raise ConfigError("a backbone has no labels, and judges nothing; leave out --labels, --board and --images")
        if self.sheet is not None and (self.images_at is None or self.file is None or os.path.isdir(self.file)):
            raise ConfigError("--sheet shows the results of one file of weights for --images; give both")
        # Unlike `Path.is_dir`, it does not raise for a name that is too long.
        is_folder = self.file is not None and os.path.isdir(self.file)
        if self.draft is not None and (self.board or self.as_backbone or not is_folder):
            raise ConfigError("--draft is for a new board, from a folder of weights; leave it out")
        if self.file is None:
            return self._packaged()
        if is_folder:
            return self._folder(self.file)
        if not os.path.isfile(self.file):
            raise ConfigError(f"{self.file}: no such file")
        return self._one(self.file)

    def _wishes(self, said: Mapping[str, str]) -> Wishes:
        """What the options say, and where they say nothing `said`, of a file beside the weights."""
        names = (*facts.SEEN, *facts.OUTPUTS, "prefix")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return facts.wishes({**said, **given}, force=self.force)

    @cached_property
    def _bits(self) -> int | None:
        """How many low bits of 16-bit samples count, as the board says."""
        return rules.load(self.board).bits if self.board else None

    def _one(self, file: Path, licence: str = "") -> Exit:
        """Import one file as an expert, prepare it, and judge the user's pictures."""
        self._import(self.id, file, self.kind, self.images_at, licence)
        if self.as_backbone:
            out.print(f"a backbone judges nothing: `coe-experts train ... --init {self.id}` starts from it")
        elif self.images_at is None or not _are_labelled(self.images_at):
            out.print(_UNCHECKED)
        else:
            expert = replace(self.shelf.manifest(self.id).expert(), id=ExpertId.of(self.id).name)
            return self._judge(expert, _pictures(expert, self.images_at))
        return Exit.OK

    def _packaged(self) -> Exit:
        """Import the weights of a kind that come in an installed package."""
        kind = kinds.resolve(self.kind, self.allowed) if self.kind else None
        source = kind.packaged if isinstance(kind, ModuleKind) else None
        if source is None:
            raise ConfigError("name the file of weights, or a --kind whose weights come in a package")
        return self._one(backbones.packaged_file(source), source.licence)

    def _import(self, id: str, file: Path, kind_name: str | None, images_at: Path | None, licence: str = "") -> None:
        shelf = self.shelf
        shelf.folder(id)
        said = facts.beside(file)
        if kind_name is None and not self.board:
            kind_name = said.get("kind") or _of_ending(file)
        size = self.input_size if self.board else self.input_size or 0
        expert = described(id, self.board, kind_name, self.labels, size)
        options = {"labels": self.labels, "input": self.input_size}
        wishes = self._wishes({key: text for key, text in said.items() if not options.get(key)})
        kind = kinds.resolve(expert.kind, self.allowed)
        with tempfile.TemporaryDirectory(prefix="coe-import-") as work:
            if os.path.isdir(self.file or ""):  # options are for files of several kinds
                wishes = replace(wishes, outputs=wishes.outputs if isinstance(kind, FileKind) else None)
            if self.as_backbone:
                brought = importing.bring_backbone(file, expert, kind, wishes)
            else:
                brought = importing.bring(file, expert, kind, wishes, Path(work))
            # A folder that is unclear keeps the expert out of the store, and so do pictures that are judged otherwise.
            paths: list[Path] = []
            shown: list[Shown] = []
            if images_at is not None:
                named = replace(brought.expert, id=ExpertId.of(id).name)
                paths, shown = _shown(images_at, named, self._bits, self._names)
            brought = self._proved(brought, kind, paths, shown)
            manifest = brought.put(shelf, file.name, licence)
            if isinstance(kind, ModuleKind) and kind.common and not self.as_backbone:
                manifest = bodies.divide_frozen(shelf, manifest, kind.common)
        for remark in (*brought.remarks, *([f"used {facts.FILE} beside it"] if said else [])):
            point_out("note", f"{id}: {remark}")
        out.print(f"{manifest.id}: {manifest.kind}, {config.format_bytes(manifest.bytes)}")
        if (before := manifest.version - 1) in shelf.history(id).versions():
            out.print(f"it replaces version {before}; `coe-experts restore {id}@{before}` undoes this")
        for sentence in facts.described(brought.expert):
            out.print(sentence)
        if brought.unproven:
            point_out("unproven", f"{id}: {brought.unproven}")
        if not (self.no_prepare or self.as_backbone):
            experts_prepare.prepare_new(shelf.root, id, paths, "its labelled pictures", self.allowed, bits=self._bits)

    def _proved(self, brought: Brought, kind: Kind, paths: Sequence[Path], shown: Sequence[Shown]) -> Brought:
        """Hold what was stated against pictures; raises ConfigError if they refute it, unless the user insists."""
        if self.as_backbone or isinstance(kind, Comparing) or kind.is_reader:
            return brought
        with running("kind", brought.expert.kind, "run with pictures"):  # who judges them later names those left out
            taken = [proving.is_taken(kind, brought.expert, one) for one in shown]
        paths, shown = list(compress(paths, taken)), list(compress(shown, taken))
        if not shown:
            is_open = brought.is_stated or brought.expert.preprocessing is None
            return replace(brought, unproven=proving.not_proven(brought.expert) if is_open else None)
        with running("kind", brought.expert.kind, "run with pictures"):
            proof = proving.prove(brought, kind, shown, self.right)
            said = proving.findings(brought, kind, brought.expert, shown) if self.sheet is not None else []
        if proof.fault and not self.force:
            way = "state it differently" if brought.expert.preprocessing else "correct the labels or the kind's code"
            raise ConfigError(f"{self.id}: {proof.fault}; {way}, or give --force")
        unproven = proof.fault or proof.unproven
        if self.sheet is not None:
            with writing(self.sheet), replacing(self.sheet) as file:
                _sheet(paths, shown, said, brought.expert).save(file, "PNG")
            out.print(f"written: {self.sheet}")
            if unproven and not proof.fault and sys.stdin.isatty():
                unproven = "" if typer.confirm("Are these results right?", err=True) else unproven
        return replace(brought, unproven=unproven)

    def _judge(self, expert: Expert, pictures: Sequence[Photograph]) -> Exit:
        """Judge an expert's pictures, and say which it judges otherwise than they are labelled."""
        from coe.learn import answers, evaluation

        if not pictures:
            out.print(f"{expert.id}: {_UNCHECKED}")
            return Exit.OK
        kind = kinds.resolve(expert.kind, self.allowed)
        said = answers.ask(self.shelf, expert, kind, pictures, partial(_prepared, kind, expert, self._bits))
        judged = evaluation.by_labels(expert, said)
        tell(judged, complain, out.print)
        right = sum(one.is_as_labelled for one in judged.judged)
        is_right = self.force or right >= self.right * len(judged.judged)
        return Exit.OK if is_right and not judged.failed else Exit.NOT_GOOD

    def _folder(self, folder: Path) -> Exit:
        """Import each file of weights in a folder as an expert of a board, and draft the board's file.

        A file that cannot be imported is named, and the others go on. Raises ConfigError for a folder without weights.
        """
        files, others = _files(folder)
        if not files:
            raise ConfigError(f"{folder}: holds no file of weights ({', '.join(_ENDINGS)}); export the network as ONNX")
        board, draft = self.id, self.draft
        if ExpertId.of(board).board:
            raise ConfigError(f"'{board}': for a folder, give a board's name alone; each file becomes an expert of it")
        self.shelf.folder(board)
        if draft is not None and draft.exists():
            raise ConfigError(f"{draft} exists already; give --draft another path")
        if others:
            point_out("note", f"left out: {list_few(others)}")
        imported: list[str] = []
        names = self._names
        for file, name in zip(files, names, strict=True):
            try:
                if names.count(name) > 1:
                    raise ConfigError(f"{names.count(name)} files would be the expert '{name}'; rename them")
                kind = None if self.board else _of_ending(file) or self.kind
                self._import(f"{board}/{name}", file, kind, self._pictures_of(name))
            except DiskFull:
                raise
            except typer.Exit:  # prepared in part, which was told
                imported.append(name)
            except (Exception, SystemExit) as error:  # a kind is foreign code, and the other files must be imported
                complain(f"{file.name}: {sentence_of(error)}")
                continue
            else:
                imported.append(name)
        out.print(f"{len(imported)} of {counted(len(files), 'file')} imported")
        is_judged = not imported or self._judge_all(board, imported)
        is_drafted = self.as_backbone or not imported or self.board or self._write_draft(board, imported)
        return Exit.OK if len(imported) == len(files) and is_judged and is_drafted else Exit.NOT_GOOD

    @cached_property
    def _names(self) -> list[str]:
        """The names of the experts of a folder of weights, by their files."""
        return [_name(file) for file in _files(self.file)[0]] if self.file and os.path.isdir(self.file) else []

    def _pictures_of(self, name: str) -> Path | None:
        """Return the folder or the table with the pictures of one expert of several, if there is one."""
        if self.images_at is None or self.as_backbone or _is_table(self.images_at):
            return None if self.as_backbone else self.images_at
        place = self.images_at / name
        return place if place.is_dir() else None

    def _judge_all(self, board: str, names: Sequence[str]) -> bool:
        """Judge the pictures of several experts; return whether each picture could be judged."""
        if self.as_backbone:
            return True
        if self.images_at is None:
            out.print(_UNCHECKED)
            return True
        from coe.learn import labelled

        try:
            experts = {name: replace(self.shelf.manifest(f"{board}/{name}").expert(), id=name) for name in names}
            places = {name: place for name in self._names if (place := self._pictures_of(name))}
            if places:  # those of a file that was refused are judged by nobody
                folders = (
                    [] if _is_table(self.images_at) else [path for path in self.images_at.iterdir() if path.is_dir()]
                )
                if unknown := sorted({path.name for path in folders} - places.keys()):
                    raise ConfigError(f"{self.images_at}: no file of weights is named {list_few(unknown)}; rename it")
                found = (_pictures(experts[name], places[name], self._names) for name in names if name in places)
                pictures = [one for each in found for one in each]
            else:
                pictures = labelled.find(self.images_at, experts)
        except (ConfigError, StoreError) as error:
            complain(error)
            return False
        judged = [self._judge(experts[name], [one for one in pictures if one.expert == name]) for name in experts]
        return all(one is Exit.OK for one in judged)

    def _write_draft(self, board: str, names: list[str]) -> bool:
        """Write a draft of the board file; return whether that went well. A file that is there stays as it is."""
        target = self.draft or Path(f"{board}.yaml")
        if self.draft is None and target.exists():
            point_out("note", f"{target} exists already, and was not changed")
            return True
        try:
            experts = [replace(self.shelf.manifest(f"{board}/{name}").expert(), id=name) for name in names]
            write_atomically(target, [drafts.draft_of(board, experts)])
        except (ConfigError, StoreError) as error:
            complain(f"no draft of the board file: {error}")
            return False
        out.print(f"{target}: a draft of the board file; every picture goes to REVIEW until each TODO is done")
        return True


def _pictures(expert: Expert, images_at: Path, others: Sequence[str] = ()) -> list[Photograph]:
    from coe.learn import labelled

    return labelled.find(images_at, {expert.id: expert}, alone=expert.id, others=others)


def _is_table(images_at: Path) -> bool:
    return not images_at.is_dir() or (images_at / TABLE).is_file()


def _are_labelled(folder: Path) -> bool:
    """Tell whether pictures are given with labels: in folders of theirs, or by a table."""
    if _is_table(folder):
        return True
    return not (folder / "labels").is_dir() and any(entry.is_dir() for entry in folder.iterdir())


def _shown(folder: Path, expert: Expert, bits: int | None, others: Sequence[str]) -> tuple[list[Path], list[Shown]]:
    """Return the files of an expert's pictures, and what is shown of them; those that cannot be read are left out.

    Raises ConfigError for a folder that is unclear.
    """
    boxes = folder / "labels"
    home = folder / "images" if boxes.is_dir() else folder
    if _are_labelled(folder):
        found = _pictures(expert, folder, others)
    else:
        with readable(home):
            found = photographs_in(home)
    paths, pictures, labels = [], [], expert.labels
    if boxes.is_dir() and (described := folder / "data.yaml").is_file():
        labels = data_set.labels(described)  # whose names are those of the numbers
    for one in found:
        try:
            image = np.asarray(decode(one.file, bits=bits), np.uint8)
        except ImageError:
            continue
        true = None
        if boxes.is_dir() and not one.expert:
            true = proving.boxes_of((boxes / one.path.relative_to(home)).with_suffix(".txt"), labels, image.shape)
        paths.append(one.path)
        pictures.append(Shown(image, one.label if one.expert else "", true))
    if not pictures and (found or not others):
        raise ConfigError(f"{folder}: holds no readable picture")
    return paths, pictures


def _sheet(paths: Sequence[Path], pictures: Sequence[Shown], said: Sequence[Finding], expert: Expert) -> Image.Image:
    """Draw a few pictures with what a model says of each: a label around the whole picture, or its boxes."""
    from coe.annotations import yolo_folder
    from coe.annotations.marked import MarkedBox, MarkedPicture, MarkedSet

    marked = []
    for path, picture, finding in zip(paths, pictures, said, strict=True):
        height, width = picture.image.shape[:2]
        boxes = [MarkedBox(box.label, *box.xyxy, "") for box in finding.boxes]
        if finding.label in expert.labels and not boxes:
            boxes = [MarkedBox(finding.label, 0, 0, width, height, "")]
        marked.append(MarkedPicture(path, width, height, tuple(boxes)))
    return yolo_folder.draw(MarkedSet(expert.labels, tuple(marked)))


def _prepared(kind: Kind, expert: Expert, bits: int | None, picture: Photograph) -> ExpertInput:
    from coe.learn.answers import decoded, given_reference

    if not isinstance(kind, Comparing) or (picture.reference is None and not kind.needs_reference):
        return kind.preprocess(decoded(picture, bits), expert)
    if picture.reference is None:
        raise ConfigError(f"kind '{expert.kind}' compares with a reference; add the column reference to images.csv")
    return kind.compare(decoded(picture, bits), given_reference(picture.reference, bits), expert)


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files of weights in a folder, and the names of what else lies there and belongs to none of them."""
    with readable(folder):
        names = sorted(regular.names(folder), key=natural)
    taken = [name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
    models = tuple(name for name in taken if name.lower().endswith(_ONNX))
    known = {*taken, facts.FILE}
    others = [name for name in names if name not in known and not (models and name.startswith(models))]
    return [folder / name for name in taken], others


def _of_ending(file: Path) -> str | None:
    """Return the kind that opens files of this ending itself, as `onnx`; None if there is none."""
    for name in kinds.names():
        with suppress(ConfigError):  # another kind that cannot be imported is none of this file
            kind = kinds.resolve(name)
            if isinstance(kind, FileKind) and kind.suffix == file.suffix.lower():
                return name
    return None


def _name(file: Path) -> str:
    """Return the name of the expert of a file: its name without the ending, of the characters that a name may have."""
    ending = next(ending for ending in _ENDINGS if file.name.lower().endswith(ending))
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", file.name[: -len(ending)]).strip("-._+")
