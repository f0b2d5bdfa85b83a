"""ONNX models on the CPU through onnxruntime: classifiers and detectors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from experts import onnx_forms, onnx_grids, onnx_outputs, records, ultralytics_facts
from experts.findings import Cut, classified, detected
from experts.geometry import fitted_image
from experts.onnx_forms import Entry

if TYPE_CHECKING:
    import onnx as onnx_model

_IMAGENET = NORMALIZATIONS["imagenet"]
_USUAL = 224
"""The side of a picture for a model of open sides, in pixels."""
_OF_SCORES = 2
"""The rank of a classifier's output."""


@dataclass(frozen=True, slots=True)
class Description:
    """The shapes that a model file states; None for an open size.

    `rank` is that of its first output of scores or boxes: a table for each picture, or a row; else of its first output.
    """

    input_size: int | None
    batch: int | None
    rank: int


class Onnx(FileKind):
    """Models with one image input (n, 3, H, W) or (n, H, W, 3) RGB whose batch is open or 1.

    `coe.helpers.preprocessing.Outputs` says what a model may return. Its meaning is decided when a model is imported;
    for an expert whose manifest does not hold it, when the model is opened. An input of type uint8 gets the pixels as
    they are; without a manifest that says more, a classifier's input is normalised as ImageNet's.
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
        described = session.description
        is_classifier, shape = described.rank == _OF_SCORES and not session.runs_alone, session.shape
        columns = shape[-1] or 0 if is_classifier and len(shape) == _OF_SCORES else 0
        return onnx_reading.read(
            path, session.metadata, session.entry, session.labels, columns=columns, is_classifier=is_classifier
        )

    def bundled(self, path: Path, work: Path) -> Path:
        """Take weights in other files into one file; raises StoreError."""
        from experts import onnx_reading

        return onnx_reading.bundled(path, work)

    def settle(self, path: Path, expert: Expert) -> Outputs:
        """Run test pictures, and return which output counts and what it means; raises StoreError if that stays open."""
        from experts import onnx_reading

        onnx_reading.check_portable(path)
        session = self._opened(_Session(path, 1), path, expert, settled=True)
        if session.takes_bytes and (session.mean, session.deviation) != NORMALIZATIONS["0..255"]:
            raise StoreError(f"{path}: the model takes bytes, 0 to 255, and normalises itself; leave --normalize out")
        ask = partial(session.answers, expert.input_size)
        answers = onnx_outputs.answered(path, ask)
        means = _decided(session, path, expert, expert.outputs or Outputs(), answers)
        answer = answers[means.name]
        onnx_outputs.check_steady(path, answer, ask()[means.name])
        if means.layout == "scores":
            onnx_outputs.check_alone(path, answer, ask(alone=True)[means.name])
        return means

    def network(self, path: Path, expert: Expert) -> onnx_model.ModelProto:
        """Return the model with its normalisation inside; raises StoreError for one that cannot be quantised."""
        from experts.onnx_pixels import taking_pixels

        if expert.outputs is None:
            raise StoreError("nobody has said what its outputs mean; import it again (coe-experts import)")
        session = self.open(path, expert, 1)
        if not session.is_one_table:
            raise NoInt8("it takes grey or oblong pictures, or its table is made of several outputs")
        size, seen = expert.input_size, (session.mean, session.deviation)
        rows = session.run(onnx_outputs.pictures(size)[:1]) if session.gives_rows else np.zeros((1, 0))
        return taking_pixels(path, session.means.name, seen, size, session.entry.order, columns=rows.shape[1])

    def open(self, path: Path, expert: Expert, threads: int) -> _Session:
        """Open a model; raises StoreError if it cannot be read, or takes images of another size than the expert's."""
        return self._opened(_Session(path, threads), path, expert)

    def open_bytes(self, weights: bytes, path: Path, expert: Expert, threads: int) -> _Session:
        return self._opened(_Session(path, threads, weights), path, expert)

    def _opened(self, session: _Session, path: Path, expert: Expert, *, settled: bool = False) -> _Session:
        size = session.description.input_size
        if size is not None and size != expert.input_size:
            raise StoreError(
                f"{path}: the model takes images of {size} pixels, expert '{expert.id}' has {expert.input_size}; "
                f"write 'input: {size}' in the rules"
            )
        normalization = _IMAGENET if session.description.rank == _OF_SCORES else NORMALIZATIONS["0..1"]
        session.mean, session.deviation = expert.preprocessing.normalization if expert.preprocessing else normalization
        if not settled:
            session.means = expert.outputs or _settled(session, path, expert)
        return session

    def postprocess(self, outputs: NDArray[Any], prepared: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
        """Turn the model's first output into findings; raises StoreError if its shape does not fit the labels."""
        values, count = np.asarray(outputs, dtype=np.float32), len(expert.labels)
        means = expert.outputs or getattr(outputs, "means", None) or Outputs()
        if means.layout is None or not onnx_outputs.may_fit(values.shape, means.layout, count, means.name):
            raise StoreError(f"the model of expert '{expert.id}' returns {values.shape}; {onnx_outputs.needed(count)}")
        if means.layout == "scores":
            return classified(
                onnx_outputs.probabilities(torch.from_numpy(values), means.activation or "none", count), expert
            )
        candidates = onnx_grids.candidates(values, means, expert)
        cut = replace(self.cut, overlap=1.0) if onnx_grids.are_chosen(values, means, expert) else self.cut
        return detected(candidates, prepared, expert, cut)


class _Answer(np.ndarray[Any, Any]):
    """The numbers of one output, and what they mean."""

    means: Outputs


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
        self._outputs = self._session.get_outputs()
        self.entry = Entry.of(path, self._session.get_inputs())
        self.runs_alone = onnx_forms.chooses(self._outputs)
        rank = onnx_forms.rank_of(self._outputs, self.entry)
        self.description = Description(self.entry.size, self.entry.batch, rank)
        self.shape = tuple(size if isinstance(size, int) else None for size in self._outputs[0].shape)
        self.takes_bytes = self.entry.kind == "tensor(uint8)"
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.mean, self.deviation = NORMALIZATIONS["0..1"]
        self.means = Outputs(name=self._outputs[0].name)

    @property
    def is_one_table(self) -> bool:
        """Whether the model takes pictures as they come, and gives the output that counts itself."""
        return self.entry.is_usual and self.means.name in [one.name for one in self._outputs]

    @property
    def gives_rows(self) -> bool:
        """Whether the output that counts is made rows of, as it has axes of size 1, or none of pictures."""
        return onnx_forms.row_of(self._outputs) == self.means.name

    def run(self, images: Image) -> NDArray[Any]:
        """Return the output that counts for images (n, 3, S, S) uint8."""
        name = self.means.name
        parts = self._run(images, onnx_forms.parts_of(name, [one.name for one in self._outputs]))
        answer = np.asarray(_joined([onnx_forms.table_of(name, raw, count) for count, raw in parts])).view(_Answer)
        answer.means = self.means
        return answer

    def answers(self, size: int, *, alone: bool = False) -> dict[str, Any]:
        """Return outputs, and tables made of them, for the test pictures, by name; each runs by itself if `alone`."""
        names = [output.name for output in self._outputs]
        parts = self._run(onnx_outputs.pictures(size), names, alone=alone)
        raw = {name: _joined([answers[name] for _, answers in parts]) for name in names}
        tables, count_alone = onnx_forms.tables(raw, self._outputs, self.entry)
        made = {name: _joined([onnx_forms.table_of(name, one, count) for count, one in parts]) for name in tables}
        return made if count_alone else raw | made

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a map of scores by label; none without such a map."""
        maps = [one.name for one in self._outputs if one.type.startswith("seq(map(string")]
        if not maps:
            return ()
        ((_, raw),) = self._run(onnx_outputs.pictures(self.entry.size or _USUAL)[:1], maps[:1])
        return tuple(raw[maps[0]][0])

    def _run(self, images: Image, names: Sequence[str], *, alone: bool = False) -> list[tuple[int, dict[str, Any]]]:
        """Return how many pictures each run had, and the outputs of these names."""
        values = self._values(images)
        one_by_one = alone or self.runs_alone or not self.entry.has_batch
        step = 1 if one_by_one else self.entry.batch or len(values)
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
            f"the model is in a newer form than onnxruntime {version} knows ({reason[-300:]}); export it with an older "
            "opset, as `torch.onnx.export(..., opset_version=17)` or `yolo export ... opset=17`, or update onnxruntime"
        )
    return (
        f"not an ONNX model that can be run with the weights in this one file ({reason}); if another program made it, "
        "export the network as ONNX there, in float32"
    )


def _decided(session: _Session, path: Path, expert: Expert, asked: Outputs, answers: Mapping[str, Any]) -> Outputs:
    stated = ultralytics_facts.stated(session.metadata, str(path))
    said = asked.model_copy(update={"layout": asked.layout or stated.layout})
    if asked.activation is None and stated.task == "classify":  # ultralytics' exports end with a softmax
        said = said.model_copy(update={"activation": "none"})
    try:
        try:
            return onnx_outputs.decide(answers, expert, said, stated.layouts)
        except Unsaid as error:
            # Classifiers of Hugging Face, timm and the YOLOv5 repository give logits, unless they give probabilities.
            is_known = stated.labels is not None or "config.json" in records.of_files(path)[1]
            if error.missing.keys() != {"activation"} or session.description.rank != _OF_SCORES or not is_known:
                raise
            return onnx_outputs.decide(answers, expert, said.model_copy(update={"activation": "softmax"}))
    except Unsaid:
        raise
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def _settled(session: _Session, path: Path, expert: Expert) -> Outputs:
    """Decide for an expert whose manifest does not say what its outputs mean; raises StoreError if it stays open."""
    try:
        return _decided(session, path, expert, Outputs(), session.answers(expert.input_size))
    except Unsaid as error:
        raise StoreError(f"{path}: nobody has said {error}; import it again (coe-experts import)") from error


def _joined(parts: list[Any]) -> Any:
    """Return the answers to several pictures as one; tables of fewer boxes than another are filled up with zeros."""
    if not all(isinstance(part, np.ndarray) and part.ndim for part in parts):
        return parts
    if len({part.shape[1:] for part in parts}) > 1:
        most = np.max([part.shape for part in parts], axis=0)
        parts = [np.pad(part, [(0, 0), *((0, gap) for gap in (most - part.shape)[1:])]) for part in parts]
    return np.concatenate(parts)


onnx = Onnx()
