"""Golden references at rest: a picture of a good part and how much good parts vary, under `references/` of the store.

A reference is read whole and proved by its checksum, or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from coe.errors import StoreError, did_you_mean, readable
from coe.helpers import regular
from coe.helpers.strict_model import Bytes, Count, StrictModel
from coe.store import manifest as manifests
from coe.store.expert_id import ExpertId
from coe.store.store_reader import StoreReader, steady

FOLDER = "references"
REFERENCE_MANIFEST = "reference.json"
_MOST_BYTES = 1 << 30
MOST_MANIFEST_BYTES = 1 << 20


class ReferenceManifest(StrictModel):
    """What the store knows of a reference: `version` counts up with each replacement, from 1.

    `width` and `height` are pixels, `images` the number of good pictures that it was made from, and `left_out` the
    names of those that did not go in; `learned` are digests of the pixels of those that did (older ones have none).
    `bytes` and `checksum` (xxh3-128, hexadecimal) are of both files together.
    """

    format: Literal[1] = 1
    id: str
    version: Count
    width: Count
    height: Count
    images: Count
    left_out: tuple[str, ...] = ()
    learned: tuple[int, ...] = ()
    file: str
    spread_file: str
    bytes: Bytes
    checksum: str
    source: str = ""
    created: str = ""


@dataclass(frozen=True, slots=True)
class EncodedReference:
    """The two pictures of a reference as PNG files: the good part in RGB, and its spread in grey, of the same size.

    The spread of a pixel is by how many grey levels good parts differ there.
    """

    image: bytes
    spread: bytes

    @property
    def checksum(self) -> str:
        """The xxh3-128 of both."""
        digest = xxhash.xxh3_128(self.image)
        digest.update(self.spread)
        return digest.hexdigest()


class ReferenceReader:
    """The references of a store by id, `<board>/<name>`."""

    def __init__(self, store: StoreReader) -> None:
        self._shelf = StoreReader(store.root / FOLDER)

    def __repr__(self) -> str:
        return f"<References {self._shelf.root}>"

    def ids(self) -> list[str]:
        """Return the ids of all references, sorted; raises StoreError if their folder cannot be read."""
        root = self._shelf.root
        with readable(root, StoreError):
            boards = [name for name in regular.names(root) if (root / name).is_dir()]
            ids = [str(ExpertId(board, name)) for board in boards for name in regular.names(root / board)]
        return sorted(id for id in ids if regular.may_exist(root / id / REFERENCE_MANIFEST))

    def manifest(self, id: str) -> ReferenceManifest:
        """Read a manifest; raises StoreError if there is none, or if it is damaged or of another reference."""
        path, again = self._shelf.folder(id) / REFERENCE_MANIFEST, "make the reference again"
        try:
            manifest = manifests.read_record(path, ReferenceManifest, MOST_MANIFEST_BYTES, again)
        except FileNotFoundError:
            hint = did_you_mean(id, self.ids())
            raise StoreError(
                f"no reference '{id}' in {self._shelf.root}{hint}; make it from good pictures with `coe-experts "
                "reference`, or remove its component from the board file"
            ) from None
        if manifest.id != id:
            raise StoreError(f"{path}: the manifest is that of reference {manifest.id[:200]!r}; make '{id}' again")
        manifests.check_inside(path, (manifest.file, manifest.spread_file))
        return manifest

    def read(self, manifest: ReferenceManifest) -> EncodedReference:
        """Read the pictures of a manifest; raises StoreError if they are not those that it states."""
        return self.read_in(manifest, self._shelf.folder(manifest.id))

    def read_in(self, manifest: ReferenceManifest, folder: Path) -> EncodedReference:
        """Read the pictures of a manifest from a folder; raises StoreError as `read` does."""
        with readable(f"reference '{manifest.id}'", StoreError):
            pictures = EncodedReference(
                *(regular.read(folder / file, _MOST_BYTES) for file in (manifest.file, manifest.spread_file))
            )
        if pictures.checksum != manifest.checksum:
            raise StoreError(f"reference '{manifest.id}' is damaged: its checksum differs; make it again")
        return pictures

    def load(self, id: str) -> EncodedReference:
        """Read the pictures of a reference, whatever version is in the store; raises StoreError.

        A version that another process replaces meanwhile is no error: the new version is read.
        """
        return steady(lambda: self.manifest(id), self.read)
