"""`coe-experts train` and `learn`: experts that learn from labelled pictures, and from what people say of verdicts."""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from coe import config
from coe.board import rules
from coe.board.photo_labels import Answers
from coe.board.steps import polarity_is_known
from coe.cli import experts_prepare
from coe.cli.common import Exit, Steps, err, out, point_out
from coe.cli.experts_options import (
    BatchOption,
    BitsOption,
    Described,
    EpochsOption,
    ThreadsOption,
    TurnedOption,
    WithKinds,
)
from coe.cli.experts_prepare import LABELLED
from coe.cli.experts_verified import show_exam, tell
from coe.cli.options import OfBoard, SeedOption, argument, finite, option, words_of
from coe.core import Expert
from coe.errors import ConfigError, list_few, readable
from coe.learn import backbones, data_set, frames, labelled, learning
from coe.pictures.photographs import Photograph
from coe.results import marks, records
from coe.results.marks import PictureMark
from coe.store import kinds
from coe.store.expert_id import ExpertId
from coe.store.kinds import Kind, Trained, TrainingPlan
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.variants import accept


class Train(Described):
    """Train an expert on labelled images and put it into the store.

    Kinds with epochs keep the epoch that is best on held-out images. With --body and --freeze, the new expert shares
    its first layers with another expert; these layers are stored and loaded once.

    Example: coe-experts train line7/R0402 --board line7.yaml --data photos/
    """

    id: str = argument("Name of the expert in the store: BOARD/NAME.", ...)
    data: Path = option(
        "Folder of photographs: <component>/<label>/<image> or <label>/<image>; with --board a label may be "
        "good or bad. For patch and difference also <component>/<image>. For YOLOv5 the YAML file of a data set.",
        ...,
    )
    epochs: EpochsOption = 30
    batch: BatchOption = 32
    learning_rate: float = option("Learning rate.", 1e-3, "--lr", min=1e-7, max=1e3, callback=finite)
    init: str | None = option("Start from the weights of this expert.")
    body: str | None = option("Start from this expert, and freeze the layers that --freeze names.")
    freeze: str | None = option("Layers to freeze: prefixes of tensor names, e.g. conv1,bn1,layer1.")
    false_calls: float | None = option(
        "For kind patch: share of good parts that may be false calls. Default: 0.05.", min=1e-6, max=0.5
    )
    turned: TurnedOption = False
    seed: SeedOption = 0
    threads: ThreadsOption = 0
    bf16: bool | None = option("Multiply in bf16; weights stay fp32. Default: bf16 if the processor has it.")
    bits: BitsOption = None

    def run(self) -> None:
        shelf, id, data, board, body = self.shelf, self.id, self.data, self.board, self.body
        if not os.path.exists(data):
            raise ConfigError(
                f"{data}: no such folder or file; give --data a labelled folder or a YOLO data set's YAML"
            )
        shelf.folder(id)
        expert = described(id, board, self.kind, self.labels, self.input_size)
        kind = kinds.resolve(expert.kind, self.allowed)
        if not expert.labels:
            expert = replace(expert, labels=data_set.labels(data, good_only=kind.good_only))
        accept.check_labels(expert)
        if self.false_calls is not None and not kind.good_only:
            raise ConfigError(f"kind '{kind.name}' does not learn from good parts alone; leave --false-calls out")
        if self.turned and not kind.learns_turned:
            raise ConfigError(f"kind '{kind.name}' cannot learn rotated parts; leave --turned out")
        if (body is None) != (self.freeze is None):
            raise ConfigError("--body and --freeze belong together: the expert to start from, and the layers to keep")
        if body is not None and self.init is not None:
            raise ConfigError("--body names the expert to start from; leave --init out")
        start = body or self.init or self._usual_start(kind)
        if start and kind.preprocessing is not None:
            expert = replace(expert, preprocessing=shelf.manifest(start).preprocessing)
        learned_from = frames.LearnedFrom()
        if board and kind.good_only and data.is_dir():
            learned_from = frames.of_expert(shelf, board, expert.id, kind)
        rows = _rows(expert, board, kind, data)
        plan = TrainingPlan(
            data=data,
            photographs=rows,
            work=Path(),
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            seed=self.seed,
            threads=self.threads,
            freeze=_frozen(self.freeze),
            references=learned_from.references,
            false_calls=self.false_calls,
            bf16=self.bf16,
            bits=rules.load(board).bits if self.bits is None and board is not None else self.bits,
            turned=self.turned,
            polarity=rules.load(board).has_polarity(expert.id) if board else polarity_is_known(ExpertId.of(id).name),
        )
        trained = learned("training", shelf, expert, kind, plan, start)
        frame = learned_from.frame(kind, trained)
        source = f"trained on {data.name}, {self.epochs} epochs, seed {self.seed}"
        manifest = learning.put(shelf, replace(expert, weights=id), trained, start, source, reference=frame)
        _tell(trained, manifest, Answers.of_labels(expert) if kind.task == "classify" else None)
        if body is not None and manifest.body is not None:
            common, whole = config.format_bytes(manifest.body.bytes), config.format_bytes(manifest.whole_bytes)
            out.print(f"{id}: {common} of its {whole} are a body, shared by experts with the same layers")
        if not self.no_prepare:
            samples = data_set.samples_of(data) if rows is None else ([one.path for one in rows], LABELLED)
            experts_prepare.prepare_new(self.store, id, *samples, self.allowed, bits=plan.bits)

    def _usual_start(self, kind: Kind) -> str | None:
        """Return the backbone from which a kind starts, None for random weights, and say which it is."""
        start = backbones.start_of(self.shelf, kind, self.allowed)
        if start is not None:
            point_out("note", f"starts from {start}")
        elif kind.task == "classify":
            point_out("note", f"from scratch: {kind.name} starts from random weights and needs many pictures")
        return start


def learned(doing: str, shelf: Store, expert: Expert, kind: Kind, plan: TrainingPlan, start: str | None) -> Trained:
    """Train an expert, and show how far it is; raises CoeError."""
    with Steps(doing, plan.epochs) as steps:

        def progress(done: int, total: int, measures: dict[str, float]) -> None:
            steps.at(done, total, measures_text(measures))

        return learning.learn(shelf, expert, kind, plan, start, progress)


def _rows(expert: Expert, board: str | None, kind: Kind, data: Path) -> tuple[Photograph, ...] | None:
    """Return the photographs of an expert as the rules of its board label them; None without a board, or a folder."""
    if board is None or not data.is_dir() or not (kind.good_only or kind.task == "classify"):
        return None
    with readable(data):
        return labelled.of_expert(data, expert, rules.load(board), good_only=kind.good_only)


def _tell(trained: Trained, manifest: Manifest, answers: Answers | None) -> None:
    """Print what a training took, and as what, what it has to say, and its measures."""
    if trained.took:
        err.print(trained.took)
    if answers is not None:
        err.print(f"taken as good: {list_few(answers.good) or 'none'}; as bad: {list_few(answers.bad) or 'none'}")
    for remark in trained.remarks:
        point_out("note", remark)
    out.print(f"{manifest.id}: {measures_text(manifest.metrics)}")
    if manifest.unproven:
        point_out("unproven", manifest.unproven)
    if manifest.few_pixels:
        point_out("warning", manifest.few_pixels)
    show_exam(manifest.id, manifest.exam)


def measures_text(measures: Mapping[str, float]) -> str:
    """Return measures for people, as "accuracy 0.98, loss 0.07"."""
    return ", ".join(f"{name} {value:.4g}" for name, value in measures.items())


def described(id: str, board: str | None, kind: str | None, labels: str | None, input_size: int | None) -> Expert:
    """Return an expert as the rules or the options describe it; without `labels` it has no labels yet."""
    if board is not None:
        if kind or labels is not None or input_size is not None:
            raise ConfigError("--board gives kind, labels and input size; leave --kind, --labels and --input out")
        for expert in rules.load(board).experts.values():
            if expert.weights == id:
                return expert
        raise ConfigError(f"board '{board}' has no expert with the weights '{id}'")
    if kind is None or input_size is None:
        raise ConfigError("give --kind and --input, or --board to take both from its rules")
    words = () if labels is None else tuple(words_of(labels))
    expert = Expert(ExpertId.of(id).name, kind, words, input_size, id)
    if labels is not None:
        accept.check_labels(expert)
    return expert


def _frozen(text: str | None) -> tuple[str, ...]:
    """Read the layers that stay as they are; raises ConfigError for a comma too many."""
    names = words_of(text) if text else []
    if "" in names:
        raise ConfigError(f"--freeze: a name is empty in '{text}'; separate names by commas, e.g. conv1,bn1")
    return tuple(names)


class Learn(OfBoard, WithKinds):
    """Retrain experts with corrected pictures, and replace those that get better.

    A new expert is trained on the photographs and half of the corrected pictures. Then the old and the new expert judge
    the other half, and photographs that the old one was not trained on. The new expert replaces the old one only if it
    is proven better. The store keeps the old one (coe-experts history).

    Exit status 0 if all experts were replaced, 1 if some were not, 2 if none could be trained.

    Example: coe-experts learn line7.yaml --from runs/line7/monday --photos photos/ --mark SN1/R7__R0402.png=good
    """

    of: list[Path] = option(
        "Folder of a run, or an export of the station. Repeatable.", ..., "--from", metavar="FOLDER"
    )
    photos: Path = option("Photographs to train with: <component>/<label>/<picture>.", ...)
    images_at: Path | None = option("Folder with the run's pictures, if you moved them.", None, "--images")
    mark: list[str] | None = option(
        "Correct the label of a picture of the first run: good, bad or a label, e.g. SN1/R7__R0402.png=good. "
        "Nothing after = removes the correction. The run's folder keeps corrections. Repeatable.",
        metavar="IMAGE=LABEL",
    )
    take: bool = option("Replace an expert even if the new one is not proven better.", False)
    epochs: EpochsOption = 30
    batch: BatchOption = 32
    seed: SeedOption = 0
    no_prepare: bool = option("Do not make variants of the new experts.", False)

    def run(self) -> Exit:
        from coe.learn import lessons
        from coe.learn.relearning import Relearning

        if self.mark:
            _mark(self.of[0], self.mark)
        board, status = self.rules, Exit.OK
        found = {folder: lessons.of_folder(board, folder, self.images_at, self._note) for folder in self.of}
        marked = [one for folder, some in found.items() for one in lessons.renamed(some, folder.as_posix())]
        if not marked:
            raise ConfigError(
                f"{', '.join(map(str, self.of))}: no picture is marked; correct pictures with --mark, or in the "
                f"report, and put its {marks.MARKS} there"
            )
        for id in sorted({one.expert for one in marked}):
            of_expert = [one for one in marked if one.expert == id]
            plan = TrainingPlan(self.photos, Path(), self.epochs, self.batch, 1e-3, seed=self.seed, bits=board.bits)
            relearning = Relearning(
                board,
                self.shelf,
                board.experts[id],
                self.allowed,
                plan,
                said=self._note,
                told=err.print,
                train=partial(learned, "learning", self.shelf),
            )
            comparison, manifest = relearning.learn(of_expert, take=self.take)
            tell(comparison.after, err.print, err.print)
            out.print(f"{id}: {comparison}")
            if manifest is None:
                out.print(f"{id}: the expert in use stays (--take replaces it anyway)")
                status = Exit.NOT_GOOD
                continue
            out.print(f"{id}: replaced, version {manifest.version}: {measures_text(manifest.metrics)}")
            show_exam(id, manifest.exam)
            if not self.no_prepare:
                samples = [one.path for one in of_expert]
                experts_prepare.prepare_new(self.store, manifest.id, samples, allow_kinds=self.allowed, bits=board.bits)
        return status

    def _note(self, remark: str) -> None:
        point_out("note", remark)


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
            raise ConfigError(f"{run}: the component of '{image}' is unknown, so no expert can be trained with it")
    for image, label in said:
        marks.add(run, PictureMark(image=image, label=label, component=requests[image].component, by=by, at=at))
