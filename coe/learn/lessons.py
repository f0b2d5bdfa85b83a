"""Learning from pictures on which a person has said a word: what is learned from, and whether the new expert is better.

Pictures that neither expert learned from are judged by both. The new one is proven better if, of the pictures that only
one of both judges as it should, most are the new one's: the lower bound of that share (Clopper and Pearson) is above a
half, which is McNemar's exact test, one-sided; and if it lets no more bad parts pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import xxhash

from coe.board import photo_labels
from coe.board.photo_labels import Answers
from coe.board.rules import Rules
from coe.errors import ConfigError, list_few, readable
from coe.helpers.rates import CONFIDENCE, Rate
from coe.learn import labelled
from coe.learn.evaluation import Evaluation, JudgedPicture
from coe.pictures.photographs import Photograph
from coe.results import marks, run_file
from coe.results.marks import PictureMark
from coe.store.learned import PictureDigests


def of_folder(board: Rules, folder: Path, images_at: Path | None, note: Callable[[str], None]) -> list[Photograph]:
    """Return the marked pictures of a run or an export; raises ConfigError.

    `images_at` is where the pictures of a run lie now; None: where the run says. `note` takes what is odd.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give --from the folder of a run, or an export")
    words_said, run = marks.read(folder), folder / run_file.RUN
    if not run.is_file():
        return of_marks(board, words_said, folder)
    try:
        row = json.loads(run.read_text(encoding="utf-8"))
        place, layout, name = images_at or Path(row["images"]), row.get("layout"), row["board"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{run} does not state the folder of its pictures; give --images") from error
    if name != board.board:
        raise ConfigError(f"{folder} is a run of board '{name}', not of '{board.board}'")
    if layout:
        raise ConfigError(
            f"{folder} is a run of pictures of whole boards; mark their crops (coe-experts crop, or an export of the "
            "station)"
        )
    pictures = place if place.is_dir() else place.parent
    marked = of_marks(board, words_said, pictures)
    if changed := changed_since(words_said, pictures):
        note(
            f"{len(changed)} of {len(words_said)} marked pictures changed after they were marked, such as "
            f"{changed[0]}; mark pictures again that were replaced"
        )
    return marked


def of_marks(board: Rules, marks: Iterable[PictureMark], folder: Path) -> list[Photograph]:
    """Return the pictures in a folder on which a person said a word, with what that means for each expert.

    Raises ConfigError with all that are unclear, or whose pictures are not there.
    """
    found: list[Photograph] = []
    faults: dict[str, None] = {}
    for mark in marks:
        path = folder / mark.image
        try:
            if not path.is_file():
                raise ConfigError("there is no such picture; give their folder with --images")
            if mark.expert:
                truths: Mapping[str, str] = {mark.expert: mark.label}
                if mark.expert not in board.experts or mark.label not in {*board.experts[mark.expert].labels, "none"}:
                    raise ConfigError(f"the board has no expert '{mark.expert}' with the label '{mark.label}'")
            elif mark.component in board.components:
                truths = photo_labels.of_component(board.components[mark.component], board.experts, mark.label)
            else:
                raise ConfigError(f"'{mark.component}' is not a component of the board")
        except ConfigError as error:
            faults[f"{mark.image}: {error}"] = None
            continue
        found += [
            Photograph(path, mark.component, name=mark.image, expert=expert, label=label)
            for expert, label in truths.items()
        ]
    if faults:
        raise ConfigError(f"{folder}: {list_few(faults, between='; ')}")
    return found


def changed_since(marks: Iterable[PictureMark], folder: Path) -> list[str]:
    """Return the pictures in a folder whose files are younger than the word on them: it may mean an earlier picture."""
    changed = []
    for mark in marks:
        # A time may be written in whole seconds.
        with suppress(ValueError, OSError):
            if (folder / mark.image).stat().st_mtime > datetime.fromisoformat(mark.at).timestamp() + 1:
                changed.append(mark.image)
    return changed


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one expert is to learn from, and the pictures that neither expert may learn from."""

    learn: tuple[Photograph, ...]
    held_out: tuple[Photograph, ...]


def divided(marked: Sequence[Photograph], digests: Mapping[Path, PictureDigests]) -> Lesson:
    """Divide marked pictures of one expert: of each label every second is held out, in an order by their content.

    Pictures of the same content stay together.
    """
    learn: list[Photograph] = []
    held: list[Photograph] = []
    places: dict[tuple[str, int], int] = {}
    counts: dict[str, int] = {}
    for one in sorted(marked, key=lambda one: (one.label, digests[one.path].pixels, one.name)):
        key = one.label, digests[one.path].pixels
        if key not in places:
            places[key] = counts[one.label] = counts.get(one.label, -1) + 1
        (held if places[key] % 2 else learn).append(one)
    return Lesson(tuple(learn), tuple(held))


def expect_agreeing(pictures: Iterable[Photograph]) -> None:
    """Raise ConfigError with the pictures, of marks and photographs, that are one file and have two labels."""
    by_content: dict[int, Photograph] = {}
    faults = []
    for one in pictures:
        with readable(one.name):
            first = by_content.setdefault(xxhash.xxh3_64_intdigest(one.path.read_bytes()), one)
        if first.label != one.label:
            faults.append(f"{first.name} is '{first.label}' and {one.name} is '{one.label}'")
    if faults:
        raise ConfigError(f"the same picture has two labels: {list_few(faults, between='; ')}; correct one")


def photographs(board: Rules, expert: str, pictures: Iterable[Photograph]) -> tuple[Photograph, ...]:
    """Return pictures of an expert as a training takes them."""
    good = Answers.of_steps(board.steps_of(expert), board.experts[expert]).good
    return tuple(replace(one, good=one.label in good) for one in pictures)


def of_photographs(board: Rules, folder: Path, expert: str) -> list[Photograph]:
    """Return the photographs of a folder that say something of an expert; raises ConfigError."""
    return [one for one in labelled.find(folder, board.experts, board.components) if one.expert == expert]


@dataclass(frozen=True, slots=True)
class LessonComparison:
    """How two experts judge the same held-out pictures, `before` and `after` learning."""

    before: Evaluation
    after: Evaluation
    confidence: float = CONFIDENCE
    _both: tuple[tuple[JudgedPicture, JudgedPicture], ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        new = {one.asked.picture.path: one for one in self.after.judged}
        both = tuple((o, new[o.asked.picture.path]) for o in self.before.judged if o.asked.picture.path in new)
        object.__setattr__(self, "_both", both)

    @property
    def pictures(self) -> int:
        """How many pictures both judged."""
        return len(self._both)

    @property
    def only_after(self) -> int:
        """How many of them only the new expert judges as it should."""
        return sum(_is_wrong(old) and not _is_wrong(new) for old, new in self._both)

    @property
    def only_before(self) -> int:
        """How many of them only the expert in use judges as it should."""
        return sum(_is_wrong(new) and not _is_wrong(old) for old, new in self._both)

    @property
    def escapes(self) -> tuple[int, int]:
        """The bad parts that pass, before and after."""
        return sum(old.escape for old, _ in self._both), sum(new.escape for _, new in self._both)

    @property
    def is_better(self) -> bool:
        """Whether the new expert is proven better, with the confidence."""
        differing = self.only_after + self.only_before
        before, after = self.escapes
        return differing > 0 and after <= before and Rate(self.only_after, differing).lower(self.confidence) > 0.5

    def __str__(self) -> str:
        """Say who judges how many pictures rightly, and what that proves."""
        before, after = self.escapes
        said = (
            f"of {self.pictures} held-out pictures {self.only_after} are judged correctly only by the new expert, "
            f"{self.only_before} only by the one in use; bad parts that pass: {before} before, {after} after"
        )
        if self.is_better:
            return f"{said}: better, with a confidence of {self.confidence:.0%}"
        why = "more bad parts pass" if after > before else "too few verdicts differ to prove it"
        return f"{said}: not proven better ({why})"


def _is_wrong(one: JudgedPicture) -> bool:
    return one.escape or one.false_call


def without(pictures: Iterable[Photograph], names: Iterable[str]) -> tuple[Photograph, ...]:
    """Return pictures but those of some names."""
    left_out = set(names)
    return tuple(one for one in pictures if one.name not in left_out)


def renamed(pictures: Iterable[Photograph], where: str) -> list[Photograph]:
    """Return pictures whose names say from where they are, so that those of several folders differ."""
    return [replace(one, name=f"{where}/{one.name}") for one in pictures]
