"""Reading a foreign ONNX model: made into one file that the kind can run, and what it says of its pictures.

Classifiers whose scores come in another form than a table, (n, labels), are given one more step, or one less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coe.errors import list_few
from coe.helpers.preprocessing import NORMALIZATIONS, WHOLLY
from coe.store.kinds import Foreign
from experts import (
    onnx_boxes,
    onnx_checks,
    onnx_external,
    onnx_grey,
    onnx_sides,
    onnx_stated,
    script_facts,
    ultralytics_facts,
)
from experts.stated_beside import copied, with_beside
from experts.stated_facts import labels_in_text

_LABELS = "classes"
"""The key of the metadata under which the labels of a map are kept."""


def bundled(path: Path, work: Path) -> Path:
    """Return a model file that needs no other, takes squares in colours and gives a table: `path`, or a copy in `work`.

    Raises StoreError.
    """
    whole = onnx_external.bundled(path, work)
    whole = onnx_external.changed(
        whole,
        work,
        (
            onnx_boxes.take_sizes,
            onnx_sides.take_batch,
            onnx_grey.take_colours,
            onnx_sides.take_squares,
            onnx_boxes.give_boxes,
            onnx_boxes.give_chosen,
            onnx_boxes.give_grids,
            _give_table,
            _give_rows,
        ),
    )
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
    columns: int | None,
) -> Foreign:
    """Return what a model, its metadata and the files beside it say of its labels and pictures; raises StoreError.

    `places` are those of the axes of its input, of `size` pixels (None if that is open), which `takes_bytes` or floats.
    A classifier has so many `columns`, None if their number is open.
    """
    stated = ultralytics_facts.stated(metadata, str(path))
    graph = onnx_checks.graph_of(path)
    known = stated.seen(is_classifier)
    seen, said, unsaid = known or onnx_stated.usual(graph, is_classifier, places), WHOLLY, dict[str, str]()
    labels, told = stated.labels or labels_in_text(metadata, str(path)), []
    if labels and columns and stated.labels is None and len(labels) not in (columns, columns + (columns == 1)):
        told = [f"{list_few(labels)} in its metadata are no labels: it has {columns} outputs"]  # but tags
        labels = None
    foreign = with_beside(path, Foreign({}, labels, remarks=tuple(told)))
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
        preprocessing=seen.model_copy(update={"sides": onnx_sides.sides_of(graph)}),
        stated=said,
        unsaid=unsaid,
        remarks=(*onnx_stated.remarks(graph, seen, said, metadata), *foreign.remarks),
    )


def _give_table(model: Any) -> bool:
    """Let a model give the table of which it makes a map, as Custom Vision and ML.NET write it; False if it makes none.

    The labels of the map become those that the file says.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    outputs = {one.name for one in graph.output}
    maps = [node for node in graph.node if node.op_type == "ZipMap" and outputs.intersection(node.output)]
    if len(maps) != 1:
        return False
    (table,) = maps[0].input
    texts = [list(one.strings) for one in maps[0].attribute if one.name == "classlabels_strings"]
    labels = [text.decode(errors="replace") for text in texts[0]] if texts else []
    graph.node.remove(maps[0])
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info(table, TensorProto.FLOAT, ["n", len(labels) or "labels"]))
    if labels and all(entry.key != _LABELS for entry in model.metadata_props):
        model.metadata_props.add(key=_LABELS, value=json.dumps(labels))
    return True


def _give_rows(model: Any) -> bool:
    """Let a model whose one output has axes of size 1 beside its scores, or no axis of pictures, give rows; else False.

    So end convolutions behind a pooling, (n, labels, 1, 1), and networks behind a `squeeze`, (n,) or (labels,). There
    are as many rows as pictures: what a file says of its output may hold for one picture alone. Beside the one output
    may be maps and answers yes or no, as anomalib gives them.
    """
    from onnx import TensorProto, helper

    graph = model.graph
    kinds = {one.name: one.type.tensor_type for one in graph.output}
    several = {n: kind for n, kind in kinds.items() if kind.elem_type != TensorProto.BOOL and len(kind.shape.dim) != 4}
    name, kind = next(iter((several or kinds).items()))
    if (
        len(several or kinds) > 1
        or kind.elem_type not in (TensorProto.FLOAT, TensorProto.FLOAT16)
        or not kind.HasField("shape")
    ):
        return False
    sizes = [size.dim_value for size in kind.shape.dim]
    if len(sizes) != 1 and not (len(sizes) == 4 and sizes[1:].count(1) >= 2):
        return False
    weights = {one.name for one in graph.initializer}
    makers = [node for node in graph.node if name in node.output]
    pictures = [one.name for one in graph.input if one.name not in weights]
    if len(makers) != 1 or not pictures:
        return False
    inner, taken, first, count, rest, shape = (f"{name}/coe/{number}" for number in range(6))
    for names in (makers[0].output, *(node.input for node in graph.node)):
        names[:] = [inner if one == name else one for one in names]
    graph.node.extend(
        (
            helper.make_node("Shape", pictures[:1], [taken]),
            helper.make_node("Constant", [], [first], value=helper.make_tensor("", TensorProto.INT64, [1], [0])),
            helper.make_node("Gather", [taken, first], [count]),
            helper.make_node("Constant", [], [rest], value=helper.make_tensor("", TensorProto.INT64, [1], [-1])),
            helper.make_node("Concat", [count, rest], [shape], axis=0),
            helper.make_node("Reshape", [inner, shape], [name]),
        )
    )
    next(one for one in graph.output if one.name == name).CopyFrom(
        helper.make_tensor_value_info(name, kind.elem_type, ["n", None])
    )
    return True
