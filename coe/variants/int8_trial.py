"""Trials of an expert's variant `int8`, whether its network is a torch module or a file that its runtime opens."""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from coe.core import Finding
from coe.errors import StoreError
from coe.helpers import surroundings
from coe.runtime.onnx_network import ELSEWHERE, READY, OnnxNetwork
from coe.runtime.trial import within
from coe.store import variants
from coe.store.blob_format import Identity
from coe.store.kinds import FileKind, Image, Kind
from coe.store.manifest import Calibration, Manifest
from coe.store.store import Store
from coe.variants import int8
from coe.variants.agreement import compare, escalate_below, findings
from coe.variants.calibration_images import SampleImages
from coe.variants.layer_search import Harm, Layers, search
from coe.variants.layout import LaidOut, lay_out_model

SECOND_LOOKS = 1 / 16
"""A variant is good enough if no larger share of the samples would be run again in fp32."""
SEARCH_S = 30.0
"""How long is searched for layers that an expert in `int8` keeps in float."""


@dataclass(frozen=True, slots=True)
class MeasuredBlob:
    """A variant's blob, its findings on the samples, and the margin under which a finding is looked at again."""

    blob: LaidOut
    findings: list[Finding]
    escalate_below: float
    calibration: Calibration | None = None


class ModelTrial(ABC):
    """One expert, the samples, and its findings on them in fp32, which are `expected` of its variants.

    `source` says in words where the samples are from.
    """

    kind: Kind
    samples: SampleImages
    source: str
    identity: Identity | None
    expected: list[Finding]

    def __init__(self, manifest: Manifest, samples: SampleImages, source: str) -> None:
        self.expert = manifest.expert()
        self.samples, self.source = samples, source

    @abstractmethod
    def exported(self, pictures: Sequence[Image]) -> onnx.ModelProto:
        """Return the network as an ONNX model that was proved with pictures (3, S, S) uint8; raises StoreError."""

    def model(self, limit_s: float = SEARCH_S, first: Layers = frozenset()) -> MeasuredBlob:
        """Lay out an ONNX model in int8; raises StoreError.

        If findings differ, layers that stay float are searched for `limit_s` seconds, unless those of `first` do.
        """
        if self.samples.generated:
            raise StoreError(
                "it needs pictures to measure the activation ranges, and there are none; give some: "
                "coe-experts prepare --images FOLDER"
            )
        pictures = [sample.pixels for sample in self.samples.prepared]
        quantiser = int8.Quantiser(self.exported(pictures), pictures)
        name, expert = f"the model of '{self.expert.id}'", replace(self.expert, variant="int8")
        latest: tuple[Layers, onnx.ModelProto] | None = None

        def harm_of(in_float: Layers) -> Harm:
            nonlocal latest
            model = quantiser.quantised(in_float)
            latest = in_float, model
            answer = OnnxNetwork(model.SerializeToString(), 0, name).run
            actual = findings(self.kind, expert, self.samples.prepared, answer)
            below = escalate_below(self.expected, actual)
            pairs = list(zip(self.expected, actual, strict=True))
            return Harm(
                1 - compare(self.expected, actual, generated=False).labels_equal,
                sum(finding.margin < below for finding in actual) / len(actual),
                sum(abs(before.score - after.score) for before, after in pairs) / len(pairs),
            )

        in_float = search(
            quantiser.layers, quantiser.ends, harm_of, most_again=SECOND_LOOKS, first=first, in_time=within(limit_s)
        )
        if latest is None or latest[0] != in_float:  # other models are not kept: each may have a hundred megabytes
            harm_of(in_float)
        assert latest is not None
        model, weights = divided(fused(latest[1]))
        actual = findings(self.kind, expert, self.samples.prepared, OnnxNetwork(model, 0, name, weights).run)
        labels = len(self.expert.labels)
        blob = lay_out_model(model, weights, kind=self.expert.kind, labels=labels, identity=self.identity)
        calibration = Calibration(
            pictures=len(pictures),
            digest=self.samples.digest,
            source=self.source,
            learned=self.samples.learned,
            layers=len(quantiser.layers),
            float_layers=len(in_float),
            in_float=tuple(layer for layer in quantiser.layers if layer in in_float),
        )
        return MeasuredBlob(blob, actual, escalate_below(self.expected, actual), calibration)

    def put(self, store: Store, manifest: Manifest, made: MeasuredBlob) -> Manifest:
        """Put a measured blob into the store."""
        agreement = compare(self.expected, made.findings, generated=self.samples.generated)
        again = sum(finding.margin < made.escalate_below for finding in made.findings) / len(made.findings)
        return variants.put(
            store,
            manifest,
            made.blob.bytes,
            agreement=agreement.model_copy(update={"again": again}),
            escalate_below=made.escalate_below,
            calibration=made.calibration,
        )


class FileTrial(ModelTrial):
    """An expert whose runtime opens its file itself."""

    def __init__(
        self, store: Store, manifest: Manifest, kind: FileKind, samples: SampleImages, source: str = ""
    ) -> None:
        super().__init__(manifest, samples, source)
        store.check_weights(manifest.id)
        expert = self.expert
        self.kind: FileKind = kind
        self._path = store.path(manifest.id)
        self.expected = findings(kind, expert, samples.prepared, kind.open(self._path, expert, 1).run)
        self.identity = Identity(
            id=manifest.original or manifest.id,
            kind=manifest.kind,
            labels=manifest.labels,
            input_size=manifest.input_size,
            preprocessing=manifest.preprocessing,
        )

    def exported(self, pictures: Sequence[Image]) -> onnx.ModelProto:
        """Return the model of the file, with its normalisation inside."""
        return int8.of_file(self.kind, self.expert, self._path, pictures)


# A quantised ONNX model as a blob holds it: ready to open quickly, on any processor.
#
# Operators are fused, and their pixels laid beside each other, once, here, and not each time that the model is
# opened: by onnxruntime, without layouts of one processor alone. The weights of layers in int8 leave the model: they
# are packed from where they were read, where weights in the model are copied twice before. Both halve the time to
# open a ResNet101. Short names, and equal constants that stand there once, take another fifth from that of a YOLOv5m.


_PORTABLE = {"", "com.microsoft"}
"""The operators of ONNX, and those of onnxruntime that each of its builds for CPUs has."""
_OF_ONE_PROCESSOR = ["NchwcTransformer"]
"""The passes that lay numbers out as wide as the registers of the processor at hand."""
_LAID_OUT = {"Conv", "FusedConv"}
"""The operators in floats for whose sake they do."""
_PACKING = {"QLinearConv", "QGemm", "QLinearMatMul"}
"""The operators that read their weights when a model is opened, and not before: what rewrites models leaves them."""


def fused(model: onnx.ModelProto) -> onnx.ModelProto:
    """Fuse a quantised model; raises StoreError if a result would be of this processor alone."""
    surroundings.quiet_onnxruntime()
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fused.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(path)
        onnxruntime.disable_telemetry_events()
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"], disabled_optimizers=_OF_ONE_PROCESSOR
        )
        made = onnx.load(path)
    used = {node.domain for node in made.graph.node}
    if not used <= _PORTABLE:
        raise StoreError(f"it has operators that not every processor has ({', '.join(sorted(used - _PORTABLE))})")
    # It names every set of operators that the library knows.
    for domain in [one for one in made.opset_import if one.domain not in used]:
        made.opset_import.remove(domain)
    if not any(node.op_type in _LAID_OUT for node in made.graph.node):
        made.metadata_props.add(key=READY, value="1")
    del made.graph.value_info[:]  # types and shapes by names that go; they are inferred again
    _shorten(made.graph)
    return made


def _shorten(graph: onnx.GraphProto) -> None:
    """Keep one of equal constants, and name all but inputs and outputs by numbers; parts of a graph see no names."""
    names = {name: name for name in ("", *(one.name for one in (*graph.input, *graph.output)))}
    constants = list(graph.initializer)
    has_parts = any(one.type == onnx.AttributeProto.GRAPH for node in graph.node for one in node.attribute)
    if has_parts or any(one.name in names for one in constants):
        return
    fresh = (name for name in map(str, itertools.count()) if name not in names)
    equals: dict[tuple[int, tuple[int, ...], bytes], str] = {}
    del graph.initializer[:]
    for tensor in constants:
        numbers = numpy_helper.to_array(tensor)
        key = tensor.data_type, numbers.shape, hashlib.sha256(numbers.tobytes()).digest()  # no copy stays
        if key not in equals:
            equals[key] = next(fresh)
            graph.initializer.append(tensor)
            graph.initializer[-1].name = equals[key]
        names[tensor.name] = equals[key]
    for node in graph.node:
        node.name = ""
        for values in (node.input, node.output):
            for place, name in enumerate(values):
                if name not in names:
                    names[name] = next(fresh)
                values[place] = names[name]


def divided(model: onnx.ModelProto) -> tuple[bytes, dict[str, torch.Tensor]]:
    """Take the weights of layers in int8 out of a fused model, which is changed; return both."""
    read = [(name, node.op_type) for node in model.graph.node for name in node.input]
    kept = {name for name, reader in read if reader not in _PACKING} | {one.name for one in model.graph.output}
    weights: dict[str, torch.Tensor] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type != onnx.TensorProto.INT8 or len(tensor.dims) < 2 or tensor.name in kept:
            continue
        numbers = np.array(numpy_helper.to_array(tensor))
        weights[tensor.name] = torch.from_numpy(numbers)
        tensor.ClearField("raw_data")
        tensor.ClearField("int32_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", ELSEWHERE), ("length", str(numbers.nbytes))):
            tensor.external_data.add(key=key, value=value)
    return model.SerializeToString(), weights
