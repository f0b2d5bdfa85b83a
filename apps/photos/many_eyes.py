"""A board of many experts of kind `patch`, as of a plant with hundreds of parts: `coe-inspect` then says what it takes.

Four are learned from photographs; the others are these with the rows of their banks in another order, so that each has
bytes of its own.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import cv2
import torch
import typer

from apps.photos import good_only
from coe.cli.console import Console
from coe.prepare.fold import fold
from coe.prepare.layout import lay_out
from coe.store import bodies, kinds, variants, weights_file
from coe.store.kinds import ModuleKind
from coe.store.store import Store

_OF_ROWS = ("bank", "places", "shown_by")


def experts(store: Store, folder: Path, data: Path, count: int) -> dict[str, Path]:
    """Put so many experts into a store, prepared in fp32; return a photograph for each, by its name."""
    photos, kind, shown = good_only.read(data), kinds.resolve("patch"), {}
    assert isinstance(kind, ModuleKind)
    good_only.board(folder)
    for first, (name, one) in enumerate(photos.items()):
        good_only.learn(store, name, random.Random(0).sample(list(one.good), 10), folder, 0.05)
        learned = store.manifest(f"photos/{name}")
        folded, labels = fold(kind, learned.expert(), store.tensors(learned)), len(learned.labels)
        for number in range(first, count, len(photos)):
            eye = f"eye{number:03d}"
            order = torch.randperm(len(folded.state["bank"]), generator=torch.Generator().manual_seed(number))
            rows = {tensor: folded.state[tensor][order] for tensor in _OF_ROWS}
            state = store.tensors(learned) | rows
            store.put(f"many/{eye}", kind="patch", labels=learned.labels, input_size=good_only.INPUT, state=state)
            bodies.divide_backbone(store, f"many/{eye}")
            identity = weights_file.header(store.path(f"many/{eye}")).identity
            own = replace(folded, state=folded.state | rows)
            blob = lay_out(own, "fp32", kind="patch", labels=labels, identity=identity).bytes
            with store.changing(f"many/{eye}") as manifest:
                # Its findings are those of the expert that was proved.
                variants.put(store, manifest, blob, agreement=learned.variants["fp32"].agreement, escalate_below=0.0)
            shown[eye] = one.good[number % len(one.good)]
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
    folder: Annotated[Path, typer.Option(help="Where all goes.")] = Path("build/many-eyes"),
    count: Annotated[int, typer.Option(help="How many experts.")] = 372,
) -> None:
    """Make many experts of kind patch, their board file, and a photograph for each."""
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "images").mkdir(parents=True)
    store = Store(folder / "store")
    shown = experts(store, folder, data or Path(os.environ.get("COE_DATA") or "../shared/data"), count)
    for name, picture in shown.items():
        shutil.copyfile(picture, folder / "images" / f"1__{name}{picture.suffix}")
    path, prepared = board(folder, list(shown)), store.manifest("many/eye000").variants["fp32"]
    assert prepared.body is not None
    sizes = f"{prepared.bytes / 1e6:.2f} MB each, and a body of {prepared.body.bytes / 1e6:.2f} MB for all"
    Console().print(f"{count} experts of {sizes}: {path}")


if __name__ == "__main__":
    typer.run(main)
