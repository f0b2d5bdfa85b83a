"""What shared bodies are worth on this machine: fine-tuned experts of one network, whole and with one body.

    python -m apps.shared_bodies --work build/bodies

The experts differ in the layers that were not frozen, by random numbers: what is loaded when does not depend on what
they say. Both runs get the same pictures, memory and disk, and take turns (docs/results/bodies.md).
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from apps.trickle import foretold, pictures
from coe import config
from coe.board import rules
from coe.cli.common import application, err, out, run
from coe.cli.console import Progress
from coe.cli.options import words_of
from coe.core import Expert
from coe.inspector.line_config import AskedSettings, Inbox, LineConfig
from coe.inspector.line_costs import LineCosts
from coe.lab.cli import bench_out
from coe.prepare.prepare import Preparer
from coe.prepare.sharing import Sharing
from coe.runtime.fresh_thread import on_fresh_thread
from coe.scheduler.strategies import strategy
from coe.sim.workload import placement
from coe.store import kinds
from coe.store.kinds import ModuleKind
from coe.store.store import Store
from coe.trials import synthetic
from coe.trials.engine_run import MeasuredRun, measured_run
from coe.trials.rows import Heading, Row

app = application("Experts of one network with frozen layers: whole, and with one body.")
LABELS = ("ok", "bad")
WAYS = ("whole", "shared")
_FILES = 4
"""So many experts have files of their own; the others are links to them, but are loaded and counted by themselves."""


def fine_tuned(kind: ModuleKind, expert: Expert, frozen: Sequence[str], seed: int) -> dict[str, torch.Tensor]:
    """Return the weights of one network for all seeds, but for random changes in the layers that are not `frozen`."""
    state, chance = kinds.random_weights(kind, expert, 0), torch.Generator().manual_seed(seed)
    for name, tensor in state.items():
        if tensor.is_floating_point() and not name.startswith(tuple(frozen)):
            state[name] = tensor * (1 + 0.01 * torch.randn(tensor.shape, generator=chance))
    return state


@dataclass(frozen=True, slots=True)
class Material:
    """A board's file, and the stores with its experts: whole, and with a body."""

    board: Path
    stores: Mapping[str, Store]


def material(work: Path, kind: str, experts: int, input_size: int, frozen: Sequence[str]) -> Material:
    """Make a board and its experts in two stores; those of an earlier call are kept."""
    name = f"bodies-{kind}-{experts}-{input_size}px-{'-'.join(frozen)}"
    made = Material(work / f"{name}.yaml", {way: Store(work / name / way) for way in WAYS})
    if made.board.is_file():
        return made
    shutil.rmtree(work / name, ignore_errors=True)
    resolved = kinds.resolve(kind)
    assert isinstance(resolved, ModuleKind), f"kind '{kind}' has no skeleton"
    whole, ids = made.stores["whole"], [f"{name}/e{index}" for index in range(experts)]
    originals = ids[:_FILES]
    for index, id in enumerate(originals):
        state = fine_tuned(resolved, Expert(id, kind, LABELS, input_size, id), frozen, index)
        whole.put(id, kind=kind, labels=LABELS, input_size=input_size, state=state, source=f"seed {index}")
        Preparer(whole, ("fp32",)).prepare(id)
    shutil.copytree(whole.root, made.stores["shared"].root)
    Sharing(made.stores["shared"]).share(originals)
    for store in made.stores.values():
        for index, id in enumerate(ids[_FILES:]):
            store.link(id, originals[index % _FILES], labels=LABELS)
    synthetic.board_of_equals(made.board, kind=kind, experts=experts, input_size=input_size)
    return made


@app.command()
def shared_bodies(  # noqa: PLR0913
    work: Annotated[Path, typer.Option(help="Folder for experts and their board; kept for the next time.")],
    kind: Annotated[str, typer.Option(help="Kind of the experts.")] = "resnet101",
    frozen: Annotated[
        str, typer.Option(help="Layers that all experts have in common: beginnings of tensor names.")
    ] = "conv1,bn1,layer1,layer2,layer3",
    experts: Annotated[int, typer.Option(min=2, max=1000, help="The number of experts.")] = 40,
    resident: Annotated[
        int, typer.Option(min=1, max=1000, help="The number of whole experts for which there is memory.")
    ] = 10,
    input_size: Annotated[int, typer.Option("--input", min=8, max=1024, help="Input size in pixels.")] = 96,
    boards: Annotated[int, typer.Option(min=1, max=100, help="The number of boards.")] = 1,
    inbox: Annotated[int, typer.Option(min=1, max=10_000, help="Images that the line has at a time.")] = 16,
    disk: Annotated[str, typer.Option(help="Bandwidth of the disk.")] = "530MB/s",
    threads: Annotated[
        int, typer.Option(min=1, max=config.MAX_THREADS, help="Threads of the executor; equal for all runs.")
    ] = 1,
    repeats: Annotated[int, typer.Option(min=1, max=99, help="Runs of each way; the ratio is of their medians.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the order of the parts.")] = 0,
    json_to: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the rows there, - for here.")
    ] = None,
) -> None:
    """Run the same boards with whole experts and with experts that share a body.

    Example: python -m apps.shared_bodies --work build/bodies
    """
    layers = words_of(frozen)
    made = on_fresh_thread(lambda: material(work, kind, experts, input_size, layers))
    board = rules.load(made.board)
    whole_bytes = max(made.stores["whole"].manifest(expert.weights).bytes for expert in board.experts.values())
    images = pictures(placement(board, seed), boards, seed, named=False)
    runs: dict[str, list[MeasuredRun]] = {way: [] for way in WAYS}
    costs: dict[str, LineCosts | None] = dict.fromkeys(WAYS)
    with Progress(console=err, transient=True) as bar:
        for repeat in range(repeats):
            for way in WAYS if repeat % 2 == 0 else WAYS[::-1]:
                line_config = LineConfig(
                    board=made.board,
                    store=made.stores[way],
                    # A quarter of the memory is for activations.
                    asked=AskedSettings.parsed(
                        memory=resident * whole_bytes * 4 // 3, executors="cpu=1", threads=threads, profile=None
                    ),
                    strategy=strategy("line"),
                    inbox=Inbox(images=inbox),
                    disk_bytes_per_s=config.parse_bandwidth(disk),
                    costs=costs[way],
                )
                task = bar.add_task(way, total=len(images))
                heading = Heading(f"{experts} x {kind}", "boards", way)
                tick = lambda task=task: bar.advance(task)  # noqa: E731
                measured = measured_run(line_config, images, heading=heading, tick=tick)
                runs[way].append(measured)
                costs[way] = measured.costs
    rows: list[Row] = []
    for measured_runs in runs.values():
        rows += [measured.row for measured in measured_runs]
        rows.append(foretold(measured_runs[-1], ()))
    bench_out.show(rows, json_to)
    out.print(_compared(runs), soft_wrap=True)


def _compared(runs: dict[str, list[MeasuredRun]]) -> str:
    def ratio(figure: str) -> float:
        medians = [statistics.median(getattr(run.metrics, figure) for run in runs[way]) for way in WAYS]
        return medians[1] / medians[0] if medians[0] else 1.0

    return (
        f"shared / whole, of medians: images/s x {ratio('images_per_s'):.2f}, switches x {ratio('switches'):.2f}, "
        f"bytes of switches x {ratio('switch_bytes'):.2f}"
    )


def main() -> None:
    """Run `python -m apps.shared_bodies`."""
    run(app)


if __name__ == "__main__":
    main()
