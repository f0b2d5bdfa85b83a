"""What experts say of verified pictures: each expert runs by itself, in full precision, with its raw scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from coe.board import photo_labels
from coe.board.rules import Rules
from coe.board.steps import Component
from coe.core import FULL, NOTHING, Expert, Finding, Shown, Verdict
from coe.errors import ConfigError, ImageError, StoreError, list_few, readable
from coe.inspector import line_references
from coe.learn.labelled import digest_of_files
from coe.pictures import alike
from coe.pictures.decoding import decode
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.pictures.photographs import Photograph
from coe.runtime.cpu import load_alone
from coe.store import kinds
from coe.store.kinds import Comparing, ExpertInput, Image, Kind, Reference
from coe.store.learned import PictureDigests, digest_of
from coe.store.references import References
from coe.store.store import Store


@dataclass(frozen=True, slots=True)
class LabelledFinding:
    """The true label of a picture, and its expert's finding."""

    truth: str
    finding: Finding


@dataclass(frozen=True, slots=True)
class ExpertAnswers:
    """The answers of one expert, whether it is a detector, and why other pictures have none, by name.

    `doubtful` holds, by name, the true labels of pictures whose findings are in doubt: a line calls them, as REVIEW.
    `none` is among the labels that the expert rejects if a part in which it sees nothing passes nowhere on the board.
    `weights` is the checksum of its weights, `pictures_sha256` that of its pictures with their labels.
    """

    expert: Expert
    detects: bool
    answers: tuple[LabelledFinding, ...]
    failed: Mapping[str, str]
    doubtful: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    pictures_sha256: str = ""


@dataclass(frozen=True, slots=True)
class PictureAnswer:
    """A verified picture, and what its expert says of it; None for a picture that it cannot judge, and why."""

    picture: Photograph
    finding: Finding | None
    failure: str = ""


def ask(
    store: Store,
    expert: Expert,
    kind: Kind,
    pictures: Iterable[Photograph],
    prepare: Callable[[Photograph], ExpertInput],
) -> Iterator[PictureAnswer]:
    """Yield what an expert says of each picture, in full precision; raises CoeError if it cannot run."""
    expert = replace(expert, variant=FULL)
    run = load_alone(store, store.manifest(expert.weights), kind, expert)
    for picture in pictures:
        try:
            prepared = prepare(picture)
        except ImageError as error:
            yield PictureAnswer(picture, None, str(error))
        else:
            (finding,) = run([prepared])
            yield PictureAnswer(picture, finding)


def decoded(picture: Photograph, bits: int | None = None) -> Image:
    """Return the pixels of a picture, (H, W, 3) uint8 RGB; raises ImageError.

    `bits` says how many low bits of 16-bit samples count.
    """
    return np.asarray(decode(picture.file, bits=bits), np.uint8)


def given_reference(path: Path, bits: int | None = None) -> Reference:
    """Return the picture of a good part as a reference; `bits` as for `decoded`; raises ImageError."""
    return ReferenceSource(ImageSource.of(path, "RGB", bits)).decode()


class BoardExperts:
    """Asks experts of a board, one after another."""

    def __init__(
        self, board: Rules, store: Store, allow_kinds: Collection[str] = (), *, references_of: Store | None = None
    ) -> None:
        """Resolve the kinds; raises ConfigError, RulesError or StoreError as a line does when it is opened.

        `references_of` is the store of the references, if it is another.
        """
        self._board, self._store = board, store
        self._kinds = {name: kinds.resolve(name, allow_kinds) for name in {e.kind for e in board.experts.values()}}
        kinds.check_experts(board.experts.values(), self._kinds, board.path.name)
        line_references.check(board, self._kinds)
        self._references = References(references_of or store)

    def answers(self, id: str, pictures: Iterable[Photograph]) -> ExpertAnswers:
        """Return what an expert says of its pictures; raises CoeError if it cannot run."""
        # Raw scores: what the rules say of an earlier calibration must not go into the next.
        raw = replace(self._board.experts[id], temperature=1.0, ignore_under={})
        judged: list[Photograph] = []
        answers, failed, doubtful = [], {}, {}
        for answer in self.ask(raw, pictures):
            picture, finding = answer.picture, answer.finding
            if finding is None:
                failed[picture.name] = answer.failure
                continue
            judged.append(picture)
            # What is found is found, whatever else is in doubt: a threshold must not rise because it was left out.
            if finding.doubt and not finding.boxes:
                doubtful[picture.name] = picture.label
            else:
                answers.append(LabelledFinding(picture.label, finding))
        if self.detects(raw) and self._nothing_speaks_against(id):
            raw = replace(raw, reject=raw.reject | {NOTHING})
        checksum, pictures_sha256 = self._store.manifest(raw.weights).checksum, digest_of_files(judged)
        return ExpertAnswers(raw, self.detects(raw), tuple(answers), failed, doubtful, checksum, pictures_sha256)

    def _nothing_speaks_against(self, id: str) -> bool:
        """Tell whether a part in which a detector sees nothing passes nowhere on the board, as where a mark must be."""
        outcomes = {step.outcomes.get(NOTHING) for step in self._board.steps_of(id)}
        return bool(outcomes) and outcomes <= {Verdict.NG, Verdict.REVIEW}

    def ask(self, expert: Expert, pictures: Iterable[Photograph]) -> Iterator[PictureAnswer]:
        """Yield what an expert of the board says of each picture; raises CoeError if it cannot run."""
        kind = self._kinds[expert.kind]
        expert = self._store.manifest(expert.weights).fit(expert)
        return ask(self._store, expert, kind, pictures, partial(self._prepared, kind, expert))

    def ask_what_must_not_pass(
        self, expert: Expert, pictures: Iterable[Photograph]
    ) -> Iterator[tuple[Photograph, Shown, Finding]]:
        """Yield what an expert says of pictures that must not pass, made of good ones; see `Kind.must_not_pass`.

        Good pictures that cannot be read are left out. Raises CoeError if the expert cannot run.
        """
        kind, manifest = self._kinds[expert.kind], self._store.manifest(expert.weights)
        expert = replace(manifest.fit(expert), variant=FULL)
        run = load_alone(self._store, manifest, kind, expert)
        for picture in pictures:
            with suppress(ImageError):
                for item, pixels in kind.must_not_pass(decoded(picture, self._board.bits)):
                    (finding,) = run([self._input(kind, expert, picture, pixels)])
                    yield picture, item, finding

    def has_limits(self, expert: Expert) -> bool:
        """Tell whether an expert of the board judges each component by limits of its own good parts."""
        return bool(self._store.manifest(expert.weights).limits)

    def detects(self, expert: Expert) -> bool:
        """Tell whether an expert of the board is a detector."""
        return self._kinds[expert.kind].task == "detect"

    def _prepared(self, kind: Kind, expert: Expert, picture: Photograph) -> ExpertInput:
        return self._input(kind, expert, picture, decoded(picture, self._board.bits))

    def _input(self, kind: Kind, expert: Expert, picture: Photograph, pixels: Image) -> ExpertInput:
        if isinstance(kind, Comparing) and (kind.needs_reference or self._is_compared(expert, picture)):
            return kind.compare_best(pixels, self._reference(expert, picture), expert)
        return kind.preprocess(pixels, expert)

    def _is_compared(self, expert: Expert, picture: Photograph) -> bool:
        return picture.reference is not None or any(one.references or one.is_given for one in self._served(expert))

    def remarks_on(self, expert: Expert, pictures: Sequence[Photograph]) -> Iterator[str]:
        """Yield what is odd of an expert's pictures: if nobody knows what it learned from, and which contradict.

        Then raise ConfigError for pictures of labels that it cannot give, or that it learned from.
        """
        yield from self.under_two_labels(pictures)
        if not self.detects(expert) and (nothing := [one.name for one in pictures if one.label == NOTHING]):
            raise ConfigError(
                f"it is not a detector, but {nothing[0]} is labelled '{NOTHING}'; move it to another label"
            )
        if made := self.in_references(expert, pictures):
            yield (
                f"its reference is made from {len(made)} of its {len(pictures)} pictures, such as {list_few(made)}: "
                "these fit it better than others would; remove them"
            )
        known = self.learned_from(expert, pictures)
        if known is None:
            yield f"the training pictures of '{expert.weights}' are unknown; make sure that none of these is among them"
        elif known:
            raise ConfigError(
                f"it was trained on {len(known)} of its {len(pictures)} pictures, such as {list_few(known)}, whose "
                "scores are too good; remove them, or give other pictures"
            )

    def in_references(self, expert: Expert, pictures: Iterable[Photograph]) -> list[str]:
        """Return the names of the pictures from which the reference is made that they are compared with."""
        if not isinstance(self._kinds[expert.kind], Comparing):
            return []
        made: set[int] = set()
        for component in self._served(expert):
            for id in component.references:
                with suppress(StoreError):  # it is named when it is needed
                    made.update(self._references.manifest(id).learned)
        known = []
        for picture in pictures:
            with suppress(ImageError):  # it is named when it is judged
                of_own = made
                if picture.reference is not None:
                    of_own = {digest_of(np.asarray(decode(picture.reference, bits=self._board.bits), np.uint8))}
                if of_own and digest_of(decoded(picture, self._board.bits)) in of_own:
                    known.append(picture.name)
        return known

    def under_two_labels(self, pictures: Iterable[Photograph]) -> list[str]:
        """Return a remark on pictures that look the same and have different labels, or none; see `alike`.

        With another reference it is another question, so pictures that bring theirs are not compared.
        """
        bits, kept, seen = self._board.bits, list[Photograph](), []
        for picture in pictures:
            with suppress(ImageError):  # it is named when it is judged
                if picture.reference is None:
                    seen.append((picture.name, alike.look_of(decoded(picture, bits)), picture.label))
                    kept.append(picture)
        return alike.remarks(seen, lambda place: decoded(kept[place], bits))

    def learned_from(self, expert: Expert, pictures: Iterable[Photograph]) -> list[str] | None:
        """Return the names of the pictures that an expert learned from; None if nobody knows which.

        Raises ConfigError if a file cannot be read.
        """
        if (learned := self._store.learned(expert.weights)) is None:
            return None
        known = []
        for picture in pictures:
            # A picture that is none is named when it is judged.
            with readable(picture.path), suppress(ImageError):
                pixels = decode(picture.path, bits=self._board.bits)
                if learned.holds(PictureDigests.of_file(picture.path, pixels)):
                    known.append(picture.name)
        return known

    def _served(self, expert: Expert) -> list[Component]:
        return list(photo_labels.served(self._board.components, expert.id).values())

    def _reference(self, expert: Expert, picture: Photograph) -> Reference:
        if picture.reference is not None:
            return given_reference(picture.reference, self._board.bits)
        shown = [one for one in self._served(expert) if picture.component in ("", one.name)]
        named = {component.references for component in shown}
        if len(named) == 1 and all(named):
            return line_references.decoded({id: self._references.load(id) for id in named.pop()}).decode()
        several = "references of several components" if len(named) > 1 else "given references"
        raise ConfigError(
            f"expert '{expert.id}' compares with {several}; list its pictures in images.csv with the column reference"
        )
