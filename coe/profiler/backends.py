"""Two ways to run an expert on the CPU that the engine does not use: torch in bf16, and onnxruntime with an export.

Where this machine or this kind does not allow a way, `CannotMeasure` gives the reason; there is never a wrong figure.
"""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import torch

from coe import surroundings
from coe.core import Expert
from coe.errors import ConfigError, first_line
from coe.runtime.processor import has_bf16
from coe.runtime.trial import Trial, opened, warmed
from coe.store.kinds import Image, Kind, ModuleKind
from coe.store.skeletons import bare_skeleton, optional_of
from coe.store.tensor_files import load_tensors

_FAR = 1e-2
"""An export may differ from torch by this share of 1 + the largest number that torch gives."""


class CannotMeasure(ConfigError):
    """This machine or this kind does not allow a way to run experts; the message gives the reason."""


def bf16(kind: Kind, expert: Expert, file: Path) -> Trial:
    """Make a trial of an expert in bf16; raises CannotMeasure where the processor has no bf16."""
    if not isinstance(kind, ModuleKind):
        raise CannotMeasure(f"kind '{kind.name}' runs its file as it is; bf16 is not measured")
    if not has_bf16():
        raise CannotMeasure("the processor has no bf16 (neither avx512_bf16 nor amx_bf16); bf16 is not measured")
    module = _module(kind, expert, file).to(torch.bfloat16)

    def answer(pixels: Image) -> Any:
        with torch.inference_mode():
            return kind.forward(module, torch.from_numpy(pixels))

    weights_bytes = sum(tensor.nbytes for tensor in module.state_dict().values())
    try:
        return warmed(
            answer,
            expert.input_size,
            weights_bytes,
            file,
            lambda: [_halved(tensor) for tensor in load_tensors(file).values()],
        )
    except RuntimeError as error:
        raise CannotMeasure(f"kind '{kind.name}' does not run in bf16 ({first_line(error)})") from None


def onnxruntime(kind: Kind, expert: Expert, file: Path, threads: int, folder: Path) -> Trial:
    """Export an expert into `folder` and make a trial of it; raises CannotMeasure where that does not work."""
    if not isinstance(kind, ModuleKind):
        raise CannotMeasure(f"kind '{kind.name}' runs its file as it is; there is nothing to export")
    path = folder / "expert.onnx"
    _export(kind, expert, file, path)
    # The memory of the export must be free before the trial measures what the process holds.
    gc.collect()
    return opened(lambda: _Exported(path, threads), expert.input_size, path)


class _Exported:
    """An export opened by onnxruntime; it answers as the kind's `forward` does."""

    def __init__(self, path: Path, threads: int) -> None:
        surroundings.quiet_onnxruntime()
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        ort.disable_telemetry_events()
        self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, images: Image) -> torch.Tensor:
        return torch.from_numpy(self._session.run(None, {"images": images})[0])


class _Forward(torch.nn.Module):
    def __init__(self, kind: ModuleKind, module: torch.nn.Module) -> None:
        super().__init__()
        self.kind, self.module = kind, module

    def forward(self, images: torch.Tensor) -> Any:
        return self.kind.forward(self.module, images)


def _export(kind: ModuleKind, expert: Expert, file: Path, path: Path) -> None:
    """Write an export, and prove that it computes the same as torch."""
    module, size = _module(kind, expert, file), expert.input_size
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # torch warns that the exporter that needs no onnxscript is old; its export is checked below.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _Forward(kind, module).eval(),
                (torch.zeros((2, 3, size, size), dtype=torch.uint8),),
                str(path),
                dynamo=False,
                opset_version=17,
                input_names=["images"],
                output_names=["outputs"],
                dynamic_axes={"images": {0: "n"}, "outputs": {0: "n"}},
            )
        # Not as many images as at the export: a batch size that the export has fixed fails here.
        noise = torch.randint(0, 256, (3, 3, size, size), dtype=torch.uint8)
        actual = _Exported(path, 1).run(noise.numpy())
    except Exception as error:  # the exporter may raise anything
        raise CannotMeasure(f"kind '{kind.name}' cannot be run as ONNX ({first_line(error)})") from None
    with torch.inference_mode():
        expected = kind.forward(module, noise)
    off = float((actual - expected).abs().max()) if actual.shape == expected.shape else float("inf")
    if not off <= _FAR * (1 + float(expected.abs().max())):
        raise CannotMeasure(
            f"torch's export of kind '{kind.name}' to ONNX computes something else (up to {off:.3g} off); "
            "onnxruntime is not measured"
        )


def _module(kind: ModuleKind, expert: Expert, file: Path) -> torch.nn.Module:
    """Return a network with its own copy of the weights."""
    state = load_tensors(file)
    module = bare_skeleton(kind, expert, optional=optional_of(state)).eval().requires_grad_(False)
    module.load_state_dict(state)
    return module


def _halved(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor.clone()
