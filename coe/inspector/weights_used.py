"""Which weights and references the findings of a run depend on, so that no run is continued with others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Hashable, Mapping
from contextlib import suppress

from coe.board.router import GIVEN
from coe.board.rules import Rules
from coe.core import FULL
from coe.errors import StoreError
from coe.inspector.precision import allowed
from coe.store.manifest import Manifest
from coe.store.references import References
from coe.store.store import Store


def findings_facts(manifest: Manifest, precision: str) -> tuple[Hashable, ...]:
    """Return all facts of an expert's weights that its findings depend on, if a line runs in a precision."""
    prepared = tuple(
        (
            str(name),
            blob.digest,
            blob.escalate_below,
            blob.agreement.labels_equal if blob.agreement else None,
            *((blob.body.digest,) if blob.body else ()),
        )
        for name, blob in sorted(manifest.variants.items())
        if precision != FULL or name == FULL
    )
    body = (manifest.body.digest,) if manifest.body is not None else ()
    seen = tuple(part.model_dump_json() for part in (manifest.preprocessing, manifest.outputs) if part is not None)
    return manifest.kind, manifest.labels, manifest.input_size, manifest.checksum, prepared, *body, *seen


def expert_digests(board: Rules, manifests: Mapping[str, Manifest], precision: str) -> dict[str, str]:
    """Return, by expert, a digest of all that its findings depend on; "" if its manifest is missing.

    The findings depend on the weights, and on the variants that the expert may run in. With precision fp32 that is its
    fp32 blob alone, so that a run in fp32 can be continued after `coe-experts prepare` has made other variants.
    `manifests` are by weights.
    """
    digests = {}
    for id, expert in board.experts.items():
        manifest = manifests.get(expert.weights)
        if manifest is None:
            digests[id] = ""
            continue
        facts = [expert.weights, *findings_facts(manifest, precision)]
        digests[id] = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    return digests


def reference_digests(board: Rules, store: Store) -> dict[str, str]:
    """Return the checksum of each reference that the rules name, by id; raises StoreError if one is missing."""
    references = References(store)
    ids = {component.reference for component in board.components.values()} - {"", GIVEN}
    return {id: references.manifest(id).checksum for id in sorted(ids)}


def manifests_of(board: Rules, store: Store) -> dict[str, Manifest]:
    """Return the readable manifests of a board's experts, by weights.

    Opening the line reports those that cannot be read, all together.
    """
    manifests = {}
    for expert in board.experts.values():
        with suppress(StoreError):
            manifests[expert.weights] = store.manifest(expert.weights)
    return manifests


def usable_variants(
    board: Rules, manifests: Mapping[str, Manifest], precision: str, floor: float, devices: Collection[str]
) -> tuple[str, ...]:
    """Return the variants that a board's experts may run in on these devices, sorted; `manifests` are by weights."""
    offers = [manifests[expert.weights].variants for expert in board.experts.values() if expert.weights in manifests]
    usable = (allowed(precision, {str(name): blob for name, blob in blobs.items()}, devices, floor) for blobs in offers)
    return tuple(sorted({variant for variants in usable for variant in variants}))
