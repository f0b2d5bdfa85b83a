"""Whether pictures bear out what was stated of a model: labelled ones refute it, the network's own memory proves it.

Labelled pictures, about equally many of each label, are judged as it was stated and by other statements. One that
judges four more of 20 right tells that this one is wrong. No other statement is taken: the best of many loses on the
rest of the pictures. Where a network has batch norms that are not folded, its first one remembers the mean and the
variance of what it learned from; six to twenty pictures of the same part, labelled or not, give these again by the
true normalisation and order of colours alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch.distributions import Normal, kl_divergence

from coe.bring.importing import Brought
from coe.core import Expert, Finding
from coe.errors import ConfigError, ImageError
from coe.helpers import regular
from coe.helpers.preprocessing import NORMALIZATIONS
from coe.runtime.runner import findings_of
from coe.store.kinds import FileKind, Image, Kind, ModuleKind
from coe.variants import fold
from coe.variants.agreement import iou

_LEAST = 20
"""So many labelled pictures refute what was stated."""
_LEAST_REMEMBERED, _MOST_REMEMBERED = 6, 20
"""So many pictures tell what the first batch norm remembers."""
_BEATEN = 4
_UNEVEN = 3
"""No label has more than so many times the pictures of another."""
_ANOTHER_PART = 0.5
"""From this divergence (in nats, the mean of all channels) on, pictures are not of the part that was learned."""
_WORSE = 1.2
"""A statement whose divergence is so many times that of another is worse."""
_WORSE_IOU = 0.1
_BATCH = 8
_SHOWN = 3

Box = tuple[str, tuple[float, float, float, float]]
"""A true box: its label, and left, top, right and bottom in pixels of the picture."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture, (H, W, 3) uint8 RGB, with its true label or boxes; "" and None where nobody says them."""

    image: Image
    label: str = ""
    boxes: tuple[Box, ...] | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """What pictures say of a statement: `fault` says that it is wrong, `unproven` why it is not proven; "" if not."""

    fault: str = ""
    unproven: str = ""


@dataclass(frozen=True, slots=True)
class _Statement:
    """An expert as it could have been stated, and the options that say so; "" for what was stated."""

    options: str
    expert: Expert


def boxes_of(file: Path, labels: Sequence[str], shape: tuple[int, ...]) -> tuple[Box, ...]:
    """Read a YOLO file of the labels of a picture (H, W, 3), boxes or polygons; without one it has no box.

    Raises ConfigError.
    """
    if not file.is_file():
        return ()
    named: dict[float, str] = dict(enumerate(labels))
    found = []
    for line in regular.read(file, 1 << 20).decode(errors="replace").splitlines():
        if not line.strip():
            continue
        try:
            number, *shares = (float(word) for word in line.split())
            label, corners = named[number], _corners(shares)
        except (ValueError, KeyError) as error:
            raise ConfigError(f"{file}: '{line:.60}' is not a YOLO box, or has an unknown label") from error
        left, top, right, bottom = (share * side for share, side in zip(corners, [shape[1], shape[0]] * 2, strict=True))
        found.append((label, (left, top, right, bottom)))
    return tuple(found)


def _corners(shares: Sequence[float]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom of a centre and a size, or of the corners of a polygon; raises ValueError.

    Behind a size may stand a score.
    """
    if len(shares) in (4, 5):
        x, y, width, height = shares[:4]
        return x - width / 2, y - height / 2, x + width / 2, y + height / 2
    if len(shares) < 6 or len(shares) % 2:
        raise ValueError(shares)
    return min(shares[::2]), min(shares[1::2]), max(shares[::2]), max(shares[1::2])


def prove(brought: Brought, kind: Kind, pictures: Sequence[Shown], least_right: float) -> Proof:
    """Hold what was stated of a model against pictures, `least_right` of which it must judge as they are labelled.

    A kind that prepares pictures by its own code has no other statements, but its answers count. Raises CoeError if the
    model cannot run.
    """
    if not pictures:
        return Proof(unproven="no picture was shown")
    others = list(_others(brought.expert, kind))
    stated = _Statement("", brought.expert)
    remembered = _by_memory(brought, kind, [stated, *others], pictures)
    if all(one.boxes is not None for one in pictures):
        said = _by_boxes(brought, kind, [stated, *others], pictures)
    elif all(one.label for one in pictures):
        said = _by_labels(brought, kind, [stated, *others], pictures, least_right)
    else:
        said = Proof(unproven="no picture has a label")
    fault = said.fault or (remembered.fault if remembered else "")
    # What the network remembers proves it, whatever labels leave open, and the other way round.
    open_one = remembered.unproven if remembered is not None and said.unproven else said.unproven
    return Proof(fault, fault or (f"{not_proven(brought.expert)}: {open_one}" if open_one else ""))


def is_taken(kind: Kind, expert: Expert, picture: Shown) -> bool:
    """Return whether a kind takes a picture: it may be too elongated, or whatever a kind of the user refuses."""
    try:
        kind.preprocess(picture.image, expert)
    except ImageError:
        return False
    return True


def not_proven(expert: Expert) -> str:
    """Return what is not proven of an expert until pictures prove it."""
    return "its answers are not proven" if expert.preprocessing is None else "its preprocessing is stated, not proven"


def _others(expert: Expert, kind: Kind) -> Iterator[_Statement]:
    """Yield the other usual normalisations and orders of colours, and of boxes apart the other layout."""
    if (seen := expert.preprocessing) is None:
        return
    values = {name: both for name, both in NORMALIZATIONS.items() if both != seen.normalization}
    values[""] = seen.normalization
    for channels, (name, (mean, std)) in product(("rgb", "bgr"), values.items()):
        options = [f"--channels {channels}"] * (channels != seen.channels) + [f"--normalize {name}"] * bool(name)
        if options:
            changed = seen.model_copy(update={"channels": channels, "mean": mean, "std": std})
            yield _Statement(" ".join(options), replace(expert, preprocessing=changed))
    means = expert.outputs
    if means is not None and isinstance(kind, FileKind) and means.layout in ("yolov8", "corners"):
        layout = "corners" if means.layout == "yolov8" else "yolov8"
        yield _Statement(f"--layout {layout}", replace(expert, outputs=means.model_copy(update={"layout": layout})))


def findings(brought: Brought, kind: Kind, expert: Expert, pictures: Sequence[Shown]) -> list[Finding]:
    """Return what a model says of pictures if it is stated as an expert is."""
    if isinstance(kind, ModuleKind):
        assert brought.state is not None, "it was read as tensors"
        module = fold.network(kind, expert, brought.state)
    else:
        assert isinstance(kind, FileKind), "there are two classes of kinds"
        assert brought.file is not None, "it was read as a file"
        session = kind.open(brought.file, expert, 0)
    found: list[Finding] = []
    most = min(_BATCH, kind.max_batch)
    for start in range(0, len(pictures), most):
        inputs = [kind.preprocess(one.image, expert) for one in pictures[start : start + most]]
        pixels = np.stack([one.pixels for one in inputs])
        with torch.inference_mode():
            outputs = kind.forward(module, torch.from_numpy(pixels)) if isinstance(kind, ModuleKind) else (
                session.run(pixels))  # fmt: skip
        found += findings_of(kind, outputs, inputs, expert)
    return found


def _by_labels(
    brought: Brought, kind: Kind, statements: Sequence[_Statement], pictures: Sequence[Shown], least_right: float
) -> Proof:
    """Compare how many labelled pictures each statement, and each order of the labels, judges right."""
    labels = list(brought.expert.labels)
    counts = Counter(one.label for one in pictures)
    if kind.task == "classify" and len(counts) == 1:
        return Proof(
            f"all pictures have the label '{pictures[0].label}', and only pictures of each label prove anything"
        )
    truth = np.array([one.label for one in pictures])
    answers = [np.array([found.label for found in findings(brought, kind, one.expert, pictures)]) for one in statements]
    right = [int((said == truth).sum()) for said in answers]
    few = len(pictures) < _LEAST or len(counts) < len(labels) or max(counts.values()) > _UNEVEN * min(counts.values())
    tried = list(zip(right, (one.options for one in statements), strict=True))
    tried += [_reordered(said, truth, labels, one.options) for said, one in zip(answers, statements, strict=True)]
    best = max(count for count, _ in tried)
    named = sorted({named: None for count, named in tried if count == best}, key=lambda one: one.count("--"))
    options = " or ".join(named[:_SHOWN])
    if not few and kind.task == "classify" and best >= right[0] + _BEATEN:
        return Proof(f"{right[0]} of {len(pictures)} pictures are judged as labelled, but {best} with {options}")
    if right[0] < least_right * len(pictures):
        return Proof(f"{right[0]} of {len(pictures)} pictures are judged as labelled (--right {least_right:g})")
    if few:
        each = f"{_LEAST} labelled pictures or more, about equally many of each label, would tell"
        return Proof(unproven=each)
    return _open(statements, [count > right[0] - _BEATEN for count in right], f"{len(pictures)} labelled pictures")


def _open(statements: Sequence[_Statement], fits: Sequence[bool], shown: str) -> Proof:
    """Return what pictures that refute nothing leave open: the other statements that fit as well."""
    rivals = [one.options for one, is_fit in zip(statements, fits, strict=True) if is_fit and one.options]
    return Proof(unproven=f"{shown} do not distinguish it from {', '.join(rivals)}" if rivals else "")


def _reordered(said: NDArray[np.str_], truth: NDArray[np.str_], labels: Sequence[str], options: str) -> tuple[int, str]:
    """Return how many pictures the best order of the labels judges right, and the options that say it."""
    pairs = np.array([[int(((said == own) & (truth == true)).sum()) for true in labels] for own in labels])
    _, columns = linear_sum_assignment(-pairs)
    order = ",".join(labels[column] for column in columns)
    return int(pairs[np.arange(len(labels)), columns].sum()), f"{options} --labels {order}".strip()


def _by_boxes(brought: Brought, kind: Kind, statements: Sequence[_Statement], pictures: Sequence[Shown]) -> Proof:
    """Compare how well each statement finds the true boxes."""
    found = [_mean_best_iou(findings(brought, kind, one.expert, pictures), pictures) for one in statements]
    best = int(np.argmax(found))
    if found[best] >= found[0] + _WORSE_IOU:
        overlaps = f"overlap with the boxes found by {found[0]:.2f} (IoU), but by {found[best]:.2f}"
        return Proof(f"the true boxes {overlaps} with {statements[best].options}")
    if len(pictures) < _LEAST_REMEMBERED:
        return Proof(unproven=f"{_LEAST_REMEMBERED} pictures with boxes or more would tell")
    if found[0] < _WORSE_IOU and any(one.boxes for one in pictures):
        overlaps = f"the true boxes overlap with the boxes found by {found[0]:.2f} (IoU)"
        return Proof(f"{overlaps}; are the labels in the order of the outputs?")
    return _open(statements, [iou > found[0] - _WORSE_IOU for iou in found], f"{len(pictures)} pictures with boxes")


def _mean_best_iou(findings: Sequence[Finding], pictures: Sequence[Shown]) -> float:
    best = [
        max((iou(box.xyxy, corners) for box in found.boxes if box.label == label), default=0.0)
        for found, picture in zip(findings, pictures, strict=True)
        for label, corners in picture.boxes or ()
    ]
    return float(np.mean(best)) if best else 0.0


def _by_memory(
    brought: Brought, kind: Kind, statements: Sequence[_Statement], pictures: Sequence[Shown]
) -> Proof | None:
    """Compare what the first convolution gives with what the norm behind it remembers; None if there is no such."""
    is_stated = brought.expert.preprocessing is not None
    if not is_stated or not isinstance(kind, ModuleKind) or brought.state is None or len(pictures) < _LEAST_REMEMBERED:
        return None
    module = fold.network(kind, brought.expert, brought.state)
    first = next((part for part in module.modules() if isinstance(part, torch.nn.Conv2d)), None)
    norm = next((part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)), None)
    if first is None or norm is None or norm.running_mean is None or norm.num_features != first.out_channels:
        return None
    chosen = pictures[:: -(-len(pictures) // _MOST_REMEMBERED)]
    apart = [_divergence(first, norm, kind, one.expert, chosen) for one in statements]
    best = int(np.argmin(apart))
    if apart[best] >= _ANOTHER_PART:
        return Proof(unproven=f"the network was trained on pictures of other parts ({apart[best]:.2f} nats)")
    if apart[0] > _WORSE * apart[best]:
        far = f"{apart[0]:.2f} nats from these pictures, but {apart[best]:.2f}"
        return Proof(f"the statistics of its first batch norm are {far} with {statements[best].options}")
    return _open(statements, [one <= _WORSE * apart[0] for one in apart], "the network's memories")


def _divergence(
    first: torch.nn.Conv2d, norm: torch.nn.BatchNorm2d, kind: Kind, expert: Expert, pictures: Sequence[Shown]
) -> float:
    """Return how far what a convolution gives of pictures lies from what the norm behind it remembers, in nats."""
    seen: Any = expert.preprocessing
    pixels = torch.from_numpy(np.stack([kind.preprocess(one.image, expert).pixels for one in pictures])).float() / 255
    mean, std = (torch.tensor(values)[None, :, None, None] for values in seen.normalization)
    with torch.inference_mode():
        given = first((pixels - mean) / std).double()
    assert norm.running_mean is not None, "it was looked at before"
    assert norm.running_var is not None, "it was looked at before"
    moments = (given.mean(dim=(0, 2, 3)), given.var(dim=(0, 2, 3))), (norm.running_mean, norm.running_var)
    measured, remembered = (Normal(mean.double(), var.double().clamp_min(1e-12).sqrt()) for mean, var in moments)
    return float(kl_divergence(measured, remembered).mean())
