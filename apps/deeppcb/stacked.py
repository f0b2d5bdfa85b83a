"""YOLOv5 on stacked channels: picture, template and their difference as the red, green and blue of one picture.

The detector trains on tiles of stacks around the defects of the training list, and runs on whole stacks. It is a trial
beside the kind `golden`, on the same pairs with the same alignment and negatives (docs/results/deeppcb.md).
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import torch
import typer
import yaml

from apps.deeppcb import tiles
from apps.deeppcb.data import LABELS, DataMissing, Defect, Pair, find, read, split_held_out
from apps.deeppcb.evaluate import IOU, LEAST_SCORE, image_boxes
from apps.deeppcb.golden_evaluate import report, reports_of, show
from apps.deeppcb.golden_train import HELD_OUT_EVERY, balanced
from apps.deeppcb.measures import ImageBoxes, steady_score
from apps.deeppcb.pairs import INVERSE
from apps.deeppcb.train import DETECTOR_AUGMENT
from coe.board.decoding import decode
from coe.board.motion import Numbers
from coe.cli.console import Console
from coe.core import Box, Expert
from coe.errors import CoeError, ConfigError
from coe.store.kinds import Image, Reference, TrainingPlan
from coe.store.store import Store
from experts.pair import compared, in_picture
from experts.yolov5 import YoloV5

EXPERT = Expert("pcb-stacked", "yolov5n", LABELS, 640, "deeppcb-stacked/pcb-stacked", reject=frozenset(LABELS))
_NEGATIVE = tuple(LABELS.index(INVERSE[label]) for label in LABELS)


def stack_of(pair: Pair) -> tuple[Image, Numbers] | None:
    """Return the stack (H, W, 3) of a pair, and the map (2, 3) from it to the picture; None if it cannot be aligned."""
    image, template = decode(pair.tested), decode(pair.template)
    both = compared(image, Reference(template, np.zeros(template.shape[:2], np.uint8)))
    if both.stack is None or both.alignment is None:
        return None
    return both.stack, both.alignment.to_picture


def defects_in(pair: Pair, to_picture: Numbers) -> tuple[Defect, ...]:
    """Return the defects of a pair in the frame of its stack."""
    back = np.linalg.inv(np.vstack((to_picture, (0.0, 0.0, 1.0))))[:2]
    boxes = in_picture(np.array([defect.xyxy for defect in pair.defects], np.float64).reshape(-1, 4), back)
    return tuple(
        Defect(defect.label, tuple(round(value) for value in box))
        for defect, box in zip(pair.defects, boxes, strict=True)
    )


def cut(splits: dict[str, list[Pair]], out: Path, *, size: int, good: float, seed: int) -> Path:
    """Write tiles of `size` pixels around the defects, each as a positive or a negative; return the data set's YAML.

    `good` is the share of windows at random places that come on top. Files in `out` are replaced.
    """
    shutil.rmtree(out, ignore_errors=True)
    chance = random.Random(seed)
    for split, pairs in splits.items():
        (out / "images" / split).mkdir(parents=True)
        (out / "labels" / split).mkdir(parents=True)
        for number, pair in enumerate(pairs):
            for place, (tile, lines) in enumerate(_tiles(pair, size, good, chance)):
                name = f"{pair.group}-{pair.key}-{number}-{place}"
                cv2.imwrite(str(out / "images" / split / f"{name}.png"), cv2.cvtColor(tile, cv2.COLOR_RGB2BGR))
                (out / "labels" / split / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    names = dict(enumerate(LABELS))
    text = yaml.safe_dump({"path": ".", "train": "images/train", "val": "images/val", "names": names}, sort_keys=False)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return out / "data.yaml"


def _tiles(pair: Pair, size: int, good: float, chance: random.Random) -> Iterator[tuple[Image, list[str]]]:
    made = stack_of(pair)
    if made is None:
        return
    stack, to_picture = made
    defects = defects_in(pair, to_picture)
    negative = stack.copy()
    negative[:, :, :2] = 255 - stack[:, :, :2]
    swapped = tuple(replace(defect, label=_NEGATIVE[defect.label]) for defect in defects)
    height, width = stack.shape[:2]
    for defect in defects:
        corners = [tiles.place(defect, size, (width, height), chance)]
        if chance.random() < good:
            corners.append((chance.randint(0, width - size), chance.randint(0, height - size)))
        for left, top in corners:
            shown, theirs = (stack, defects) if chance.random() < 0.5 else (negative, swapped)
            yield shown[top : top + size, left : left + size], tiles.labels(theirs, left, top, size)


def detect(pairs: list[Pair], state: dict[str, torch.Tensor]) -> tuple[list[ImageBoxes], float]:
    """Run the detector on whole stacks; return boxes of nearly any score, and seconds of processor time a picture."""
    kind = YoloV5("n", threshold=LEAST_SCORE)
    module = kind.skeleton(EXPERT)
    module.load_state_dict(state)
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    detected, began = [], time.thread_time()
    with torch.inference_mode():
        for pair in pairs:
            made = stack_of(pair)
            boxes: tuple[Box, ...] = ()
            if made is not None:
                prepared = kind.preprocess(made[0], EXPERT)
                outputs = kind.forward(module, torch.from_numpy(prepared.pixels)[None])
                found = kind.postprocess(outputs, [prepared], EXPERT)[0].boxes
                corners = in_picture(np.array([box.xyxy for box in found], np.float64).reshape(-1, 4), made[1])
                boxes = tuple(
                    replace(box, xyxy=tuple(corner.tolist())) for box, corner in zip(found, corners, strict=True)
                )
            detected.append(image_boxes(pair, boxes, LABELS))
    return detected, (time.thread_time() - began) / max(1, len(pairs))


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for tiles and stacked.json.")] = Path("build/deeppcb"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    tile: Annotated[int, typer.Option(help="Side of the tiles in pixels, a multiple of 32.")] = 192,
    minutes: Annotated[float, typer.Option(help="Length of the training; 0: measure what is in the store.")] = 35.0,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 0.002,
    repeat: Annotated[int, typer.Option(min=1, help="How often pairs of rare board types are repeated at most.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of everything drawn at random.")] = 0,
) -> None:
    """Train a detector on stacks, with one thread, and measure it on the test list."""
    console = Console()
    try:
        if tile % 32 or not 0 < tile <= EXPERT.input_size:
            raise ConfigError(f"--tile {tile}: give a multiple of 32, up to {EXPERT.input_size}")
        folder, experts = find(data), Store(store)
        out.mkdir(parents=True, exist_ok=True)
        training, held = split_held_out(read(folder, "trainval"), HELD_OUT_EVERY)
        if minutes:
            splits = {"train": balanced(training, repeat), "val": held}
            sheet = cut(splits, out / "stacked", size=tile, good=0.3, seed=seed)
            plan = TrainingPlan(sheet, out / "stacked-work", 1000, 16, rate, seed=seed, threads=1)
            began = time.monotonic()

            def progress(done: int, of: int, measures: dict[str, float]) -> None:
                words = "  ".join(f"{key} {value:.4f}" for key, value in measures.items())
                typer.echo(f"epoch {done}, {time.monotonic() - began:.0f} s  {words}")

            kind = YoloV5("n", augment={**DETECTOR_AUGMENT, "time": minutes / 60})
            trained = kind.train(replace(EXPERT, input_size=tile), plan, progress)
            experts.put(
                EXPERT.weights,
                kind=EXPERT.kind,
                labels=EXPERT.labels,
                input_size=EXPERT.input_size,
                state=trained.state,
                metrics=trained.metrics,
                learned=trained.learned,
                unproven=trained.unproven,
                source=f"apps.deeppcb.stacked, {minutes:g} minutes",
            )
        state = experts.load(EXPERT.weights)
        chosen = detect(held, state)[0]
        limit = steady_score(chosen, IOU).threshold
        tested = read(folder, "test")
        shown, seconds = detect(tested, state)
        reports = reports_of(tested, shown, limit) | {"held out": report(chosen, limit)}
        show(console, reports)
        console.print(f"threshold {limit:.2f}, {1e3 * seconds:.0f} ms of one core an image, decoding included")
        (out / "stacked.json").write_text(
            json.dumps({**reports, "seconds": seconds}, indent=2) + "\n", encoding="utf-8"
        )
    except (DataMissing, CoeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    typer.run(main)
