"""`coe-experts train`: new experts for a store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from coe import config
from coe.board import labelled_photographs, rules
from coe.board.steps import polarity_is_known
from coe.cli import experts_prepare, experts_reference
from coe.cli.common import Steps, err, out, point_out
from coe.cli.experts_options import BatchOption, BitsOption, Described, EpochsOption, ThreadsOption, TurnedOption
from coe.cli.experts_prepare import LABELLED
from coe.cli.experts_verified import show_exam
from coe.cli.options import SeedOption, argument, finite, option, words_of
from coe.core import Expert
from coe.errors import ConfigError, readable
from coe.learn import backbones, data_set, learning
from coe.pictures import finding, folder
from coe.pictures.label_folders import TO_CHOOSE
from coe.pictures.photographs import LabelledPhotograph
from coe.store import kinds
from coe.store.expert_id import ExpertId
from coe.store.kinds import Kind, Trained, TrainingPlan
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.variants import accept


class Train(Described):
    """Train an expert on labelled images; the epoch that is best on held-out images goes into the store.

    With --body and --freeze, the first layers stay those of another expert. All experts that were trained so have them
    in common: they are stored once, and a line loads them once.

    Example: coe-experts train line7/R0402 --board line7.yaml --data photos/
    """

    id: str = argument("Name of the expert in the store: BOARD/NAME.", ...)
    data: Path = option(
        "Photographs <component>/<label>/<image>, where a label may be good or bad (with --board), or "
        "<label>/<image>; for the kinds patch and difference also <component>/<image>; or the YAML file of a YOLO data "
        "set.",
        ...,
    )
    epochs: EpochsOption = 30
    batch: BatchOption = 32
    learning_rate: float = option("Learning rate.", 1e-3, "--lr", min=1e-7, max=1e3, callback=finite)
    init: str | None = option("Start from the weights of this expert of the store.")
    body: str | None = option("Start from this expert of the store, and keep the layers of it that --freeze names.")
    freeze: str | None = option(
        "Layers that keep the weights of --body: beginnings of tensor names, as conv1,bn1,layer1."
    )
    false_calls: float | None = option(
        "The share of good parts that may be called, for kind patch. Default: 0.05.", min=1e-6, max=0.5
    )
    turned: TurnedOption = False
    seed: SeedOption = 0
    threads: ThreadsOption = 0
    bf16: bool | None = option("Compute products in bf16, weights stay fp32. Default: where the processor has bf16.")
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
            raise ConfigError(f"kind '{kind.name}' does not learn parts that lie turned; leave --turned out")
        if (body is None) != (self.freeze is None):
            raise ConfigError(
                "--body and --freeze belong together: which expert to start from, and which layers to keep"
            )
        if body is not None and self.init is not None:
            raise ConfigError("--body says which expert to start from; leave --init out")
        start = body or self.init or self._usual_start(kind)
        if start and kind.preprocessing is not None:
            expert = replace(expert, preprocessing=shelf.manifest(start).preprocessing)
        learned_from = experts_reference.LearnedFrom()
        if board and kind.good_only and data.is_dir():
            learned_from = experts_reference.of_expert(shelf, board, expert.id, kind)
        labelled = _labelled(expert, board, kind, data)
        plan = TrainingPlan(
            data=data,
            photographs=labelled,
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
            polarity=_has_polarity(expert, id, board),
        )
        trained = learned("training", shelf, expert, kind, plan, start)
        frame = learned_from.frame(kind, trained)
        source = f"trained on {data.name}, {self.epochs} epochs, seed {self.seed}"
        manifest = learning.put(shelf, replace(expert, weights=id), trained, start, source, reference=frame)
        _tell(trained, manifest)
        if body is not None and manifest.body is not None:
            common, whole = config.format_bytes(manifest.body.bytes), config.format_bytes(manifest.whole_bytes)
            out.print(f"{id}: {common} of its {whole} are a body, which experts with these layers have in common")
        if not self.no_prepare:
            samples = _samples_of(data) if labelled is None else ([one.path for one in labelled], LABELLED)
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


def _labelled(expert: Expert, board: str | None, kind: Kind, data: Path) -> tuple[LabelledPhotograph, ...] | None:
    """Return the photographs of an expert as the rules of its board label them; None without a board, or a folder."""
    if board is None or not data.is_dir() or not (kind.good_only or kind.task == "classify"):
        return None
    with readable(data):
        return labelled_photographs.read(data, expert, rules.load(board), good_only=kind.good_only)


def _has_polarity(expert: Expert, id: str, board: str | None) -> bool:
    """Tell whether a part that an expert inspects has a polarity: by the rules of its board, else by its name."""
    if board is None:
        return polarity_is_known(ExpertId.of(id).name)
    return any(one.has_polarity() for one in rules.load(board).components.values() if one.steps_of(expert.id))


def _tell(trained: Trained, manifest: Manifest) -> None:
    """Print what a training took, what it has to say, and its measures."""
    if trained.took:
        err.print(trained.took)
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
        if kind or input_size is not None:
            raise ConfigError("--board gives kind and input size; leave --kind and --input out")
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
        raise ConfigError(f"--freeze: a name is empty in '{text}'; write names with a comma between them, as conv1,bn1")
    return tuple(names)


def _samples_of(data: Path) -> tuple[list[Path], str]:
    """Return the images of a data set, only the held-out ones if a folder "val" holds them; and in words which."""
    # The YAML of a data set may name another folder than its own.
    root = data if data.is_dir() else data.parent / str(data_set.read(data).get("path", ""))
    files = [entry.path for entry in folder.walk(root) if entry.kind is folder.EntryKind.FILE] if root.is_dir() else []
    pictures = sorted(path for path in files if path.suffix.lower() in finding.EXTENSIONS)
    places = {path: path.relative_to(root).parts for path in pictures}
    is_split = any("train" in place for place in places.values())
    names = {*TO_CHOOSE} if is_split else {"val"}  # a label may be called valid
    held = [path for path, place in places.items() if not names.isdisjoint(place)]
    return held or pictures, f"the {'held-out ' if held else ''}pictures of its training"
