"""`coe-experts reference`: makes the golden references of a board from pictures of good parts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from coe.board import photo_labels, rules
from coe.board.rules import Rules
from coe.cli.common import Exit, complain, err, out
from coe.cli.experts_options import InStore
from coe.cli.options import OfBoard, option
from coe.config import counted
from coe.errors import CoeError, ConfigError, ImageError, StoreError, did_you_mean
from coe.pictures import finding, split_making
from coe.pictures.finding import FoundImage
from coe.pictures.image_source import ImageSource
from coe.pictures.photo_split import Purpose
from coe.store.expert_id import ExpertId
from coe.store.kinds import Comparing, Kind, Trained
from coe.store.kinds import Reference as GoldenReference
from coe.store.learned import digest_of
from coe.store.manifest import Manifest, frames_of
from coe.store.reference_reader import ReferenceManifest
from coe.store.references import References
from coe.store.store import Store


class Reference(OfBoard, InStore):
    """Make the references of a board's components from pictures of good parts.

    Several pictures of a component become one reference: their median, and by how much good parts differ. A picture
    that differs from the others is left out, and named. A reference in the store is replaced by the next version; a
    running line keeps to the version that it was opened with. Exit status 1 if a picture was left out or a reference
    could not be made.

    Example: coe-experts reference demo --images good/
    """

    images_at: Path = option(
        "Pictures of good parts: photographs <component>/good/<image> or <component>/<image>, a single image, or "
        "images.csv. Folders of bad parts beside them are left out.",
        ...,
        "--images",
    )
    first_of_two: bool = option(
        "Of two pictures of a component take the first alone: two that differ make no reference otherwise.", False
    )
    alternate: str = option(
        "Of components that name several references make this one, of which the pictures show the look.",
        "",
        "--as",
        show_default=False,
    )

    def run(self) -> Exit:
        loaded, images_at, references, trouble = self.rules, self.images_at, References(self.shelf), False
        wanted = _wanted(loaded, self.alternate)
        items, _ = finding.find(images_at, photo_labels.known_to(loaded))
        by_id: dict[str, list[FoundImage]] = {}
        good: list[FoundImage] = []
        for item in items:
            if item.failure is not None:
                complain(f"{item.name}: {item.failure.reason}")
                trouble = True
            elif item.component in wanted and photo_labels.is_good(loaded, item.component, item.label):
                good.append(item)
        for item in split_making.of_purpose(images_at, good, Purpose.LEARN) if images_at.is_dir() else good:
            by_id.setdefault(wanted[item.component], []).append(item)
        for id, given in by_id.items():
            chosen = given[:1] if self.first_of_two and len(given) == 2 else given
            try:
                manifest, reasons = _made(references, id, chosen, str(images_at.name), loaded.bits)
            except CoeError as error:
                complain(f"{id}: {error}")
                trouble = True
                continue
            for name, reason in reasons.items():
                complain(f"left out: {name} {reason}")
            trouble = trouble or bool(reasons)
            folders = ", ".join(sorted({item.path.parent.name for item in chosen}))
            out.print(
                f"{manifest.id}: version {manifest.version}, {manifest.width} x {manifest.height}, from "
                f"{counted(manifest.images, 'picture')} in {folders}"
            )
        if missing := sorted(set(wanted.values()) - set(by_id) - set(references.ids())):
            err.print(
                f"still without a reference: {', '.join(missing)}; {images_at} has no picture of their components. "
                "Give pictures, or take the components out of the board file"
            )
        if not by_id:
            names = ", ".join(sorted(wanted))
            raise ConfigError(f"{images_at} holds no picture of a component with a reference: {names}")
        return Exit.NOT_GOOD if trouble else Exit.OK


def _wanted(board: Rules, alternate: str) -> dict[str, str]:
    """Return the id of the reference to be made of each component; raises ConfigError if it is open which that is."""
    named = {name: component.references for name, component in board.components.items() if component.references}
    if not named:
        raise ConfigError(f"no component of {board.path.name} has a reference in the store; write `reference: NAME`")
    if alternate:
        id = f"{board.board}/{alternate}"
        if chosen := {name: id for name, ids in named.items() if id in ids}:
            return chosen
        hint = did_you_mean(alternate, sorted({ExpertId.of(one).name for ids in named.values() for one in ids}))
        raise ConfigError(f"--as: no component of {board.path.name} names the reference '{alternate}'{hint}")
    if several := [name for name, ids in named.items() if len(ids) > 1]:
        looks = [ExpertId.of(id).name for id in named[several[0]]]
        raise ConfigError(
            f"'{several[0]}' names the references {', '.join(looks)}; say which of them the pictures show, as --as "
            f"{looks[0]}, and make one after another"
        )
    return {name: ids[0] for name, ids in named.items()}


@dataclass(frozen=True, slots=True)
class LearnedFrom:
    """The references in whose frames an expert learns, by component, and the checksums of these frames."""

    references: Mapping[str, GoldenReference] = field(default_factory=dict)
    checksums: frozenset[str] = frozenset()

    def frame(self, kind: Kind, trained: Trained) -> str:
        """Return the checksum of the one frame in which an expert has learned, "" if in none; raises ConfigError."""
        if not trained.in_frame:
            return ""
        if len(self.checksums) != 1:
            given = len(self.checksums)
            raise ConfigError(f"kind '{kind.name}' learns in the frame of one reference, and was given {given}")
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
            f"expert '{expert}' learns from parts aligned with references of the store, and {loaded.path.name} names "
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
            "the reference in whose frame it learned is damaged, or not in the store any more; make it again from the "
            "same pictures, or train the expert again with the reference that there is"
        )


def _made(
    references: References, id: str, items: list[FoundImage], source: str, bits: int | None
) -> tuple[ReferenceManifest, dict[str, str]]:
    """Make a reference and put it into the store; return its manifest, and why pictures were left out, by name."""
    from coe.learn import golden_reference

    reasons: dict[str, str] = {}
    pictures = {}
    count = min(len(items), golden_reference.most(_pixels(items[0])))
    for place in range(count):
        item = items[place * len(items) // count]
        try:
            pictures[item.name] = finding.decode(item.file, bits=bits)
        except ImageError as error:
            reasons[item.name] = str(error)
    learned = golden_reference.learn(pictures)
    digests = tuple(digest_of(pixels) for name, pixels in pictures.items() if name not in learned.left_out)
    new = replace(learned.encoded(source), learned=digests)
    return references.put(id, new), {**reasons, **learned.left_out}


def _pixels(item: FoundImage) -> int:
    """Return how many pixels a picture has by its header; 0 if that does not tell."""
    return ImageSource.of(item.path, "RGB").pixels()
