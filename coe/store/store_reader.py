"""Reading the expert store: one folder per expert, with a manifest, a weights file and the blobs prepared from it.

Nothing from a file is executed. The manifest defines the expert; a file that it names never changes its content.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import xxhash

from coe import config
from coe.errors import StoreError, did_you_mean, readable
from coe.helpers import regular
from coe.store import manifest as manifests
from coe.store import weights_file
from coe.store.blob_format import Variant
from coe.store.expert_id import ExpertId
from coe.store.manifest import Manifest
from coe.store.weights_file import Headers

MANIFEST = "manifest.json"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)?")
_ID_PART = 200
"""The most characters of each part of an id, because a part is the name of a folder."""
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Names that Windows reserves for devices, in any folder and with any ending."""
BODIES = "bodies"
"""The folder of the tensors that several experts have in common."""
M = TypeVar("M")
T = TypeVar("T")


class NoSuchExpert(StoreError):
    """The store has no expert of that id."""


class StoreReader:
    """Experts by id, `<board>/<expert>`, under one root folder, to be read."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Open the store at `root`; None means $COE_STORE, else `store` in the working directory."""
        self.root = Path(root or os.environ.get(config.STORE_VARIABLE) or config.STORE_FOLDER)
        self.headers = Headers()
        """The headers of weights that this reader has decoded."""

    def __repr__(self) -> str:
        try:
            return f"<Store {self.root}, {len(self.ids())} experts>"
        except StoreError as error:
            return f"<Store {error}>"

    def ids(self) -> list[str]:
        """Return the ids of all experts, sorted; also of unreadable folders, which reading reports.

        Raises StoreError if the store itself cannot be read.
        """
        with readable(f"the store {self.root}", StoreError):
            boards = regular.names(self.root)
        ids = {board for board in boards if regular.may_exist(self.root / board / MANIFEST)}
        for board in boards:
            try:
                experts = [str(ExpertId(board, name)) for name in regular.names(self.root / board)]
            except OSError:
                ids.add(board)
            else:
                ids |= {id for id in experts if regular.may_exist(self.root / id / MANIFEST)}
        return sorted(ids)

    def folder(self, weights: str) -> Path:
        """Return the folder of an expert, which need not exist; raises StoreError for an id that leaves the root."""
        folders = ExpertId.of(weights).folders
        if not _ID.fullmatch(weights) or ".." in weights or max(map(len, folders)) > _ID_PART:
            raise StoreError(
                f"{weights!r} is not an expert id: letters, digits and . _ + - with at most one '/', up to {_ID_PART} "
                "before and after it"
            )
        if folders[0].lower() == BODIES:
            raise StoreError(f"{weights!r} is not an expert id: '{BODIES}' is the folder of shared bodies")
        for part in folders:
            if part.endswith(".") or _DEVICES.fullmatch(part):
                raise StoreError(
                    f"{weights!r} is not an expert id: '{part}' cannot be a folder on Windows; give it another name"
                )
        return self.root / weights

    def manifest(self, weights: str) -> Manifest:
        """Read an expert's manifest.

        Raises NoSuchExpert if there is none, StoreError if it is damaged, of another version or of another expert.
        """
        try:
            return manifests.read(self.folder(weights) / MANIFEST, weights)
        except FileNotFoundError:
            hint = did_you_mean(weights, self.ids()) or "; `coe-experts list` shows all"
            raise NoSuchExpert(f"no expert '{weights}' in the store {self.root}{hint}") from None

    def install_mark(self, board: str) -> Path:
        """Return the file that is there while a board is half installed (`coe.store.bundle_file`)."""
        return self.root / f".installing-{xxhash.xxh3_64_hexdigest(board.encode())}"

    def check_installed(self, board: str) -> None:
        """Raise StoreError if an install of a board did not come to its end."""
        if os.path.lexists(mark := self.install_mark(board)):  # False for a name that no file can have
            raise StoreError(
                f"board '{board}' is half installed in {self.root}; run the same `coe-experts install` again, of "
                f"{regular.read(mark, 1 << 16).decode(errors='replace')}"
            )

    def steady(self, weights: str, work: Callable[[Manifest], T]) -> T:
        """Do `work` with an expert's manifest; repeat it if it fails and the manifest was replaced meanwhile.

        Raises StoreError.
        """
        return steady(lambda: self.manifest(weights), work)

    def path(self, weights: str) -> Path:
        """Return the path of an expert's weights file; raises StoreError if the expert is not known.

        With a body, the file holds the expert's own tensors alone; see `Store.load`.
        """
        return self.folder(weights) / self.manifest(weights).file

    @property
    def bodies(self) -> Path:
        """The folder of the bodies, which need not exist."""
        return self.root / BODIES

    def check_weights(self, weights: str) -> Manifest:
        """Compare an expert's weights file with its manifest; raises StoreError if they differ."""
        return self.steady(weights, self._check_weights)

    def _check_weights(self, manifest: Manifest) -> Manifest:
        path = self.folder(manifest.id) / manifest.file
        with reading(manifest.id, path):
            weights_file.check(path, manifest)
        if manifest.body is not None:
            with reading(manifest.id, path := self.bodies / manifest.body.file):
                weights_file.check_body(path, manifest.body, f"{manifest.id}: its body {path.name}")
        return manifest

    def check_variant(self, manifest: Manifest, variant: Variant) -> None:
        """Read a prepared blob from end to end; raises StoreError if it differs from the manifest."""
        prepared = manifest.variants[variant]
        path = self.folder(manifest.id) / prepared.file
        with reading(manifest.id, path):
            header = weights_file.check_blob(path, prepared.bytes, prepared.digest)
        manifest.prove_blob(
            header,
            f"{manifest.id}: {path.name}",
            kind=manifest.kind,
            variant=variant,
            labels=len(manifest.labels),
            body=prepared.body.digest if prepared.body is not None else "",
        )
        if prepared.body is not None:
            with reading(manifest.id, path := self.bodies / prepared.body.file):
                weights_file.check_blob(path, prepared.body.bytes, prepared.body.digest)


def steady(read: Callable[[], M], work: Callable[[M], T]) -> T:
    """Do `work` with a manifest that is `read`; repeat it if it fails and the manifest was replaced meanwhile."""
    manifest = read()
    while True:
        try:
            return work(manifest)
        except StoreError:
            now = read()
            if now == manifest:
                raise
            manifest = now


def reading(weights: str, path: Path) -> AbstractContextManager[None]:
    """Turn an OSError while a file of an expert is read into a StoreError."""
    return readable(f"{weights}: {path.name}", StoreError, weights_file.if_gone(path))


class Snapshot(StoreReader):
    """A store limited to the experts of given manifests.

    A lookup refuses an expert that has changed since, so that a line never judges by weights, labels or an input size
    that it was not opened with. Variants that were prepared meanwhile are not seen.

    A line may know weights under another name than that of their place in the store, as when the weights at one place
    were replaced while the line runs: `take` says where they lie.
    """

    def __init__(self, store: StoreReader, manifests: Mapping[str, Manifest]) -> None:
        """Take the manifests, by weights."""
        super().__init__(store.root)
        self._taken = dict(manifests)
        self._places: dict[str, str] = {}

    def take(self, manifests: Mapping[str, Manifest], places: Mapping[str, str]) -> None:
        """Take further manifests, by the line's name of the weights; `places` are where these lie in the store."""
        self._places |= places
        self._taken |= manifests

    def folder(self, weights: str) -> Path:
        """Return the folder of an expert's weights."""
        return super().folder(self._places.get(weights, weights))

    def manifest(self, weights: str) -> Manifest:
        """Read an expert's manifest; raises StoreError if the expert has changed since the start."""
        now, taken = super().manifest(self._places.get(weights, weights)), self._taken[weights]
        if changed := _changes(taken, now):
            raise StoreError(
                f"expert '{weights}' changed since the line was opened ({', '.join(changed)}); "
                "open the line again to use it"
            )
        return now.model_copy(update={"variants": {variant: now.variants[variant] for variant in taken.variants}})


def _changes(taken: Manifest, now: Manifest) -> list[str]:
    """Return which properties of an expert that affect verdicts have changed."""
    pairs = {
        "kind": (taken.kind, now.kind),
        "labels": (taken.labels, now.labels),
        "input size": (taken.input_size, now.input_size),
        "preprocessing": ((taken.preprocessing, taken.outputs), (now.preprocessing, now.outputs)),
        "limits": (taken.limits, now.limits),
        "weights": (
            (taken.bytes, taken.checksum, taken.original, taken.body),
            (now.bytes, now.checksum, now.original, now.body),
        ),
    }
    for variant, prepared in taken.variants.items():
        current = now.variants.get(variant)
        facts = (current.digest, current.bytes, current.body) if current else None
        pairs[variant] = ((prepared.digest, prepared.bytes, prepared.body), facts)
    return [name for name, (before, after) in pairs.items() if before != after]
