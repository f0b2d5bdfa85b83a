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
_OF_PADDLE = [2, 3, 4, 5, 1, 0]
"""Where corners, score and label stand in a row of Paddle's, which begins with label and score."""
_SHARES = np.array([0.299, 0.587, 0.114], np.float32)[None, :, None, None]
"""Of red, green and blue in grey (ITU-R BT.601), as Pillow and OpenCV have them."""
_SIZES = re.compile("scale|size|shape")
"""What names say of an input of sizes."""
_MAP = "seq(map"
_FLOATS, _WHOLES = ("tensor(float)", "tensor(float16)"), {"tensor(int32)": np.int32, "tensor(int64)": np.int64}
_ROWS, _TABLES = (2, 3), 3


def places(shape: Sequence[Any]) -> tuple[int, int, int, int]:
    """Return where the axes of pictures (n, 3, S, S) stand in an input of four axes."""
    return CHANNELS_LAST if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else (0, 1, 2, 3)


def _misfit(path: Path, kind: str, shape: Sequence[Any], inputs: int) -> StoreError:
    """Return an error that says what is wrong with a model's input, and the way out."""
    sizes = [size if isinstance(size, int) else None for size in shape]
    way = "export it for pictures"
    if inputs != 1:
        way = f"it has {inputs} inputs; export it with the picture as its only one, the others as constants"
    elif kind not in NUMBERS:
        way = "export it with an input of float32, float16 or uint8"
    elif len(sizes) == 4:
        _, channels, height, width = (sizes[places(shape).index(axis)] for axis in range(4))
        way = "export it with a batch of 1, or of any size (dynamic)"
        if channels not in (1, 3, None):
            way = f"it takes {channels} channels; export it with a first layer that makes them of red, green and blue"
        elif height != width:
            way = "export it with both sides fixed, or both open, and with opset 17"
    needed = "(n, 3, height, width) or (n, height, width, 3) with n open or 1"
    return StoreError(f"{path}: takes {kind} of shape {list(shape)}; it must be {needed}: {way}")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a model takes: pictures whose axes (n, 3, S, S) stand in an `order`, in numbers of a type.

    `size` is the side of the square that it sees, in pixels, `sides` are height and width of the upper left part that
    is no square; None for an open size, or a square. `batch` is 1 or open. `beside` are inputs of sizes, (n, 2): the
    sides of what it sees, or 1 for a scale, as Paddle's, D-FINE's and RT-DETR's models scale their boxes by.
    """

    name: str
    kind: str
    order: tuple[int, int, int, int]
    size: int | None
    sides: tuple[int, int] | None
    batch: int | None
    has_batch: bool = True
    is_grey: bool = False
    beside: Mapping[str, tuple[Any, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path, inputs: Sequence[Any]) -> Entry:
        """Return what a model takes by its inputs; raises StoreError where no picture can be made into that."""
        pictures = [one for one in inputs if len(one.shape) == 4 or (len(inputs) == 1 and len(one.shape) == 3)]
        picture = (pictures or inputs)[0]
        others = [one for one in inputs if one is not picture]
        sizes = {one.name: _SIZES.search(one.name) for one in others if list(one.shape[1:]) == [2]}
        shape, has_batch = list(picture.shape), len(picture.shape) == 4
        error = _misfit(path, picture.type, shape, len(inputs))
        if len(pictures) != 1 or len(sizes) < len(others) or None in sizes.values() or picture.type not in NUMBERS:
            raise error
        if not has_batch and {1, 3}.isdisjoint((shape[0], shape[2])):
            raise error
        order = places(shape := shape if has_batch else [1, *shape])
        known = (shape[order.index(axis)] for axis in range(4))
        batch, channels, height, width = (value if isinstance(value, int) else None for value in known)
        is_square = height == width
        if channels not in (1, 3, None) or batch not in (1, None) or (not is_square and None in (height, width)):
            raise error
        if sizes and not is_square:  # which side comes first, each has in its own way
            raise error
        beside = {one.name: (_number(one.type), "scale" in one.name) for one in others}
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
        ones = np.ones((len(pixels), 2))
        seen = {n: (ones if scale else ones * pixels.shape[2:]).astype(of) for n, (of, scale) in self.beside.items()}
        ready = np.ascontiguousarray(pixels.transpose(self.order), dtype=kind)
        return {self.name: ready if self.has_batch else ready[0], **seen}


def _number(kind: str) -> Any:
    return _WHOLES.get(kind) or NUMBERS.get(kind) or np.float64


def rank_of(outputs: Sequence[Any], entry: Entry) -> int:
    """Return the rank of the first output of scores or boxes: 3 for tables, 2 for rows."""
    if any(one.type.startswith(_MAP) for one in outputs) or row_of(outputs):
        return 2
    if apart(outputs, entry):
        return _TABLES
    ranks = [len(output.shape) for output in outputs]
    return next((rank for rank in ranks if rank in _ROWS), ranks[0])


def parts_of(name: str, known: Sequence[str]) -> list[str]:
    """Return the outputs of which a table of this name is made."""
    if name in known:
        return [name]
    return name.removeprefix(CHOSEN).removeprefix(UNNUMBERED).split("+")


def table_of(name: str, answers: Mapping[str, Any], count: int) -> Any:
    """Return the table or the rows of a name, of what a model says of `count` pictures."""
    if name in answers:
        value = answers[name]
        if isinstance(value, list):  # a map of scores by their labels for each picture
            return np.array([[*row.values()] for row in value], np.float32)
        is_flat = isinstance(value, np.ndarray) and value.ndim not in _ROWS
        return value.reshape(count, -1) if is_flat else value
    parts = [np.asarray(answers[part], np.float32) for part in parts_of(name, [*answers])]
    if name.startswith((CHOSEN, UNNUMBERED)):
        if len(parts) == 1:
            return parts[0][None][:, :, _OF_PADDLE]
        whole = parts if name.startswith(CHOSEN) else [part[None] for part in parts]
        return np.concatenate([part.reshape(*whole[0].shape[:2], -1) for part in whole], axis=2)
    boxes, scores = parts
    turned = scores.transpose(0, 2, 1) if scores.shape.index(boxes.shape[1], 1) == 1 else scores
    return np.concatenate((boxes.transpose(0, 2, 1), turned), axis=1)


def tables(answers: Mapping[str, Any], outputs: Sequence[Any], entry: Entry) -> tuple[list[str], bool]:
    """Return the names of the tables that are made of what a model says, and whether these alone may count."""
    maps = [one.name for one in outputs if one.type.startswith(_MAP)]
    found = apart(outputs, entry) or _chosen(answers, outputs) or _grids(answers, outputs, entry) or maps[:1]
    return (found, True) if found else ([*filter(None, [row_of(outputs)])], False)


def apart(outputs: Sequence[Any], entry: Entry) -> list[str]:
    """Return the name of the table of boxes end to end whose scores and labels come apart; none if they do not.

    So are (n, N, 5) and whole numbers (n, N), and (n, N, 4), scores (n, N) and whole numbers (n, N), these also of one
    picture alone, without n. Other outputs, such as masks, are left out.
    """
    shapes, floats, wholes = _known(outputs)
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
    scores, labels = sorted(rows & {*floats}), sorted(rows & {*wholes})
    if len(labels) != 1 or len(scores) != (width == _ALONE):
        return []
    return [(CHOSEN if rank == 2 else UNNUMBERED) + "+".join([*boxes, *scores, *labels])]


def chooses(outputs: Sequence[Any]) -> bool:
    """Tell whether a model may give label, score and corners of boxes, (N, 6), and how many each picture has.

    So do Paddle's detectors; a classifier of six labels beside its best one looks so, too. Each picture runs alone.
    """
    shapes, floats, wholes = _known(outputs)
    counts = [name for name in wholes if len(shapes[name]) == 1]
    return ([len(shapes[name]) for name in floats if shapes[name][1:] == [6]], len(counts)) == ([2], 1)


def _chosen(answers: Mapping[str, Any], outputs: Sequence[Any]) -> list[str]:
    if not chooses(outputs):
        return []
    shapes, floats, wholes = _known(outputs)
    (boxes,) = (name for name in floats if shapes[name][1:] == [6])
    (count,) = (name for name in wholes if len(shapes[name]) == 1)
    rows = np.asarray(answers[boxes])
    are_chosen = int(np.sum(answers[count])) == len(rows) and bool((rows[:, 0] == np.round(rows[:, 0])).all())
    return [f"{CHOSEN}{boxes}"] if are_chosen else []


def _grids(answers: Mapping[str, Any], outputs: Sequence[Any], entry: Entry) -> list[str]:
    """Return the names of tables of boxes and scores of a grid that come apart; none if they do not.

    So YOLO-NAS, PP-YOLOE without NMS, and DETR answer: (n, N, 4), and (n, N, scores) or (n, scores, N). What may be
    boxes or scores is joined in both ways, and the output is asked for. TensorFlow's boxes begin with y, and are left
    as they are: names or order of axes say so.
    """
    _, floats, _ = _known(outputs)
    shapes = {name: np.shape(answers[name]) for name in floats if np.ndim(answers[name]) == _TABLES}
    if entry.order == CHANNELS_LAST or len(floats) < 2:
        return []
    return [
        f"{boxes}+{scores}"
        for boxes, scores in permutations(shapes, 2)
        if shapes[boxes][2] == _ALONE and 1 < shapes[boxes][1] in shapes[scores][1:] and "detection_boxes" not in boxes
    ]


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


def _known(outputs: Sequence[Any]) -> tuple[dict[str, list[int]], list[str], list[str]]:
    """Return the shapes of outputs by name, 0 for open sizes, and the names of floats and of whole numbers."""
    shapes = {one.name: [size if isinstance(size, int) else 0 for size in one.shape] for one in outputs}
    floats = [one.name for one in outputs if one.type in _FLOATS]
    return shapes, floats, [one.name for one in outputs if one.type in _WHOLES]
