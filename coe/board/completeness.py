"""Whether each part of a board has a picture: a board that lacks one is never OK, and its place is named.

A part has a picture if one shows its reference designator as its component. Two pictures of one place are one place.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coe.board import parts_list as parts_lists
from coe.board.parts_list import PlacedPart
from coe.board.steps import GIVEN, Component
from coe.core import FULL, Finding, Request, Result, Verdict
from coe.errors import ConfigError, list_few
from coe.helpers.spelling import composed
from coe.pictures.photographs import Photograph, natural

COMPLETENESS_STEP = "(completeness)"
"""Where findings name an expert: the step that asks for a picture of each part. No expert can have this id."""
NO_PICTURE = "no picture"
"""Its label."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What each board must show: every part of a list, or so many places of each component.

    `by` is the word for it in a summary: `parts`, `placements` or `counts`.

    Example:
        >>> expected = Expected.of_parts([PlacedPart("R0402", "R7"), PlacedPart("R0402", "R8")])
        >>> expected.lacking([Request(1, "R0402", refdes="R7")])
        (PlacedPart(component='R0402', refdes='R8'),)
    """

    by: str
    parts: tuple[PlacedPart, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict, hash=False)

    @classmethod
    def of_parts(cls, parts: str | Path | Sequence[PlacedPart], by: str = "parts") -> Expected:
        """Expect a picture of every part of a list, which may be the path of its file; raises ConfigError."""
        listed = parts_lists.read(Path(parts)) if isinstance(parts, str | Path) else tuple(parts)
        return cls(by, tuple(PlacedPart(part.component, composed(part.refdes)) for part in listed))

    @classmethod
    def of_counts(cls, components: Mapping[str, Component], where: str) -> Expected:
        """Expect as many places of each component as the rules count; raises ConfigError for parts of one."""
        if broken := [name for name, component in components.items() if component.count % 1]:
            raise ConfigError(
                f"{where}: a board cannot be checked for the counts of {list_few(broken)}, which are not whole "
                "numbers; correct the counts, or give a parts list"
            )
        return cls("counts", counts={name: int(component.count) for name, component in components.items()})

    @property
    def digest(self) -> str:
        """A text that tells two expectations apart."""
        return hashlib.sha256(repr((self.by, self.parts, sorted(self.counts.items()))).encode()).hexdigest()

    def lacking(self, images: Iterable[Request | Photograph]) -> tuple[PlacedPart, ...]:
        """Return the parts that no image of a board shows; without reference designators those of `counts`.

        `images` are all images of the board, inspected or not.
        """
        shown = {(image.component, composed(image.refdes)) for image in images}
        if self.by != "counts":
            return tuple(part for part in self.parts if (part.component, part.refdes) not in shown)
        places = Counter(component for component, _ in shown)
        return tuple(
            PlacedPart(component, "")
            for component, count in self.counts.items()
            for _ in range(count - places[component])
        )

    def results(self, images: Sequence[Request | Photograph], serials: Iterable[str] = ()) -> Iterator[Result]:
        """Yield a result for each place without a picture, REVIEW with the reason as a doubt, board by board.

        A board is a serial: one of the images, or of `serials`, which may have no image. Images with a reference
        designator and no serial are one board.
        """
        boards: dict[str, list[Request | Photograph]] = {serial: [] for serial in serials}
        for image in images:
            if image.serial or image.refdes:
                boards.setdefault(image.serial, []).append(image)
        for serial in sorted(boards, key=natural):
            for part, number in Counter(self.lacking(boards[serial])).items():
                yield _result(serial, part, number, self.counts.get(part.component, 0))


def place_of(result: Result) -> str:
    """Return how a place without a picture is named."""
    return result.request.refdes or result.request.component


def is_absent(result: Result) -> bool:
    """Tell whether a result says that a place has no picture."""
    return any(finding.expert == COMPLETENESS_STEP for finding in result.findings)


def _result(serial: str, part: PlacedPart, number: int, count: int) -> Result:
    if part.refdes:
        name, doubt = f"{part.refdes}__{part.component}", f"no picture shows {part.refdes} as {part.component}"
    else:
        name, doubt = part.component, f"{count - number} of {count} places of {part.component} have a picture"
    image = f"{serial}/{name} ({NO_PICTURE})" if serial else f"{name} ({NO_PICTURE})"
    finding = Finding(COMPLETENESS_STEP, FULL, NO_PICTURE, 0.0, doubt=doubt)
    return Result(Request(-1, part.component, image, serial, part.refdes), Verdict.REVIEW, (finding,), 0.0)


def check_references(items: Iterable[Photograph], components: Iterable[Component]) -> None:
    """Raise ConfigError if an image lacks the reference that it must bring, or has one that no expert uses."""
    given = {component.name: component.is_given for component in components}
    for item in items:
        if item.failure is not None:
            continue
        if given[item.component] and item.reference is None:
            raise ConfigError(
                f"'{item.name}' has no reference, but the rules of '{item.component}' say `reference: {GIVEN}`; list "
                f"the images in a table images.csv with a column `reference`"
            )
        if item.reference is not None and not given[item.component]:
            raise ConfigError(
                f"'{item.name}' has a reference, but the rules of '{item.component}' do not say `reference: {GIVEN}`; "
                "empty that cell, or add it to the rules"
            )
