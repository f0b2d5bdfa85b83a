"""Tensors of the Open Inference Protocol v2, as JSON and as bytes. Sizes are checked before bytes are used.

The binary extension: after the JSON, whose length a header states, come the tensors that say `binary_data_size`, in
their order. In a tensor of BYTES each value has its length before it, four bytes, little endian.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from starlette.responses import Response

from coe.errors import ConfigError
from coe.strict_model import StrictModel, of_json, parsed_json

LENGTH_HEADER = "Inference-Header-Content-Length"
OUTPUTS = {"verdict": "BYTES", "label": "BYTES", "score": "FP32", "findings": "BYTES", "board": "INT64"}
"""The outputs of every recipe with their types; each has one value."""
Size = Annotated[int, Field(ge=0, le=1 << 40)]


class Parameters(StrictModel):
    """How a tensor is sent."""

    binary_data_size: Size | None = None


class Tensor(StrictModel):
    """An input. `data` is its values as JSON; None if they come as bytes after the JSON."""

    name: Annotated[str, Field(max_length=200)]
    shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    datatype: Annotated[str, Field(max_length=20)]
    parameters: Parameters = Parameters()
    data: Any = None


class OutputParameters(StrictModel):
    """Whether an output is wanted as bytes."""

    binary_data: bool = False


def _known(name: str) -> str:
    if name not in OUTPUTS:
        raise ValueError(f"there is no output '{name}'; known: {', '.join(OUTPUTS)}")
    return name


class WantedOutput(StrictModel):
    """An output that the client asks for."""

    name: Annotated[str, Field(max_length=200), AfterValidator(_known)]
    parameters: OutputParameters | None = None


class InferParameters(StrictModel):
    """How a request is answered: whether all outputs are sent as bytes, and how many seconds the answer may take."""

    binary_data_output: bool = False
    within_s: Annotated[float, Field(gt=0, le=60, allow_inf_nan=False)] | None = None


class InferRequest(StrictModel):
    """A request of the protocol."""

    id: Annotated[str, Field(max_length=200)] = ""
    inputs: Annotated[tuple[Tensor, ...], Field(min_length=1, max_length=16)]
    outputs: Annotated[tuple[WantedOutput, ...], Field(max_length=16)] = ()
    parameters: InferParameters = InferParameters()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request, and the bytes of those inputs that came as bytes, by name."""

    request: InferRequest
    raw: Mapping[str, bytes]

    def tensor(self, name: str) -> Tensor | None:
        """Return an input, or None."""
        return next((tensor for tensor in self.request.inputs if tensor.name == name), None)

    def values(self, tensor: Tensor) -> bytes | list[bytes]:
        """Return a UINT8 tensor as bytes, a BYTES tensor as a list of values; raises ConfigError for a wrong size."""
        raw, number = self.raw.get(tensor.name), prod(tensor.shape)
        values: bytes | list[bytes]
        if tensor.datatype == "BYTES":
            values = _texts(tensor) if raw is None else _split(tensor.name, raw)
        elif tensor.datatype == "UINT8":
            values = _bytes(tensor) if raw is None else raw
        else:
            raise ConfigError(f"input '{tensor.name}' has the type {tensor.datatype}; send BYTES or UINT8")
        if len(values) != number:
            raise ConfigError(f"input '{tensor.name}' has {len(values)} values, and its shape says {number}")
        return values


def parse(body: bytes, header_length: str | None) -> Parsed:
    """Return the request of a body; `header_length` is the value of the header. Raises ConfigError."""
    if header_length is None:
        length = len(body)
    elif header_length.isdecimal() and len(header_length) < 20 and int(header_length) <= len(body):
        length = int(header_length)
    else:
        raise ConfigError(f"{LENGTH_HEADER} {header_length[:30]!r} is not a length within the body")
    try:
        request = of_json(parsed_json(body[:length]), InferRequest)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is not JSON: {error}") from None
    raw: dict[str, bytes] = {}
    start = length
    if len({tensor.name for tensor in request.inputs}) < len(request.inputs):
        raise ConfigError("two inputs have the same name")
    for tensor in request.inputs:
        size = tensor.parameters.binary_data_size
        if size is not None:
            raw[tensor.name] = body[start : start + size]
            start += size
    if start != len(body):
        raise ConfigError(f"the inputs say that {start - length} bytes follow the JSON, and {len(body) - length} do")
    return Parsed(request, raw)


def answer(facts: Mapping[str, Any], values: Mapping[str, int | float | str], request: InferRequest) -> Response:
    """Return the answer to a request with the outputs that it asks for, all if it names none."""
    rows, raw = [], []
    for asked in request.outputs or [WantedOutput(name=name) for name in OUTPUTS]:
        row: dict[str, Any] = {"name": asked.name, "datatype": OUTPUTS[asked.name], "shape": [1]}
        if asked.parameters.binary_data if asked.parameters else request.parameters.binary_data_output:
            raw.append(packed(values[asked.name]))
            row["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            row["data"] = [values[asked.name]]
        rows.append(row)
    text = json.dumps({**facts, "outputs": rows}, allow_nan=False).encode()
    if not raw:
        return Response(text, media_type="application/json")
    headers = {LENGTH_HEADER: str(len(text))}
    return Response(text + b"".join(raw), headers=headers, media_type="application/octet-stream")


def packed(value: int | float | str) -> bytes:
    """Return a value as the binary extension has it: INT64, FP32 or BYTES."""
    if isinstance(value, str):
        return struct.pack("<I", len(value.encode())) + value.encode()
    return struct.pack("<q" if isinstance(value, int) else "<f", value)


def _texts(tensor: Tensor) -> list[bytes]:
    if not isinstance(tensor.data, list) or not all(isinstance(text, str) for text in tensor.data):
        raise ConfigError(f"input '{tensor.name}' needs `data`, a list of texts, or bytes after the JSON")
    try:
        return [text.encode() for text in tensor.data]
    except UnicodeEncodeError:
        raise ConfigError(f"input '{tensor.name}' has a text with half a character") from None


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.data
    # Lists may be nested by the shape, or flat.
    while isinstance(flat, list) and flat and isinstance(flat[0], list):
        if not all(isinstance(part, list) for part in flat):
            break
        flat = [value for part in flat for value in part]
    if isinstance(flat, list):  # of a number alone Python would make so many zeros
        with suppress(TypeError, ValueError):
            return bytes(flat)
    raise ConfigError(f"input '{tensor.name}' needs `data`, a list of whole numbers from 0 to 255")


def _split(name: str, raw: bytes) -> list[bytes]:
    values, start = [], 0
    while start < len(raw):
        if start + 4 > len(raw):
            raise ConfigError(f"input '{name}' ends in the middle of a length")
        (length,) = struct.unpack_from("<I", raw, start)
        start += 4
        if start + length > len(raw):
            raise ConfigError(f"input '{name}' ends in the middle of a value")
        values.append(raw[start : start + length])
        start += length
    return values
