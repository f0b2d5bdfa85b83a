"""The experts of a running line: a line keeps to the experts that it was opened with until it is closed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coe.errors import StoreError
from coe.store.manifest import Manifest
from coe.store.store_reader import StoreReader


class Snapshot(StoreReader):
    """A store limited to the experts of given manifests.

    A lookup refuses an expert that has changed since, so that a line never judges by weights, labels or an input size
    that it was not opened with. Variants that were prepared meanwhile are not seen.

    A line may know weights under another name than that of their place in the store, as when the weights at one place
    were replaced while the line runs: `take` says where they lie.
    """

    def __init__(self, store: StoreReader, manifests: Mapping[str, Manifest]) -> None:
        """Take the manifests, by weights."""
        super().__init__(store.root)
        self._taken = dict(manifests)
        self._places: dict[str, str] = {}

    def take(self, manifests: Mapping[str, Manifest], places: Mapping[str, str]) -> None:
        """Take further manifests, by the line's name of the weights; `places` are where these lie in the store."""
        self._places |= places
        self._taken |= manifests

    def folder(self, weights: str) -> Path:
        """Return the folder of an expert's weights."""
        return super().folder(self._places.get(weights, weights))

    def manifest(self, weights: str) -> Manifest:
        """Read an expert's manifest; raises StoreError if the expert has changed since the start."""
        now, taken = super().manifest(self._places.get(weights, weights)), self._taken[weights]
        if changed := _changes(taken, now):
            raise StoreError(
                f"expert '{weights}' changed since the line was opened ({', '.join(changed)}); "
                "open the line again to take it over"
            )
        return now.model_copy(update={"variants": {variant: now.variants[variant] for variant in taken.variants}})


def _changes(taken: Manifest, now: Manifest) -> list[str]:
    """Return which properties of an expert that affect verdicts have changed."""
    pairs = {
        "kind": (taken.kind, now.kind),
        "labels": (taken.labels, now.labels),
        "input size": (taken.input_size, now.input_size),
        "preprocessing": ((taken.preprocessing, taken.outputs), (now.preprocessing, now.outputs)),
        "limits": (taken.limits, now.limits),
        "weights": (
            (taken.bytes, taken.checksum, taken.original, taken.body),
            (now.bytes, now.checksum, now.original, now.body),
        ),
    }
    for variant, prepared in taken.variants.items():
        current = now.variants.get(variant)
        facts = (current.digest, current.bytes, current.body) if current else None
        pairs[variant] = ((prepared.digest, prepared.bytes, prepared.body), facts)
    return [name for name, (before, after) in pairs.items() if before != after]
