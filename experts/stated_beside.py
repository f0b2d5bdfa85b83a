"""What lies beside a file of weights and says of it what the file does not: its labels, and what its network sees."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from coe.errors import StoreError, readable
from coe.helpers import regular
from coe.store.kinds import Foreign
from experts.checkpoint import arguments_of
from experts.stated_facts import stated_labels

_WEIGHTS = re.compile(r"(pytorch_)?(.+?)(_(quantized|optimized|simplified|fp16|u?int8|q4\w*))?\.", re.IGNORECASE)
_ENDINGS = (".safetensors", ".pth.tar", ".pth", ".pt", ".ckpt", ".onnx", ".bin")
_SETTINGS = re.compile(r"(config|preprocessor_config|signature|pipeline)\.json|(args|hparams|inference)\.ya?ml")
"""What Hugging Face, timm, Lightning, Lobe, MMDeploy and Paddle write beside a model that they save."""
_LABELS = re.compile(r"(label(s|_?map)?|class(es|_?names|_indices|_to_idx)|id2label)\.(txt|json)|.+\.names")
_NO_LABEL = re.compile(r"^\s*(#\s|//).*|:\d+,\d+,\d+:[^:]*:[^:]*$")
"""CVAT writes "# label:color_rgb:parts:actions", and then "ok:128,0,0::"."""
_NUMBERED = (
    re.compile(r"(?P<number>\d{1,6})[\s:,;=]+(?P<label>\S.*)"),
    re.compile(r"(?P<label>.*\S)[\s:,;=]+(?P<number>\d{1,6})"),
)
"""Teachable Machine writes "0 ok", "1 bad"; others write "ok 0"."""
_MOST_BYTES = 1 << 20


class _PlainLoader(yaml.SafeLoader):
    """Reads plain data: of an object of Python, as Lightning writes tuples, what it holds, or its name."""


def _plain(loader: yaml.SafeLoader, name: str, node: yaml.Node) -> Any:
    match node:
        case yaml.MappingNode():
            return loader.construct_mapping(node, deep=True)
        case yaml.SequenceNode():
            return loader.construct_sequence(node, deep=True)
    return node.value or name


_PlainLoader.add_multi_constructor("tag:yaml.org,2002:python/", _plain)


def files_beside(path: Path) -> list[Path]:
    """Return the files that say something of a file of weights; none where they may belong to another one.

    They count beside the only file of weights in its folder, or where all of these are forms of one, as
    `model.safetensors` and `model_fp16.onnx`.
    """
    # Hugging Face keeps ONNX in a folder of that name, beside what it says of the model.
    folders = [path.parent, *([path.parent.parent] if path.parent.name == "onnx" else [])]
    try:
        files = [folder / name for folder in folders for name in sorted(regular.names(folder))]
    except OSError:
        return []
    forms = [_WEIGHTS.match(file.name) for file in files if file.name.lower().endswith(_ENDINGS)]
    if len({form.group(2) for form in forms if form}) > 1:
        return []
    return [file for file in files if _SETTINGS.fullmatch(file.name) or _LABELS.fullmatch(file.name)]


def with_beside(path: Path, foreign: Foreign) -> Foreign:
    """Add labels and arguments that lie beside a file, where it does not say them itself."""
    said: dict[str, Any] = {}
    remarks = []
    for file in (files := files_beside(path)):
        content = _content(file)
        if content is None:
            remarks.append(
                f"{file.name} beside it does not count: it holds no settings or labels in UTF-8, or is larger than 1 MB"
            )
        elif _SETTINGS.fullmatch(file.name):
            said |= content if file.suffix == ".json" else {"args": content}
        else:
            said[file.name] = {"labels": content}
    names, labels, arguments = ", ".join(file.name for file in files), foreign.labels, arguments_of(said)
    try:
        labels = labels or stated_labels(said, "beside it")
    except StoreError:
        remarks.append(f"{names} beside it name different labels, which do not count")
    are_beside = labels != foreign.labels
    beside = names if arguments or are_beside else ""
    return replace(
        foreign,
        labels=labels,
        arguments={**arguments, **foreign.arguments},
        beside=beside,
        has_labels_beside=are_beside,
        remarks=(*foreign.remarks, *remarks),
    )


def copied(path: Path, folder: Path) -> None:
    """Copy what lies beside a file into another folder, for a copy of that file; raises StoreError."""
    with readable(f"{path}: what lies beside it", StoreError):
        for file in files_beside(path):
            shutil.copyfile(file, folder / file.name)


def _content(path: Path) -> Any:
    """Return what a file holds, the lines of a text; None if it cannot be read."""
    try:
        text = regular.read(path, _MOST_BYTES).decode("utf-8-sig")
        if _SETTINGS.fullmatch(path.name):
            settings = json.loads(text) if path.suffix == ".json" else yaml.load(text, _PlainLoader) or {}
            return settings if isinstance(settings, dict) else None
        if path.suffix == ".json":
            return json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    lines = [label for line in text.splitlines() if (label := _NO_LABEL.sub("", line).strip())]
    for form in _NUMBERED:
        found = [one for line in lines if (one := form.fullmatch(line))]
        labels = {int(one["number"]): one["label"] for one in found}
        if (
            lines
            and len({*labels.values()}) == len(lines)
            and max(labels) - min(labels) < len(lines)
            and min(labels) < 2
        ):
            return [labels[number] for number in sorted(labels)]
    return lines
