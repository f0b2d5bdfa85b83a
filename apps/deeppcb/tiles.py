"""DeepPCB images cut into small tiles around their defects, as a YOLO data set.

A tile of 192 pixels costs a ninth of the whole image, and nearly every tile holds a defect. Each defect gives a tile
with the defect at a random place inside it; for a share of the defects the same window of the template, without a
defect, is a second tile.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import cv2
import yaml

from apps.deeppcb.data import LABELS, Defect, Pair

VISIBLE = 0.6
"""A defect that the tile's border cuts counts if this share of its area is visible."""


def cut(splits: dict[str, list[Pair]], out: Path, *, size: int, templates: float, seed: int) -> Path:
    """Write tiles of `size` pixels for the splits `train` and `val` into `out`, and return the data set's YAML.

    `templates` is the number of defect-free tiles for each tile with a defect. Files in `out` are replaced.
    """
    shutil.rmtree(out, ignore_errors=True)
    rng = random.Random(seed)
    for split, pairs in splits.items():
        (out / "images" / split).mkdir(parents=True)
        (out / "labels" / split).mkdir(parents=True)
        for pair in pairs:
            _cut_pair(pair, out, split, size=size, templates=templates, rng=rng)
    names = dict(enumerate(LABELS))
    text = yaml.safe_dump({"path": ".", "train": "images/train", "val": "images/val", "names": names}, sort_keys=False)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return out / "data.yaml"


def _cut_pair(pair: Pair, out: Path, split: str, *, size: int, templates: float, rng: random.Random) -> None:
    tested = cv2.imread(str(pair.tested), cv2.IMREAD_GRAYSCALE)
    template = cv2.imread(str(pair.template), cv2.IMREAD_GRAYSCALE)
    height, width = tested.shape
    for index, defect in enumerate(pair.defects):
        left, top = place(defect, size, (width, height), rng)
        window = (slice(top, top + size), slice(left, left + size))
        lines = labels(pair.defects, left, top, size)
        name = f"{pair.group}-{pair.key}-{index}"
        cv2.imwrite(str(out / "images" / split / f"{name}.png"), tested[window])
        (out / "labels" / split / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
        if rng.random() < templates:
            cv2.imwrite(str(out / "images" / split / f"{name}-good.png"), template[window])
            (out / "labels" / split / f"{name}-good.txt").write_text("", encoding="utf-8")


def place(defect: Defect, size: int, image: tuple[int, int], rng: random.Random) -> tuple[int, int]:
    """Return left and top of a tile that holds the defect at a random place inside it and lies in the image."""
    x1, y1, x2, y2 = defect.xyxy
    return _place(x1, x2, size, image[0], rng), _place(y1, y2, size, image[1], rng)


def _place(low: int, high: int, size: int, limit: int, rng: random.Random) -> int:
    first, last = max(0, min(high - size, low)), min(limit - size, max(low, high - size))
    return rng.randint(min(first, last), max(first, last))


def labels(defects: tuple[Defect, ...], left: int, top: int, size: int) -> list[str]:
    """Return the YOLO lines (class, centre x, centre y, width, height; shares of the tile) of the visible defects."""
    lines = []
    for defect in defects:
        x1, y1, x2, y2 = defect.xyxy
        a1, b1 = max(x1 - left, 0), max(y1 - top, 0)
        a2, b2 = min(x2 - left, size), min(y2 - top, size)
        if a2 <= a1 or b2 <= b1 or (a2 - a1) * (b2 - b1) < VISIBLE * (x2 - x1) * (y2 - y1):
            continue
        middle = ((a1 + a2) / 2 / size, (b1 + b2) / 2 / size, (a2 - a1) / size, (b2 - b1) / size)
        lines.append(" ".join([str(defect.label), *(f"{value:.6f}" for value in middle)]))
    return lines
