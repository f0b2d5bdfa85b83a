"""Writing golden references: as with experts, new files are written beside those that the manifest names, it last."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from coe.errors import StoreError
from coe.helpers.files import alone, replacing
from coe.store import manifest as manifests
from coe.store.expert_id import ExpertId
from coe.store.reference_reader import (
    FOLDER,
    MOST_MANIFEST_BYTES,
    REFERENCE_MANIFEST,
    EncodedReference,
    ReferenceManifest,
    ReferenceReader,
)
from coe.store.store import sweep_files
from coe.store.version_history import VersionHistory

_IMAGE, _SPREAD = "image", "spread"


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


class References(ReferenceReader):
    """The references of a store by id, `<board>/<name>`, to be read and written."""

    def files(self, id: str) -> tuple[Path, ...]:
        """Return the paths of a reference's manifest and pictures; raises StoreError."""
        folder, manifest = self._shelf.folder(id), self.manifest(id)
        return folder / REFERENCE_MANIFEST, folder / manifest.file, folder / manifest.spread_file

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
                with replacing(folder / REFERENCE_MANIFEST) as file:
                    file.write((manifest.model_dump_json(indent=2) + "\n").encode())
                sweep_files(folder, "*.png", (manifest.file, manifest.spread_file))
        except OSError as error:
            raise StoreError(f"reference '{id}' cannot be written: {os.strerror(error.errno or 0)}") from error
        return manifest

    def history(self, id: str) -> VersionHistory:
        """Return the earlier versions of a reference."""
        return VersionHistory(self._shelf.folder(id), REFERENCE_MANIFEST)

    def earlier(self, id: str, version: int) -> ReferenceManifest:
        """Read the manifest of an earlier version; raises StoreError if that is not kept, or damaged."""

        def read(path: Path) -> ReferenceManifest:
            return manifests.read_record(path, ReferenceManifest, MOST_MANIFEST_BYTES, "choose another version")

        return self.history(id).read(version, f"reference '{id}'", read)

    def restore(self, id: str, version: int) -> ReferenceManifest:
        """Put an earlier version of a reference into its place again, as a new version; the present one is kept.

        Raises StoreError, also if its pictures are damaged.
        """
        earlier = self.earlier(id, version)
        pictures = self.read_in(earlier, self.history(id).place(version))
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
