"""The references of a line: read and proved before the line starts, and the same until it ends."""

from __future__ import annotations

from collections.abc import Mapping

from coe.board.router import GIVEN
from coe.board.rules import Rules
from coe.comparing.comparison import is_dark
from coe.errors import ConfigError, ImageError, StoreError
from coe.pictures.image_source import ImageSource, Picture, ReferenceSource
from coe.store.kinds import Comparing, Kind
from coe.store.manifest import Manifest
from coe.store.references import EncodedReference, References
from coe.store.store import Store


def check(board: Rules, known: Mapping[str, Kind]) -> None:
    """Raise RulesError if a component lacks the reference that its experts need, or has one that no expert uses."""
    comparing = {id: kind for id, expert in board.experts.items() if isinstance(kind := known[expert.kind], Comparing)}
    board.check_references({id for id, kind in comparing.items() if kind.needs_reference}, comparing)


def load(board: Rules, store: Store) -> dict[str, ReferenceSource]:
    """Read the references that the rules name, by component; they stay in memory as encoded files.

    So a reference that is replaced in the store while a line runs changes no verdict of that line. Raises StoreError
    for a reference that is missing or damaged.
    """
    references = References(store)
    by_id: dict[str, ReferenceSource] = {}
    for component in board.components.values():
        id = component.reference
        if id and id != GIVEN and id not in by_id:
            by_id[id] = proved(references, id)
    return {
        name: by_id[component.reference] for name, component in board.components.items() if component.reference in by_id
    }


def proved(references: References, id: str) -> ReferenceSource:
    """Read one reference; raises StoreError if it is missing or damaged."""
    return decoded(references.load(id), id)


def decoded(pictures: EncodedReference, id: str) -> ReferenceSource:
    """Return the source of a reference whose pictures can be decoded; raises StoreError."""
    source = ReferenceSource(ImageSource.of(pictures.image, "RGB"), ImageSource.of(pictures.spread, "RGB"))
    try:
        reference = source.decode()
    except ImageError as error:
        raise StoreError(f"reference '{id}': {error}; make it again with `coe-experts reference`") from error
    if is_dark(reference.image):
        raise StoreError(f"reference '{id}' is dark; make it again from pictures that were taken with the light on")
    if reference.spread.shape != reference.image.shape[:2]:
        raise StoreError(f"reference '{id}': its two pictures differ in size; make it again")
    return source


def check_learned(
    board: Rules, known: Mapping[str, Kind], manifests: Mapping[str, Manifest], digests: Mapping[str, str]
) -> None:
    """Raise StoreError if an expert learned in the frame of another reference than its components have now, or of none.

    `known` are kinds by name, `manifests` are by weights, `digests` are the checksums of the store's references by id.
    """
    for component in board.components.values():
        for step in component.root.walk():
            expert = board.experts[step.expert]
            learned, kind = manifests[expert.weights].reference, known[expert.kind]
            if isinstance(kind, Comparing) and not kind.needs_reference and bool(learned) != bool(component.reference):
                how, has = ("in the frame of a reference", "none") if learned else ("without a reference", "one")
                raise StoreError(
                    f"expert '{expert.id}' learned {how}, and '{component.name}' has {has}; train it again with "
                    f"--board, or write `reference:` of '{component.name}' as it was then"
                )
            if component.reference in digests and learned and learned != digests[component.reference]:
                raise StoreError(
                    f"expert '{expert.id}' learned from parts in the frame of another reference than "
                    f"'{component.reference}' has now; train it again, or make the reference from the pictures of "
                    "that time"
                )


def check_picture(board: Rules, picture: Picture) -> None:
    """Raise ConfigError for a picture that lacks the reference that it must bring, or brings one that nothing uses."""
    component = board.components.get(picture.component)
    if component is None:  # the image gets its own error
        return
    if component.reference == GIVEN and picture.reference is None:
        raise ConfigError(
            f"a picture of '{component.name}' came without a reference, and {board.path.name} says "
            f"`reference: {GIVEN}`; hand the picture of a good part over with it (reference=)"
        )
    if component.reference != GIVEN and picture.reference is not None:
        raise ConfigError(
            f"a picture of '{component.name}' came with a reference, and {board.path.name} does not say "
            f"`reference: {GIVEN}`; leave the reference out, or write that"
        )
