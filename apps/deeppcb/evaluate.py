"""Measure the `deeppcb-golden` board on the test list: boxes by the data set's own measure, escapes and false calls.

The data set has no second picture of a good board: its templates are the references themselves. So false calls are
counted on the tested pictures: a box that touches no annotated defect calls a good place defective.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.table import Table

from apps.deeppcb.data import DRAWN_INTO, LABELS, DataMissing, Pair, find, read, split_held_out
from apps.deeppcb.measures import ImageBoxes, average_precision, mean_average_precision, overlap, score_at, steady_score
from apps.deeppcb.train import BOARD_FILE, EXPERT, HELD_OUT_EVERY, known, weights_without
from coe.board import rules
from coe.cli.console import Console
from coe.core import Box
from coe.errors import CoeError
from coe.pictures.decoding import decode
from coe.store.kinds import Reference
from coe.store.store import Store
from experts.geometry import to_image
from experts.golden import Golden
from experts.pair import PairInput, compared

IOU = 0.33
"""A detection with at least this overlap is right, as the data set's authors measure."""
PUBLISHED = {"map33": 0.986, "f_score": 0.982}
LEAST_SCORE = 0.005
FALSE_IMAGES = 0.005
"""The share of pictures with a false box that is wanted of a line on which a false call costs much."""
PARTS = ("alignment", "proposals", "network", "boxes")
"""What is timed. The alignment includes the difference, the boxes what is done with the outputs of the network."""


@dataclass(frozen=True, slots=True)
class Detected:
    """What was found on pictures, with nearly any score, and the seconds of processor time a picture for each of PARTS.

    `line` are the boxes as a line gives them, each with its best label; `every` are those of `every_label`.
    """

    line: list[ImageBoxes]
    every: list[ImageBoxes]
    seconds: dict[str, float]


def image_boxes(pair: Pair, boxes: Sequence[Box], labels: Sequence[str]) -> ImageBoxes:
    """Return a pair's defects and the boxes that were found, with indices of `labels`."""
    return ImageBoxes(
        true_boxes=np.array([defect.xyxy for defect in pair.defects], np.float64).reshape(-1, 4),
        true_labels=np.array([defect.label for defect in pair.defects], np.int64),
        boxes=np.array([box.xyxy for box in boxes], np.float64).reshape(-1, 4),
        labels=np.array([labels.index(box.label) for box in boxes], np.int64),
        scores=np.array([box.score for box in boxes], np.float64),
    )


def every_label(pair: Pair, candidates: NDArray[np.float32]) -> ImageBoxes:
    """Return a pair's defects and, of each candidate (n, 4 + labels), a box for each label that it may have.

    A box that may be an open or a mousebite counts for both, with its score for each, as YOLOv5's validation counts it.
    A line calls it by its best label alone.
    """
    places, labels = (candidates[:, 4:] >= LEAST_SCORE).nonzero()
    return replace(
        image_boxes(pair, (), ()),
        boxes=candidates[places, :4].astype(np.float64),
        labels=labels.astype(np.int64),
        scores=candidates[places, 4 + labels].astype(np.float64),
    )


def detect(pairs: list[Pair], store: Path | None, weights: str) -> Detected:
    """Run the expert on the tested pictures as a line does, on one thread, timed from decoded pictures."""
    expert = rules.load(BOARD_FILE).experts[EXPERT]
    kind = Golden(threshold=LEAST_SCORE)
    module = kind.skeleton(expert)
    module.load_state_dict(Store(store).load(weights))
    module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    line, every, spent_s = [], [], np.zeros(len(PARTS))
    with torch.inference_mode():
        for pair in pairs:
            image, template = decode(pair.tested), decode(pair.template)
            reference = Reference(template, np.zeros(template.shape[:2], np.uint8))
            times = [time.thread_time()]
            compared(image, reference)  # once more, for its time alone
            times.append(time.thread_time())
            prepared = kind.compare(image, reference, expert)
            times.append(time.thread_time())
            outputs = kind.forward(module, torch.from_numpy(prepared.pixels)[None])
            times.append(time.thread_time())
            boxes = kind.postprocess(outputs, [prepared], expert)[0].boxes
            times.append(time.thread_time())
            alignment, whole, *others = np.diff(times)
            spent_s += (alignment, whole - alignment, *others)
            line.append(image_boxes(pair, boxes, expert.labels))
            assert isinstance(prepared, PairInput)
            candidates = kind.candidates(outputs[0], prepared, expert).numpy()
            candidates[:, :4] = to_image(candidates[:, :4].astype(np.float64), prepared)
            every.append(every_label(pair, candidates))
    return Detected(line, every, dict(zip(PARTS, (spent_s / max(1, len(pairs))).tolist(), strict=True)))


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


def report(shown: list[ImageBoxes], limit: float, every: Sequence[ImageBoxes] = ()) -> dict[str, Any]:
    """Return the measures of tested pictures at a threshold that was chosen elsewhere.

    With `every`, the boxes of `every_label`, average precision is also that of all labels of a box.
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
        **(_every_label(every) if every else {}),
        "threshold": limit,
        "f_score": score_at(shown, limit, IOU).f,
        **{key: value for key, value in asdict(score_at(shown, limit, IOU)).items() if key != "threshold"},
        "escaped_images": sum(not sure.any() for sure in kept) / max(1, len(shown)),
        "escaped_defects": sum(int((~touch.any(axis=0)).sum()) for touch in touching) / max(1, defects),
        "false_images": sum(false_image(image, limit) for image in shown) / max(1, len(shown)),
    }


def _every_label(every: Sequence[ImageBoxes]) -> dict[str, Any]:
    return {
        "map33_every_label": mean_average_precision(every, len(LABELS), IOU),
        "map50_every_label": mean_average_precision(every, len(LABELS), 0.5),
        "ap33_every_label": {label: average_precision(every, place, IOU) for place, label in enumerate(LABELS)},
    }


def reports_of(
    tested: list[Pair], shown: list[ImageBoxes], limit: float, every: Sequence[ImageBoxes] = ()
) -> dict[str, dict[str, Any]]:
    """Return the measures of each board type, of all pictures, and of those that show nothing but a board."""

    def of(kept: list[int]) -> dict[str, Any]:
        return report([shown[place] for place in kept], limit, [every[place] for place in kept] if every else ())

    places: dict[str, list[int]] = {}
    for place, pair in enumerate(tested):
        places.setdefault(pair.group, []).append(place)
    reports = {group: of(places[group]) for group in sorted(places)}
    reports["all"] = report(shown, limit, every)
    if drawn := sorted(DRAWN_INTO & {pair.key for pair in tested}):
        plain = [place for place, pair in enumerate(tested) if pair.key not in DRAWN_INTO]
        reports[f"without {', '.join(drawn)}"] = of(plain)
    return reports


def show(console: Console, reports: dict[str, dict[str, Any]]) -> None:
    """Print the measures of each part of the test list."""
    columns = {
        "images": "{:d}", "map33": "{:.2%}", "map33_every_label": "{:.2%}", "f_score": "{:.2%}",
        "map50": "{:.2%}", "precision": "{:.2%}",
        "recall": "{:.2%}", "escaped_images": "{:.2%}", "escaped_defects": "{:.2%}", "false_images": "{:.2%}",
    }  # fmt: skip
    columns = {name: form for name, form in columns.items() if all(name in report for report in reports.values())}
    table = Table("part", *(name.replace("_", " ") for name in columns))
    for name, measures in reports.items():
        table.add_row(name, *(form.format(measures[column]) for column, form in columns.items()))
    published = {"images": "500", **{name: f"{value:.1%}" for name, value in PUBLISHED.items()}}
    table.add_row("published", *(published.get(name, "") for name in columns))
    console.print(table)


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for golden.json, or golden-without-TYPE.json.")] = Path(
        "build/deeppcb"
    ),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    left_out: Annotated[
        list[str] | None, typer.Option(help="Measure the expert that was trained without these board types on them.")
    ] = None,
) -> None:
    """Measure the DeepPCB expert that compares with templates, on the test list, at a threshold chosen elsewhere.

    The threshold is in the middle of those with the best F-scores on the held-out pairs of the training list. The rows
    "few false calls" are for the least threshold at which hardly any of these pairs has a false box.
    """
    console = Console()
    try:
        folder = find(data)
        trainval, tested = read(folder, "trainval"), read(folder, "test")
        weights = rules.load(BOARD_FILE).experts[EXPERT].weights
        if left_out:
            known(left_out, trainval)
            weights = weights_without(left_out)
            # These types were not trained on at all: the whole of them tests the expert, of either list.
            tested = [pair for pair in (*trainval, *tested) if pair.group in left_out]
            trainval = [pair for pair in trainval if pair.group not in left_out]
        held = detect(split_held_out(trainval, HELD_OUT_EVERY)[1], store, weights)
        limit = steady_score(held.line, IOU).threshold
        shown = detect(tested, store, weights)
        reports = reports_of(tested, shown.line, limit, shown.every)
        reports["held out"] = report(held.line, limit, held.every)
        careful, types = reports_of(tested, shown.line, careful_limit(held.line)), {pair.group for pair in tested}
        reports |= {f"{part}, few false calls": careful[part] for part in careful if part not in types}
        seconds = shown.seconds
        show(console, reports)
        parts_ms = ", ".join(f"{name} {1e3 * part:.1f}" for name, part in seconds.items())
        console.print(f"threshold {limit:.2f}, {1e3 * sum(seconds.values()):.0f} ms of one core an image: {parts_ms}")
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({**reports, "seconds": seconds}, indent=2)
        name = "-without-".join(("golden", *sorted(left_out or [])))
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    except (DataMissing, CoeError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error


if __name__ == "__main__":
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    typer.run(main)
