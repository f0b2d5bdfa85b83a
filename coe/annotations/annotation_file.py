"""Which format a file of annotations has, found by its content; a folder holds masks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coe.annotations import coco, cvat, label_studio, masks, per_picture
from coe.annotations.marked import Findings, MarkedSet
from coe.annotations.picture_index import PictureIndex
from coe.errors import ConfigError
from coe.spelling import composed

_KNOWN = "COCO JSON, Label Studio JSON, CVAT XML 1.1, or a folder of masks, of Pascal VOC XML or of LabelMe JSON"

_TASK = {"data", "annotator", "annotation_id"}
"""The keys of which Label Studio's tasks have one, in each form of JSON."""


@dataclass(frozen=True, slots=True)
class ReadingChoices:
    """What a person decides: labels and their order, whose annotations count, and how what does not fit is taken."""

    labels: tuple[str, ...] = ()
    annotator: str = ""
    clip: bool = False
    unmarked_good: bool = False


def read(source: Path, images: Path, choices: ReadingChoices, findings: Findings) -> tuple[str, MarkedSet]:
    """Read annotations of the pictures in `images`; return the format's name, and labels with pictures.

    Pictures that `source` does not name are left out and counted, or good ones with `unmarked_good`. Raises ConfigError
    with all faults at once.
    """
    each, others = per_picture.files(source, findings) if source.is_dir() else ({}, [])
    drawn = masks.files(source, images) if source.is_dir() else []
    if each and drawn:
        raise ConfigError(
            f"{source} holds {len(drawn)} masks or pictures, and {len(each)} files of Pascal VOC or LabelMe; give a "
            "folder of one kind, or the same folder as --images"
        )
    if source.is_dir() and not each and not drawn:
        findings.refuse(source)
        raise ConfigError(
            f"{source} holds no annotations; give {_KNOWN}. `coe-experts train` takes a YOLO data set as it is"
        )
    resolved = {path.resolve() for path in drawn}
    index = PictureIndex(images, findings, clip=choices.clip, masks=resolved)
    for path in filter(lambda path: choices.unmarked_good and index.knows(path.stem), others):
        findings.fault("a file called as a picture is of another form; is it good? Take the file out", path.name)
    if each:
        form = " and ".join(sorted({per_picture.form_of(content) for content in each.values()}))
        labels = per_picture.read(each.items(), index, findings)
    elif source.is_dir():
        if not choices.labels:
            raise ConfigError(f"{source} is a folder of masks, which name no labels; give them with --labels")
        form, labels = "masks", masks.read(drawn, choices.labels, index, findings)
    else:
        form, labels = _read_file(source, index, findings, choices.annotator)
    if choices.annotator and form != "Label Studio":
        raise ConfigError(f"--annotator is for Label Studio, and {source} is {form}; leave it out")
    _rest(source, index, unmarked_good=choices.unmarked_good)
    wanted = _wanted(choices.labels or tuple(map(composed, labels)), index, findings)
    findings.refuse(source)
    boxes = [box for picture in index.pictures for box in picture.boxes]
    if boxes and max(max(box.right, box.bottom) for box in boxes) <= 1:
        raise ConfigError(f"{source}: no box is larger than a pixel, as if they were shares; export them in pixels")
    if not boxes:
        raise ConfigError(f"{source}: there is no box in {len(index.pictures)} pictures; nothing to learn")
    return form, MarkedSet(wanted, tuple(index.pictures))


def _rest(source: Path, index: PictureIndex, *, unmarked_good: bool) -> None:
    """Take the pictures that nobody named as good ones, or leave them out."""
    for path in index.paths:
        if path not in index.taken:
            if unmarked_good and (size := index.size(path)):
                index.add(path, size, ())
            else:
                index.set_aside(path, f"pictures that {source.name} does not name were left out")


def _wanted(labels: tuple[str, ...], index: PictureIndex, findings: Findings) -> tuple[str, ...]:
    for label in dict.fromkeys(composed(box.label) for picture in index.pictures for box in picture.boxes):
        if label not in labels:
            findings.fault("a label is not among those of --labels", label)
    for label in labels:
        if not label.strip() or labels.count(label) > 1:
            findings.fault("a label is empty or there twice", repr(label))
    return labels


def _read_file(source: Path, index: PictureIndex, findings: Findings, annotator: str) -> tuple[str, tuple[str, ...]]:
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read ({error.strerror}); give {_KNOWN}") from None
    try:
        if raw.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
            root = per_picture.parsed(raw)
            if form := per_picture.form_of(root):
                return form, per_picture.read([(source, root)], index, findings)
            if root.tag == "annotations" and root.findtext("version") == "1.1":
                return "CVAT", cvat.read(root, index, findings)
            raise ConfigError(f"{source}: is no CVAT XML of version 1.1; export as 'CVAT for images 1.1'")
        if raw.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] not in b"[{":
            raise ConfigError(f"{source}: is of no known form; give {_KNOWN}")
        content: Any = json.loads(raw)
        if form := per_picture.form_of(content):
            return form, per_picture.read([(source, content)], index, findings)
        if isinstance(content, dict) and all(isinstance(content.get(key), list) for key in ("images", "annotations")):
            return "COCO", coco.read(content, index, findings)
        if isinstance(content, list) and any(isinstance(one, dict) and _TASK & one.keys() for one in content):
            return "Label Studio", label_studio.read(content, index, findings, annotator)
    except (ValueError, LookupError, RecursionError, xml.ParseError, AttributeError, TypeError) as error:
        raise ConfigError(f"{source}: cannot be read as annotations ({error}); export it again") from None
    raise ConfigError(f"{source}: this JSON is of no known form; give {_KNOWN}")
