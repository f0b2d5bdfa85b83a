"""Golden references at rest: a picture of a good part and how much good parts vary, under `references/` of the store.

A reference is read whole and proved by its checksum, or not at all. As with experts, new files are written beside
those that the manifest names, and the manifest is replaced last.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import xxhash

from coe import regular
from coe.errors import StoreError, did_you_mean
from coe.files import alone, replacing
from coe.store import manifest as manifests
from coe.store.expert_id import ExpertId
from coe.store.store import Store, sweep_files
from coe.store.store_reader import steady
from coe.store.version_history import VersionHistory
from coe.strict_model import Bytes, Count, StrictModel

FOLDER = "references"
_MANIFEST = "reference.json"
_IMAGE, _SPREAD = "image", "spread"
_MOST_BYTES = 1 << 30
_MOST_MANIFEST_BYTES = 1 << 20


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


@dataclass(frozen=True, slots=True)
class NewReference:
    """A reference to be put into the store, and where it comes from; see `ReferenceManifest`."""

    pictures: EncodedReference
    width: int
    height: int
    images: int
    left_out: tuple[str, ...] = ()
    source: str = ""
    learned: tuple[int, ...] = ()


def reference_named(word: str) -> str | None:
    """Return the id of the reference that a user names as `references/<board>/<name>`; None for any other word."""
    id = word.removeprefix(f"{FOLDER}/")
    return id if id != word and ExpertId.of(id).board else None


class References:
    """The references of a store by id, `<board>/<name>`."""

    def __init__(self, store: Store) -> None:
        self._shelf = Store(store.root / FOLDER)

    def __repr__(self) -> str:
        return f"<References {self._shelf.root}>"

    def ids(self) -> list[str]:
        """Return the ids of all references, sorted; raises StoreError if their folder cannot be read."""
        root = self._shelf.root
        try:
            boards = [name for name in regular.names(root) if (root / name).is_dir()]
            ids = [str(ExpertId(board, name)) for board in boards for name in regular.names(root / board)]
        except OSError as error:
            raise StoreError(f"{root} cannot be read: {error.strerror or error}") from error
        return sorted(id for id in ids if regular.may_exist(root / id / _MANIFEST))

    def manifest(self, id: str) -> ReferenceManifest:
        """Read a manifest; raises StoreError if there is none, or if it is damaged or of another reference."""
        path, again = self._shelf.folder(id) / _MANIFEST, "make the reference again"
        try:
            manifest = manifests.read_record(path, ReferenceManifest, _MOST_MANIFEST_BYTES, again)
        except FileNotFoundError:
            hint = did_you_mean(id, self.ids()) or "; make it with `coe-experts reference`"
            raise StoreError(f"no reference '{id}' in {self._shelf.root}{hint}") from None
        if manifest.id != id:
            raise StoreError(f"{path}: the manifest is that of reference {manifest.id[:200]!r}; make '{id}' again")
        manifests.check_inside(path, (manifest.file, manifest.spread_file))
        return manifest

    def read(self, manifest: ReferenceManifest) -> EncodedReference:
        """Read the pictures of a manifest; raises StoreError if they are not those that it states."""
        return self._read(manifest, self._shelf.folder(manifest.id))

    def _read(self, manifest: ReferenceManifest, folder: Path) -> EncodedReference:
        try:
            pictures = EncodedReference(
                *(regular.read(folder / file, _MOST_BYTES) for file in (manifest.file, manifest.spread_file))
            )
        except OSError as error:
            raise StoreError(f"reference '{manifest.id}' cannot be read: {error.strerror or error}") from error
        if pictures.checksum != manifest.checksum:
            raise StoreError(f"reference '{manifest.id}' is damaged: its checksum differs; make it again")
        return pictures

    def files(self, id: str) -> tuple[Path, ...]:
        """Return the paths of a reference's manifest and pictures; raises StoreError."""
        folder, manifest = self._shelf.folder(id), self.manifest(id)
        return folder / _MANIFEST, folder / manifest.file, folder / manifest.spread_file

    def load(self, id: str) -> EncodedReference:
        """Read the pictures of a reference, whatever version is in the store; raises StoreError.

        A version that another process replaces meanwhile is no error: the new version is read.
        """
        return steady(lambda: self.manifest(id), self.read)

    def put(self, id: str, new: NewReference) -> ReferenceManifest:
        """Put a reference into the store; it replaces the reference of the same id, as a whole. Raises StoreError."""
        folder = self._shelf.folder(id)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with alone(folder):
                version = max([self._last_version(id), *self.history(id).versions()]) + 1
                manifest = ReferenceManifest(
                    id=id,
                    version=version,
                    width=new.width,
                    height=new.height,
                    images=new.images,
                    left_out=new.left_out,
                    learned=new.learned,
                    file=f"{_IMAGE}-{version}.png",
                    spread_file=f"{_SPREAD}-{version}.png",
                    bytes=len(new.pictures.image) + len(new.pictures.spread),
                    checksum=new.pictures.checksum,
                    source=new.source,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                )
                pictures = (new.pictures.image, new.pictures.spread)
                for name, data in zip((manifest.file, manifest.spread_file), pictures, strict=True):
                    with replacing(folder / name) as file:
                        file.write(data)
                self._keep(id)
                with replacing(folder / _MANIFEST) as file:
                    file.write((manifest.model_dump_json(indent=2) + "\n").encode())
                sweep_files(folder, "*.png", (manifest.file, manifest.spread_file))
        except OSError as error:
            raise StoreError(f"reference '{id}' cannot be written: {os.strerror(error.errno or 0)}") from error
        return manifest

    def history(self, id: str) -> VersionHistory:
        """Return the earlier versions of a reference."""
        return VersionHistory(self._shelf.folder(id), _MANIFEST)

    def earlier(self, id: str, version: int) -> ReferenceManifest:
        """Read the manifest of an earlier version; raises StoreError if that is not kept, or damaged."""
        history = self.history(id)
        try:
            return manifests.read_record(
                history.place(version) / _MANIFEST, ReferenceManifest, _MOST_MANIFEST_BYTES, "choose another version"
            )
        except FileNotFoundError:
            kept = ", ".join(map(str, history.versions())) or "none"
            raise StoreError(f"reference '{id}' has no version {version} that is kept (kept: {kept})") from None

    def restore(self, id: str, version: int) -> ReferenceManifest:
        """Put an earlier version of a reference into its place again, as a new version; the present one is kept.

        Raises StoreError, also if its pictures are damaged.
        """
        earlier = self.earlier(id, version)
        pictures = self._read(earlier, self.history(id).place(version))
        facts = {
            name: getattr(earlier, name) for name in ("width", "height", "images", "left_out", "source", "learned")
        }
        return self.put(id, NewReference(pictures, **facts))

    def _keep(self, id: str) -> None:
        """Keep the present version, if there is a sound one, before it is replaced; raises OSError."""
        with suppress(StoreError):
            before = self.manifest(id)
            self.history(id).keep(before.version, (before.file, before.spread_file))

    def _last_version(self, id: str) -> int:
        """Return the version in the store; 0 if there is none, or if it is damaged and so used by no line."""
        with suppress(StoreError):
            return self.manifest(id).version
        return 0
