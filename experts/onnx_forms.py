"""ONNX models in other forms than squares in colours and one table: what they are given, and what is made of answers.

An input may be grey, no square, one picture, or have sizes beside it. Scores, or boxes, scores and labels, may come in
several outputs or another order: they become one table, whose name says of which outputs. What is what follows from
names, ranks, sizes and types alone; where these leave a choice, answers stay as they are. No model is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coe.errors import StoreError

NUMBERS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}
CHANNELS_LAST = (0, 2, 3, 1)
"""Where the axes of pictures (n, 3, S, S) stand in the input of a model of TensorFlow, (n, S, S, 3)."""
CHOSEN, UNNUMBERED = "chosen:", "torchvision:"
"""What names of tables of corners, scores and labels begin with; those of one picture alone are torchvision's."""
_WITH_SCORES, _ALONE = 5, 4
"""The numbers of a box: two corners, with its score behind them or without."""
_SHARES = np.array([0.299, 0.587, 0.114], np.float32)[None, :, None, None]
"""Of red, green and blue in grey (ITU-R BT.601), as Pillow and OpenCV have them."""
_SIZES = re.compile("size|shape")
"""What names say of an input of sizes."""
_FLOATS, _WHOLES = ("tensor(float)", "tensor(float16)"), {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
_ROWS, _TABLES = 2, 3
"""The ranks of scores, a row for each picture, and of boxes, a table for each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a model takes: pictures whose axes (n, 3, S, S) stand in an `order`, in numbers of a type.

    `size` is the side of the square that it sees, in pixels, `sides` are height and width of the upper left part that
    is no square; None for an open size, or a square. `batch` is 1 or open. `beside` are inputs of sizes, (n, 2), by
    the type of their numbers: D-FINE's and RT-DETR's models scale their boxes by the sides of what they see.
    """

    name: str
    kind: str
    order: tuple[int, int, int, int]
    size: int | None
    sides: tuple[int, int] | None
    batch: int | None
    has_batch: bool = True
    is_grey: bool = False
    beside: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, inputs: Sequence[Any]) -> Entry:
        """Return what a model takes by its inputs; raises StoreError where no picture can be made into that."""
        pictures = [one for one in inputs if len(one.shape) == 4 or (len(inputs) == 1 and len(one.shape) == 3)]
        picture = (pictures or inputs)[0]
        others = [one for one in inputs if one is not picture]
        are_sizes = all(list(one.shape[1:]) == [2] and _SIZES.search(one.name) for one in others)
        has_batch, shape = len(picture.shape) == 4, list(picture.shape)
        if len(pictures) != 1 or not are_sizes or picture.type not in NUMBERS:
            raise _misfit(path, picture.type, shape, len(inputs))
        if not has_batch and {1, 3}.isdisjoint((shape[0], shape[2])):
            raise _misfit(path, picture.type, shape, 1)
        order = _places(whole := shape if has_batch else [1, *shape])
        known = (whole[order.index(axis)] for axis in range(4))
        batch, channels, height, width = (value if isinstance(value, int) else None for value in known)
        is_square = height == width
        is_half_open = not is_square and None in (height, width)
        # With sizes beside an oblong, nobody knows which side comes first.
        if channels not in (1, 3, None) or batch not in (1, None) or is_half_open or (others and not is_square):
            raise _misfit(path, picture.type, shape, len(inputs))
        beside = {one.name: _WHOLES.get(one.type) or NUMBERS.get(one.type) or np.float64 for one in others}
        size = None if height is None or width is None else max(height, width)
        sides = None if is_square or height is None or width is None else (height, width)
        return cls(picture.name, picture.type, order, size, sides, batch, has_batch, channels == 1, beside)

    @property
    def is_usual(self) -> bool:
        """Whether it takes squares in colours, and nothing else."""
        return self.has_batch and not (self.is_grey or self.sides or self.beside)

    def given(self, pixels: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Return the inputs for pictures, (n, 3, S, S), whose numbers are as the model takes them."""
        kind = NUMBERS[self.kind]
        if self.is_grey:
            grey = (pixels * _SHARES).sum(axis=1, keepdims=True, dtype=np.float32)
            pixels = grey + 0.5 if kind is np.uint8 else grey  # a cast to bytes cuts off what follows the point
        if self.sides:
            pixels = pixels[:, :, : self.sides[0], : self.sides[1]]
        seen = {name: np.full((len(pixels), 2), pixels.shape[2:], of) for name, of in self.beside.items()}
        ready = np.ascontiguousarray(pixels.transpose(self.order), dtype=kind)
        return {self.name: ready if self.has_batch else ready[0], **seen}


def _places(shape: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return where the axes of pictures (n, 3, S, S) stand in an input of four axes."""
    return CHANNELS_LAST if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else (0, 1, 2, 3)


def _misfit(path: Path, kind: str, shape: Sequence[Any], inputs: int) -> StoreError:
    """Return an error that says what is wrong with a model's input, and the way out."""
    sizes = [size if isinstance(size, int) else None for size in shape]
    way = "export it for pictures"
    if inputs != 1:
        way = f"it has {inputs} inputs; export it with the picture as its only input, the others as constants"
    elif kind not in NUMBERS:
        way = "export it with an input of float32, float16 or uint8"
    elif len(sizes) == 4:
        _, channels, height, width = (sizes[_places(shape).index(axis)] for axis in range(4))
        way = "export it with a batch of 1, or of any size (dynamic)"
        if channels not in (1, 3, None):
            way = (
                f"it takes {channels} channels; export it with a first layer that computes them from red, green "
                "and blue"
            )
        elif height != width:
            way = "export it with both sides fixed, or both open, and with opset 17"
    needed = "(n, 3, height, width) or (n, height, width, 3) with n open or 1"
    return StoreError(f"{path}: takes {kind} of shape {list(shape)}; it must be {needed}: {way}")


# What is made of answers


def is_classifier(outputs: Sequence[Any], entry: Entry) -> bool:
    """Tell whether a model gives rows of scores, and no tables of boxes, by its first output of either."""
    if apart(outputs, entry):
        return False
    ranks = [_ROWS] if row_of(outputs) else [len(output.shape) for output in outputs]
    return next((rank for rank in ranks if rank in (_ROWS, _TABLES)), 0) == _ROWS


def parts_of(name: str, known: Sequence[str]) -> list[str]:
    """Return the outputs of which a table of this name is made."""
    return [name] if name in known else name.removeprefix(CHOSEN).removeprefix(UNNUMBERED).split("+")


def table_of(name: str, answers: Mapping[str, Any], count: int) -> Any:
    """Return the table or the rows of a name, of what a model says of `count` pictures."""
    if name in answers:
        value = answers[name]
        is_flat = isinstance(value, np.ndarray) and value.ndim not in (_ROWS, _TABLES)
        return value.reshape(count, -1) if is_flat else value
    parts = [np.asarray(answers[part], np.float32) for part in parts_of(name, [*answers])]
    if name.startswith((CHOSEN, UNNUMBERED)):
        whole = parts if name.startswith(CHOSEN) else [part[None] for part in parts]
        return np.concatenate([part.reshape(*whole[0].shape[:2], -1) for part in whole], axis=2)
    boxes, scores = parts
    turned = scores.transpose(0, 2, 1) if scores.shape.index(boxes.shape[1], 1) == 1 else scores
    return np.concatenate((boxes.transpose(0, 2, 1), turned), axis=1)


def tables(answers: Mapping[str, Any], outputs: Sequence[Any], entry: Entry) -> tuple[list[str], bool]:
    """Return the names of the tables that are made of what a model says, and whether these alone may count."""
    found = apart(outputs, entry) or _grids(answers, outputs, entry)
    return (found, True) if found else ([*filter(None, [row_of(outputs)])], False)


def apart(outputs: Sequence[Any], entry: Entry) -> list[str]:
    """Return the name of the table of boxes end to end whose scores and labels come apart; none if they do not.

    So are (n, N, 5) and whole numbers (n, N), and (n, N, 4), scores (n, N) and whole numbers (n, N), these also of one
    picture alone, without n. Other outputs, such as masks, are left out. Raises StoreError for TensorFlow's boxes.
    """
    shapes = {one.name: [size if isinstance(size, int) else 0 for size in one.shape] for one in outputs}
    floats = [one.name for one in outputs if one.type in _FLOATS]
    # A classifier of four labels gives (1, 4), or (n, 4), perhaps beside the best label and its score.
    forms = [(3, _WITH_SCORES), (3, _ALONE), *([(2, _ALONE)] if entry.batch == 1 else [])]
    boxes = [
        name
        for name in floats
        if (len(shapes[name]), *shapes[name][-1:]) in forms and (len(shapes[name]) == 3 or shapes[name][0] != 1)
    ]
    if len(boxes) != 1:
        return []
    rank, width = len(shapes[boxes[0]]) - 1, shapes[boxes[0]][-1]
    rows = {name for name, shape in shapes.items() if len(shape) == rank and (rank == 1 or shape[-1] != 1)}
    scores = sorted(rows & {*floats})
    labels = sorted(one.name for one in outputs if one.type in _WHOLES and one.name in rows)
    if len(labels) != 1 or len(scores) != (width == _ALONE):
        return []
    if _are_of_tensorflow([*shapes], entry):
        raise StoreError(
            "its boxes begin with y, if it is TensorFlow's as it seems; export it with boxes that begin with x, and "
            "with pictures as (n, 3, S, S)"
        )
    return [(CHOSEN if rank == 2 else UNNUMBERED) + "+".join([*boxes, *scores, *labels])]


def _grids(answers: Mapping[str, Any], outputs: Sequence[Any], entry: Entry) -> list[str]:
    """Return the names of tables of boxes and scores of a grid that come apart; none if they do not.

    So YOLO-NAS, PP-YOLOE without NMS, and DETR answer: (n, N, 4), and (n, N, scores) or (n, scores, N). What may be
    boxes or scores is joined in both ways, and the output is asked for. TensorFlow's boxes are left as they are.
    """
    shapes = {
        one.name: np.shape(answers[one.name])
        for one in outputs
        if one.type in _FLOATS and np.ndim(answers[one.name]) == _TABLES
    }
    if _are_of_tensorflow([*shapes], entry):
        return []
    return [
        f"{boxes}+{scores}"
        for boxes, scores in permutations(shapes, 2)
        if shapes[boxes][2] == _ALONE and 1 < shapes[boxes][1] in shapes[scores][1:]
    ]


def _are_of_tensorflow(names: Sequence[str], entry: Entry) -> bool:
    """Tell by names or the order of axes whether outputs are TensorFlow's, whose boxes begin with y."""
    return entry.order == CHANNELS_LAST or any("detection_boxes" in name for name in names)


def row_of(outputs: Sequence[Any]) -> str:
    """Return the one output of scores that has axes of size 1 beside them, or no axis of pictures; "" if there is none.

    So end convolutions behind a pooling, (n, labels, 1, 1), and networks behind a `squeeze`, (n,) or (labels,). Beside
    it may be maps and answers yes or no, as anomalib gives them.
    """
    several = [one for one in outputs if one.type != "tensor(bool)" and len(one.shape) != 4]
    (first, *others) = several or outputs
    sizes = list(first.shape)
    are_rows = len(sizes) == 1 or (len(sizes) == 4 and sizes[1:].count(1) >= 2)
    return first.name if not others and first.type in _FLOATS and are_rows else ""
