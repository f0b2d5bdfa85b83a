"""Which weights the findings of a run depend on, so that nobody goes on with a run by others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from contextlib import suppress

from coe.board.rules import Rules
from coe.core import FULL
from coe.errors import StoreError
from coe.inspector.precision import allowed
from coe.store.manifest import Manifest
from coe.store.store import Store


def expert_digests(board: Rules, manifests: Mapping[str, Manifest], precision: str) -> dict[str, str]:
    """Return by expert the digest of all that its findings depend on; `manifests` are by weights, "" where one lacks.

    That is its weights, and of its prepared variants those that it may run in: in fp32 its blob of fp32 alone, so that
    a run in fp32 goes on after `coe-experts prepare` has made others.
    """
    found = {}
    for id, expert in board.experts.items():
        manifest = manifests.get(expert.weights)
        if manifest is None:
            found[id] = ""
            continue
        prepared = [
            (str(name), one.digest, one.escalate_below, one.agreement.labels_equal if one.agreement else None)
            for name, one in sorted(manifest.variants.items())
            if precision != FULL or name == FULL
        ]
        about = [expert.weights, manifest.kind, manifest.labels, manifest.input_size, manifest.checksum, prepared]
        found[id] = hashlib.blake2b(json.dumps(about).encode(), digest_size=8).hexdigest()
    return found


def manifests_of(board: Rules, store: Store) -> dict[str, Manifest]:
    """Return the manifests of a board's experts, by weights, but for those that cannot be read.

    What is wrong with those is said when the line is opened, all of them together.
    """
    found = {}
    for expert in board.experts.values():
        with suppress(StoreError):
            found[expert.weights] = store.manifest(expert.weights)
    return found


def usable_variants(
    board: Rules, manifests: Mapping[str, Manifest], precision: str, floor: float, devices: Collection[str]
) -> tuple[str, ...]:
    """Return the variants that the experts of a board may run in on these devices, sorted; `manifests` by weights."""
    offers = [manifests[expert.weights].variants for expert in board.experts.values() if expert.weights in manifests]
    found = (allowed(precision, {str(name): one for name, one in own.items()}, devices, floor) for own in offers)
    return tuple(sorted({variant for variants in found for variant in variants}))
