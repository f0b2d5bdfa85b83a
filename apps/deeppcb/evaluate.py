"""Measure the `deeppcb` board on the test list: verdicts by the public API, boxes by the data set's own measure."""

from __future__ import annotations

import dataclasses
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.table import Table

from apps.deeppcb.data import LABELS, DataMissing, Pair, find, read, split_held_out
from apps.deeppcb.measures import ImageBoxes, average_precision, best_score, mean_average_precision, score_at
from apps.deeppcb.train import DETECTOR, HELD_OUT_EVERY
from coe import Inspector, Picture
from coe.board import rules
from coe.board.decoding import decode
from coe.cli.console import Console
from coe.core import Box, Result, Verdict
from coe.errors import CoeError
from coe.store.store import Store
from experts.yolov5 import YoloV5

IOU = 0.33
"""A detection with at least this overlap is right, as the data set's authors measure."""

PUBLISHED = {"map33": 0.986, "f_score": 0.982}
LEAST_SCORE = 0.005


def judge(pairs: list[Pair], store: Path | None, memory: str) -> list[Result]:
    """Inspect tested images and templates as a line would; `Request.image` is `bad/...` or `good/...`."""
    pictures = [
        Picture(path, pair.group, serial=pair.key, name=f"{truth}/{path.name}")
        for pair in pairs
        for path, truth in ((pair.tested, "bad"), (pair.template, "good"))
    ]
    with Inspector("deeppcb", store=store, memory=memory, allow_kinds=["apps.deeppcb"]) as line:
        return list(line.stream(pictures))


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
    return dataclasses.replace(
        image_boxes(pair, (), ()),
        boxes=candidates[places, :4].astype(np.float64),
        labels=labels.astype(np.int64),
        scores=candidates[places, 4 + labels].astype(np.float64),
    )


def detect(pairs: list[Pair], store: Path | None) -> list[ImageBoxes]:
    """Run only the detector on the tested images; keep boxes of nearly any score, as average precision needs them."""
    expert = rules.load("deeppcb").experts[DETECTOR]
    kind = YoloV5("n", threshold=LEAST_SCORE)
    module = kind.skeleton(expert)
    module.load_state_dict(Store(store).load(expert.weights))
    detected = []
    with torch.inference_mode():
        for pair in pairs:
            prepared = kind.preprocess(decode(pair.tested), expert)
            outputs = kind.forward(module, torch.from_numpy(prepared.pixels)[None])
            boxes = kind.postprocess(outputs, [prepared], expert)[0].boxes
            detected.append(image_boxes(pair, boxes, expert.labels))
    return detected


Count = Counter[tuple[str, str]]
"""How many images of a truth ("bad" or "good") got a verdict, or "error"."""


def verdict_counts(results: list[Result]) -> dict[str, Count]:
    """Return for each component, and for `all`, the number of bad and good images by verdict."""
    counts: dict[str, Count] = {}
    for result in results:
        truth = result.request.image.split("/", 1)[0]
        verdict = result.verdict.value if result.verdict else "error"
        for name in (result.request.component, "all"):
            counts.setdefault(name, Counter())[truth, verdict] += 1
    return dict(sorted(counts.items()))


def rates(counts: Count) -> dict[str, float]:
    """Return the escape rate (bad images called OK) and the false-call rate (good images called NG or REVIEW)."""
    bad = sum(number for (truth, _), number in counts.items() if truth == "bad")
    good = sum(number for (truth, _), number in counts.items() if truth == "good")
    escaped = counts["bad", Verdict.OK.value]
    called = good - counts["good", Verdict.OK.value]
    return {"escape_rate": escaped / max(1, bad), "false_call_rate": called / max(1, good)}


def boxes_report(shown: list[ImageBoxes], held: list[ImageBoxes]) -> dict[str, Any]:
    """Return the measures of the boxes; the threshold of `f_score` was chosen on held-out training images."""
    chosen = best_score(held, IOU)
    tested = score_at(shown, chosen.threshold, IOU)
    shipped = score_at(shown, YoloV5("n").threshold, IOU)
    return {
        "map33": mean_average_precision(shown, len(LABELS), IOU),
        "map50": mean_average_precision(shown, len(LABELS), 0.5),
        "ap33": {label: average_precision(shown, place, IOU) for place, label in enumerate(LABELS)},
        "f_score": tested.f,
        "at_chosen_threshold": dataclasses.asdict(tested),
        "at_shipped_threshold": {**dataclasses.asdict(shipped), "f": shipped.f},
        "best_f_on_test": best_score(shown, IOU).f,
        "boxes": sum(len(image.true_boxes) for image in shown),
    }


def part_report(shown: list[ImageBoxes], limit: float) -> dict[str, float]:
    """Return the measures over some of the images, at a threshold chosen elsewhere."""
    return {
        "images": len(shown),
        "map33": mean_average_precision(shown, len(LABELS), IOU),
        "map50": mean_average_precision(shown, len(LABELS), 0.5),
        "f_score": score_at(shown, limit, IOU).f,
    }


def show(console: Console, counts: dict[str, Count], boxes: dict[str, Any]) -> None:
    """Print both tables."""
    verdicts = ("NG", "REVIEW", "OK", "error")
    words = "/".join(verdicts)
    table = Table("board type", f"bad: {words}", f"good: {words}", "escapes", "false calls", title="verdicts (images)")
    for name, count in counts.items():
        rate = rates(count)
        cells = ["/".join(str(count[truth, verdict]) for verdict in verdicts) for truth in ("bad", "good")]
        table.add_row(name, *cells, f"{rate['escape_rate']:.2%}", f"{rate['false_call_rate']:.2%}")
    console.print(table)
    table = Table("measure", "here", "published", title=f"boxes ({boxes['boxes']} defects)")
    table.add_row(f"mAP at IoU {IOU}", f"{boxes['map33']:.2%}", f"{PUBLISHED['map33']:.1%}")
    table.add_row(f"F-score at IoU {IOU}", f"{boxes['f_score']:.2%}", f"{PUBLISHED['f_score']:.1%}")
    table.add_row("mAP at IoU 0.5", f"{boxes['map50']:.2%}", "-")
    for label, value in boxes["ap33"].items():
        table.add_row(f"  AP of {label} at IoU {IOU}", "-" if value is None else f"{value:.2%}", "-")
    console.print(table)


def main(
    *,
    data: Annotated[Path | None, typer.Option(help="The data set. Default: $COE_DATA, or ../shared/data.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for evaluation.json.")] = Path("build/deeppcb"),
    store: Annotated[Path | None, typer.Option(help="Folder of the experts. Default: $COE_STORE, or ./store.")] = None,
    memory: Annotated[str, typer.Option(help="Budget of the line for experts and activations.")] = "1GiB",
) -> None:
    """Measure verdicts and boxes of the DeepPCB board on the test list.

    An escape is a defective image that the line calls OK; a false call is a good image that it calls NG or REVIEW.
    """
    console = Console()
    try:
        folder = find(data)
        pairs = read(folder, "test")
        held = split_held_out(read(folder, "trainval"), HELD_OUT_EVERY[DETECTOR])[1]
        started = time.monotonic()
        counts = verdict_counts(judge(pairs, store, memory))
        line_s = time.monotonic() - started
        shown, trained = detect(pairs, store), {pair.group for pair in held}
        boxes = boxes_report(shown, detect(held, store))
        for name, trained_on in (("types_with_training_images", True), ("types_without", False)):
            part = [image for image, pair in zip(shown, pairs, strict=True) if (pair.group in trained) is trained_on]
            boxes[name] = part_report(part, boxes["at_chosen_threshold"]["threshold"])
    except (DataMissing, CoeError) as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(2) from error
    show(console, counts, boxes)
    out.mkdir(parents=True, exist_ok=True)
    verdicts = {name: {" ".join(key): number for key, number in count.items()} for name, count in counts.items()}
    summary = {"verdicts": verdicts, "rates": rates(counts["all"]), "line_s": line_s, "boxes": boxes}
    (out / "evaluation.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    console.print(f"{2 * len(pairs)} images in {line_s:.0f} s; figures in {out / 'evaluation.json'}")


if __name__ == "__main__":
    typer.run(main)
