"""The references of a line: read and proved before the line starts, and the same until it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from coe.board.rules import Rules
from coe.board.steps import GIVEN
from coe.comparing.alternates import alike_in_size
from coe.errors import ConfigError, ImageError, RulesError, StoreError
from coe.pictures.image_source import ImageSource, Picture, ReferenceSource
from coe.store.manifest import Manifest, frames_of
from coe.store.reference_reader import EncodedReference, ReferenceReader
from coe.store.runnable_kinds import Comparing, RunnableKind
from coe.store.store_reader import StoreReader


def check(board: Rules, known: Mapping[str, RunnableKind]) -> None:
    """Raise RulesError if a component lacks the reference that its experts need, or has one that no expert uses."""
    comparing = {id: kind for id, expert in board.experts.items() if isinstance(kind := known[expert.kind], Comparing)}
    for name, component in board.components.items():
        using = [step.expert for step in component.root.walk() if step.expert in comparing]
        needs = next((id for id in using if comparing[id].needs_reference), None)
        has = component.is_given or bool(component.references)
        if needs is not None and not has:
            raise RulesError(
                f"{board.places[name]}: expert '{needs}' compares '{name}' with a reference, but none is "
                f"named; write `reference: {name}` and make it with `coe-experts reference`, or write "
                f"`reference: {GIVEN}` if each picture brings its own"
            )
        if not using and has:
            raise RulesError(
                f"{board.places[name]}: '{name}' has a reference, but none of its experts compares with one; remove "
                "`reference:`, or let an expert of kind difference or golden inspect it"
            )


def load(board: Rules, store: StoreReader) -> dict[str, ReferenceSource]:
    """Read the references that the rules name, by component, each with its alternates; encoded, they stay in memory.

    So a reference that is replaced in the store while a line runs changes no verdict of that line. Raises StoreError
    for a reference that is missing or damaged.
    """
    references = ReferenceReader(store)
    named = {name: component.references for name, component in board.components.items() if component.references}
    pictures = {id: references.load(id) for id in board.references}
    by_ids = {ids: decoded({id: pictures[id] for id in ids}) for ids in dict.fromkeys(named.values())}
    return {name: by_ids[ids] for name, ids in named.items()}


def decoded(pictures: Mapping[str, EncodedReference]) -> ReferenceSource:
    """Return the source of a reference with its alternates, by id in their order, whose pictures can be decoded.

    Raises StoreError, also if a picture could not be compared with all of them.
    """
    sources = [_decoded(encoded, id) for id, encoded in pictures.items()]
    first, *others = [source.decode() for source in sources]
    for other in others:
        if not alike_in_size(first.image, other.image):
            sizes = [f"'{one.id}' is {one.image.shape[1]} x {one.image.shape[0]}" for one in (first, other)]
            raise StoreError(
                f"the references of one component differ too much in size ({' and '.join(sizes)} pixels); make them "
                "from crops of the same size"
            )
    return replace(sources[0], others=tuple(sources[1:]))


def _decoded(pictures: EncodedReference, id: str) -> ReferenceSource:
    source = ReferenceSource(ImageSource.of(pictures.image, "RGB"), ImageSource.of(pictures.spread, "RGB"), id)
    try:
        source.decode()
    except ImageError as error:
        raise StoreError(f"reference '{id}': {error}; make it again with `coe-experts reference`") from error
    return source


def check_learned(
    board: Rules, known: Mapping[str, RunnableKind], manifests: Mapping[str, Manifest], digests: Mapping[str, str]
) -> None:
    """Raise StoreError if an expert learned in the frame of another reference than its components have now, or of none.

    `known` are kinds by name, `manifests` are by weights, `digests` are the checksums of the store's references by id.
    """
    for component in board.components.values():
        frames = frames_of(digests[id] for id in component.references)
        has_reference = component.is_given or bool(component.references)
        for step in component.root.walk():
            expert = board.experts[step.expert]
            learned, kind = manifests[expert.weights].reference, known[expert.kind]
            if isinstance(kind, Comparing) and not kind.needs_reference and bool(learned) != has_reference:
                how, has = ("in the frame of a reference", "none") if learned else ("without a reference", "one")
                raise StoreError(
                    f"expert '{expert.id}' learned {how}, but '{component.name}' has {has}; train it again with "
                    f"--board, or write `reference:` of '{component.name}' as it was then"
                )
            limits = {id: manifests[expert.weights].limits.get(id) for id in component.references}
            are_others = any(own and own.reference not in ("", digests[id]) for id, own in limits.items())
            if component.references and ((learned and learned != frames) or are_others):
                names = ", ".join(f"'{id}'" for id in component.references)
                raise StoreError(
                    f"expert '{expert.id}' was trained with other references than the present {names}; train it "
                    "again, or restore the former ones with `coe-experts restore`"
                )


def check_picture(board: Rules, picture: Picture) -> None:
    """Raise ConfigError for a picture that lacks the reference that it must bring, or brings one that nothing uses."""
    component = board.components.get(picture.component)
    if component is None:  # the image gets its own error
        return
    if component.is_given and picture.reference is None:
        raise ConfigError(
            f"a picture of '{component.name}' came without a reference, but {board.path.name} says "
            f"`reference: {GIVEN}`; pass the picture of a good part with it (reference=)"
        )
    if not component.is_given and picture.reference is not None:
        raise ConfigError(
            f"a picture of '{component.name}' came with a reference, but {board.path.name} does not say "
            f"`reference: {GIVEN}`; leave the reference out, or add that entry"
        )
