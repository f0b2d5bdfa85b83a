"""`coe-experts learn`: experts learn from what a person says of their verdicts."""

from __future__ import annotations

import getpass
import json
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from coe.board.rules import Rules
from coe.cli import experts_prepare, experts_reference
from coe.cli.common import Exit, err, out, point_out
from coe.cli.experts_new import learned, measures_text
from coe.cli.experts_options import BatchOption, EpochsOption, WithKinds
from coe.cli.experts_verified import show_exam, tell
from coe.cli.options import OfBoard, SeedOption, option
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.learn import backbones, learning
from coe.pictures import split_making
from coe.pictures.photo_split import Purpose, Split
from coe.results import marks, records, run_file
from coe.results.marks import PictureMark
from coe.store import kinds
from coe.store.kinds import ModuleKind, TrainingPlan
from coe.store.learned import PictureDigests
from coe.store.manifest import Manifest
from coe.store.store import Store

if TYPE_CHECKING:
    from coe.learn.answers import BoardExperts
    from coe.learn.evaluation import Evaluation
    from coe.learn.lessons import LessonComparison
    from coe.learn.verified import VerifiedPicture


class Learn(OfBoard, WithKinds):
    """Train the experts anew of which a person said that they were wrong, and replace those that get better.

    Of the marked pictures half is learned from, with the photographs. The others, and photographs that the expert in
    use did not learn from, are judged by both. A new expert takes the place of that in use only if that proves it
    better; the former is kept (coe-experts history).

    Exit status 0 if all experts were replaced, 1 if one was not, 2 if nothing could be learned.

    Example: coe-experts learn line7.yaml --from runs/line7/monday --photos photos/ --mark SN1/R7__R0402.png=good
    """

    of: list[Path] = option("A run, or an export of the station; repeat it.", ..., "--from", metavar="FOLDER")
    photos: Path = option("The photographs that the experts learn from besides: <component>/<label>/<picture>.", ...)
    images_at: Path | None = option("Where the pictures of a run lie now. Default: as the run says.", None, "--images")
    mark: list[str] | None = option(
        "What a picture of the first run shows: good, bad or a label, as SN1/R7__R0402.png=good; with nothing "
        "behind = it is undone. The run's folder keeps it, as it does from the report. May be repeated.",
        metavar="IMAGE=LABEL",
    )
    take: bool = option("Replace experts also by new ones that are not proven better.", False)
    epochs: EpochsOption = 30
    batch: BatchOption = 32
    seed: SeedOption = 0
    no_prepare: bool = option("Do not prepare experts that are replaced.", False)

    def run(self) -> Exit:
        from coe.learn import lessons

        if self.mark:
            _mark(self.of[0], self.mark)
        board, status = self.rules, Exit.OK
        found = {folder: _marked(board, folder, self.images_at) for folder in self.of}
        marked = [one for folder, some in found.items() for one in lessons.renamed(some, folder.as_posix())]
        if not marked:
            raise ConfigError(
                f"{', '.join(map(str, self.of))}: no picture is marked; say what pictures show with --mark, or in the "
                f"report, and put its {marks.MARKS} there"
            )
        for id in sorted({one.expert for one in marked}):
            of_expert = [one for one in marked if one.expert == id]
            plan = TrainingPlan(self.photos, Path(), self.epochs, self.batch, 1e-3, seed=self.seed, bits=board.bits)
            lesson = _Lesson(board, self.shelf, board.experts[id], self.allowed, plan)
            comparison, manifest = lesson.learn(of_expert, take=self.take)
            out.print(f"{id}: {comparison}")
            if manifest is None:
                out.print(f"{id}: the expert in use stays (--take replaces it all the same)")
                status = Exit.NOT_GOOD
                continue
            out.print(f"{id}: replaced, version {manifest.version}: {measures_text(manifest.metrics)}")
            show_exam(id, manifest.exam)
            if not self.no_prepare:
                samples = [one.path for one in of_expert]
                experts_prepare.prepare_new(self.store, manifest.id, samples, allow_kinds=self.allowed, bits=board.bits)
        return status


def _marked(board: Rules, folder: Path, images_at: Path | None) -> list[VerifiedPicture]:
    """Return the marked pictures of a run or an export; raises ConfigError."""
    from coe.learn import lessons

    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder; give --from the folder of a run, or an export")
    words_said, run = marks.read(folder), folder / run_file.RUN
    if not run.is_file():
        return lessons.of_marks(board, words_said, folder)
    try:
        row = json.loads(run.read_text(encoding="utf-8"))
        place, layout, name = images_at or Path(row["images"]), row.get("layout"), row["board"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{run} does not say where its pictures lie; give --images") from error
    if name != board.board:
        raise ConfigError(f"{folder} is a run of board '{name}', not of '{board.board}'")
    if layout:
        raise ConfigError(
            f"{folder} is a run of pictures of whole boards; mark their crops (coe-experts crop, or an export of the "
            "station)"
        )
    pictures = place if place.is_dir() else place.parent
    marked = lessons.of_marks(board, words_said, pictures)
    if changed := lessons.changed_since(words_said, pictures):
        point_out(
            "note",
            f"{len(changed)} of {len(words_said)} marked pictures are younger than the word on them, as {changed[0]}; "
            "where another picture was taken under the name, mark it again",
        )
    return marked


def _mark(run: Path, words: Sequence[str]) -> None:
    """Keep what a person says that pictures of a run show; raises ConfigError for one that the run does not have."""
    requests = {result.request.image: result.request for result in records.read(run / records.RESULTS)}
    by = ""
    with suppress(OSError, KeyError, ImportError):
        by = getpass.getuser()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    said = [word.rpartition("=")[::2] for word in words]
    for image, _ in said:
        if image not in requests:
            raise ConfigError(
                f"--mark: {run} has no result of '{image}'; give IMAGE=LABEL, IMAGE as {records.RESULTS} has"
            )
        if not requests[image].component:
            raise ConfigError(f"{run}: nobody knows which component '{image}' shows, so no expert can learn from it")
    for image, label in said:
        marks.add(run, PictureMark(image=image, label=label, component=requests[image].component, by=by, at=at))


class _Lesson:
    """One expert that learns."""

    def __init__(self, board: Rules, shelf: Store, expert: Expert, allowed: Sequence[str], plan: TrainingPlan) -> None:
        self._board, self._shelf, self._expert, self._allowed, self._plan = board, shelf, expert, allowed, plan
        self._kind = kinds.resolve(expert.kind, allowed)
        if not (isinstance(self._kind, ModuleKind) and (self._kind.good_only or self._kind.task == "classify")):
            raise ConfigError(
                f"expert '{expert.id}' of kind '{expert.kind}' does not learn from pictures with a label; train it by "
                "its own data"
            )

    def learn(self, marked: Sequence[VerifiedPicture], *, take: bool) -> tuple[LessonComparison, Manifest | None]:
        """Train, compare, and replace the expert if it is better; return its new manifest if it was replaced."""
        from coe.learn import lessons
        from coe.learn.answers import BoardExperts

        id, asked = self._expert.id, BoardExperts(self._board, self._shelf, self._allowed)
        own = lessons.of_photographs(self._board, self._plan.data, id)
        lessons.expect_agreeing([*own, *marked])
        for remark in asked.under_two_labels([*own, *marked]):
            point_out("note", f"{id}: {remark}")
        known = asked.learned_from(self._expert, own)
        new = lessons.divided(marked, self._digests(marked))
        unseen = lessons.without(own, known or ())
        is_split = Split.beside(self._plan.data) is not None
        # Without knowledge of what the expert in use learned from, no photograph is a fair test of it.
        test = tuple(split_making.of_purpose(self._plan.data, unseen, Purpose.TEST)) if is_split and unseen else unseen
        test = test if known is not None else ()
        study = (
            split_making.of_purpose(self._plan.data, own, Purpose.LEARN)
            if is_split
            else lessons.without(own, [one.name for one in test])
        )
        held_out = [*new.held_out, *test]
        err.print(
            f"{id}: learns from {len(study)} photographs and {len(new.learn)} marked pictures; {len(test)} and "
            f"{len(new.held_out)} are held out"
        )
        in_use = self._shelf.manifest(self._expert.weights)
        with tempfile.TemporaryDirectory(prefix="coe-learn-") as work:
            candidate = Store(Path(work) / "store")
            self._train(candidate, [*study, *new.learn])
            after = BoardExperts(self._board, candidate, self._allowed, references_of=self._shelf)
            for one, whose in ((asked, "present"), (after, "new")):
                if seen := one.learned_from(self._expert, held_out):
                    point_out(
                        "note", f"{id}: {len(seen)} held-out pictures were learned from ({whose}), and are left out"
                    )
                    held_out = list(lessons.without(held_out, seen))
            comparison = lessons.LessonComparison(self._judged(asked, held_out), self._judged(after, held_out))
            tell(comparison.after, err.print, err.print)
            if not (comparison.is_better or take):
                return comparison, None
            if self._shelf.manifest(self._expert.weights).version != in_use.version:
                raise ConfigError(f"expert '{id}' was replaced while it learned; learn again, from what is there now")
            manifest = candidate.manifest(self._expert.weights)
            folder = candidate.folder(self._expert.weights)
            return comparison, self._shelf.adopt(manifest, folder, candidate.bodies)

    def _judged(self, asked: BoardExperts, pictures: Sequence[VerifiedPicture]) -> Evaluation:
        from coe.learn import evaluation

        return evaluation.by_rules(self._board, self._expert, asked.ask(self._expert, pictures))

    def _digests(self, pictures: Sequence[VerifiedPicture]) -> dict[Path, PictureDigests]:
        from coe.learn.answers import decoded

        try:
            return {one.path: PictureDigests.of_file(one.path, decoded(one, self._board.bits)) for one in pictures}
        except (ImageError, OSError) as error:
            raise ConfigError(f"a marked picture of '{self._expert.id}' cannot be read: {error}") from error

    def _train(self, candidate: Store, pictures: Sequence[VerifiedPicture]) -> None:
        """Train the expert on pictures, from the weights in use, and put it into a store of its own."""
        from coe.learn import lessons

        kind, weights = self._kind, self._expert.weights
        assert isinstance(kind, ModuleKind), "checked when the lesson was made"
        in_use = self._shelf.manifest(weights)
        # In how many looks good parts come is learned anew.
        expert = replace(in_use.fit(self._expert), alternates=1)
        start = backbones.start_of(self._shelf, kind, tuple(self._allowed)) or (None if kind.good_only else weights)
        # Layers that were frozen stay so: few pictures would spoil them, and experts may share them.
        freeze = learning.frozen_of(self._shelf, weights, kind, start) if start and not kind.backbone else ()
        learned_from = experts_reference.LearnedFrom()
        if kind.good_only:
            learned_from = experts_reference.of_expert(self._shelf, str(self._board.path), self._expert.id, kind)
        plan = replace(
            self._plan,
            photographs=lessons.photographs(self._board, self._expert.id, pictures),
            references=learned_from.references,
            false_calls=in_use.metrics.get("wanted_false_calls"),
            turned=bool(in_use.metrics.get("turned")),
            polarity=any(
                one.has_polarity() for one in self._board.components.values() if one.steps_of(self._expert.id)
            ),
            freeze=freeze,
        )
        trained = learned("learning", self._shelf, expert, kind, plan, start)
        for remark in trained.remarks:
            point_out("note", f"{self._expert.id}: {remark}")
        source = f"learned from {len(pictures)} pictures, marked ones among them, seed {plan.seed}"
        frame = learned_from.frame(kind, trained)
        learning.put(candidate, expert, trained, start, source, self._shelf, reference=frame)
