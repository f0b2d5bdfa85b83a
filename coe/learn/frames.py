"""The references in whose frames experts learn from aligned parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from coe.board import photo_labels, rules
from coe.errors import ConfigError, StoreError
from coe.store.kinds import Comparing, Kind, Reference, Trained
from coe.store.manifest import Manifest, frames_of
from coe.store.references import References
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class LearnedFrom:
    """The references in whose frames an expert learns, by component, and the checksums of these frames."""

    references: Mapping[str, Reference] = field(default_factory=dict)
    checksums: frozenset[str] = frozenset()

    def frame(self, kind: Kind, trained: Trained) -> str:
        """Return the checksum of the one frame in which an expert has learned, "" if in none; raises ConfigError."""
        if not trained.in_frame:
            return ""
        if len(self.checksums) != 1:
            given = len(self.checksums)
            raise ConfigError(f"kind '{kind.name}' learns in the frame of one reference, but was given {given}")
        (frame,) = self.checksums
        return frame


def of_expert(shelf: Store, board: str, expert: str, kind: Kind) -> LearnedFrom:
    """Return the references of the components that an expert inspects; one object for each reference.

    There are none if its kind does not need them and none of the components names one. Raises ConfigError if one of
    them has no reference in the store.
    """
    from coe.inspector import line_references

    loaded, kept = rules.load(board), References(shelf)
    served = photo_labels.served(loaded.components, expert).values()
    without = [component.name for component in served if not component.references]
    needed = not isinstance(kind, Comparing) or kind.needs_reference
    if not needed and not any(component.references or component.is_given for component in served):
        return LearnedFrom()
    if without or not served:
        names = f"'{without[0]}'" if without else "its component"
        raise ConfigError(
            f"expert '{expert}' learns from parts aligned with references of the store, but {loaded.path.name} names "
            f"none for {names}; write `reference: NAME` there"
        )
    by_ids, checksums = {}, set()
    for ids in {component.references for component in served}:
        pictures = {id: kept.load(id) for id in ids}
        checksums.add(frames_of(encoded.checksum for encoded in pictures.values()))
        by_ids[ids] = line_references.decoded(pictures).decode()
    return LearnedFrom({one.name: by_ids[one.references] for one in served}, frozenset(checksums))


def checksums(shelf: Store) -> frozenset[str]:
    """Return the checksums of the store's references whose manifests can be read."""
    references, known = References(shelf), set()
    for id in references.ids():
        with suppress(StoreError):
            known.add(references.manifest(id).checksum)
    return frozenset(known)


def check_frame(manifest: Manifest, known: Collection[str]) -> None:
    """Raise StoreError if an expert learned in the frame of a reference that is none of the `known` checksums."""
    if not set(manifest.frames) <= set(known):
        raise StoreError(
            "the reference with which it was trained is damaged or missing; make it again from the same pictures, or "
            "train the expert again with the present reference"
        )
