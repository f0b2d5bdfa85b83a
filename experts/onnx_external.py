"""ONNX models whose weights lie in other files beside them, as torch exports them: made into one file for the store.

A file is read only if it lies in the folder of the model, and no more is read than the files hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from coe.errors import StoreError, first_line, list_few

MOST_BYTES = (1 << 31) - 1
"""A model is a message of protobuf, which holds no more."""


def bundled(path: Path, folder: Path) -> Path:
    """Return a model file with all of its weights: `path`, or a copy in `folder` with the weights of other files.

    Raises StoreError if such a file is missing, lies elsewhere, or is shorter than the model says.
    """
    import onnx
    from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

    try:
        if not 0 < path.stat().st_size <= MOST_BYTES:
            return path  # onnxruntime says what is wrong with it
        model = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    except Exception:  # no ONNX model at all: onnxruntime says so
        return path
    outside = [tensor for tensor in tensors_of(model) if uses_external_data(tensor)]
    if not outside:
        return path
    try:
        _check_sizes(path, [ExternalDataInfo(tensor) for tensor in outside])
        load_external_data_for_model(model, str(path.parent))  # refuses files that lie elsewhere, or are too short
        onnx.save_model(model, folder / path.name)
    except StoreError:
        raise
    except Exception as error:  # the library raises several classes for files that are missing, elsewhere, or odd
        raise StoreError(
            f"{path}: the files with its weights cannot be read ({first_line(error):.300}); copy what the exporter "
            "wrote into one folder, whole"
        ) from error
    return folder / path.name


def _check_sizes(path: Path, places: Sequence[Any]) -> None:
    """Raise StoreError if a model claims more weights than the files beside it hold, or than one file of ONNX does."""
    home = path.parent.resolve()
    files = {name: home / name for name in {place.location for place in places}}
    sizes = {name: file.stat().st_size if file.is_file() else 0 for name, file in files.items()}
    claimed = sum(sizes[place.location] if place.length is None else place.length for place in places)
    if claimed > sum(sizes.values()):
        named = list_few(f"'{name:.100}'" for name in sizes)
        raise StoreError(
            f"{path}: claims {claimed:,} bytes of weights, more than {named} beside it hold; copy what the exporter "
            "wrote into one folder, whole"
        )
    if claimed + path.stat().st_size > MOST_BYTES:
        raise StoreError(
            f"{path}: has {claimed:,} bytes of weights; an expert holds 2 GiB at most, as one file of ONNX does"
        )


def tensors_of(model: Any) -> Iterator[Any]:
    """Yield all tensors that a model holds, those inside of its nodes and functions too."""
    yield from _tensors(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _tensors(graph)
