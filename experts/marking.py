"""The kind `marking`: reads the line of text in a window of a part, and compares it with what is allowed there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert, Finding
from coe.errors import StoreError
from coe.helpers.allowed_text import Reading
from coe.store import outputs as network_outputs
from coe.store.kinds import ExpertInput, Foreign, Image, ModuleKind, PackagedWeights
from experts.marking_network import CHARACTERS, HEIGHT, MarkingNetwork
from experts.read_window import LABELS, judged, misfit, pixels_of

WAYS = {96: 1, 120: 1, 144: 2, 168: 2, 192: 4, 240: 4}
"""By input size, in how many ways up a line is read: 1, as it stands; 2, also upside down; 4, by quarter turns."""
_GREY = 127
_BESIDE = 0.25
"""What a line shows of the picture on each side of its window, as a share of the window's height."""
_UNIT = 2
"""The pixels of a line in which it is written where its window begins and ends: one byte holds each."""
_LEAST = 0.5
"""The least confidence in the weakest character with which a text counts as read."""
_SURE = 0.9
"""With so much confidence, what is read beside a window is as sure as what is read in it."""


@dataclass(frozen=True, slots=True)
class ReadText:
    """A text that was read: its weakest character has this confidence, and the next best this much less (`margin`)."""

    text: str
    confidence: float
    margin: float


class Marking(ModuleKind):
    """A text on a part, which must fit one of the patterns that the rules allow.

    The two labels mean a text that is allowed, and another. What cannot be read, or is read with doubt, is a finding
    in doubt; so is a text that goes on beside the window. A square input holds the line, 48 pixels high and folded, as
    many times as it is read (`WAYS`).
    """

    name = "marking"
    task = "classify"
    is_reader = True
    packaged = PackagedWeights(
        distribution="rapidocr",
        package="rapidocr",
        file="models/PP-OCRv6_rec_small.onnx",
        sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
        licence="Apache-2.0",
        input_size=96,
    )
    common = ("stem", "blocks", "beside", "narrow", "near", "mixers", "norm")

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Cut the window out with what is beside it, upright and turned, and scale it to lines 48 pixels high.

        The last column of a line's pixels says where the window begins and ends.
        """
        size = expert.input_size
        ways, reading = WAYS.get(size, 1), expert.reads or Reading()
        lines = np.full((ways, 3, HEIGHT, max(1, size**2 // (ways * HEIGHT))), _GREY, np.uint8)
        for way in range(ways):
            turned = np.rot90(image, way * (4 // ways)) if ways > 1 else image
            _write(lines[way], turned, reading.window)
        pixels = np.zeros((3, size * size), np.uint8)
        folded = lines.transpose(1, 0, 2, 3).reshape(3, -1)
        pixels[:, : folded.shape[1]] = folded[:, : size * size]
        return ExpertInput(pixels.reshape(3, size, size), *image.shape[:2])

    def skeleton(self, expert: Expert) -> torch.nn.Module:
        """Build the network, which does not depend on the labels."""
        return MarkingNetwork().eval()

    def forward(self, module: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        """Return probabilities (n, 2 x ways, columns, 1 + characters) of images (n, 3, S, S) uint8.

        First those of all lines as far as their windows go, then those of the lines with what is beside the windows.
        """
        count, _, size, _ = images.shape
        ways = WAYS.get(size, 1)
        length = size * size // (ways * HEIGHT)
        lines = images.reshape(count, 3, -1)[:, :, : ways * HEIGHT * length].reshape(count, 3, ways, HEIGHT, length)
        lines = lines.permute(0, 2, 1, 3, 4)
        begin, end = (_UNIT * lines[:, :, place, 0, -1].long()[:, :, None, None, None] for place in (0, 1))
        column = torch.arange(length, device=images.device)
        lines = torch.where(column < length - 1, lines, _GREY)
        window = lines.gather(-1, (column + begin).clamp_max(length - 1).expand(lines.shape))
        both = torch.cat((torch.where(column < end - begin, window, _GREY), lines), dim=1)
        logits = module(both.reshape(2 * count * ways, 3, HEIGHT, length).to(module.head.weight.dtype) / 127.5 - 1)
        answer: torch.Tensor = network_outputs.unhidden(logits).softmax(dim=2)
        return answer.reshape(count, 2 * ways, *answer.shape[1:])

    def postprocess(self, outputs: torch.Tensor, prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn probabilities into what was read, compared with what is allowed.

        Raises StoreError for those of a variant that was prepared when a line showed its window alone.
        """
        if outputs.shape[1] != 2 * WAYS.get(expert.input_size, 1):
            raise StoreError(f"{expert.weights} reads only windows; prepare it again (coe-experts prepare --force)")
        return [_finding([text_of(line) for line in lines], expert) for lines in outputs.float().cpu().numpy()]

    def misfit(self, expert: Expert) -> str:
        if expert.input_size not in WAYS:
            return f"kind 'marking' takes an input of {', '.join(map(str, WAYS))} pixels, not {expert.input_size}"
        if fault := misfit(expert):
            return fault
        reading = expert.reads or Reading()
        if reading.allowed is None:
            return "kind 'marking' compares text; write the allowed texts under `reads`, e.g. `allowed: [\"103\"]`"
        if nothing := [pattern for pattern in reading.allowed if not pattern.strip("*?")]:
            return f"'{nothing[0]}' allows any text, so nothing would be inspected; write the allowed texts"
        if strange := sorted(reading.letters() - set(CHARACTERS)):
            return f"kind 'marking' reads only ASCII, but `allowed` has '{strange[0]}'; write ? in its place"
        return ""

    def read(self, path: Path) -> Foreign:
        """Take the published model for import; raises StoreError for another."""
        from experts import marking_file

        if path.suffix == ".safetensors":
            return super().read(path)
        return Foreign(marking_file.tensors(path), labels=LABELS)


def text_of(probabilities: NDArray[np.float32]) -> ReadText:
    """Return the likeliest text of columns, (columns, 1 + characters): the best sign of each, repetitions once."""
    best = probabilities.argmax(axis=1)
    ranked = np.partition(probabilities, -2, axis=1)
    signs: list[str] = []
    confidence, margin = 1.0, 1.0
    starts = np.flatnonzero(np.diff(best, prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(best)], strict=True):
        sign = CHARACTERS[best[start] - 1] if best[start] else ""
        if sign.strip():
            peak = start + int(ranked[start:end, -1].argmax())
            signs.append(sign)
            confidence = min(confidence, float(ranked[peak, -1]))
            margin = min(margin, float(ranked[peak, -1] - ranked[peak, -2]))
    return ReadText("".join(signs), confidence if signs else 0.0, margin if signs else 0.0)


def _finding(lines: Sequence[ReadText], expert: Expert) -> Finding:
    """Judge what was read, in windows and then with what is beside them: the way up read most clearly counts."""
    reading = expert.reads or Reading()
    ways = lines[: len(lines) // 2]
    best = max(ways, key=lambda way: way.confidence)
    beside = lines[len(ways) + ways.index(best)]
    doubt = ""
    if not best.text:
        doubt = "nothing is read in its window"
    elif best.confidence < _LEAST:
        doubt = f"it reads '{best.text}', but not every character reliably"
    elif not reading.allows(best.text):
        other = next((way.text for way in ways if way.confidence >= _LEAST and reading.allows(way.text)), None)
        if other is not None:
            doubt = f"it reads '{best.text}' one way up and '{other}' another"
    elif _goes_on(best, beside) and not reading.allows(beside.text):
        doubt = f"it reads '{best.text}', but '{beside.text}' with the surroundings of its window"
    margin = 0.0 if doubt else min(best.margin, best.confidence / _LEAST - 1)
    return judged(expert, best.text, best.confidence, margin, doubt)


def _goes_on(inside: ReadText, beside: ReadText) -> bool:
    """Tell whether a text goes on beside its window: there is more of it, or another is read as clearly.

    Letters and digits count: edges of a part are read as points and strokes.
    """
    signs, further = ("".join(filter(str.isalnum, read.text)) for read in (inside, beside))
    return len(further) > len(signs) or (further != signs and beside.confidence >= min(_SURE, inside.confidence))


def _write(line: Image, image: Image, window: tuple[float, float, float, float]) -> None:
    """Write a window and what is beside it into a line (3, 48, length) BGR, at its left, scaled to fit."""
    height, length = line.shape[1], line.shape[2] - 1
    place = pixels_of(image, window)
    beside = round(_BESIDE * (place.bottom - place.top))
    left, right = max(0, place.left - beside), min(image.shape[1], place.right + beside)
    cut = image[place.top : place.bottom, left:right]
    scale = min(height / cut.shape[0], length / cut.shape[1])
    size = max(1, min(length, round(cut.shape[1] * scale))), max(1, min(height, round(cut.shape[0] * scale)))
    shown = cv2.resize(np.ascontiguousarray(cut), size, interpolation=cv2.INTER_CUBIC if scale > 1 else cv2.INTER_AREA)
    top = (height - size[1]) // 2
    line[:, top : top + size[1], : size[0]] = shown[:, :, ::-1].transpose(2, 0, 1)
    across = size[0] / cut.shape[1] / _UNIT
    line[0, :, -1] = round((place.left - left) * across)
    line[1, :, -1] = math.ceil((place.right - left) * across)


marking = Marking()
