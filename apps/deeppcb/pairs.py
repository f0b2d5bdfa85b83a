"""DeepPCB as a data set of pairs (`experts/pair_data.py`): links to its pictures, and its boxes as shares."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from apps.deeppcb.data import LABELS, Pair

SIDE = 640
"""Side of every picture in pixels."""

INVERSE = {
    "open": "short", "short": "open", "mousebite": "spur", "spur": "mousebite",
    "copper": "pin-hole", "pin-hole": "copper",
}  # fmt: skip
"""The label of a defect in the negative, where copper and base material are swapped."""


def lay_out(splits: dict[str, list[Pair]], out: Path) -> Path:
    """Write the data set of the splits `train` and `val` into `out`, whose files are replaced; return its YAML.

    A pair may be listed several times.
    """
    shutil.rmtree(out, ignore_errors=True)
    for split, pairs in splits.items():
        folders = {name: out / name / split for name in ("images", "references", "labels")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        for number, pair in enumerate(pairs):
            name = f"{pair.group}-{pair.key}-{number}"
            os.symlink(pair.tested.resolve(), folders["images"] / f"{name}.jpg")
            os.symlink(pair.template.resolve(), folders["references"] / f"{name}.jpg")
            (folders["labels"] / f"{name}.txt").write_text("".join(_lines(pair)), encoding="utf-8")
    names = dict(enumerate(LABELS))
    described = {"path": ".", "train": "images/train", "val": "images/val", "names": names, "inverse": INVERSE}
    text = yaml.safe_dump(described, sort_keys=False)
    (out / "data.yaml").write_text(text, encoding="utf-8")
    return out / "data.yaml"


def _lines(pair: Pair) -> list[str]:
    lines = []
    for defect in pair.defects:
        x1, y1, x2, y2 = (min(max(value, 0), SIDE) / SIDE for value in defect.xyxy)
        lines.append(f"{defect.label} {(x1 + x2) / 2:.6f} {(y1 + y2) / 2:.6f} {x2 - x1:.6f} {y2 - y1:.6f}\n")
    return lines
