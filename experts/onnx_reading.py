"""Reading a foreign ONNX model: made into one file that the kind can run, and what its writer recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from coe.helpers.preprocessing import NORMALIZATIONS
from coe.store.kinds import Foreign
from experts import onnx_checks, onnx_external, onnx_head, onnx_sides, onnx_tables, records, ultralytics_facts
from experts.records import Record

_CHANGES = (
    onnx_sides.take_sizes,
    onnx_sides.take_batch,
    onnx_sides.take_colours,
    onnx_sides.take_squares,
    onnx_tables.give_boxes,
    onnx_tables.give_chosen,
    onnx_tables.give_grids,
    onnx_tables.give_table,
    onnx_tables.give_rows,
)


def bundled(path: Path, work: Path) -> Path:
    """Return a model file that needs no other, takes squares in colours and gives a table: `path`, or a copy in `work`.

    Raises StoreError.
    """
    whole = onnx_external.changed(onnx_external.bundled(path, work), work, _CHANGES)
    if whole != path:
        records.copied(path, work)
    return whole


def read(
    path: Path, metadata: Mapping[str, str], size: int | None, *, columns: int, is_classifier: bool, takes_bytes: bool
) -> Foreign:
    """Return what a model, its metadata and the records beside it say of its labels and pictures; raises StoreError.

    Its input has `size` pixels (None if that is open), and takes bytes or floats; a classifier has `columns` (or 0).
    """
    stated = ultralytics_facts.stated(metadata, str(path))
    graph = onnx_checks.graph_of(path)
    known = stated.seen(is_classifier)
    found, _, remarks = records.of_files(path)
    if known is not None:
        found = Record(stated.labels, stated.input_size, dict(known)).beside(Record(found.labels))
    else:
        labels = records.labels_of(json.loads(metadata[onnx_tables.LABELS])) if _has_map(metadata) else None
        found = Record(labels, None, onnx_head.normalised(graph)).beside(records.openvino(metadata)).beside(found)
    seen = dict(found.seen)
    if (sides := onnx_sides.sides_of(graph)) is not None:
        seen["sides"] = sides
    if any(node.name == onnx_sides.GREY for node in graph.node):
        seen["channels"] = "rgb"
        remarks = ("its one channel, grey, is made of red, green and blue (0.299, 0.587, 0.114)", *remarks)
    if takes_bytes:
        seen["mean"], seen["std"] = NORMALIZATIONS["0..255"]
    unsaid = {name: why for name, why in found.unsaid.items() if name not in seen}
    side = size or found.input_size
    return Foreign({}, found.labels, {}, side, seen, unsaid, remarks=remarks, columns=columns)


def _has_map(metadata: Mapping[str, str]) -> bool:
    return metadata.get(onnx_tables.LABELS, "").startswith('["')
