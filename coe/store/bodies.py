"""Bodies: tensors that several experts have in common, stored once under a name that their content decides.

An expert is divided in one step: its body and its own files are written beside the old files, and then its manifest is
replaced. So a reader finds the expert whole, or divided. The folder of bodies is locked from the write of a body until
a manifest names it, so that no other process sweeps it away meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from coe.errors import StoreError
from coe.helpers.files import TEMPORARY
from coe.store import blob_layout, blob_writing, tensor_files, weights_file
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.store import Store
from coe.store.store_reader import reading


def divide(store: Store, manifest: Manifest, names: Collection[str]) -> Manifest:
    """Store an expert as a body, its trained tensors of these `names`, and its own part; return the new manifest.

    The bytes of all tensors stay, in every variant. Call it only within `Store.changing`. Raises StoreError for files
    that are damaged, OSError.
    """
    state = store.tensors(manifest)
    identity = weights_file.header(store.folder(manifest.id) / manifest.file).identity
    if identity is None:
        raise StoreError(f"{manifest.id}: its weights do not state their expert; train or import it again")
    own = {name: tensor for name, tensor in state.items() if name not in names}
    # A model has no tensors in common with others.
    variants = {v: prepared for v, prepared in manifest.variants.items() if v != "int8"}
    whole = {variant: whole_blob(store, manifest, prepared) for variant, prepared in variants.items()}
    folder = store.folder(manifest.id)
    with store.naming_bodies() as bodies:
        body = tensor_files.write_body(
            bodies, manifest.kind, {name: tensor for name, tensor in state.items() if name in names}
        )
        path = tensor_files.write(folder / f"{store.free_place(manifest.id)}{weights_file.SUFFIX}", own, identity)
        divided = manifest.model_copy(
            update={
                "file": path.name,
                "bytes": path.stat().st_size,
                "checksum": weights_file.checksum(path),
                "body": body,
                "variants": manifest.variants
                | {
                    variant: _put_blob(bodies, folder, blob, own, manifest.variants[variant])
                    for variant, blob in whole.items()
                },
            }
        )
        store.rewrite(divided)
    return divided


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the names of a batch norm's statistics end: they stay with its parameters."""


def divide_frozen(store: Store, manifest: Manifest, frozen: tuple[str, ...]) -> Manifest:
    """Divide a new expert: the tensors whose names begin so are its body; return the new manifest.

    Experts with the same frozen layers then have the same body, whichever is trained first. Raises StoreError.
    """
    with store.changing(manifest.id) as present:
        header = weights_file.header(store.folder(present.id) / present.file)
        return divide(store, present, _frozen_names([entry.name for entry in header.entries], frozen))


def _frozen_names(names: Collection[str], frozen: tuple[str, ...]) -> set[str]:
    """Return the names that begin as those of `frozen`, and the statistics of layers whose parameters all do."""
    kept = {name for name in names if name.startswith(frozen)}
    learned = {name.rpartition(".")[0] for name in names if name not in kept and not name.endswith(_STATISTICS)}
    layers = {name.rpartition(".")[0] for name in kept} - learned
    return kept | {name for name in names if name.endswith(_STATISTICS) and name.rpartition(".")[0] in layers}


def names(store: Store, manifest: Manifest) -> list[str]:
    """Return the names of the trained tensors in an expert's body, from its header; [] without a body.

    Raises StoreError.
    """
    if manifest.body is None:
        return []
    with reading(manifest.id, path := store.bodies / manifest.body.file):
        return [entry.name for entry in weights_file.header(path).entries]


def export(store: Store, weights: str, to: Path) -> Path:
    """Write the whole weights of an expert as one file, as it would be without a body; return `to`.

    Raises StoreError for weights that are damaged, OSError.
    """

    def work(manifest: Manifest) -> Path:
        file = store.folder(weights) / manifest.file
        if manifest.body is None:
            return tensor_files.copy(to, file)
        identity = weights_file.header(file).identity
        assert identity is not None, "only an expert whose weights state their identity can be divided"
        return tensor_files.write(to, store.tensors(manifest), identity)

    store.check_weights(weights)
    return store.steady(weights, work)


def whole_file(store: Store, weights: str, folder: Path) -> Path:
    """Return a file with all trained tensors of an expert: its own or, if it has a body, an export in `folder`.

    Raises StoreError, also for a file that is damaged, and OSError.
    """
    if store.check_weights(weights).body is None:
        return store.path(weights)
    return export(store, weights, folder / f"{weights.replace('/', '-')}{weights_file.SUFFIX}")


def put_blob(store: Store, manifest: Manifest, blob: BlobBytes, prepared: PreparedVariant) -> PreparedVariant:
    """Write a whole blob of a divided expert as the blob of its body and its own; return where they are.

    Call it only within `Store.naming_bodies`, until the manifest names them. `prepared` tells how far to trust it.
    """
    folder = store.folder(manifest.id)
    own = [entry.name for entry in weights_file.header(folder / manifest.file).entries]
    return _put_blob(store.bodies, folder, blob, own, prepared)


def whole_blob(store: Store, manifest: Manifest, prepared: PreparedVariant) -> BlobBytes:
    """Read a blob of an expert with the tensors of its body; raises StoreError."""
    with reading(manifest.id, path := store.folder(manifest.id) / prepared.file):
        own = blob_writing.read(path, prepared.bytes, prepared.digest)
    if prepared.body is None:
        return own
    with reading(manifest.id, path := store.bodies / prepared.body.file):
        return blob_layout.joined(blob_writing.read(path, prepared.body.bytes, prepared.body.digest), own)


def sweep(store: Store) -> None:
    """Remove bodies that no expert names, in any version, and half-written files.

    Nothing is removed if a manifest cannot be read.

    Raises StoreError if the folder of bodies cannot be written.
    """
    if not store.bodies.is_dir():
        return
    try:
        with store.naming_bodies() as folder:
            try:
                kept = [store.manifest(id) for id in store.ids()]
                for id in store.ids():
                    kept += (store.earlier(id, version) for version in store.history(id).versions())
                named = {body.file for manifest in kept for body in manifest.bodies}
            except StoreError:
                return  # any of the bodies may be that expert's
            for path in [*folder.glob(f"*{weights_file.SUFFIX}"), *folder.glob(f".*{TEMPORARY}")]:
                if path.name not in named:
                    with suppress(OSError):
                        path.unlink()
    except OSError as error:
        raise StoreError(f"the folder {store.bodies} cannot be written: {error.strerror or error}") from error


def _put_blob(
    bodies: Path, folder: Path, whole: BlobBytes, own: Collection[str], prepared: PreparedVariant
) -> PreparedVariant:
    """Write a whole blob as those of its body and its rest; as it is if no layer of it is in the body as a whole."""
    names = blob_layout.body_names([entry.name for entry in whole.header.tensors], own, whole.header.folded)
    body, rest = None, whole
    if names:
        body = blob_writing.write_once(bodies, blob_layout.body_of(whole, names))
        rest = blob_layout.rest_of(whole, names, body.digest)
    return prepared.model_copy(update={**dict(blob_writing.write(folder, rest)), "body": body})
