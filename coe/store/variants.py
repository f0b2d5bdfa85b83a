"""Variants of an expert: blobs beside its weights file, which its manifest names once they are whole.

Call these only within `Store.changing`, where no other process changes the expert. A blob's name depends on its
content, so the content of a file that a manifest names never changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from coe.errors import StoreError
from coe.store import blob_file, bodies
from coe.store.blob_format import Header, Variant
from coe.store.blob_layout import BlobBytes
from coe.store.manifest import Agreement, BodyFile, Manifest, PreparedVariant
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
    """Put a blob beside an expert's weights, replacing the blob of the same variant; return the new manifest.

    `data` are the header's data, in pieces. The blob of a divided expert is divided as well, but for a model in `int8`,
    which has no tensors in common with others. Raises OSError, which `Store.changing` translates.
    """
    store.sweep(manifest)
    if manifest.body is not None and header.variant != "int8":
        trust = PreparedVariant(file="", bytes=0, digest="", agreement=agreement, escalate_below=escalate_below)
        whole = BlobBytes(header, memoryview(b"".join(data)))
        with store.naming_bodies():
            return _name(store, manifest, {header.variant: bodies.put_blob(store, manifest, whole, trust)})
    blob = blob_file.write(store.folder(manifest.id), header, data)
    prepared = PreparedVariant(
        file=blob.file, bytes=blob.bytes, digest=blob.digest, agreement=agreement, escalate_below=escalate_below
    )
    return _name(store, manifest, {header.variant: prepared})


def put_difference(
    store: Store,
    manifest: Manifest,
    own: BlobBytes,
    body: BlobBytes,
    *,
    parent: str,
    agreement: Agreement,
    escalate_below: float,
) -> Manifest:
    """Put a blob that changes the body of a parent beside an expert's weights, and the body beside other bodies.

    As `put` else.
    """
    store.sweep(manifest)
    blob = blob_file.write(store.folder(manifest.id), own.header, own.chunks())
    with store.naming_bodies() as bodies_folder:
        common = blob_file.write_once(bodies_folder, body.header, body.chunks())
        prepared = PreparedVariant(
            file=blob.file,
            bytes=blob.bytes,
            digest=blob.digest,
            agreement=agreement,
            escalate_below=escalate_below,
            body=BodyFile(file=common.file, bytes=common.bytes, digest=common.digest),
            parent=parent,
        )
        return _name(store, manifest, {own.header.variant: prepared})


def share(store: Store, manifest: Manifest, original: Manifest, variants: Iterable[Variant]) -> Manifest:
    """Take over blobs prepared from the same weights, by hard links; return the new manifest.

    Raises OSError, StoreError if a body of the original is missing.
    """
    store.sweep(manifest)
    folder, taken = store.folder(manifest.id), {variant: original.variants[variant] for variant in variants}
    for prepared in taken.values():
        if not (folder / prepared.file).exists():
            os.link(store.folder(original.id) / prepared.file, folder / prepared.file)
    with store.sharing_bodies(original):
        return _name(store, manifest, taken)


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
    changed = manifest.model_copy(update={"variants": {**manifest.variants, **variants}})
    store.rewrite(changed)
    return changed
