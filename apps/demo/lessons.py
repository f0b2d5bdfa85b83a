"""The experts' training data: labelled folders for classifiers, YOLO data sets for detectors, rendered from a seed.

A classifier sees every part of its types. A defect without a label of its own is for a detector behind the classifier,
so the classifier's label for it is `ok`. A detector sees only parts that the classifier would pass.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from apps.demo.pcb import board_style
from apps.demo.production import save
from apps.demo.render import COMPONENTS, LabelledImage, photograph
from apps.demo.site import Truth
from coe.core import Expert

BODY = Expert("body", "resnet18", ("ok", "missing", "cracked", "shifted", "rotated", "tombstone"), 64, "")
"""A network trained once on all component types; each classifier starts from its weights."""

BODY_DEFECTS = frozenset({"missing", "cracked", "damaged", "shifted", "rotated", "tombstone"})
"""Defects that classifiers find; the others are left to the detectors."""


@dataclass(frozen=True, slots=True)
class Amount:
    """The number of images of each component type: good ones, of each damage (hard to see), of each other defect.

    Held-out images come on top, as the share `held` of these.
    """

    ok: int
    damage: int
    other: int
    held: float = 0.25

    def of(self, defect: str | None) -> int:
        """Return the number of training images of a defect."""
        return self.ok if defect is None else self.damage if defect in {"cracked", "damaged"} else self.other


@dataclass(frozen=True, slots=True)
class Shot:
    """One training image to be rendered: `file` is relative to the data set, `label` is a classifier's."""

    component: str
    defect: str | None
    label: str
    split: str
    seed: tuple[int, ...]

    @property
    def stem(self) -> str:
        """A file name that no other shot of the data set has."""
        return f"{self.component}-{self.defect or 'ok'}-{self.seed[-1]:04d}"


def shots(expert: Expert, detects: bool, components: list[str], amount: Amount, seed: int) -> list[Shot]:
    """List the training images of an expert that serves these component types."""
    listed: list[Shot] = []
    for component in components:
        for defect in (None, *COMPONENTS[component].defects):
            if detects and defect in BODY_DEFECTS:
                continue
            label = label_of(defect, expert.labels)
            number = amount.of(defect)
            if defect is not None and label == "ok" and not any(defect.startswith(label) for label in expert.labels):
                number = max(2, number // 3)  # another expert finds the defect, but this expert must learn to pass it
            held = max(1, round(number * amount.held))
            for i in range(number + held):
                words = zlib.crc32(f"{expert.id}/{component}/{defect}".encode())
                split = "val" if i >= number else "train"
                listed.append(Shot(component, defect, label, split, (seed, words, i)))
    return listed


def label_of(defect: str | None, labels: tuple[str, ...]) -> str:
    """Return the label that a classifier with these labels gives a defect."""
    if defect == "damaged" and defect not in labels and "cracked" in labels:
        return "cracked"
    return defect if defect in labels else "ok"


def expose(expert: Expert, detects: bool, listed: list[Shot], folder: Path) -> None:
    """Render training images into a data set."""
    for shot in listed:
        rng = np.random.default_rng(shot.seed)
        style, several = board_style(rng, even=True), bool(detects and rng.random() < 0.7)
        picture = photograph(shot.component, shot.defect, rng, style=style, several=several)
        if detects:
            image = folder / "images" / shot.split / f"{shot.stem}.png"
            text = folder / "labels" / shot.split / f"{shot.stem}.txt"
            text.parent.mkdir(parents=True, exist_ok=True)
            text.write_text(boxes(expert, picture), encoding="ascii")
        else:
            image = folder / shot.split / shot.label / f"{shot.stem}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        save(image, picture.image)
        if not detects and shot.split == "train":
            # upside down, a classifier's label is still true, so a second image costs no rendering
            save(image.with_stem(f"{image.stem}-turned"), np.ascontiguousarray(picture.image[::-1, ::-1]))


def boxes(expert: Expert, picture: LabelledImage) -> str:
    """Return the truths of a picture that an expert has labels for, as lines of a YOLO label file."""
    height, width = picture.image.shape[:2]
    return "".join(
        f"{expert.labels.index(truth.label)} {_relative(truth, width, height)}\n"
        for truth in (*picture.joints, *picture.marks)
        if truth.label in expert.labels
    )


def _relative(truth: Truth, width: int, height: int) -> str:
    x0, y0, x1, y1 = truth.xyxy
    return " ".join(
        f"{value:.5f}"
        for value in ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
    )


def data_of(expert: Expert, detects: bool, folder: Path) -> Path:
    """Return `data` for a training plan: the folder, or the YAML file of the YOLO data set, which is written here."""
    if not detects:
        return folder
    sheet = folder / "data.yaml"
    content = {"path": ".", "train": "images/train", "val": "images/val", "names": list(expert.labels)}
    sheet.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return sheet
