"""`coe-experts`: train, import, show and verify the experts of a store.

Longer than other files because each command documents all of its options.
"""

from __future__ import annotations

import os
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from coe import config
from coe.board import images, rules
from coe.cli import experts_calibrate, experts_overlay, experts_prepare, experts_reference, experts_share
from coe.cli.common import Exit, application, complain, err, out, run, wide
from coe.cli.console import Progress, styled, words
from coe.cli.options import AllowKindOption, InputOption, SeedOption, StoreOption, finite, words_of
from coe.core import Expert
from coe.errors import ConfigError, StoreError, sentence_of
from coe.prepare import accept, data_set, verification
from coe.store import bodies, kinds, torch_file
from coe.store.dotted import running
from coe.store.expert_id import ExpertId
from coe.store.kinds import FileKind, ModuleKind, TrainingPlan
from coe.store.manifest import Manifest
from coe.store.references import References, reference_named
from coe.store.store import Store

if TYPE_CHECKING:
    import torch

app = application(
    "Train, import, list, show and verify experts.\n\n"
    "The store keeps an expert under BOARD/NAME, as demo/chip-resistor; "
    "the expert NAME in the board's file then finds its weights there."
)
BoardOption = Annotated[str | None, typer.Option(help="Take kind, labels and input size from the rules of this board.")]
KindOption = Annotated[
    str | None, typer.Option(help="Architecture: resnet18, yolov5n, onnx, ... or package.module:Class.")
]
LabelsOption = Annotated[
    str | None, typer.Option(help="Labels in the order of the network's outputs, as ok,missing,cracked.")
]
NoPrepareOption = Annotated[
    bool, typer.Option("--no-prepare", help="Do not prepare the expert; see coe-experts prepare.")
]

app.command()(experts_prepare.prepare)
app.command()(experts_share.share)
app.command()(experts_share.export)
app.command()(experts_reference.reference)
app.command()(experts_calibrate.calibrate)
app.command()(experts_overlay.overlay)


@app.command()
def train(  # noqa: PLR0913
    id: Annotated[str, typer.Argument(help="Name of the expert in the store: BOARD/NAME.")],
    data: Annotated[
        Path,
        typer.Option(
            help="A folder with a folder of images for each label, or the YAML file of a YOLO data set; for the kinds "
            "good and difference a folder of images of good parts."
        ),
    ],
    board: BoardOption = None,
    kind: KindOption = None,
    labels: LabelsOption = None,
    input_size: InputOption = None,
    epochs: Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="Passes over the training images.")] = 30,
    batch: Annotated[int, typer.Option(min=1, max=config.MAX_COUNT, help="Images in a training step.")] = 32,
    learning_rate: Annotated[
        float, typer.Option("--lr", min=1e-7, max=1e3, callback=finite, help="Learning rate.")
    ] = 1e-3,
    init: Annotated[str | None, typer.Option(help="Start from the weights of this expert of the store.")] = None,
    body: Annotated[
        str | None,
        typer.Option(help="Start from this expert of the store, and share the layers of it that --freeze keeps."),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(help="Layers that keep the weights of --body: beginnings of tensor names, as conv1,bn1,layer1."),
    ] = None,
    false_calls: Annotated[
        float | None,
        typer.Option(
            "--false-calls",
            min=1e-6,
            max=0.5,
            help="The share of good parts that may be called, for kind good. Default: 0.05.",
        ),
    ] = None,
    seed: SeedOption = 0,
    threads: Annotated[
        int, typer.Option(min=0, max=config.MAX_THREADS, help="Threads of the CPU; 0 uses all cores.")
    ] = 0,
    bf16: Annotated[
        bool | None,
        typer.Option(help="Compute products in bf16, weights stay fp32. Default: where the processor has bf16."),
    ] = None,
    no_prepare: NoPrepareOption = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Train an expert on labelled images; the epoch that is best on held-out images goes into the store.

    With --body and --freeze, the first layers stay those of another expert. Both then share them: they are stored once,
    and a line loads them once.

    Example: coe-experts train line7/R0402 --kind resnet18 --input 64 --data photos/R0402
    """
    shelf = Store(store)
    if not os.path.exists(data):
        raise ConfigError(f"{data}: no such folder or file; give --data a labelled folder or a YOLO data set's YAML")
    shelf.folder(id)
    expert = _expert(id, board, kind, labels, input_size)
    expert = expert if expert.labels else replace(expert, labels=data_set.labels(data))
    accept.check_labels(expert)
    resolved = kinds.resolve(expert.kind, allow_kind or ())
    if false_calls is not None and not resolved.good_only:
        raise ConfigError(f"kind '{expert.kind}' does not learn from good parts alone; leave --false-calls out")
    if (body is None) != (freeze is None):
        raise ConfigError("--body and --freeze belong together: which expert to start from, and which layers to keep")
    if body is not None and init is not None:
        raise ConfigError("--body says which expert to start from; leave --init out")
    start = body or init
    learned_from = {}
    if board and resolved.good_only and data.is_dir():
        learned_from = experts_reference.of_expert(shelf, board, expert.id)
    plan = TrainingPlan(
        data=data,
        work=Path(),
        epochs=epochs,
        batch=batch,
        learning_rate=learning_rate,
        seed=seed,
        threads=threads,
        freeze=_frozen(freeze),
        references={component: kept.reference for component, kept in learned_from.items()},
        false_calls=false_calls,
        bf16=bf16,
    )
    columns = (words("training", "bold"), BarColumn(), MofNCompleteColumn(), words("{task.fields[measures]}"))
    with (
        tempfile.TemporaryDirectory(prefix="coe-train-") as work,
        Progress(*columns, TimeRemainingColumn(), console=err) as bar,
    ):
        task = bar.add_task("", total=epochs, measures="")

        def progress(done: int, total: int, measures: dict[str, float]) -> None:
            bar.update(task, completed=done, total=total, measures=_measures(measures))

        at_work = replace(plan, work=Path(work), init=bodies.whole_file(shelf, start, Path(work)) if start else None)
        with running("kind", expert.kind, "trained"):
            trained = resolved.train(expert, at_work, progress)
    if isinstance(resolved, ModuleKind):
        accept.check_module(resolved, replace(expert, labels=tuple(trained.labels)), trained.state)
    manifest = shelf.put(
        id,
        kind=expert.kind,
        labels=trained.labels,
        input_size=expert.input_size,
        state=trained.state,
        metrics=trained.metrics,
        source=f"trained on {data.name}, {epochs} epochs, seed {seed}",
    )
    if trained.in_frame:
        with shelf.changing(id) as stored:
            (checksum,) = {kept.checksum for kept in learned_from.values()}
            manifest = stored.model_copy(update={"reference": checksum})
            shelf.rewrite(manifest)
    for remark in trained.remarks:
        complain(remark)
    out.print(f"{manifest.id}: {_measures(manifest.metrics)}", soft_wrap=True)
    status = Exit.OK if body is None else experts_share.share_new(shelf, id, body, allow_kind or ())
    if not no_prepare:
        experts_prepare.prepare_new(store, id, _samples_of(data), allow_kind or ())
    raise typer.Exit(status)


@app.command("import")
def import_(  # noqa: PLR0913
    id: Annotated[str, typer.Argument(help="Name of the expert in the store: BOARD/NAME.")],
    file: Annotated[
        Path, typer.Argument(help="A file of weights: .safetensors, .pt or .pth (a state dict), or .onnx.")
    ],
    board: BoardOption = None,
    kind: KindOption = None,
    labels: LabelsOption = None,
    input_size: InputOption = None,
    no_prepare: NoPrepareOption = False,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Bring weights from another program into the store. Code in a .pt or .pth file never runs.

    Only this command opens such pickled files; lines read the store's own safe format.

    Example: coe-experts import line7/joints best.pt --kind yolov5m --input 640
    """
    if not os.path.isfile(file):
        raise ConfigError(f"{file}: no such file")
    shelf = Store(store)
    shelf.folder(id)
    expert = _expert(id, board, kind, labels, input_size)
    resolved = kinds.resolve(expert.kind, allow_kind or ())
    if isinstance(resolved, FileKind):
        accept.check_labels(expert)
        with running("kind", expert.kind, f"run with {file}"):
            session = resolved.open(file, expert, 1)
        accept.check_session(resolved, expert, session)
        manifest = shelf.put(
            id, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, file=file, source=file.name
        )
    elif isinstance(resolved, ModuleKind):
        with running("kind", expert.kind, f"imported from {file}"):
            foreign = resolved.read(file)
            torch_file.check_tensors(str(file), foreign.state)
            expert = expert if expert.labels else replace(expert, labels=foreign.labels or ())
            accept.check_labels(expert)
            state = resolved.convert(foreign.state, expert)
        accept.check_module(resolved, expert, state)
        manifest = shelf.put(
            id, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state, source=file.name
        )
    else:
        raise ConfigError(f"kind '{expert.kind}' is neither a ModuleKind nor a FileKind; it cannot be imported")
    out.print(f"{manifest.id}: {manifest.kind}, {config.format_bytes(manifest.bytes)}", soft_wrap=True)
    if not no_prepare:
        experts_prepare.prepare_new(store, id, allow_kinds=allow_kind or ())


@app.command("list")
def list_(
    board: Annotated[str, typer.Option(help="Only the experts of this board.")] = "", store: StoreOption = None
) -> None:
    """List the experts of the store. Exit status 1 if a manifest cannot be read; the other experts are shown.

    The size of an expert is that of its whole weights. If experts share a body, a second table says what they take as
    whole experts and with bodies, on the disk and in memory.

    Example: coe-experts list --board demo
    """
    shelf = Store(store)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("expert", "kind", "input", "labels", "size", "held out", "prepared"):
        table.add_column(heading, justify="right" if heading in ("input", "size") else "left")
    damaged = False
    shown: list[Manifest] = []
    for id in shelf.ids():
        if not board or ExpertId.of(id).board == board:
            try:
                m = shelf.manifest(id)
            except StoreError as error:
                damaged = True
                complain(error)
                continue
            shown.append(m)
            size = config.format_bytes(m.whole_bytes)
            metrics = {name: value for name, value in m.metrics.items() if name in ("accuracy", "map50")}
            table.add_row(
                id, m.kind, str(m.input_size), ", ".join(m.labels), size, _measures(metrics), ", ".join(m.variants)
            )
    wide(out).print(table)
    experts_share.show_bytes(shown)
    damaged = experts_reference.list_references(shelf, board) or damaged
    raise typer.Exit(Exit.NOT_GOOD if damaged else Exit.OK)


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="An expert of the store, BOARD/NAME, or references/BOARD/NAME.")],
    store: StoreOption = None,
) -> None:
    """Show the manifest of an expert: labels, checksums, measures of its training, and its prepared precisions.

    For a reference it shows version, size, checksum, and which pictures it was made from.

    Example: coe-experts show demo/chip-resistor
    """
    shelf = Store(store)
    reference = reference_named(id)
    manifest = shelf.manifest(id) if reference is None else References(shelf).manifest(reference)
    out.print_json(manifest.model_dump_json())


@app.command()
def verify(
    ids: Annotated[list[str] | None, typer.Argument(help="Experts, as BOARD/NAME. Default: all of the store.")] = None,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Check experts: manifest, checksums, that weights fit their kind, and a forward pass in each precision.

    Without names, the checksums of the golden references are checked, too. An expert that learned in the frame of a
    reference that was replaced counts as damaged: a line would refuse it.

    All experts are checked, even after damage is found. Exit status 1 if an expert is damaged.

    Example: coe-experts verify demo/chip-resistor
    """
    shelf = Store(store)
    chosen = ids or shelf.ids()
    if not chosen and not References(shelf).ids():
        raise StoreError(f"the store {shelf.root} holds no experts")
    damaged, checksums = 0, experts_reference.checksums(shelf)
    for id in chosen:
        try:
            shelf.check(id)
            experts_reference.check_learned(shelf.manifest(id), checksums)
            checked = shelf.steady(id, lambda manifest: verification.verify(shelf, manifest, allow_kind or ()))
            out.print(styled(("sound", "green"), f"    {id}{checked}"))
        except (Exception, SystemExit) as error:  # a kind is foreign code, and the other experts must be checked
            damaged += 1
            complain(f"{id}: {sentence_of(error)}")
    sound = len(chosen) - damaged
    if not ids:
        references = experts_reference.verify_references(shelf)
        sound, damaged = sound + references.sound, damaged + references.damaged
    out.print(f"{sound} sound, {damaged} damaged")
    raise typer.Exit(Exit.NOT_GOOD if damaged else Exit.OK)


@app.command()
def synth(
    board: Annotated[str, typer.Option(help="Board: a name or a YAML file.")],
    files: Annotated[
        int, typer.Option(min=1, max=config.MAX_COUNT, help="Weights files for each kind; many experts share a file.")
    ] = 2,
    seed: SeedOption = 0,
    store: StoreOption = None,
    allow_kind: AllowKindOption = None,
) -> None:
    """Make random weights for every expert of a board, to try a box before there are trained experts.

    Verdicts mean nothing. Many experts share a file (hard links) to save disk space, but each expert is loaded and
    counted separately. Experts that are in the store already stay as they are.

    Example: coe-experts synth --board A
    """
    shelf = Store(store)
    stored = set(shelf.ids())
    originals_of: dict[tuple[str, int, int], list[str]] = {}
    wanted = [expert for expert in rules.load(board).experts.values() if expert.weights not in stored]
    columns = (words("making", "bold"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err) as bar:
        for expert in bar.track(wanted):
            originals = originals_of.setdefault((expert.kind, len(expert.labels), expert.input_size), [])
            if len(originals) < files:
                shelf.put(
                    expert.weights,
                    kind=expert.kind,
                    labels=expert.labels,
                    input_size=expert.input_size,
                    state=_random_state(expert, seed + len(originals), allow_kind or ()),
                    source=f"synthetic, seed {seed}",
                )
                originals.append(expert.weights)
            else:
                # A stable choice that does not depend on the order of the rules.
                original = originals[zlib.crc32(expert.id.encode()) % len(originals)]
                shelf.link(expert.weights, original, labels=expert.labels)
    out.print(f"{len(wanted)} experts made, {sum(map(len, originals_of.values()))} files")


def _expert(id: str, board: str | None, kind: str | None, labels: str | None, input_size: int | None) -> Expert:
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


def _samples_of(data: Path) -> list[Path]:
    """Return the images of a data set; only the held-out ones if a folder "val" holds them."""
    root = data if data.is_dir() else data.parent
    pictures = sorted(path for path in root.rglob("*") if path.suffix.lower() in images.EXTENSIONS)
    return [path for path in pictures if "val" in path.relative_to(root).parts] or pictures


def _random_state(expert: Expert, seed: int, allowed: Sequence[str]) -> dict[str, torch.Tensor]:
    kind = kinds.resolve(expert.kind, allowed)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"expert '{expert.id}' is of kind '{kind.name}', for which random weights cannot be made")
    return kinds.random_weights(kind, expert, seed)


def _measures(measures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in measures.items())


def main() -> None:
    """Run the command."""
    run(app)
