"""Putting the experts and references of an unpacked bundle into a store: what is half installed opens no line.

While they are put in, a file of the store names the board. If the process is killed, the file stays, and no line opens
that board until the same install has come to its end: a board never runs with some experts of before and some of after.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coe.errors import StoreError
from coe.helpers.files import replacing
from coe.store.references import NewReference, References
from coe.store.store import Store
from coe.store.store_reader import NoSuchExpert


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
