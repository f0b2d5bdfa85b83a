"""A bundle: one file with what a second box needs, a ZIP without compression whose `bundle.json` states every file.

It is written whole or not at all. Whoever unpacks it proves each file by its size and xxh3-128, and takes no other name
than those that a bundle may have, so nothing is written outside of the folder that it is unpacked into.

What is half installed opens no line: while experts and references are put into a store, a file of the store names the
board. If the process is killed, the file stays, and no line opens that board until the same install has come to its
end. So a board never runs with some experts of before and some of after.
"""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import xxhash
from pydantic import Field, ValidationError

from coe.errors import StoreError, first_line
from coe.helpers import system, versions
from coe.helpers.files import TEMPORARY, replacing, writing
from coe.helpers.spelling import by_spelling
from coe.helpers.strict_model import Bytes, StrictModel, parsed_json
from coe.store import version_history
from coe.store.references import NewReference, References
from coe.store.store import Store
from coe.store.store_reader import NoSuchExpert

CONTENTS, FORMAT = "bundle.json", 1
RULES, STORE, FILES = "rules", "store", "files"
"""The folders of a bundle: the board file with its calibration, the parts of a store, and what else belongs to it."""
BEFORE = ".before"
"""Behind the name of a board file that an install replaced."""
_MOST_CONTENTS = 64 << 20
_CHUNK = 1 << 22
_PART = re.compile(r"[^/\\:\x00-\x1f]{1,255}")


class BundledFile(StrictModel):
    """The size of a file, and its xxh3-128 in hexadecimal."""

    bytes: Bytes
    digest: str


class BundleContents(StrictModel):
    """What a bundle holds: a board by its name and file, experts and references by their ids, and all files by name."""

    format: Literal[1] = 1
    board: str
    board_file: str
    experts: tuple[str, ...]
    references: tuple[str, ...]
    created: str = ""
    made_by: str = ""
    files: dict[str, BundledFile] = Field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """The bytes of all files."""
        return sum(file.bytes for file in self.files.values())


def pack(
    path: Path, contents: BundleContents, files: Mapping[str, Path], step: Callable[[str], None]
) -> BundleContents:
    """Write a bundle with these files by their names in it; return its contents. `step` hears of each file.

    Raises DiskFull, NotWritten, and StoreError for a file that cannot be read.
    """
    stated: dict[str, BundledFile] = {}
    with writing(path), replacing(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as bundle:
        for name, source in files.items():
            try:
                opened = source.open("rb")
            except OSError as error:
                raise StoreError(f"{source} cannot be read: {error.strerror or error}; pack it again") from error
            with opened, bundle.open(name, "w", force_zip64=True) as target:
                stated[name] = _copied(opened, target)
            step(name)
        whole = contents.model_copy(update={"files": stated})
        bundle.writestr(CONTENTS, whole.model_dump_json(indent=2))
    return whole


def read(path: Path) -> BundleContents:
    """Read what a bundle states; raises StoreError if it is none, or names files that none may have."""
    try:
        with zipfile.ZipFile(path) as bundle:
            info = bundle.getinfo(CONTENTS)
            if info.file_size > _MOST_CONTENTS:
                raise ValueError(f"{CONTENTS} is too large")
            data = parsed_json(bundle.read(info))
            if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
                made_by = str(data.get("made_by") or "another version of coe")[:100]
                raise StoreError(
                    f"{path} was made by {made_by}, in a bundle format that coe {versions.own()} does not "
                    "read; install that version here, or pack the board with this one"
                )
            contents = BundleContents.model_validate(data)
            names = [info.filename for info in bundle.infolist()]
    except (OSError, KeyError, ValueError, ValidationError, zipfile.BadZipFile, RecursionError, EOFError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise StoreError(f"{path} is not a whole bundle ({reason}); copy it again, or pack it again") from error
    if sorted(names) != sorted([*contents.files, CONTENTS]):
        raise StoreError(f"{path} does not hold the files that it states; copy it again, or pack it again")
    for name in contents.files:
        parts = PurePosixPath(name).parts
        if len(parts) < 2 or parts[0] not in (RULES, STORE, FILES) or "/".join(parts) != name:
            raise StoreError(f"{path} names a file {name[:200]!r} that no bundle may have; pack it again")
        if any(part in (".", "..") or part.startswith(".") or not _PART.fullmatch(part) for part in parts):
            raise StoreError(f"{path} names a file {name[:200]!r} that no bundle may have; pack it again")
    return contents


def unpack(path: Path, contents: BundleContents, folder: Path, step: Callable[[str], None]) -> None:
    """Write all files of a bundle into a folder, and prove each; raises StoreError, OSError. `step` hears of each."""
    try:
        with zipfile.ZipFile(path) as bundle:
            for name, stated in contents.files.items():
                target = folder.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with bundle.open(name) as source, target.open("xb") as file:
                    if _copied(source, file, stated.bytes) != stated:
                        raise StoreError(f"{path}: {name} is damaged (its size or checksum differs); copy it again")
                step(name)
    except (zipfile.BadZipFile, EOFError, KeyError) as error:
        raise StoreError(f"{path} is damaged ({first_line(error)}); copy it again") from error


def _copied(source: IO[bytes], target: IO[bytes], most: int | None = None) -> BundledFile:
    """Copy a file, but not more than `most` bytes and a piece; return what was copied."""
    digest, size = xxhash.xxh3_128(), 0
    while (most is None or size <= most) and (piece := source.read(_CHUNK)):
        digest.update(piece)
        size += len(piece)
        target.write(piece)
    return BundledFile(bytes=size, digest=digest.hexdigest())


def free_bytes(folder: Path) -> int:
    """Return the bytes that are free on the disk of a folder; raises OSError."""
    return shutil.disk_usage(folder).free


@contextmanager
def marked(store: Store, board: str, source: str) -> Iterator[None]:
    """Mark a board as half installed until the block has come to its end; raises OSError."""
    path = store.install_mark(board)
    with replacing(path) as file:
        file.write(source.encode("utf-8", "backslashreplace"))
    yield
    path.unlink()


def half_installed(store: Store, board: str) -> str:
    """Return of which bundle a board is half installed; "" if it is not. Raises OSError."""
    path = store.install_mark(board)
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def differing(store: Store, staged: Store, experts: tuple[str, ...], references: tuple[str, ...]) -> list[str]:
    """Return what the store has under the same names with other content, as users name it; raises StoreError."""
    others = []
    for id in experts:
        try:
            others += [] if _is_same(store, staged, id) else [id]
        except NoSuchExpert:
            continue
        except StoreError:  # it is damaged
            others.append(id)
    known = set(References(store).ids())
    for id in references:
        if id in known and not _is_same_reference(store, staged, id):
            others.append(f"references/{id}")
    return others


def put_all(store: Store, staged: Store, experts: tuple[str, ...], references: tuple[str, ...]) -> None:
    """Put references and experts of a proved store into another, each whole; what is there already stays.

    Raises StoreError.
    """
    known = set(References(store).ids())
    for id in references:
        if id not in known or not _is_same_reference(store, staged, id):
            manifest = References(staged).manifest(id)
            taken = manifest.width, manifest.height, manifest.images, manifest.left_out, manifest.source
            pictures = References(staged).read(manifest)
            References(store).put(id, NewReference(pictures, *taken, manifest.learned))
    for id in experts:
        try:
            there = _is_same(store, staged, id)
        except StoreError:
            there = False
        if not there:
            store.adopt(staged.manifest(id), staged.folder(id), staged.bodies)


def _is_same(store: Store, staged: Store, id: str) -> bool:
    """Tell whether an expert is in the store as it is staged, but for its version; raises StoreError."""
    one, other = store.manifest(id), staged.manifest(id)
    named = {"file": "", "version": 1, "restored": 0, "learned": None}
    same = one.model_copy(update=named) == other.model_copy(update=named)
    return same and (one.learned and one.learned.digest) == (other.learned and other.learned.digest)


def _is_same_reference(store: Store, staged: Store, id: str) -> bool:
    try:
        return References(store).manifest(id).checksum == References(staged).manifest(id).checksum
    except StoreError:
        return False


def folder_of(store: Store) -> Path:
    """Return the folder into which a bundle is unpacked: beside the experts, so that files need not be copied."""
    return store.root / ".install"


def targets_of(contents: BundleContents, place: Path, folder: Path) -> dict[Path, Path]:
    """Return the unpacked files in `place` that go into `folder`, by where they go: the board file last."""
    targets: dict[Path, Path] = {}
    for name in sorted(contents.files, key=lambda name: name == contents.board_file):
        kind, _, inside = name.partition("/")
        if kind == FILES:
            targets[folder / f"{contents.board}.files" / inside] = place / name
        elif kind == RULES:
            targets[folder / inside] = place / name
    by_spelling([str(path) for path in targets])
    return targets


def is_there(path: Path, other: Path) -> bool:
    """Tell whether a file has the content of another."""
    return path.is_file() and path.read_bytes() == other.read_bytes()


def beside(path: Path) -> Path:
    """Return where a file is staged before it goes to its place."""
    return path.with_name(f".{path.name}{TEMPORARY}")


def stage(path: Path, source: Path) -> None:
    """Write a file beside its place; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, beside(path))
    with beside(path).open("rb+") as file:
        os.fsync(file.fileno())


def put_staged(path: Path) -> Path | None:
    """Put a staged file into its place; return where the one lies that it replaces, None without. Raises OSError."""
    before = None
    if os.path.lexists(path):
        before = path.with_name(path.name + BEFORE)
        version_history.take(path, before)
    system.replace(beside(path), path)
    system.save_names(path.parent)
    return before
