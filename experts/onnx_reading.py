"""Reading a foreign ONNX model: made into one file that the kind can run, and what it says of its pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coe.preprocessing import NORMALIZATIONS, WHOLLY
from coe.store.kinds import Foreign
from experts import onnx_checks, onnx_external, onnx_grey, onnx_stated, onnx_tables, script_facts, ultralytics_facts
from experts.stated_beside import copied, with_beside
from experts.stated_facts import labels_in_text


def bundled(path: Path, work: Path) -> Path:
    """Return a model file that needs no other, takes colours and gives a table: `path`, or a copy in `work`.

    Raises StoreError.
    """
    whole = onnx_external.bundled(path, work)
    whole = onnx_external.changed(whole, work, (onnx_grey.take_colours, onnx_tables.give_table, onnx_tables.give_rows))
    if whole != path:
        copied(path, work)
    return whole


def read(
    path: Path,
    metadata: Mapping[str, str],
    places: Sequence[int],
    size: int | None,
    is_classifier: bool,
    *,
    takes_bytes: bool,
) -> Foreign:
    """Return what a model, its metadata and the files beside it say of its labels and pictures; raises StoreError.

    `places` are those of the axes of its input, of `size` pixels (None if that is open), which `takes_bytes` or floats.
    """
    stated = ultralytics_facts.stated(metadata, str(path))
    graph = onnx_checks.graph_of(path)
    known = stated.seen(is_classifier)
    seen, said, unsaid = known or onnx_stated.usual(graph, is_classifier, places), WHOLLY, dict[str, str]()
    foreign = with_beside(path, Foreign({}, stated.labels or labels_in_text(metadata, str(path))))
    beside = script_facts.said(foreign.arguments)
    if known is None:
        pixels = onnx_stated.stated_pixels(graph, metadata, places)
        fields = {**beside.preprocessing, **pixels.fields}
        seen, said = seen.model_copy(update=fields), frozenset(fields)
        asked = {**foreign.arguments.get("unsaid", {}), **beside.unsaid, **pixels.unsaid}
        unsaid = {name: why for name, why in asked.items() if name not in fields}
    if takes_bytes:
        mean, std = NORMALIZATIONS["0..255"]
        seen = seen.model_copy(update={"mean": mean, "std": std})
        said |= {"mean", "std"}
        unsaid.pop("mean", None)
    return replace(
        foreign,
        input_size=size or stated.input_size or beside.input_size,
        preprocessing=seen,
        stated=said,
        unsaid=unsaid,
        remarks=(*onnx_stated.remarks(graph, seen, said, metadata), *foreign.remarks),
    )
