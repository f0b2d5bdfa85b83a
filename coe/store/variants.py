"""Variants of an expert: blobs beside its weights file, which its manifest names once they are whole.

Call these only within `Store.changing`, where no other process changes the expert. A blob's name depends on its
content, so the content of a file that a manifest names never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coe.errors import StoreError
from coe.store import blob_writing, bodies
from coe.store.blob_format import Variant
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import Agreement, Calibration, Manifest, PreparedVariant
from coe.store.store import Store
from coe.store.version_history import take


def put(
    store: Store,
    manifest: Manifest,
    blob: BlobBytes,
    *,
    agreement: Agreement,
    escalate_below: float,
    calibration: Calibration | None = None,
) -> Manifest:
    """Put a blob beside an expert's weights, replacing the blob of the same variant; return the new manifest.

    The blob of a divided expert is divided as well, but for a model in `int8`, which has no tensors in common with
    others. Raises OSError, which `Store.changing` translates.
    """
    store.sweep(manifest)
    prepared = PreparedVariant(
        file="", bytes=0, digest="", agreement=agreement, escalate_below=escalate_below, calibration=calibration
    )
    variant, folder = blob.header.variant, store.folder(manifest.id)
    if manifest.body is not None and variant != "int8":
        with store.naming_bodies():
            return _name(store, manifest, {variant: bodies.put_blob(store, manifest, blob, prepared)})
    return _name(store, manifest, {variant: prepared.model_copy(update=dict(blob_writing.write(folder, blob)))})


def share(store: Store, manifest: Manifest, original: Manifest, variants: Iterable[Variant]) -> Manifest:
    """Take over blobs prepared from the same weights, by hard links where that is possible; return the new manifest.

    Raises OSError, StoreError if a body of the original is missing.
    """
    store.sweep(manifest)
    folder, taken = store.folder(manifest.id), {variant: original.variants[variant] for variant in variants}
    for prepared in taken.values():
        take(store.folder(original.id) / prepared.file, folder / prepared.file)
    with store.sharing_bodies(original):
        return _name(store, manifest, taken)


def rule_out_int8(store: Store, manifest: Manifest, reason: str) -> Manifest:
    """Note why an expert's file can never have `int8`; return the new manifest. Raises OSError."""
    changed = manifest.model_copy(update={"no_int8": reason})
    store.rewrite(changed)
    return changed


def is_whole(store: Store, manifest: Manifest, variant: Variant) -> bool:
    """Tell whether a variant exists undamaged; reads its whole blob."""
    if variant not in manifest.variants:
        return False
    try:
        store.check_variant(manifest, variant)
    except StoreError:
        return False
    return True


def _name(store: Store, manifest: Manifest, variants: Mapping[Variant, PreparedVariant]) -> Manifest:
    together = {**manifest.variants, **variants}
    ruled_out = "" if "int8" in together else manifest.no_int8
    changed = manifest.model_copy(update={"variants": together, "no_int8": ruled_out})
    store.rewrite(changed)
    return changed
