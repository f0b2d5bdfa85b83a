"""An expert that learns anew from what people said of its verdicts, and replaces the one in use if it is better."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from coe.board.rules import Rules
from coe.core import Expert
from coe.errors import ConfigError, ImageError
from coe.learn import backbones, evaluation, frames, learning, lessons
from coe.learn.answers import BoardExperts, decoded
from coe.learn.evaluation import Evaluation
from coe.learn.lessons import LessonComparison
from coe.pictures import photographs
from coe.pictures.photographs import Photograph, Purpose, Split
from coe.store import kinds
from coe.store.kinds import Kind, ModuleKind, Trained, TrainingPlan
from coe.store.learned import PictureDigests
from coe.store.manifest import Manifest
from coe.store.store import Store

Train = Callable[[Expert, Kind, TrainingPlan, str | None], Trained]
"""Trains an expert from weights of the store, as `learning.learn` does."""


class Relearning:
    """One expert of a board that learns anew from marked pictures and photographs.

    `said` takes remarks for people, `told` takes other sentences, and `train` trains, and shows how far it is. Raises
    ConfigError for an expert that does not learn from pictures with a label.
    """

    def __init__(
        self,
        board: Rules,
        shelf: Store,
        expert: Expert,
        allowed: Sequence[str],
        plan: TrainingPlan,
        *,
        said: Callable[[str], None],
        told: Callable[[str], None],
        train: Train,
    ) -> None:
        self._board, self._shelf, self._expert, self._allowed, self._plan = board, shelf, expert, allowed, plan
        self._said, self._told, self._trained = said, told, train
        self._kind = kinds.resolve(expert.kind, allowed)
        if not (isinstance(self._kind, ModuleKind) and (self._kind.good_only or self._kind.task == "classify")):
            raise ConfigError(
                f"expert '{expert.id}' of kind '{expert.kind}' does not learn from labelled pictures; train it on its "
                "own data"
            )

    def learn(self, marked: Sequence[Photograph], *, take: bool) -> tuple[LessonComparison, Manifest | None]:
        """Train, compare, and replace the expert if it is better, or to be taken; return its new manifest, if so."""
        id, asked = self._expert.id, BoardExperts(self._board, self._shelf, self._allowed)
        own = lessons.of_photographs(self._board, self._plan.data, id)
        lessons.expect_agreeing([*own, *marked])
        for remark in asked.under_two_labels([*own, *marked]):
            self._said(f"{id}: {remark}")
        known = asked.learned_from(self._expert, own)
        new = lessons.divided(marked, self._digests(marked))
        unseen = lessons.without(own, known or ())
        is_split = Split.beside(self._plan.data) is not None
        # Without knowledge of what the expert in use learned from, no photograph is a fair test of it.
        test = tuple(photographs.of_purpose(self._plan.data, unseen, Purpose.TEST)) if is_split and unseen else unseen
        test = test if known is not None else ()
        study = (
            photographs.of_purpose(self._plan.data, own, Purpose.LEARN)
            if is_split
            else lessons.without(own, [one.name for one in test])
        )
        held_out = [*new.held_out, *test]
        self._told(
            f"{id}: trains on {len(study)} photographs and {len(new.learn)} marked pictures; {len(test)} and "
            f"{len(new.held_out)} are held out"
        )
        in_use = self._shelf.manifest(self._expert.weights)
        with tempfile.TemporaryDirectory(prefix="coe-learn-") as work:
            candidate = Store(Path(work) / "store")
            self._train(candidate, [*study, *new.learn])
            after = BoardExperts(self._board, candidate, self._allowed, references_of=self._shelf)
            for one, whose in ((asked, "present"), (after, "new")):
                if seen := one.learned_from(self._expert, held_out):
                    self._said(
                        f"{id}: {len(seen)} held-out pictures are also training pictures ({whose}), and are skipped"
                    )
                    held_out = list(lessons.without(held_out, seen))
            comparison = lessons.LessonComparison(self._judged(asked, held_out), self._judged(after, held_out))
            if not (comparison.is_better or take):
                return comparison, None
            if self._shelf.manifest(self._expert.weights).version != in_use.version:
                raise ConfigError(
                    f"expert '{id}' was replaced during training; train again, starting from the new version"
                )
            manifest = candidate.manifest(self._expert.weights)
            folder = candidate.folder(self._expert.weights)
            return comparison, self._shelf.adopt(manifest, folder, candidate.bodies)

    def _judged(self, asked: BoardExperts, pictures: Sequence[Photograph]) -> Evaluation:
        return evaluation.by_rules(self._board, self._expert, asked.ask(self._expert, pictures))

    def _digests(self, pictures: Sequence[Photograph]) -> dict[Path, PictureDigests]:
        try:
            return {one.path: PictureDigests.of_file(one.path, decoded(one, self._board.bits)) for one in pictures}
        except (ImageError, OSError) as error:
            raise ConfigError(f"a marked picture of '{self._expert.id}' cannot be read: {error}") from error

    def _train(self, candidate: Store, pictures: Sequence[Photograph]) -> None:
        """Train the expert on pictures, from the weights in use, and put it into a store of its own."""
        kind, weights = self._kind, self._expert.weights
        assert isinstance(kind, ModuleKind), "checked when the lesson was made"
        in_use = self._shelf.manifest(weights)
        # In how many looks good parts come is learned anew.
        expert = replace(in_use.fit(self._expert), alternates=1)
        start = backbones.start_of(self._shelf, kind, tuple(self._allowed)) or (None if kind.good_only else weights)
        # Layers that were frozen stay so: few pictures would spoil them, and experts may share them.
        freeze = learning.frozen_of(self._shelf, weights, kind, start) if start and not kind.backbone else ()
        learned_from = frames.LearnedFrom()
        if kind.good_only:
            learned_from = frames.of_expert(self._shelf, str(self._board.path), self._expert.id, kind)
        plan = replace(
            self._plan,
            photographs=lessons.photographs(self._board, self._expert.id, pictures),
            references=learned_from.references,
            false_calls=in_use.metrics.get("wanted_false_calls"),
            turned=bool(in_use.metrics.get("turned")),
            polarity=self._board.has_polarity(self._expert.id),
            freeze=freeze,
        )
        trained = self._trained(expert, kind, plan, start)
        for remark in trained.remarks:
            self._said(f"{self._expert.id}: {remark}")
        source = f"learned from {len(pictures)} pictures, marked ones among them, seed {plan.seed}"
        frame = learned_from.frame(kind, trained)
        learning.put(candidate, expert, trained, start, source, self._shelf, reference=frame)
