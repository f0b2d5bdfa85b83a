"""One classifier for all board types of DeepPCB, or one for each: `python -m apps.deeppcb.one_model`.

Both start from one network that learned all types. "Many" then tunes a copy on each type; "one" goes on with all types
for as many steps as all copies got. The test list's pictures and templates are judged by the classifiers alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import cv2
import torch
import typer
from rich.table import Table
from safetensors.torch import save_file

from apps.deeppcb.data import DataMissing, Pair, find, read
from apps.deeppcb.train import ANY, train_classifier
from coe.board import rules
from coe.board.decoding import decode
from coe.cli.console import Console
from coe.core import Expert
from coe.errors import CoeError
from coe.prepare.fold import network
from coe.store import kinds
from coe.store.kinds import ModuleKind, TrainingPlan

State = Mapping[str, torch.Tensor]


@torch.inference_mode()
def wrong(kind: ModuleKind, expert: Expert, state: State, pairs: list[Pair]) -> tuple[int, int]:
    """Return how many tested pictures are called good (escapes), and how many templates are called bad."""
    module = network(kind, expert, state)
    good = expert.labels[0]
    escapes = calls = 0
    for pair in pairs:
        prepared = [kind.preprocess(decode(path), expert) for path in (pair.tested, pair.template)]
        outputs = kind.forward(module, torch.stack([torch.from_numpy(one.pixels) for one in prepared]))
        tested, template = kind.postprocess(outputs, prepared, expert)
        escapes += tested.label == good
        calls += template.label != good
    return escapes, calls


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for lists and weights.")] = Path("build/deeppcb/one"),
    epochs: Annotated[int, typer.Option(help="Epochs of the common network, 25 steps each.")] = 48,
    tune_epochs: Annotated[int, typer.Option(help="Epochs of each type's copy.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
) -> None:
    """Train one classifier and many at equal cost, with one thread, and count their errors on the test list."""
    try:
        folder = find(data)
        pairs, tested = read(folder, "trainval"), read(folder, "test")
        out.mkdir(parents=True, exist_ok=True)
        experts = rules.load("deeppcb").experts
        kind = kinds.resolve(experts[ANY].kind, ["apps.deeppcb"])
        assert isinstance(kind, ModuleKind)
        groups = sorted({pair.group for pair in pairs})
        plan = TrainingPlan(Path(), out, epochs, 32, 2e-3, seed=seed, threads=1)
        common = train_classifier(experts[ANY], pairs, plan).state
        save_file(dict(common), out / "common.safetensors")
        plan = replace(plan, learning_rate=3e-4, init=out / "common.safetensors", epochs=tune_epochs)
        took: dict[str, float] = {}
        began = time.thread_time()
        many = {
            group: train_classifier(
                experts[group.replace("group", "board-")], [pair for pair in pairs if pair.group == group], plan
            ).state
            for group in groups
        }
        took["many"], began = time.thread_time() - began, time.thread_time()
        one = train_classifier(experts[ANY], pairs, replace(plan, epochs=tune_epochs * len(groups))).state
        took["one"] = time.thread_time() - began
        table = Table(
            "board type", "pairs", *(f"{way}: {what}" for way in ("many", "one") for what in ("escapes", "false calls"))
        )
        total = [0] * 5
        for group in sorted({pair.group for pair in tested}):
            theirs = [pair for pair in tested if pair.group == group]
            counts = [
                count for state in (many.get(group, common), one) for count in wrong(kind, experts[ANY], state, theirs)
            ]
            table.add_row(group, str(len(theirs)), *map(str, counts))
            if group in many:
                total = [sum(both) for both in zip(total, (len(theirs), *counts), strict=True)]
        table.add_row("with training pairs", *map(str, total))
        console = Console()
        console.print(table)
        console.print(
            ", ".join(
                f"{way}: {seconds:.0f} s of processor time after the common network" for way, seconds in took.items()
            )
        )
    except (DataMissing, CoeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    typer.run(main)
