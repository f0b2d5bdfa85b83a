"""Reading a foreign ONNX model: made into one file that the kind can run, and what its writer recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from coe.helpers.preprocessing import NORMALIZATIONS
from coe.store.kinds import Foreign
from experts import onnx_checks, onnx_external, onnx_head, records, ultralytics_facts
from experts.onnx_forms import Entry
from experts.records import Record


def bundled(path: Path, work: Path) -> Path:
    """Return a model file that needs no other: `path`, or a copy in `work`; raises StoreError."""
    whole = onnx_external.bundled(path, work)
    if whole != path:
        records.copied(path, work)
    return whole


def read(
    path: Path, metadata: Mapping[str, str], entry: Entry, labels: Sequence[str], *, columns: int, is_classifier: bool
) -> Foreign:
    """Return what a model, its metadata and the records beside it say of its labels and pictures; raises StoreError.

    `labels` are those of a map of scores that it gives, if any; a classifier has `columns` (or 0).
    """
    stated = ultralytics_facts.stated(metadata, str(path))
    graph = onnx_checks.graph_of(path)
    known = stated.seen(is_classifier)
    found, _, remarks = records.of_files(path)
    if known is not None:
        found = Record(stated.labels, stated.input_size, dict(known)).beside(Record(found.labels))
    else:
        own = Record(records.labels_of(labels), None, onnx_head.normalised(graph))
        found = own.beside(records.openvino(metadata)).beside(found)
    seen = dict(found.seen)
    if entry.sides is not None:
        seen["sides"] = entry.sides
    if entry.is_grey:
        seen["channels"] = "rgb"
        remarks = ("its one channel, grey, is made of red, green and blue (0.299, 0.587, 0.114)", *remarks)
    if entry.kind == "tensor(uint8)":
        seen["mean"], seen["std"] = NORMALIZATIONS["0..255"]
    unsaid = {name: why for name, why in found.unsaid.items() if name not in seen}
    side = entry.size or found.input_size
    return Foreign({}, found.labels, {}, side, seen, unsaid, remarks=remarks, columns=columns)
