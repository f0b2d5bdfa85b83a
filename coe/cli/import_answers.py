"""What `coe-experts import` does with a file, and with a folder of files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board import drafting as drafts
from coe.board import rules
from coe.bring import facts, importing
from coe.bring.facts import Wishes
from coe.bring.other_files import other_folder
from coe.cli import experts_prepare
from coe.cli.common import Exit, complain, out, point_out
from coe.cli.experts_evaluate import tell
from coe.cli.experts_new import described
from coe.core import Expert
from coe.errors import ConfigError, StoreError, list_few, readable, sentence_of
from coe.helpers import regular
from coe.helpers.files import DiskFull, write_atomically
from coe.learn import backbones
from coe.pictures.finding import natural
from coe.store import bodies, kinds
from coe.store.expert_id import ExpertId
from coe.store.kinds import Comparing, ExpertInput, FileKind, Kind, ModuleKind
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.learn.verified import VerifiedPicture

_ENDINGS = (".safetensors", ".pth.tar", ".pth", ".pt", ".ckpt", ".onnx", ".bin", ".pkl")
_ONNX = ".onnx"
_UNCHECKED = "nothing was checked: no picture was judged (--images takes a few labelled ones)"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of the experts of an import."""

    board: str | None
    kind: str | None
    labels: str | None
    input_size: int | None
    wishes: Wishes
    as_backbone: bool
    images_at: Path | None
    prepares: bool
    allowed: tuple[str, ...]
    licence: str = ""

    @property
    def bits(self) -> int | None:
        """How many low bits of 16-bit samples count, as the board says."""
        return rules.load(self.board).bits if self.board else None

    def expert(self, id: str, file: Path) -> Expert:
        """Return an expert as the user describes it; raises ConfigError, RulesError."""
        kind = self.kind if self.kind is not None or self.board else _of_ending(file)
        return described(id, self.board, kind, self.labels, self.input_size if self.board or self.input_size else 0)


def import_file(shelf: Store, id: str, file: Path, asked: Asked) -> Exit:
    """Import one file as an expert, prepare it, and judge the user's pictures; raises CoeError."""
    _import(shelf, id, file, asked)
    if asked.as_backbone:
        out.print(f"a backbone judges nothing: `coe-experts train ... --init {id}` starts from it")
    elif asked.images_at is None:
        out.print(_UNCHECKED)
    else:
        expert = replace(shelf.manifest(id).expert(), id=ExpertId.of(id).name)
        return _judge(shelf, expert, _pictures(expert, asked.images_at), asked)
    return Exit.OK


def import_packaged(shelf: Store, id: str, asked: Asked) -> Exit:
    """Import the weights of a kind that come in an installed package; raises CoeError."""
    kind = kinds.resolve(asked.kind, asked.allowed) if asked.kind else None
    source = kind.packaged if isinstance(kind, ModuleKind) else None
    if source is None:
        raise ConfigError("name the file of weights; it may be left out for a --kind whose weights come in a package")
    return import_file(shelf, id, backbones.packaged_file(source), replace(asked, licence=source.licence))


def _import(shelf: Store, id: str, file: Path, asked: Asked) -> None:
    shelf.folder(id)
    expert = asked.expert(id, file)
    kind = kinds.resolve(expert.kind, asked.allowed)
    with tempfile.TemporaryDirectory(prefix="coe-import-") as work:
        if asked.as_backbone:
            brought = importing.bring_backbone(file, expert, kind, asked.wishes)
        else:
            brought = importing.bring(file, expert, kind, asked.wishes, Path(work))
        # A folder that is unclear keeps the expert out of the store.
        labelled = [] if asked.images_at is None else _pictures(brought.expert, asked.images_at)
        seen = [picture.path for picture in labelled]
        manifest = brought.put(shelf, file.name, asked.licence)
        if isinstance(kind, ModuleKind) and kind.common and not asked.as_backbone:
            manifest = bodies.divide_frozen(shelf, manifest, kind.common)
    for remark in brought.remarks:
        point_out("note", f"{id}: {remark}")
    out.print(f"{manifest.id}: {manifest.kind}, {config.format_bytes(manifest.bytes)}")
    if (before := manifest.version - 1) in shelf.history(id).versions():
        out.print(f"it takes the place of version {before}; `coe-experts restore {id}@{before}` takes it back")
    for sentence in facts.described(brought.expert):
        out.print(sentence)
    if asked.prepares:
        experts_prepare.prepare_new(shelf.root, id, seen, "its labelled pictures", asked.allowed, bits=asked.bits)


def _pictures(expert: Expert, images_at: Path) -> list[VerifiedPicture]:
    from coe.learn import verified

    return verified.find(images_at, {expert.id: expert}, alone=expert.id)


def _judge(shelf: Store, expert: Expert, pictures: Sequence[VerifiedPicture], asked: Asked) -> Exit:
    """Judge an expert's pictures, and say which it judges otherwise than they are labelled; raises CoeError."""
    from coe.learn import answers, evaluation

    if not pictures:
        out.print(f"{expert.id}: {_UNCHECKED}")
        return Exit.OK
    kind = kinds.resolve(expert.kind, asked.allowed)
    said = answers.ask(shelf, expert, kind, pictures, partial(_prepared, kind, expert, asked.bits))
    judged = evaluation.by_labels(expert, said)
    tell(judged, complain, out.print)
    return Exit.NOT_GOOD if judged.failed else Exit.OK


def _prepared(kind: Kind, expert: Expert, bits: int | None, picture: VerifiedPicture) -> ExpertInput:
    from coe.learn.answers import decoded, given_reference

    if not isinstance(kind, Comparing) or (picture.reference is None and not kind.needs_reference):
        return kind.preprocess(decoded(picture, bits), expert)
    if picture.reference is None:
        raise ConfigError(
            f"kind '{expert.kind}' compares with a reference; list the pictures in images.csv with the column reference"
        )
    return kind.compare(decoded(picture, bits), given_reference(picture.reference, bits), expert)


def import_folder(shelf: Store, board: str, folder: Path, asked: Asked, draft: Path | None) -> Exit:
    """Import each file of weights in a folder as an expert of a board, and draft the board's file.

    A file that cannot be imported is named, and the others go on. Raises ConfigError for a folder without weights.
    """
    files, others = _files(folder)
    if ExpertId.of(board).board:
        raise ConfigError(
            f"'{board}': for a folder, give the name of the board alone; each file becomes an expert of it"
        )
    shelf.folder(board)
    if draft is not None and draft.exists():
        raise ConfigError(f"{draft} is there already; give --draft another place")
    if not files:
        raise ConfigError(f"{folder}: holds no file of weights ({', '.join(_ENDINGS)})")
    if others:
        point_out("note", f"left out: {list_few(others)}")
    imported: list[str] = []
    names = [_name(file) for file in files]
    for file, name in zip(files, names, strict=True):
        try:
            if names.count(name) > 1:
                raise ConfigError(f"{names.count(name)} files would be the expert '{name}'; rename them")
            kind = None if asked.board else _of_ending(file) or asked.kind
            _import(shelf, f"{board}/{name}", file, replace(asked, kind=kind, images_at=None))
        except DiskFull:
            raise
        except typer.Exit:  # prepared in part, which was told
            imported.append(name)
        except (Exception, SystemExit) as error:  # a kind is foreign code, and the other files must be imported
            complain(f"{file.name}: {sentence_of(error)}")
            continue
        else:
            imported.append(name)
    out.print(f"{len(imported)} of {len(files)} files imported")
    is_judged = _judge_all(shelf, board, imported, asked) if imported else True
    is_drafted = asked.as_backbone or not imported or asked.board or _draft(shelf, board, imported, draft)
    return Exit.OK if len(imported) == len(files) and is_judged and is_drafted else Exit.NOT_GOOD


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files of weights in a folder, and the names of what else lies there and belongs to none of them."""
    with readable(folder):
        names = sorted(regular.names(folder), key=natural)
    if said := other_folder(names):
        raise ConfigError(f"{folder}: {said}")
    taken = [name for name in names if name.lower().endswith(_ENDINGS) and not name.startswith(".")]
    models = tuple(name for name in taken if name.lower().endswith(_ONNX))
    others = [name for name in names if name not in taken and not (models and name.startswith(models))]
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


def _judge_all(shelf: Store, board: str, names: list[str], asked: Asked) -> bool:
    """Judge the pictures of several experts; return whether each picture could be judged."""
    if asked.images_at is None or asked.as_backbone:
        if not asked.as_backbone:
            out.print(_UNCHECKED)
        return True
    from coe.learn import verified

    try:
        manifests = [shelf.manifest(f"{board}/{name}") for name in names]
        experts = {name: replace(one.expert(), id=name) for name, one in zip(names, manifests, strict=True)}
        pictures = verified.find(asked.images_at, experts)
    except (ConfigError, StoreError) as error:
        complain(error)
        return False
    status = [_judge(shelf, experts[name], [one for one in pictures if one.expert == name], asked) for name in experts]
    return all(one is Exit.OK for one in status)


def _draft(shelf: Store, board: str, names: list[str], path: Path | None) -> bool:
    """Write a draft of the board file; return whether that went well. A file that is there stays as it is."""
    target = path or Path(f"{board}.yaml")
    if path is None and target.exists():
        point_out("note", f"{target} is there already, and stays as it is")
        return True
    try:
        experts = [replace(shelf.manifest(f"{board}/{name}").expert(), id=name) for name in names]
        write_atomically(target, [drafts.draft_of(board, experts)])
    except (ConfigError, StoreError) as error:
        complain(f"no draft of the board file: {error}")
        return False
    out.print(f"{target}: a draft of the board file; every picture goes to REVIEW until each TODO is done")
    return True
