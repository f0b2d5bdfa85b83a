"""Measure the `deeppcb-golden` board on the test list: boxes by the data set's own measure, escapes and false calls.

The data set has no second picture of a good board: its templates are the references themselves. So false calls are
counted on the tested pictures: a box that touches no annotated defect calls a good place defective.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer
from rich.table import Table

from apps.data_set import run
from apps.deeppcb.data import DRAWN_INTO, LABELS, Pair, find, read, split_held_out
from apps.deeppcb.measures import ImageBoxes, average_precision, mean_average_precision, overlap, score_at, steady_score
from apps.deeppcb.train import BOARD_FILE, EXPERT, HELD_OUT_EVERY
from coe.board import rules
from coe.cli.console import Console
from coe.core import Box
from coe.pictures.decoding import decode
from coe.store.kinds import Reference
from coe.store.store import Store
from experts.golden import GoldenKind

IOU = 0.33
"""Least overlap of a right detection, as the authors of the data set measure."""
PUBLISHED = {"map33": 0.986, "f_score": 0.982}
LEAST_SCORE = 0.005
FALSE_IMAGES = 0.005
"""Wanted share of pictures with a false box, for a line on which false calls are expensive."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found on pictures, with nearly any score, and the seconds of processor time a picture."""

    shown: list[ImageBoxes]
    seconds: float


class _Eager(GoldenKind):
    """The kind of the board file, which reports nearly every box: thresholds are chosen here."""

    threshold = LEAST_SCORE


def image_boxes(pair: Pair, boxes: Sequence[Box], labels: Sequence[str]) -> ImageBoxes:
    """Return a pair's defects and the boxes that were found, with indices of `labels`."""
    return ImageBoxes(
        true_boxes=np.array([defect.xyxy for defect in pair.defects], np.float64).reshape(-1, 4),
        true_labels=np.array([defect.label for defect in pair.defects], np.int64),
        boxes=np.array([box.xyxy for box in boxes], np.float64).reshape(-1, 4),
        labels=np.array([labels.index(box.label) for box in boxes], np.int64),
        scores=np.array([box.score for box in boxes], np.float64),
    )


def detect(pairs: list[Pair], store: Path | None, weights: str) -> Detected:
    """Run the expert on the tested pictures as a line does, on one thread, timed from decoded pictures."""
    expert = rules.load(BOARD_FILE).experts[EXPERT]
    kind = _Eager()
    module = kind.skeleton(expert)
    module.load_state_dict(Store(store).load(weights))
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shown, spent_s = [], 0.0
    with torch.inference_mode():
        for pair in pairs:
            image, template = decode(pair.tested), decode(pair.template)
            reference = Reference(template, np.zeros(template.shape[:2], np.uint8))
            began = time.thread_time()
            prepared = kind.compare(image, reference, expert)
            outputs = kind.forward(module, torch.from_numpy(prepared.pixels)[None])
            boxes = kind.postprocess(outputs, [prepared], expert)[0].boxes
            spent_s += time.thread_time() - began
            shown.append(image_boxes(pair, boxes, expert.labels))
    return Detected(shown, spent_s / max(1, len(pairs)))


def false_image(image: ImageBoxes, limit: float) -> bool:
    """Tell whether a tested picture has a box with a score of `limit` that touches no defect."""
    touching = overlap(image.boxes[image.scores >= limit], image.true_boxes) > 0
    return bool((~touching.any(axis=1)).any())


def careful_limit(held: Sequence[ImageBoxes]) -> float:
    """Return the least threshold at which at most FALSE_IMAGES of the held-out pictures have a false box."""
    limits = [float(limit) for limit in np.arange(0.05, 1.0, 0.01)]
    return next(
        (limit for limit in limits if np.mean([false_image(image, limit) for image in held]) <= FALSE_IMAGES), 1.0
    )


def report(shown: list[ImageBoxes], limit: float) -> dict[str, Any]:
    """Return the measures of tested pictures at a threshold that was chosen elsewhere.

    `escaped_images` is the share of pictures without any box, `escaped_defects` the share of defects that no box
    touches, `false_images` the share of pictures with a box that touches no defect.
    """
    kept = [image.scores >= limit for image in shown]
    touching = [overlap(image.boxes[sure], image.true_boxes) > 0 for image, sure in zip(shown, kept, strict=True)]
    defects = sum(len(image.true_boxes) for image in shown)
    return {
        "images": len(shown),
        "defects": defects,
        "map33": mean_average_precision(shown, len(LABELS), IOU),
        "map50": mean_average_precision(shown, len(LABELS), 0.5),
        "ap33": {label: average_precision(shown, place, IOU) for place, label in enumerate(LABELS)},
        "threshold": limit,
        "f_score": score_at(shown, limit, IOU).f,
        **{key: value for key, value in asdict(score_at(shown, limit, IOU)).items() if key != "threshold"},
        "escaped_images": sum(not sure.any() for sure in kept) / max(1, len(shown)),
        "escaped_defects": sum(int((~touch.any(axis=0)).sum()) for touch in touching) / max(1, defects),
        "false_images": sum(false_image(image, limit) for image in shown) / max(1, len(shown)),
    }


def reports_of(tested: list[Pair], shown: list[ImageBoxes], limit: float) -> dict[str, dict[str, Any]]:
    """Return the measures of each board type, of all pictures, and of those that show nothing but a board."""

    def of(kept: list[int]) -> dict[str, Any]:
        return report([shown[place] for place in kept], limit)

    places: dict[str, list[int]] = {}
    for place, pair in enumerate(tested):
        places.setdefault(pair.group, []).append(place)
    reports = {group: of(places[group]) for group in sorted(places)}
    reports["all"] = report(shown, limit)
    if drawn := sorted(DRAWN_INTO & {pair.key for pair in tested}):
        plain = [place for place, pair in enumerate(tested) if pair.key not in DRAWN_INTO]
        reports[f"without {', '.join(drawn)}"] = of(plain)
    return reports


def show(console: Console, reports: dict[str, dict[str, Any]]) -> None:
    """Print the measures of each part of the test list."""
    columns = {
        "images": "{:d}", "map33": "{:.2%}", "f_score": "{:.2%}",
        "map50": "{:.2%}", "precision": "{:.2%}",
        "recall": "{:.2%}", "escaped_images": "{:.2%}", "escaped_defects": "{:.2%}", "false_images": "{:.2%}",
    }  # fmt: skip
    table = Table("part", *(name.replace("_", " ") for name in columns))
    for name, measures in reports.items():
        table.add_row(name, *(form.format(measures[column]) for column, form in columns.items()))
    published = {"images": "500", **{name: f"{value:.1%}" for name, value in PUBLISHED.items()}}
    table.add_row("published", *(published.get(name, "") for name in columns))
    console.print(table)


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for golden.json.")] = Path("build/deeppcb"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
) -> None:
    """Measure the DeepPCB expert that compares with templates, on the test list, at a threshold chosen elsewhere.

    The threshold is in the middle of those with the best F-scores on the held-out pairs of the training list. The rows
    "few false calls" are for the least threshold at which hardly any of these pairs has a false box.
    """
    console = Console()
    folder = find(data)
    trainval, tested = read(folder, "trainval"), read(folder, "test")
    weights = rules.load(BOARD_FILE).experts[EXPERT].weights
    held = detect(split_held_out(trainval, HELD_OUT_EVERY)[1], store, weights)
    limit = steady_score(held.shown, IOU).threshold
    found = detect(tested, store, weights)
    reports = reports_of(tested, found.shown, limit)
    reports["held out"] = report(held.shown, limit)
    careful, types = reports_of(tested, found.shown, careful_limit(held.shown)), {pair.group for pair in tested}
    reports |= {f"{part}, few false calls": careful[part] for part in careful if part not in types}
    show(console, reports)
    console.print(f"threshold {limit:.2f}, {1e3 * found.seconds:.0f} ms of one core per image")
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**reports, "seconds": found.seconds}, indent=2)
    (out / "golden.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    run(main)
