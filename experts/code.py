"""The kind `code`: reads DataMatrix, QR, Code 128 and other codes, and compares them with what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from coe.core import Expert, Finding
from coe.errors import ConfigError, StoreError, list_few
from coe.helpers import regular
from coe.helpers.allowed_text import Reading
from coe.pictures.codes import Code, check_formats, read_codes
from coe.store.kinds import ExpertInput, FileKind, Foreign, Image
from experts.read_window import LABELS, judged, misfit, window_of

_GREY = 127
_MOST_BYTES = 4096


class CodeReader(FileKind):
    """A code on a part or a label. Its file names the formats that are read, one a line.

    The two labels mean a code that is allowed, and another. No code, a code that is not read surely, and two codes that
    could both be meant are a finding in doubt.
    """

    name = "code"
    task = "classify"
    suffix = ".formats"
    is_reader = True
    max_batch = 8

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        """Cut the window out; it is made smaller if it does not fit the input, and never larger."""
        size = expert.input_size
        cut = window_of(image, (expert.reads or Reading()).window)
        scale = min(1.0, size / max(cut.shape[:2]))
        if scale < 1:
            width, height = (max(1, round(side * scale)) for side in cut.shape[1::-1])
            cut = np.asarray(cv2.resize(np.ascontiguousarray(cut), (width, height), interpolation=cv2.INTER_AREA))
        pixels = np.full((3, size, size), _GREY, np.uint8)
        top, left = (size - cut.shape[0]) // 2, (size - cut.shape[1]) // 2
        pixels[:, top : top + cut.shape[0], left : left + cut.shape[1]] = cut.transpose(2, 0, 1)
        return ExpertInput(pixels, *image.shape[:2], scale=scale, left=float(left), top=float(top))

    def postprocess(
        self, outputs: Sequence[tuple[Code, ...]], prepared: Sequence[ExpertInput], expert: Expert
    ) -> list[Finding]:
        return [_finding(codes, image, expert) for codes, image in zip(outputs, prepared, strict=True)]

    def misfit(self, expert: Expert) -> str:
        return misfit(expert)

    def read(self, path: Path) -> Foreign:
        """Return what a file of formats says: the usual labels."""
        _formats(regular.read(path, _MOST_BYTES), path)
        return Foreign({}, labels=LABELS)

    def open(self, path: Path, expert: Expert, threads: int) -> _Reader:
        return self.open_bytes(regular.read(path, _MOST_BYTES), path, expert, threads)

    def open_bytes(self, weights: bytes, path: Path, expert: Expert, threads: int) -> _Reader:
        return _Reader(_formats(weights, path))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads codes of certain formats."""

    formats: tuple[str, ...]

    def run(self, images: Image) -> list[tuple[Code, ...]]:
        """Return the codes in each image of (n, 3, S, S) uint8 RGB."""
        return [read_codes(np.ascontiguousarray(image.transpose(1, 2, 0)), self.formats) for image in images]


def _formats(content: bytes, path: Path) -> tuple[str, ...]:
    try:
        words = tuple(content.decode("ascii").split())
        check_formats(words)
    except (UnicodeDecodeError, ConfigError) as error:
        reason = error if isinstance(error, ConfigError) else "it is not plain text with a format of codes in each line"
        raise StoreError(f"{path}: {reason}") from error
    return words


def _finding(codes: Sequence[Code], image: ExpertInput, expert: Expert) -> Finding:
    reading = expert.reads or Reading()
    sure = [code.text for code in codes if code.is_believed(reading)]
    meant = [text for text in dict.fromkeys(sure) if reading.allows(text)] or list(dict.fromkeys(sure))
    doubt, small = (
        "",
        f"; its window was scaled down {1 / image.scale:.1f} times: give a larger `input`, or a smaller window",
    )
    if not codes:
        doubt = f"no code is read{small if image.scale < 1 else ''}"
    elif not sure:
        doubt = f"a code was found, perhaps '{codes[0].text:.60}', but not read reliably"
    elif len(meant) > 1:
        few = list_few((f"'{text:.60}'" for text in meant), 3)
        doubt = f"{len(meant)} different codes were read: {few}"
    text = meant[0] if meant else ""
    return judged(expert, text, 1.0 if text and not doubt else 0.0, 1.0, doubt)


code = CodeReader()
