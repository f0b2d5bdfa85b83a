"""Variants of an expert: blobs that lie beside its weights file, and are named by its manifest once they are whole.

Only within `Store.changing`: what is seen there stays true until the change is done. A blob's name tells its content,
so a manifest never names a file that holds anything else than it did.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from coe.errors import StoreError
from coe.store import blob_file
from coe.store.blob_format import Header, Variant
from coe.store.manifest import Agreement, Manifest, PreparedVariant
from coe.store.store import Store


def put(
    store: Store,
    manifest: Manifest,
    header: Header,
    data: Iterable[memoryview],
    *,
    agreement: Agreement,
    escalate_below: float,
) -> Manifest:
    """Put a blob beside an expert's weights, replacing one of the same variant; return the new manifest.

    `data` is what the header tells of, in pieces. Raises OSError, which `Store.changing` puts into words.
    """
    store.sweep(manifest)
    made = blob_file.write(store.folder(manifest.id), header, data)
    prepared = PreparedVariant(
        file=made.file, bytes=made.bytes, digest=made.digest, agreement=agreement, escalate_below=escalate_below
    )
    return _name(store, manifest, {header.variant: prepared})


def share(store: Store, manifest: Manifest, original: Manifest, variants: Iterable[Variant]) -> Manifest:
    """Take over blobs prepared from the same weights (hard links); return the new manifest; raises OSError."""
    store.sweep(manifest)
    folder, taken = store.folder(manifest.id), {variant: original.variants[variant] for variant in variants}
    for prepared in taken.values():
        if not (folder / prepared.file).exists():
            os.link(store.folder(original.id) / prepared.file, folder / prepared.file)
    return _name(store, manifest, taken)


def is_whole(store: Store, manifest: Manifest, variant: Variant) -> bool:
    """Tell whether a variant is there and undamaged; reads all of it."""
    if variant not in manifest.variants:
        return False
    try:
        store.check_variant(manifest, variant)
    except StoreError:
        return False
    return True


def _name(store: Store, manifest: Manifest, variants: Mapping[Variant, PreparedVariant]) -> Manifest:
    changed = manifest.model_copy(update={"variants": {**manifest.variants, **variants}})
    store.rewrite(changed)
    return changed
