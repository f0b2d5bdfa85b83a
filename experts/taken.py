"""What a training took: how many pictures from which folder, their digests, and which of them are the same picture.

A picture that stands among those held out and among those to learn from makes the held-out figures too good, and one
that stands under two labels teaches nothing; both are said.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coe.core import Expert
from coe.errors import readable
from coe.pictures import alike
from coe.pictures.decoding import decode
from coe.pictures.photographs import Purpose
from coe.store.kinds import Image
from coe.store.learned import LearnedPictures, PictureDigests
from coe.store.manifest import SHORTER

_SHOWN = 3
_STRIP = 1 / 3
"""Pictures are strips if most shorter sides are under this share of the longer ones."""
_SERIES = 4
"""From so many pictures on it is told that all show one shot."""


def digests_of(path: Path, pixels: Image) -> PictureDigests:
    """Return the digests of a picture; raises ConfigError if its file cannot be read any more."""
    with readable(path):
        return PictureDigests.of_file(path, pixels)


@dataclass(frozen=True, slots=True)
class TrainingPicture:
    """A picture that was taken, its label ("" without one), what it is for, and how it looks, if that is asked.

    `aspect` is that of its shorter side to its longer.
    """

    path: Path
    label: str
    part: Purpose
    digests: PictureDigests
    look: alike.Look | None = None
    aspect: float = 1.0


@dataclass(slots=True)
class TakenPictures:
    """The pictures that a training took from a data set at `root`; `bits` as for `decode`."""

    root: Path
    bits: int | None = None
    pictures: list[TrainingPicture] = field(default_factory=list)

    def add(self, path: Path, pixels: Image, part: Purpose, label: str = "") -> None:
        """Note a picture, (H, W, 3) uint8 RGB; raises ConfigError if its file cannot be read any more."""
        digests, aspect = digests_of(path, pixels), min(pixels.shape[:2]) / max(pixels.shape[:2])
        self.pictures.append(TrainingPicture(path, label, part, digests, alike.look_of(pixels), aspect))

    @property
    def learned(self) -> LearnedPictures:
        """The digests of the pictures from which something was learned or chosen: of all but those held out."""
        return LearnedPictures.of(p.digests for p in self.pictures if p.part is not Purpose.TEST)

    @property
    def leaked(self) -> frozenset[Path]:
        """The held-out pictures that something was learned from, or chosen by, as well."""
        learned = {p.digests.pixels for p in self.pictures if p.part is not Purpose.TEST}
        return frozenset(p.path for p in self.pictures if p.part is Purpose.TEST and p.digests.pixels in learned)

    def measures(self, expert: Expert) -> dict[str, float]:
        """Return how many pixels of the expert's input the shorter sides of most pictures have, if these are strips."""
        aspect = statistics.median(picture.aspect for picture in self.pictures) if self.pictures else 1.0
        return {SHORTER: expert.input_size * aspect} if aspect < _STRIP else {}

    def sentence(self) -> str:
        """Say how many pictures were taken from which folder."""
        folders = Counter(self.name(picture.path.parent) for picture in self.pictures)
        taken = ", ".join(f"{count} from {folder}" for folder, count in sorted(folders.items()))
        return f"took {len(self.pictures)} pictures: {taken}"

    def identical(self) -> Iterable[str]:
        """Yield sentences about identical pictures: in two parts of the data, under two labels, twice, or all of them.

        Under two labels, a copy that was saved anew or in another size is the same picture.
        """
        groups: dict[int, list[TrainingPicture]] = {}
        for picture in self.pictures:
            groups.setdefault(picture.digests.pixels, []).append(picture)
        several = [group for group in groups.values() if len(group) > 1]
        if across := [group for group in several if len({p.part for p in group}) > 1]:
            yield (
                f"identical pictures are in two parts of the data, {self._told(across)}; held-out ones are left out "
                "of the figures: remove them from one part"
            )
        seen = [(p, p.look) for p in self.pictures if p.look is not None]
        yield from alike.remarks(
            [(self.name(p.path), look, p.label) for p, look in seen],
            lambda place: decode(seen[place][0].path, bits=self.bits),
        )
        if twice := [group for group in several if group not in across and len({p.label for p in group}) == 1]:
            yield f"identical pictures are given more than once, {self._told(twice)}; each has that much more weight"
        different = {(p.label, p.digests.pixels): (p, look) for p, look in seen if p.part is not Purpose.TEST}
        for label in dict.fromkeys(label for label, _ in different):
            own = [one for (other, _), one in different.items() if other == label]
            shots = [p.path for p, _ in own]
            if len(own) >= _SERIES and alike.are_one_shot(
                [look for _, look in own], lambda place, shots=shots: decode(shots[place], bits=self.bits)
            ):
                of = f" of '{label}'" if label else ""
                yield (
                    f"all {len(own)} pictures{of} look like one shot, so it is unknown how parts differ, and good ones "
                    "may be called; give pictures of different parts"
                )

    def _told(self, groups: Sequence[Sequence[TrainingPicture]]) -> str:
        names = "; ".join(" = ".join(self.name(p.path) for p in group[:_SHOWN]) for group in groups[:_SHOWN])
        return f"{len(groups)} of them, such as {names}" if len(groups) > 1 else names

    def name(self, path: Path) -> str:
        """Return a path as it lies in the data set."""
        inside = path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        return self.root.name if inside == "." else inside
