"""A network that onnxruntime runs, from bytes and weights in memory: the form of the variant `int8`.

The model takes (n, 3, S, S) uint8 RGB and answers what the kind's `forward` answers: the nesting of its tensors stands
in the model's metadata. Nothing in it depends on a processor: onnxruntime chooses its kernels when it opens the model.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from numpy.typing import NDArray

from coe.errors import StoreError, first_line
from coe.helpers import surroundings

OUTPUTS = "coe.outputs"
"""The key of the metadata that says how the outputs are nested."""
READY = "coe.ready"
"""The key of the metadata of a model that onnxruntime need not rewrite when it opens it."""
_SAID_LAST = 1 << 14
"""The bytes at the end of a model among which its metadata lie: all of it is weights, and long to look through."""
ELSEWHERE = "__init__.py"
"""The file that a model names for weights that it is given: onnxruntime asks that it exists, and does not read it."""
_NO_WEIGHTS: Mapping[str, torch.Tensor] = MappingProxyType({})


class OnnxNetwork:
    """An open model, which computes with `threads` threads. Raises StoreError if onnxruntime cannot open it."""

    def __init__(
        self,
        model: bytes,
        threads: int,
        name: str,
        weights: Mapping[str, torch.Tensor] = _NO_WEIGHTS,
        *,
        one_at_a_time: bool = False,
    ) -> None:
        try:
            self._session = open_session(model, threads, weights)
            self._nesting = json.loads(self._session.get_modelmeta().custom_metadata_map[OUTPUTS])
        except Exception as error:  # onnxruntime's classes of errors have no other common parent
            raise StoreError(
                f"{name}: onnxruntime {library_version()} cannot open it ({first_line(error)[-300:]}); update "
                "onnxruntime, or prepare the expert again (coe-experts prepare --force)"
            ) from error
        self._input = self._session.get_inputs()[0]
        self._one_at_a_time = one_at_a_time or self._input.shape[0] == 1

    def run(self, images: NDArray[Any]) -> Any:
        """Run a batch, (n, 3, S, S) as the model takes it; return tensors nested as those of the kind's `forward`."""
        batches = [image[None] for image in images] if self._one_at_a_time else [images]
        return concatenated([self._run(batch) for batch in batches])

    def _run(self, images: NDArray[Any]) -> Any:
        return nested(self._nesting, map(torch.from_numpy, self._session.run(None, {self._input.name: images})))


def open_session(model: bytes, threads: int, weights: Mapping[str, torch.Tensor] = _NO_WEIGHTS) -> Any:
    """Open a model in memory as an `onnxruntime.InferenceSession`; raises what onnxruntime raises.

    All weights must lie in the model, or be given by name: onnxruntime would look for others in the working directory,
    unproved. It packs most of those that are given into memory of its own; the session holds the others as they are.
    """
    surroundings.quiet_onnxruntime()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    folder = str(Path(__file__).parent) if weights else os.devnull
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    # By DLPack onnxruntime counts as a user of their memory; of numpy's arrays it takes the address alone.
    given = {name: onnxruntime.OrtValue.from_dlpack(weight) for name, weight in weights.items()}
    # Floats are laid out anew, from a copy.
    floats = [name for name, weight in weights.items() if weight.is_floating_point()]
    options.add_external_initializers(floats, [given[name] for name in floats])
    for name in given.keys() - {*floats}:
        options.add_initializer(name, given[name])
    # What a batch needs is free after it, so it counts as activations, and leaves with the expert.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # A third of the time to open a small detector goes into looking for what is left to rewrite.
    if READY.encode() in model[-_SAID_LAST:]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Threads that wait for the next batch take no processor from the others.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    onnxruntime.disable_telemetry_events()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    # It would keep the model's bytes beside its own weights, twice the memory, to open the model again after a failure.
    session.disable_fallback()
    session._model_bytes = None
    return session


def library_version() -> str:
    """Return onnxruntime's version, for messages; its distribution has several names."""
    return str(getattr(sys.modules.get("onnxruntime"), "__version__", "(not installed)"))


def nesting(outputs: Any) -> Any:
    """Return how tensors are nested, for JSON: None for a tensor; raises TypeError for anything else.

    Example: `nesting((a, {"boxes": b}))` is `{"tuple": [None, {"dict": [["boxes", None]]}]}`.
    """
    match outputs:
        case torch.Tensor():
            return None
        case tuple() | list():
            return {type(outputs).__name__: [nesting(part) for part in outputs]}
        case dict():
            return {"dict": [[key, nesting(part)] for key, part in outputs.items()]}
    raise TypeError(f"a network answers tensors, bare or in tuples, lists or dicts, not {type(outputs).__name__}")


def nested(said: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Nest tensors as `nesting` said of them, in the same order."""
    if said is None:
        return next(tensors)
    ((kind, parts),) = said.items()
    if kind == "dict":
        return {key: nested(part, tensors) for key, part in parts}
    filled = [nested(part, tensors) for part in parts]
    return tuple(filled) if kind == "tuple" else filled


def flat(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors of nested outputs, in the order in which `nested` takes them."""
    match outputs:
        case torch.Tensor():
            return [outputs]
        case dict():
            return [tensor for part in outputs.values() for tensor in flat(part)]
    return [tensor for part in outputs for tensor in flat(part)]


def concatenated(batches: Sequence[Any]) -> Any:
    """Return the outputs of several batches as those of one."""
    if len(batches) == 1:
        return batches[0]
    return nested(nesting(batches[0]), map(torch.cat, zip(*map(flat, batches), strict=True)))
