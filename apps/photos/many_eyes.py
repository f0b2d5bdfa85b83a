"""So many experts of kind `patch` resident at once: what their line takes, and what a switch moves.

Four are learned from photographs; the others are these with the rows of their banks in another order, so that each has
bytes of its own. Every expert judges a photograph, twice: in memory for all of them, and in memory for a quarter.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Annotated

import cv2
import psutil
import torch
import typer

from apps.photos import good_only
from coe import Inspector, Picture
from coe.cli.console import Console
from coe.prepare.prepare import Preparer
from coe.store import bodies
from coe.store.store import Store

_OF_ROWS = ("bank", "places", "shown_by")


def experts(store: Store, folder: Path, data: Path, count: int) -> dict[str, Path]:
    """Put so many experts into a store; return a photograph for each, by its name."""
    photos = good_only.read(data)
    good_only.board(folder)
    for name, one in photos.items():
        good_only.learn(store, name, random.Random(0).sample(list(one.good), 10), folder, 0.05)
    shown = {}
    for number in range(count):
        name, id = good_only.SETS[number % len(good_only.SETS)], f"many/eye{number:03d}"
        state = dict(store.tensors(store.manifest(f"photos/{name}")))
        order = torch.randperm(len(state["bank"]), generator=torch.Generator().manual_seed(number))
        state |= {tensor: state[tensor][order] for tensor in _OF_ROWS}
        store.put(id, kind="patch", labels=(good_only.LABEL,), input_size=good_only.INPUT, state=state)
        bodies.divide_backbone(store, id)
        Preparer(store, ["fp32"]).prepare(id, list(photos[name].good)[:1])
        shown[f"eye{number:03d}"] = photos[name].good[number % len(photos[name].good)]
    return shown


def board(folder: Path, names: list[str]) -> Path:
    """Write the board file."""
    label = good_only.LABEL
    line = f"{{kind: patch, labels: [{label}], input: {good_only.INPUT}, reject: [{label}], then: {{none: OK}}}}"
    path = folder / "many.yaml"
    rows = [f"  {name}: {line}" for name in names]
    parts = [f"  {name}: {{inspect: {name}}}" for name in names]
    path.write_text("\n".join(["board: many", "experts:", *rows, "components:", *parts, ""]), encoding="utf-8")
    return path


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The photos. Default: $COE_DATA, or ../shared/data.")] = None,
    folder: Annotated[Path, typer.Option(help="Where experts go.")] = Path("build/many-eyes"),
    count: Annotated[int, typer.Option(help="How many experts.")] = 372,
    memory: Annotated[list[str] | None, typer.Option(help="The line's memory, several times. Default: 400MB.")] = None,
) -> None:
    """Make many experts of kind patch, and print what a line of them takes."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    console = Console(width=120)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = Store(folder / "store")
    shown = experts(store, folder, data or Path(os.environ.get("COE_DATA") or "../shared/data"), count)
    path = board(folder, list(shown))
    one = store.manifest("many/eye000").variants["fp32"]
    assert one.body is not None
    console.print(
        f"{count} experts: {one.bytes / 1e6:.2f} MB each, and a body of {one.body.bytes / 1e6:.2f} MB for all"
    )
    for budget in memory or ["400MB"]:
        before = psutil.Process().memory_info().rss
        with Inspector(path, store=store, memory=budget) as line:
            for _ in range(2):
                for result in line.stream(Picture(picture, name) for name, picture in shown.items()):
                    assert result.failure is None, result.failure
            grown, found = psutil.Process().memory_info().rss - before, line.metrics()
        switch = found.switch_bytes / found.switches / 1e6 if found.switches else 0.0
        console.print(
            f"{budget}: {found.images} images, peak reserved {found.peak_reserved_bytes / 1e6:.1f} MB, the process "
            f"grew by {grown / 1e6:.1f} MB; {found.initial_loads} loads, {found.switches} switches of {switch:.2f} MB"
        )


if __name__ == "__main__":
    typer.run(main)
