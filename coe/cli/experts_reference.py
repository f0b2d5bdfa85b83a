"""`coe-experts reference`: makes the golden references of a board from pictures of good parts."""

from __future__ import annotations

from pathlib import Path

from coe.board import photo_labels
from coe.board.rules import Rules
from coe.cli.common import Exit, complain, err, out
from coe.cli.experts_options import InStore
from coe.cli.options import OfBoard, option
from coe.config import counted
from coe.errors import CoeError, ConfigError, did_you_mean
from coe.pictures import finding, photographs
from coe.pictures.photographs import Photograph, Purpose
from coe.store.expert_id import ExpertId
from coe.store.references import References


class Reference(OfBoard, InStore):
    """Make the references of a board's components from pictures of good parts.

    The pictures of a component become one reference: their median, and how far good parts usually differ from it.
    Pictures that do not fit the others are left out and listed. An existing reference gets a new version; running lines
    keep the old one. Exit status 1 if a picture was left out or a reference could not be made.

    Example: coe-experts reference demo --images good/
    """

    images_at: Path = option(
        "Pictures of good parts: <component>/good/<image> or <component>/<image>, a single image, or images.csv. "
        "Other folders of labels are skipped.",
        ...,
        "--images",
    )
    first_of_two: bool = option(
        "If there are exactly two pictures of a component, use only the first. Without this option, two pictures that "
        "differ make no reference.",
        False,
    )
    alternate: str = option(
        "Name of the reference to make, if components have several.", "", "--as", show_default=False
    )

    def run(self) -> Exit:
        from coe.learn import golden_reference

        loaded, images_at, references, trouble = self.rules, self.images_at, References(self.shelf), False
        wanted = _wanted(loaded, self.alternate)
        items, _ = finding.find(images_at, photo_labels.known_to(loaded))
        by_id: dict[str, list[Photograph]] = {}
        good: list[Photograph] = []
        for item in items:
            if item.failure is not None:
                complain(f"{item.name}: {item.failure.reason}")
                trouble = True
            elif item.component in wanted:
                component = loaded.components[item.component]
                good += [item] * photo_labels.is_good(component, loaded.experts, item.label)
        for item in photographs.of_purpose(images_at, good, Purpose.LEARN) if images_at.is_dir() else good:
            by_id.setdefault(wanted[item.component], []).append(item)
        for id, given in by_id.items():
            chosen = given[:1] if self.first_of_two and len(given) == 2 else given
            try:
                manifest, reasons = golden_reference.made(references, id, chosen, str(images_at.name), loaded.bits)
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
