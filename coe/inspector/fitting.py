"""Weights that fit the rules. Law: this file needs no torch, so that a recipe can be checked where no model runs."""

from __future__ import annotations

from collections.abc import Mapping

from coe import config
from coe.board.rules import Rules
from coe.errors import StoreError
from coe.spelling import composed
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.store.store_reader import NoSuchExpert


def manifests(board: Rules, store: Store) -> dict[str, Manifest]:
    """Read the manifests of a board's experts, by weights, and compare them with its rules; raises StoreError."""
    by_weights: dict[str, Manifest] = {}
    missing: list[str] = []
    for expert in board.experts.values():
        try:
            manifest = store.manifest(expert.weights)
        except NoSuchExpert:
            missing.append(expert.weights)
            continue
        wanted = (expert.kind, expert.labels, expert.input_size)
        # The order of the labels is that of the outputs, which the weights alone know.
        same = sorted(expert.labels) == sorted(map(composed, manifest.labels))
        if wanted != (manifest.kind, expert.labels if same else manifest.labels, manifest.input_size):
            stored = _describe(manifest.kind, manifest.labels, manifest.input_size)
            raise StoreError(
                f"expert '{expert.id}' is {_describe(*wanted)} in {board.path.name}, but its weights "
                f"'{expert.weights}' are {stored}; correct the rules or train the expert again"
            )
        by_weights[expert.weights] = manifest
    if missing:
        few = ", ".join(f"'{weights}'" for weights in missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise StoreError(
            f"{len(missing)} of {len(board.experts)} experts of board '{board.board}' have no weights in {store.root} "
            f"({few}); train or import them with coe-experts, or name another store with --store "
            f"or ${config.STORE_VARIABLE}"
        )
    return by_weights


def unproven(board: Rules, manifests: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Return a sentence for the experts of a board that their held-out figures do not prove, for each reason why.

    `manifests` are by weights. Nothing is said of an expert that nobody has measured.
    """
    by_reason: dict[str, list[str]] = {}
    for id, expert in board.experts.items():
        if (manifest := manifests.get(expert.weights)) is not None and manifest.unproven:
            by_reason.setdefault(manifest.unproven, []).append(f"'{id}'")
    return tuple(
        f"experts {', '.join(ids)} are unproven: {reason}" if len(ids) > 1 else f"expert {ids[0]} is unproven: {reason}"
        for reason, ids in by_reason.items()
    )


def _describe(kind: str, labels: tuple[str, ...], size: int) -> str:
    said = f"for {', '.join(labels)}" if labels else "without labels, a backbone from which `train --init` starts"
    return f"a {kind} of {size} pixels {said}"
