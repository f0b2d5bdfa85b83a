"""Experts that were fine-tuned whole, in `q8` and as differences to their parent: `python -m apps.demo.tuned_whole`.

The demo's classifiers are trained again from the common body with nothing frozen, into a store of their own. A line
with memory for a part of them then inspects the bodies of new boards: with what `q8` offers, and with `delta` too.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from apps.demo.lessons import BODY, expose, shots
from apps.demo.production import lot, take
from apps.demo.recipe import recipe
from apps.demo.school import Learned, School
from coe import Picture, config
from coe.board import rules
from coe.cli.console import Console
from coe.core import Expert, Finding
from coe.errors import CoeError
from coe.inspector.line_config import AskedSettings, Inbox, LineConfig
from coe.inspector.line_costs import LineCosts
from coe.lab.cli import bench_out
from coe.prepare.prepare import Preparer
from coe.runtime.cpu import CpuDevice
from coe.scheduler.strategies import strategy
from coe.store import kinds
from coe.store.blob_format import Variant
from coe.store.kinds import Prepared
from coe.store.store import Store, load_tensors
from coe.trials.engine_run import MeasuredRun, measured_run
from coe.trials.rows import Heading

FOLDER = Path("build/tuned-whole")
"""Trained experts are kept there, for each parent and learning rate."""
PARENT = "tuned/parent"
SEED = 1
WAYS: dict[str, tuple[Variant, ...]] = {"q8": ("fp32", "q8"), "q8 and delta": ("fp32", "q8", "delta")}
_SAMPLES = 32


@dataclass(frozen=True, slots=True)
class Task:
    """A classifier of the demo, and the component types that it sees first."""

    expert: Expert
    components: tuple[str, ...]


def tasks() -> list[Task]:
    """Return the classifiers of the demo, under ids of this trial."""
    demo = rules.load("demo")
    found = []
    for expert in demo.experts.values():
        served = tuple(c.name for c in demo.components.values() if c.root.expert == expert.id)
        if kinds.resolve(expert.kind).task == "classify":
            found.append(Task(replace(expert, weights=f"tuned/{expert.id}"), served))
    return found


def fill(store: Store, parent: Path, rate: float, out: Console) -> None:
    """Put the parent, and its experts in all variants, into a store; what is there is kept."""
    if PARENT not in store.ids():
        labels, size = BODY.labels, BODY.input_size
        store.put(PARENT, kind=BODY.kind, labels=labels, input_size=size, state=load_tensors(parent))
    preparer = Preparer(store, WAYS["q8 and delta"], parent=PARENT)
    school, start = School(FOLDER, SEED), {BODY.id: Learned(load_tensors(parent), 0)}
    for task in tasks():
        expert, work = task.expert, FOLDER / "samples"
        if expert.weights not in store.ids():
            state = school.learn(expert.id, list(task.components), start, whole_at=rate).state
            store.put(expert.weights, kind=expert.kind, labels=expert.labels, input_size=expert.input_size, state=state)
        if preparer.lacks(expert.weights):
            listed = shots(expert, False, list(task.components), recipe(expert.id).amount, SEED + 1)
            expose(expert, False, listed, work)
            pictures = sorted((work / "val").rglob("*.png"))
            failed = preparer.prepare(expert.weights, pictures[:: max(1, len(pictures) // _SAMPLES)][:_SAMPLES]).failed
            for reason in failed.values():
                out.print(f"{expert.weights}: {reason}")
        sizes = {
            variant: f"{blob.bytes / 1e6:.2f} MB" for variant, blob in store.manifest(expert.weights).variants.items()
        }
        out.print(f"{expert.weights}: {sizes}", soft_wrap=True)
        shutil.rmtree(work, ignore_errors=True)


def board(path: Path) -> Path:
    """Write a board with the demo's types, each inspected by its classifier alone."""
    demo, lines = rules.load("demo"), ["board: tuned", "experts:"]
    for task in tasks():
        expert = task.expert
        lines.append(
            f"  {expert.id}: {{kind: {expert.kind}, labels: [{', '.join(expert.labels)}], input: {expert.input_size}}}"
        )
    lines.append("components:")
    for task in tasks():
        then = ", ".join(f"{label}: {'OK' if label == 'ok' else 'NG'}" for label in task.expert.labels)
        for name in task.components:
            count = demo.components[name].count
            lines.append(f"  {name}: {{count: {count}, inspect: {task.expert.id}, then: {{{then}}}}}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def offering(store: Store, root: Path, variants: Sequence[Variant]) -> Store:
    """Copy a store, with links to its files, that offers these variants alone."""
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(store.root, root)
    copy = Store(root)
    for id in copy.ids():
        with copy.changing(id) as manifest:
            kept = {variant: blob for variant, blob in manifest.variants.items() if variant in variants}
            copy.rewrite(manifest.model_copy(update={"variants": kept}))
    return copy


@dataclass(frozen=True, slots=True)
class Tally:
    """How findings in a variant compare with those in fp32: pictures, equal labels, those with second looks."""

    pictures: int
    equal: int
    equal_at_last: int
    again: int


def compared(store: Store, pictures: Mapping[str, Sequence[NDArray[np.uint8]]], variant: str) -> Tally:
    """Run every picture through its expert in fp32 and in a variant; pictures are by expert.

    Experts that lack the variant are left out.
    """
    total = [0, 0, 0, 0]
    for task in tasks():
        expert, kind = task.expert, kinds.resolve(task.expert.kind)
        ready = [kind.preprocess(pixels, expert) for pixels in pictures[expert.id]]
        device = CpuDevice(store, {expert.kind: kind}, 1)
        prepared = {name: blob for name, blob in store.manifest(expert.weights).variants.items() if name == variant}
        if not prepared:
            continue  # `fill` said why
        below = prepared[variant].escalate_below
        findings = []
        for one in (replace(expert, variant="fp32"), replace(expert, variant=variant)):
            device.load("pool", one)
            findings.append([f for start in range(0, len(ready), 64) for f in _run(device, one, ready, start)])
            device.evict("pool", one)
        for exact, near in zip(*findings, strict=True):
            equal, again = exact.label == near.label, near.margin < below
            total = [count + more for count, more in zip(total, (1, equal, equal or again, again), strict=True)]
    return Tally(*total)


def _run(device: CpuDevice, expert: Expert, ready: Sequence[Prepared], start: int) -> Sequence[Finding]:
    return device.run("one", "pool", expert, ready[start : start + 64])


def main(arguments: list[str] | None = None) -> None:
    """Train, prepare and measure."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.tuned_whole", description=__doc__)
    parser.add_argument(
        "--parent", type=Path, required=True, help="the demo's body: build/demo/training/body-*.safetensors"
    )
    parser.add_argument("--rate", type=float, default=4e-4, help="learning rate (%(default)s)")
    parser.add_argument("--boards", type=int, default=20, help="new boards of each of the two lots (%(default)s)")
    parser.add_argument("--memory", default="150MB", help="memory of the line (%(default)s)")
    parser.add_argument("--disk", default="100MB/s", help="bandwidth of the disk (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each way, in turn (%(default)s)")
    parser.add_argument("--seed", type=int, default=22001, help="seed of the boards (%(default)s)")
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.boards < 1:
        parser.error("--repeats and --boards must be at least 1")
    try:
        measure(options)
    except CoeError as error:
        parser.exit(2, f"{error}\n")


def measure(options: argparse.Namespace) -> None:
    """Train what is not there, and print the table."""
    torch.set_num_threads(1)
    out = Console()
    FOLDER.mkdir(parents=True, exist_ok=True)
    memory, disk = config.parse_bytes(options.memory), config.parse_bandwidth(options.disk)
    store, path = Store(FOLDER / f"{options.parent.stem}-{options.rate:g}"), board(FOLDER / "tuned.yaml")
    fill(store, options.parent, options.rate, out)
    places = [*lot(options.boards, options.seed), *lot(options.boards, options.seed + 1, defective=1 / 3)]
    pictures = [Picture(take(place), place.component, name=f"{i:06d}", order="RGB") for i, place in enumerate(places)]
    stores = {way: offering(store, FOLDER / way.replace(" ", "-"), variants) for way, variants in WAYS.items()}
    runs: dict[str, list[MeasuredRun]] = {way: [] for way in WAYS}
    costs: dict[str, LineCosts | None] = dict.fromkeys(WAYS)
    for repeat in range(options.repeats):
        for way in list(WAYS)[:: 1 if repeat % 2 == 0 else -1]:
            asked = AskedSettings.parsed(memory=memory, executors="cpu=1", threads=1, profile=None)
            run = measured_run(
                LineConfig(
                    board=path,
                    store=stores[way],
                    asked=asked,
                    strategy=strategy("line"),
                    precision="mixed",
                    inbox=Inbox(images=64),
                    disk_bytes_per_s=disk,
                    costs=costs[way],
                ),
                pictures,
                heading=Heading("10 x resnet18", "boards", way),
            )
            runs[way].append(run)
            costs[way] = run.costs
    bench_out.show([run.row for several in runs.values() for run in several], None)
    for way, several in runs.items():
        chosen = sorted(expert.variant for expert in several[0].board.experts.values())
        counts = ", ".join(f"{chosen.count(variant)} in {variant}" for variant in sorted(set(chosen)))
        out.print(f"{way}: experts {counts}")
    for figure in ("images_per_s", "switches", "switch_bytes", "escalated"):
        medians = [statistics.median(getattr(run.metrics, figure) for run in runs[way]) for way in WAYS]
        ratio = f", x {medians[1] / medians[0]:.3f}" if medians[0] else ""
        out.print(f"{figure}: {medians[0]:.4g}, {medians[1]:.4g}{ratio}")
    seen = {task.expert.id: [p.image for p in pictures if p.component in task.components] for task in tasks()}
    for variant in ("q8", "delta"):
        tally = compared(store, seen, variant)
        words = f"{tally.pictures} pictures, labels as in fp32 {tally.equal}, with second looks {tally.equal_at_last}"
        out.print(f"{variant}: {words}, second looks {tally.again}", soft_wrap=True)


if __name__ == "__main__":
    main()
