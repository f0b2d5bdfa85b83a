"""What ultralytics' files say of their models, and what its networks see of a picture; nothing is imported from it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coe.errors import StoreError
from coe.helpers.preprocessing import NORMALIZATIONS, Layout, Preprocessing

LETTERBOX = Preprocessing(interpolation="bilinear")
"""What ultralytics' detectors and those of the YOLOv5 repository are trained on."""
CENTRE = Preprocessing(resize="center-crop", interpolation="bilinear-antialias")
"""What ultralytics' classifiers are trained on."""
_MEAN, _DEVIATION = NORMALIZATIONS["imagenet"]
LEGACY_CENTRE = CENTRE.model_copy(update={"interpolation": "bilinear", "mean": _MEAN, "std": _DEVIATION})
"""What the classifiers of the YOLOv5 repository are trained on."""


@dataclass(frozen=True, slots=True)
class UltralyticsFacts:
    """What the metadata of a model file say; None for what they do not say. `task` is "" where nothing says it."""

    task: str = ""
    labels: tuple[str, ...] | None = None
    input_size: int | None = None
    layout: Layout | None = None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Those that the detectors of these programs have; () for one of another maker."""
        if self.task == "detect":
            return ("yolov8", "end2end")
        return ("yolov5",) if not self.task and self.labels is not None else ()

    def seen(self, is_classifier: bool) -> Preprocessing | None:
        """Return what a network sees that ultralytics or the YOLOv5 repository wrote; None for one of another maker."""
        if is_classifier:
            legacy = LEGACY_CENTRE if not self.task and self.labels is not None else None
            return CENTRE if self.task == "classify" else legacy
        return LETTERBOX if self.task == "detect" or (not self.task and self.labels is not None) else None


def stated(metadata: Mapping[str, str], where: str) -> UltralyticsFacts:
    """Read the metadata that ultralytics' exporter, or that of the YOLOv5 repository, writes; `where` begins sentences.

    Other programs write the same words of other networks, but no `stride`: nothing is read of theirs. Raises StoreError
    for metadata that cannot be read, and for a task that no kind has.
    """
    if "stride" not in metadata:
        return UltralyticsFacts()
    task = metadata.get("task", "")
    if task not in ("", "detect", "classify"):
        raise StoreError(f"{where}: its task is '{task[:40]}'; models that detect or classify can be imported")
    names, sides, arguments = (_literal(metadata, key, where) for key in ("names", "imgsz", "args"))
    layout: Layout | None = None
    if task == "detect" and {"end2end", "nms", "args"} & metadata.keys():
        with_nms = isinstance(arguments, Mapping) and arguments.get("nms") is True
        layout = "end2end" if with_nms or "True" in (metadata.get("end2end"), metadata.get("nms")) else "yolov8"
    return UltralyticsFacts(task, labels_of(names, where), side_of(sides, where), layout)


def labels_of(names: Any, where: str) -> tuple[str, ...] | None:
    """Return labels by their numbers, which may be texts, from a list or a mapping; None if there are no names.

    Raises StoreError for numbers that are not 0, 1, 2 and so on.
    """
    if names is None:
        return None
    try:
        numbered = {
            int(key): str(name) for key, name in (names.items() if isinstance(names, dict) else enumerate(names))
        }
    except (TypeError, ValueError):
        numbered = {}
    if not numbered or sorted(numbered) != list(range(len(names))):
        raise StoreError(f"{where}: its labels are not numbered 0, 1, 2 and so on; export it again")
    return tuple(numbered[number] for number in sorted(numbered))


def _literal(metadata: Mapping[str, str], key: str, where: str) -> Any:
    if key not in metadata:
        return None
    try:
        return ast.literal_eval(metadata[key])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise StoreError(
            f"{where}: its metadata `{key}` cannot be read ({metadata[key]:.60}); export it again"
        ) from error


def side_of(sides: Any, where: str) -> int | None:
    """Return the longer side of an input, from a number or [height, width]; None if nobody says; raises StoreError."""
    if sides is None:
        return None
    both = sides if isinstance(sides, list | tuple) else (sides,)
    if not both or any(type(side) is not int for side in both):
        raise StoreError(f"{where}: was made for images of {sides!r:.40} pixels; export it again")
    return max(both)
