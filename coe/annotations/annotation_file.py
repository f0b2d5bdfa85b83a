"""Which format a file of annotations has, found by its content; a folder holds masks."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coe.annotations import coco, cvat, label_studio, masks, per_picture, via
from coe.annotations.marked import Findings, MarkedSet
from coe.annotations.picture_index import PictureIndex
from coe.errors import ConfigError
from coe.pictures.label_folders import spelling
from coe.spelling import composed

_OTHERS = (
    ("Datumaro", {"categories", "items"}),
    ("VIA 3", {"metadata", "view"}),
    ("Supervisely", {"objects", "size"}),
    ("VoTT", {"assets"}),
    ("Darwin (V7)", {"item", "annotations"}),
    ("Labelbox", {"data_row"}),
    ("SageMaker", {"source-ref"}),
    ("CreateML", {"image", "annotations"}),
    ("BDD", {"name", "labels"}),
    ("what a model found (COCO's results)", {"image_id", "score"}),
    ("COCO without annotations", {"images", "categories"}),
)
"""Forms that are not read, by keys that they have on their first level, or in its first entry."""
_OTHER_ENDINGS = {
    ".csv": "a table",
    ".tsv": "a table",
    ".xlsx": "a table",
    ".tfrecord": "a TFRecord",
    ".record": "a TFRecord",
    ".yaml": "the YAML of a YOLO data set, which `coe-experts train` takes as it is",
    ".yml": "the YAML of a YOLO data set, which `coe-experts train` takes as it is",
    ".txt": "texts, as of YOLO or KITTI",
}
_KNOWN = (
    "COCO JSON, Label Studio JSON, CVAT XML 1.1, JSON or CSV of VIA 2, or a folder of masks, of Pascal VOC XML or of "
    "LabelMe JSON"
)

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
        files = sorted(path for path in source.rglob("*") if path.is_file())
        named = next(filter(None, map(_other_form, [*others, *files])), "")
        holds = f"holds {named}, and no annotations that are read" if named else "holds no annotations"
        raise ConfigError(f"{source} {holds}; give {_KNOWN}. `coe-experts train` takes a YOLO data set by its YAML")
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
        form, labels = _read_file(source, index, findings, choices)
    if choices.annotator and form != "Label Studio":
        raise ConfigError(f"--annotator is for Label Studio, and {source} is {form}; leave it out")
    _rest(source, index, unmarked_good=choices.unmarked_good)
    wanted = _wanted(choices.labels or tuple(map(composed, labels)), index, findings)
    findings.refuse(source)
    boxes = [box for picture in index.pictures for box in picture.boxes]
    if boxes and max(max(box.right, box.bottom) for box in boxes) <= 1:
        raise ConfigError(f"{source}: no box is larger than a pixel, as if they were shares; export them in pixels")
    if not boxes:
        told = "".join(f"; {count} {note}" for note, count in findings.notes.items())
        raise ConfigError(f"{source}: there is no box in {len(index.pictures)} pictures; nothing to learn{told}")
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
        elif others := [other for other in labels if other != label and spelling(other) == spelling(label)]:
            findings.fault(
                "labels differ in case, dashes or spaces alone; make them one, or name those that count with --labels",
                f"{label} and {others[0]}",
            )
    return labels


def _read_file(
    source: Path, index: PictureIndex, findings: Findings, choices: ReadingChoices
) -> tuple[str, tuple[str, ...]]:
    try:
        raw = source.read_bytes()
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read ({error.strerror}); give {_KNOWN}") from None
    try:
        if raw.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"<"):
            return _read_xml(source, per_picture.parsed(raw), index, findings)
        if entries := via.entries_of_table(raw):
            return "VIA", via.read(entries, index, findings, choices.labels)
        if raw.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] not in b"[{":
            raise _unknown(source)
        content: Any = json.loads(raw)
        if form := per_picture.form_of(content):
            return form, per_picture.read([(source, content)], index, findings)
        if isinstance(content, dict) and all(isinstance(content.get(key), list) for key in ("images", "annotations")):
            return "COCO", coco.read(content, index, findings)
        if isinstance(content, list) and any(isinstance(one, dict) and _TASK & one.keys() for one in content):
            return "Label Studio", label_studio.read(content, index, findings, choices.annotator)
        if entries := via.entries_of(content):
            return "VIA", via.read(entries, index, findings, choices.labels)
    except (ValueError, LookupError, RecursionError, xml.ParseError, AttributeError, TypeError) as error:
        if _other_form(source):
            raise _unknown(source) from None
        raise ConfigError(f"{source}: cannot be read as annotations ({error}); export it again") from None
    raise _unknown(source)


def _read_xml(source: Path, root: xml.Element, index: PictureIndex, findings: Findings) -> tuple[str, tuple[str, ...]]:
    if form := per_picture.form_of(root):
        return form, per_picture.read([(source, root)], index, findings)
    if root.tag != "annotations":
        raise _unknown(source)
    if root.findtext("version") != "1.1":
        raise ConfigError(f"{source}: is no CVAT XML of version 1.1; export as 'CVAT for images 1.1'")
    return "CVAT", cvat.read(root, index, findings)


def _unknown(source: Path) -> ConfigError:
    return ConfigError(f"{source}: is {_other_form(source) or 'of no known form'}; give {_KNOWN}")


def _other_form(file: Path) -> str:
    """Return what a file is that is not read, by its ending or by its keys; "" if nobody knows."""
    if (named := _OTHER_ENDINGS.get(file.suffix.lower())) is not None:
        return named
    try:
        raw = file.read_bytes() if file.suffix.lower() in (".json", ".ndjson", ".jsonl", ".manifest") else b""
        try:
            content = json.loads(raw)
        except ValueError:  # an object in each line
            content = json.loads(raw.partition(b"\n")[0])
    except (OSError, ValueError, RecursionError):
        return ""
    levels = [content, *(content[:1] if isinstance(content, list) else [])]
    levels += [*content.values()][:1] if isinstance(content, dict) else []
    keys = [level.keys() for level in levels if isinstance(level, dict)]
    return next((f"a file of {name}" for name, wanted in _OTHERS if any(wanted <= own for own in keys)), "")
