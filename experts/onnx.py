"""ONNX models on the CPU through onnxruntime: classifiers and detectors, told apart by the shape of their output."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe import regular, surroundings
from coe.core import Expert, Finding
from coe.errors import StoreError, first_line
from coe.store.kinds import FileKind, Image, Prepared
from experts.findings import Cut, classified, detected
from experts.geometry import letterbox
from experts.resnet import DEVIATION, MEAN

_WEIGHTS_ELSEWHERE = "session.model_external_initializers_file_folder_path"
"""The setting that names the folder where onnxruntime looks for a model's weights in other files."""
PADDING = (114, 114, 114)
NUMBERS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


@dataclass(frozen=True, slots=True)
class Description:
    """The shapes that a model file states; None for an open size. `rank` is the rank of its first output."""

    input_size: int | None
    batch: int | None
    rank: int


def describe(path: Path) -> Description:
    """Read the shapes of a model file; raises StoreError if it is no ONNX model, or does not fit this kind."""
    return _Session(path, 1).description


class Onnx(FileKind):
    """Models with one image input (n, 3, S, S) RGB whose batch is open or 1.

    A classifier returns (n, labels), logits or probabilities. A detector returns (n, 4 + labels, N), as YOLOv8 and
    later do, or (n, N, 5 + labels) with an objectness, as YOLOv5's own exports do; boxes as centre, width, height in
    pixels of the input. A classifier's input is normalised as ImageNet's, a detector's goes from 0 to 1; an input of
    type uint8 gets the pixels as they are.
    """

    name = "onnx"
    task = "classify"
    suffix = ".onnx"

    def __init__(self, *, threshold: float = 0.25, overlap: float = 0.45, most: int = 300) -> None:
        self.threshold = threshold
        self.overlap = overlap
        self.most = most

    def preprocess(self, image: Image, expert: Expert) -> Prepared:
        """Scale to fit, centre, and pad with grey."""
        return letterbox(image, expert.input_size, PADDING)

    def open(self, path: Path, expert: Expert, threads: int) -> _Session:
        """Open a model; raises StoreError if it cannot be read, or takes images of another size than the expert's."""
        return self._opened(_Session(path, threads), path, expert)

    def open_bytes(self, weights: bytes, path: Path, expert: Expert, threads: int) -> _Session:
        """Open a model from bytes that were read already; raises as `open` does."""
        return self._opened(_Session(path, threads, weights), path, expert)

    def _opened(self, session: _Session, path: Path, expert: Expert) -> _Session:
        size = session.description.input_size
        if size is not None and size != expert.input_size:
            raise StoreError(
                f"{path}: the model takes images of {size} pixels, expert '{expert.id}' has {expert.input_size}; "
                f"write 'input: {size}' in the rules"
            )
        return session

    def postprocess(self, outputs: NDArray[Any], prepared: Sequence[Prepared], expert: Expert) -> list[Finding]:
        """Turn the model's first output into findings; raises StoreError if its shape does not fit the labels."""
        values = np.asarray(outputs, dtype=np.float32)
        count = len(expert.labels)
        if values.ndim == 2 and values.shape[1] == count:
            return classified(_probabilities(torch.from_numpy(values)), expert)
        if values.ndim == 3 and values.shape[1] == 4 + count:
            candidates = values
        elif values.ndim == 3 and values.shape[2] == 5 + count:
            rows = values.transpose(0, 2, 1)
            candidates = np.concatenate((rows[:, :4], rows[:, 5:] * rows[:, 4:5]), axis=1)
        else:
            raise StoreError(
                f"the model of expert '{expert.id}' returns {values.shape}; {count} labels need (n, {count}), "
                f"(n, {4 + count}, N) or (n, N, {5 + count})"
            )
        return detected(candidates, prepared, expert, Cut(self.threshold, self.overlap, self.most))


class _Session:
    """An open model. Runs one image at a time where the model's batch is fixed to 1."""

    def __init__(self, path: Path, threads: int, model: bytes | None = None) -> None:
        """Open `model`, or the file at `path`, which errors name.

        All weights must lie in this one file: onnxruntime would look for others in the working directory, unproved.
        """
        surroundings.quiet_onnxruntime()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry(_WEIGHTS_ELSEWHERE, os.devnull)
        onnxruntime.disable_telemetry_events()
        try:
            if model is None:
                with regular.opened(path) as file:
                    model = b"".join(regular.chunks(file))
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        except Exception as error:  # onnxruntime's classes of errors have no other common parent
            raise StoreError(
                f"{path}: not an ONNX model that can be run with the weights in this one file ({first_line(error)})"
            ) from error
        self._input = self._session.get_inputs()[0]
        self._output = self._session.get_outputs()[0]
        shape = self._input.shape
        if len(self._session.get_inputs()) != 1 or len(shape) != 4 or self._input.type not in NUMBERS:
            raise StoreError(f"{path}: takes {self._input.type} of shape {shape}; it must take one image (n, 3, S, S)")
        batch, channels, height, width = (value if isinstance(value, int) else None for value in shape)
        if channels not in (3, None) or height != width or batch not in (1, None):
            raise StoreError(f"{path}: takes images of shape {shape}; it must be (n, 3, S, S) with n open or 1")
        self.description = Description(input_size=height, batch=batch, rank=len(self._output.shape))

    def run(self, images: Image) -> NDArray[Any]:
        """Return the model's first output for images (n, 3, S, S) uint8 RGB."""
        values = self._values(images)
        step = self.description.batch or len(values)
        parts = [
            np.asarray(self._session.run([self._output.name], {self._input.name: values[start : start + step]})[0])
            for start in range(0, len(values), step)
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _values(self, images: Image) -> NDArray[Any]:
        wanted = NUMBERS[self._input.type]
        if wanted is np.uint8:
            return np.ascontiguousarray(images)
        scaled = images.astype(np.float32) / np.float32(255)
        if self.description.rank == 2:
            mean, deviation = (np.array(values, np.float32)[None, :, None, None] for values in (MEAN, DEVIATION))
            scaled = (scaled - mean) / deviation
        return np.ascontiguousarray(scaled, dtype=wanted)


def _probabilities(values: torch.Tensor) -> torch.Tensor:
    """Keep rows that are probabilities, and take the softmax of rows that are logits.

    Each row is decided by itself, so that a finding does not depend on the other images of the batch.
    """
    whole = (values >= 0).all(dim=1) & ((values.sum(dim=1) - 1).abs() < 1e-3)
    return torch.where(whole[:, None], values, values.softmax(dim=1))


onnx = Onnx()
