"""Reading experts whole: tensors in memory, what they learned from, earlier versions. For tools; a line needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coe.errors import StoreError
from coe.store import learned as learned_files
from coe.store import manifest as manifests
from coe.store.learned import LearnedPictures
from coe.store.manifest import Manifest
from coe.store.store_reader import MANIFEST, StoreReader, reading
from coe.store.tensor_files import load_tensors
from coe.store.version_history import VersionHistory

if TYPE_CHECKING:
    import torch


class WholeReader(StoreReader):
    """Experts of a store to be read whole."""

    def history(self, weights: str) -> VersionHistory:
        """Return the earlier versions of an expert; raises StoreError for an id that is none."""
        return VersionHistory(self.folder(weights), MANIFEST)

    def earlier(self, weights: str, version: int) -> Manifest:
        """Read the manifest of an earlier version; raises StoreError if that is not kept, or damaged."""
        history = self.history(weights)
        try:
            return manifests.read(history.place(version) / MANIFEST, weights)
        except FileNotFoundError:
            kept = ", ".join(map(str, history.versions())) or "none"
            raise StoreError(
                f"'{weights}' has no version {version} that is kept (kept: {kept}); `coe-experts history {weights}` "
                "shows them"
            ) from None

    def check(self, weights: str) -> Manifest:
        """Compare an expert's files with its manifest (size, checksum, identity).

        Raises StoreError if they differ.
        """

        def check(manifest: Manifest) -> Manifest:
            self._check_weights(manifest)
            self._learned(manifest)
            for variant in manifest.variants:
                self.check_variant(manifest, variant)
            return manifest

        return self.steady(weights, check)

    def learned(self, weights: str) -> LearnedPictures | None:
        """Return the digests of the pictures that an expert learned from, None if nobody knows; raises StoreError."""
        return self.steady(weights, self._learned)

    def _learned(self, manifest: Manifest) -> LearnedPictures | None:
        if manifest.learned is None:
            return None
        path = self.folder(manifest.id) / manifest.learned.file
        with reading(manifest.id, path):
            return learned_files.read(path, manifest.learned, f"{manifest.id}: {path.name}")

    def load(self, weights: str) -> dict[str, torch.Tensor]:
        """Read an expert's tensors into new memory (for training and tools, not for the engine)."""
        return load(self, weights)

    def tensors(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Read all tensors of an expert, those of its body too, into new memory; raises StoreError."""
        return _tensors(self, manifest)


def load(store: StoreReader, weights: str) -> dict[str, torch.Tensor]:
    """Read the tensors of an expert of any store into new memory; raises StoreError."""
    return store.steady(weights, lambda manifest: _tensors(store, manifest))


def _tensors(store: StoreReader, manifest: Manifest) -> dict[str, torch.Tensor]:
    tensors = load_tensors(store.folder(manifest.id) / manifest.file)
    if manifest.body is None:
        return tensors
    body = load_tensors(store.bodies / manifest.body.file)
    if twice := sorted(tensors.keys() & body.keys()):
        raise StoreError(
            f"{manifest.id}: its body {manifest.body.file} holds its own '{twice[0]}' too; train or import the expert "
            "again"
        )
    return tensors | body
