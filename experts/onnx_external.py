"""ONNX models whose weights lie in other files beside them, as torch exports them: made into one file for the store.

A file is read only if it lies in the folder of the model, and no more is read than the files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coe.errors import StoreError, first_line, list_few
from coe.helpers import regular

MOST_BYTES = (1 << 31) - 1
"""A model is a message of protobuf, which holds no more."""


def bundled(path: Path, folder: Path) -> Path:
    """Return a model file with all of its weights: `path`, or a copy in `folder` with the weights of other files.

    Raises StoreError if such a file is missing, lies elsewhere, or is shorter than the model says.
    """
    import onnx
    from onnx.external_data_helper import load_external_data_for_model, uses_external_data

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
    _check(path, [_place(path, tensor) for tensor in outside])
    try:
        load_external_data_for_model(model, str(path.parent))
        onnx.save_model(model, folder / path.name)
    except Exception as error:  # the library raises several classes for files that changed meanwhile, or are odd
        raise StoreError(f"{path}: the files with its weights cannot be read ({first_line(error):.300})") from error
    return folder / path.name


def changed(path: Path, folder: Path, changes: Sequence[Callable[[Any], bool]]) -> Path:
    """Return a model file with changes, a copy in `folder`; `path` if none of them says that it changed the model.

    Raises StoreError if the copy cannot be written.
    """
    import onnx

    try:
        model = onnx.load_model(path)
    except Exception:  # no ONNX model at all: onnxruntime says so
        return path
    made = [change(model) for change in changes]
    if True not in made:
        return path
    try:
        onnx.save_model(model, folder / path.name)
    except Exception as error:  # the library raises what it likes
        raise StoreError(f"{path}: cannot be written in the form of the store ({first_line(error):.200})") from error
    return folder / path.name


class _Place:
    """Where the numbers of a tensor lie: the file's name, the first byte, and how many there are (None: the rest)."""

    def __init__(self, tensor: Any) -> None:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        self.location = entries["location"]
        self.offset = int(entries.get("offset", 0))
        self.length = int(entries["length"]) if "length" in entries else None
        if self.offset < 0 or (self.length or 0) < 0:
            raise ValueError("a place before the file")


def _place(path: Path, tensor: Any) -> _Place:
    try:
        return _Place(tensor)
    except (KeyError, ValueError) as error:
        raise StoreError(f"{path}: '{tensor.name:.100}' does not say where its numbers lie; export it again") from error


def _check(path: Path, places: list[_Place]) -> None:
    """Raise StoreError if any file of these places is not beside the model, or does not hold what it should."""
    locations = dict.fromkeys(place.location for place in places)
    home = path.parent.resolve()
    if outside := [name for name in locations if not (path.parent / name).resolve().is_relative_to(home)]:
        raise StoreError(f"{path}: wants weights from {_quoted(outside)}, outside its folder; refused")
    sizes = {name: _size(path.parent / name) for name in locations}
    if missing := [name for name, size in sizes.items() if size is None]:
        raise StoreError(
            f"{path}: its weights lie in {_quoted(missing)}, and no such file is beside it; copy what the exporter "
            "wrote into one folder"
        )
    claimed = 0
    for place in places:
        size = sizes[place.location] or 0
        length = size - place.offset if place.length is None else place.length
        if length < 0 or place.offset + length > size:
            raise StoreError(f"{path}: '{place.location}' is shorter than the model says; copy it again, whole")
        claimed += length
    if claimed > sum(size or 0 for size in sizes.values()):
        raise StoreError(f"{path}: claims {claimed:,} bytes of weights, more than its files hold; damaged or a trap")
    if claimed + path.stat().st_size > MOST_BYTES:
        raise StoreError(
            f"{path}: has {claimed:,} bytes of weights; an expert holds 2 GiB at most, as one file of ONNX does"
        )


def _size(path: Path) -> int | None:
    """Return the size of a regular file; None if there is none."""
    try:
        with regular.opened(path):
            return path.stat().st_size
    except (OSError, ValueError):
        return None


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


def _quoted(names: list[str]) -> str:
    return list_few(f"'{name:.100}'" for name in names)
