"""ONNX models on the CPU through onnxruntime: classifiers and detectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from coe.core import Expert, Finding
from coe.errors import NoInt8, StoreError, first_line
from coe.helpers import regular
from coe.helpers.preprocessing import NORMALIZATIONS, Outputs, Preprocessing
from coe.runtime.onnx_network import library_version, open_session
from coe.store.kinds import ExpertInput, FileKind, Foreign, Image, Unsaid
from experts import onnx_forms, onnx_outputs
from experts.findings import Cut, classified, detected
from experts.geometry import fitted_image
from experts.onnx_forms import Entry

if TYPE_CHECKING:
    import onnx as onnx_model


class Onnx(FileKind):
    """Models with one image input (n, 3, H, W) or (n, H, W, 3) RGB whose batch is open or 1.

    `coe.helpers.preprocessing.Outputs` says what a model may return; its meaning is decided when a model is imported.
    An input of type uint8 gets the pixels as they are.
    """

    name = "onnx"
    task = "classify"
    suffix = ".onnx"
    preprocessing = Preprocessing()
    cut = Cut(threshold=0.25, overlap=0.45, most=300)

    def preprocess(self, image: Image, expert: Expert) -> ExpertInput:
        return fitted_image(image, expert.input_size, expert.preprocessing or self.preprocessing)

    def read(self, path: Path) -> Foreign:
        """Return what a model's metadata and input say of it; raises StoreError."""
        from experts import onnx_reading

        session = _Session(path, 1)
        shape = session.shape
        columns = shape[-1] or 0 if session.is_classifier and len(shape) == len(("n", "labels")) else 0
        return onnx_reading.read(path, session.metadata, session.entry, columns, is_classifier=session.is_classifier)

    def bundled(self, path: Path, work: Path) -> Path:
        """Take weights in other files into one file; raises StoreError."""
        from experts import onnx_reading

        return onnx_reading.bundled(path, work)

    def settle(self, path: Path, expert: Expert) -> Outputs:
        """Run test pictures, and return which output counts and what it means; raises StoreError if that stays open."""
        from experts import onnx_reading

        onnx_reading.check_portable(path)
        session = self._opened(_Session(path, 1), path, expert)
        if session.takes_bytes and (session.mean, session.deviation) != NORMALIZATIONS["0..255"]:
            raise StoreError(f"{path}: the model takes bytes, 0 to 255, and normalises itself; leave --normalize out")
        ask = partial(session.answers, expert.input_size)
        answers = onnx_outputs.answered(path, ask)
        record, _ = onnx_reading.recorded(path, session.metadata, is_classifier=session.is_classifier)
        asked = {name: value for name, value in (expert.outputs or Outputs()) if value}
        said = record.outputs.model_copy(update=asked)
        gives_logits = record.gives_logits and session.is_classifier
        try:
            means = onnx_outputs.decide(answers, expert, said, record.layouts, gives_logits=gives_logits)
        except Unsaid:
            raise
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from error
        alone = ask(alone=True)[means.name] if means.layout == "scores" else None
        onnx_outputs.check_steady(path, answers[means.name], ask()[means.name], alone)
        return means

    def network(self, path: Path, expert: Expert) -> onnx_model.ModelProto:
        """Return the model with its normalisation inside; raises StoreError for one that cannot be quantised."""
        from experts.onnx_reading import taking_pixels

        session = self.open(path, expert, 1)
        if not session.is_one_table:
            raise NoInt8("it takes grey or non-square pictures, or its table consists of several outputs")
        size, seen = expert.input_size, (session.mean, session.deviation)
        are_rows = onnx_forms.row_of(session.outputs) == session.means.name  # made of an output with axes of size 1
        rows = session.run(onnx_outputs.pictures(size)[:1]) if are_rows else np.zeros((1, 0))
        return taking_pixels(path, session.means.name, seen, size, session.entry.order, columns=rows.shape[1])

    def open(self, path: Path, expert: Expert, threads: int) -> _Session:
        """Open a model; raises StoreError if it cannot be read, or takes images of another size than the expert's."""
        return self._meant(_Session(path, threads), path, expert)

    def open_bytes(self, weights: bytes, path: Path, expert: Expert, threads: int) -> _Session:
        return self._meant(_Session(path, threads, weights), path, expert)

    def _meant(self, session: _Session, path: Path, expert: Expert) -> _Session:
        if expert.outputs is None:
            raise StoreError(f"{path}: the meaning of its outputs is unknown; import it again (coe-experts import)")
        session.means = expert.outputs
        return self._opened(session, path, expert)

    def _opened(self, session: _Session, path: Path, expert: Expert) -> _Session:
        if session.entry.size not in (None, size := expert.input_size):
            raise StoreError(
                f"{path}: the model takes images of {session.entry.size} pixels, expert '{expert.id}' has {size}; "
                f"write 'input: {session.entry.size}' in the rules"
            )
        session.mean, session.deviation = (expert.preprocessing or self.preprocessing).normalization
        return session

    def postprocess(self, outputs: NDArray[Any], prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn the model's first output into findings; raises StoreError if its shape does not fit the labels."""
        values, count, means = np.asarray(outputs, dtype=np.float32), len(expert.labels), expert.outputs or Outputs()
        if means.layout is None or not onnx_outputs.may_fit(values.shape, means.layout, count, means.name):
            raise StoreError(f"the model of expert '{expert.id}' returns {values.shape}; {onnx_outputs.needed(count)}")
        if means.layout == "scores":
            return classified(
                onnx_outputs.probabilities(torch.from_numpy(values), means.activation or "none", count), expert
            )
        candidates = onnx_outputs.candidates(values, means, expert)
        cut = replace(self.cut, overlap=1.0) if onnx_outputs.are_chosen(values, means, expert) else self.cut
        return detected(candidates, prepared, expert, cut)


class _Session:
    """An open model. Runs one image at a time where the model's batch is fixed to 1."""

    def __init__(self, path: Path, threads: int, model: bytes | None = None) -> None:
        """Open `model`, or the file at `path`, which errors name."""
        try:
            if model is None:
                with regular.opened(path) as file:
                    model = b"".join(regular.chunks(file))
            self._session = open_session(model, threads)
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
        except Exception as error:  # onnxruntime's classes of errors have no other common parent
            raise StoreError(f"{path}: {_refusal(path, first_line(error), library_version())}") from error
        self.outputs = self._session.get_outputs()
        self.entry = Entry.of(path, self._session.get_inputs())
        try:
            self.is_classifier = onnx_forms.is_classifier(self.outputs, self.entry)
        except StoreError as error:
            raise StoreError(f"{path}: {error}") from None
        self.shape = tuple(size if isinstance(size, int) else None for size in self.outputs[0].shape)
        self.takes_bytes = self.entry.kind == "tensor(uint8)"
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.mean, self.deviation = NORMALIZATIONS["0..1"]
        self.means = Outputs(name=self.outputs[0].name)

    @property
    def is_one_table(self) -> bool:
        """Whether the model takes pictures as they come, and gives the output that counts itself."""
        return self.entry.is_usual and self.means.name in [one.name for one in self.outputs]

    def run(self, images: Image) -> NDArray[Any]:
        """Return the output that counts for images (n, 3, S, S) uint8."""
        name = self.means.name
        parts = self._run(images, onnx_forms.parts_of(name, [one.name for one in self.outputs]))
        return np.asarray(_joined([onnx_forms.table_of(name, raw, count) for count, raw in parts]))

    def answers(self, size: int, *, alone: bool = False) -> dict[str, Any]:
        """Return outputs, and tables made of them, for the test pictures, by name; each runs by itself if `alone`."""
        names = [output.name for output in self.outputs]
        parts = self._run(onnx_outputs.pictures(size), names, alone=alone)
        raw = {name: _joined([answers[name] for _, answers in parts]) for name in names}
        tables, count_alone = onnx_forms.tables(raw, self.outputs, self.entry)
        made = {name: _joined([onnx_forms.table_of(name, one, count) for count, one in parts]) for name in tables}
        return made if count_alone else raw | made

    def _run(self, images: Image, names: Sequence[str], *, alone: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """Return how many pictures each run had, and the outputs of these names."""
        values = self._values(images)
        step = 1 if alone or not self.entry.has_batch else self.entry.batch or len(values)
        chunks = [values[start : start + step] for start in range(0, len(values), step)]
        return [
            (len(one), dict(zip(names, self._session.run(names, self.entry.given(one)), strict=True))) for one in chunks
        ]

    def _values(self, images: Image) -> NDArray[Any]:
        if self.takes_bytes:
            return images
        scaled = images.astype(np.float32) / np.float32(255)
        if (self.mean, self.deviation) != NORMALIZATIONS["0..1"]:
            mean, deviation = (np.array(one, np.float32)[None, :, None, None] for one in (self.mean, self.deviation))
            scaled = (scaled - mean) / deviation
        return scaled


def _refusal(path: Path, reason: str, version: str) -> str:
    """Say what to do with a model that onnxruntime does not open for a reason."""
    if path.suffix.lower() in (".pt", ".pth", ".ckpt", ".safetensors"):
        return "holds weights without a network for onnxruntime; give the --kind of their network, or export it as ONNX"
    if re.search("opset|IR version", reason):
        return (
            f"the model is newer than onnxruntime {version} supports ({reason[-300:]}); export it with an older "
            "opset, e.g. `torch.onnx.export(..., opset_version=17)` or `yolo export ... opset=17`, or "
            "update onnxruntime"
        )
    return (
        f"not an ONNX model that can be run with the weights in this one file ({reason}); if another program made it, "
        "export the network as ONNX there, in float32"
    )


def _joined(parts: list[Any]) -> Any:
    """Return the answers to several pictures as one; tables of fewer boxes than another are filled up with zeros."""
    if not all(isinstance(part, np.ndarray) and part.ndim for part in parts):
        return parts
    if len({part.shape[1:] for part in parts}) > 1:
        most = np.max([part.shape for part in parts], axis=0)
        parts = [np.pad(part, [(0, 0), *((0, gap) for gap in (most - part.shape)[1:])]) for part in parts]
    return np.concatenate(parts)


onnx = Onnx()
