"""Device presets: a box as a data file in which every figure has a source.

A figure is written `[value, source]`. Unknown keys, missing figures and wrong units are errors that name the file and
the place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from coe import config
from coe.errors import ConfigError, join_errors
from coe.helpers.strict_model import StrictModel, validated

FOLDER = Path(__file__).parent / "presets"

T = TypeVar("T")


class SourcedFigure(BaseModel, Generic[T]):
    """A value and where it comes from."""

    model_config = ConfigDict(frozen=True)

    value: T
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _from_pair(cls, pair: Any) -> Any:
        if not (isinstance(pair, list) and len(pair) == 2):
            raise ValueError("a figure is written [value, source]")
        return {"value": pair[0], "source": pair[1]}


def _read_by(parse: Callable[[str], int]) -> BeforeValidator:
    def read(text: Any) -> int:
        try:
            return parse(str(text))
        except ConfigError as error:
            # pydantic catches a ValueError and adds the place in the file.
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


Bytes = Annotated[int, _read_by(config.parse_bytes)]
Bandwidth = Annotated[int, _read_by(config.parse_bandwidth)]
Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=1)]
Speed = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]


class MemoryPreset(StrictModel):
    """A memory: its size, and the bytes of it that are not for experts."""

    size: SourcedFigure[Bytes]
    reserved: SourcedFigure[Bytes]


class KindPreset(StrictModel):
    """The figures of a kind that hold on every device. `open_ms` is the time of a load in addition to the reading.

    `weights` is the size of its file as trained, `blobs` that of its prepared variants, which need no opening.
    """

    input: SourcedFigure[Number]
    weights: SourcedFigure[Bytes]
    open_ms: SourcedFigure[Milliseconds]
    blobs: dict[str, SourcedFigure[Bytes]] = Field(default_factory=dict)


class CostPreset(StrictModel):
    """The costs of a kind on a device, at the kind's input size: the paper's K and B, and the bytes of one image."""

    per_image_ms: SourcedFigure[Milliseconds]
    base_ms: SourcedFigure[Milliseconds]
    activation: SourcedFigure[Bytes]
    max_batch: SourcedFigure[Number]


class BlobCostPreset(CostPreset):
    """The costs of a prepared variant; a batch also holds its weights as they run, `active`."""

    active: SourcedFigure[Bytes]


class DevicePreset(StrictModel):
    """A processor, the memory of its experts, and the bandwidth of the copy from host memory if that is separate.

    `kinds` and `lane` are for experts as trained, `blobs` (by kind, then variant) and `blob_lane` for prepared ones.
    """

    memory: str
    lane: SourcedFigure[Bandwidth] | None = Field(default=None, alias="copy")
    blob_lane: SourcedFigure[Bandwidth] | None = Field(default=None, alias="blob_copy")
    scaling: SourcedFigure[Annotated[list[Speed], Field(min_length=1)]]
    kinds: dict[str, CostPreset]
    blobs: dict[str, dict[str, BlobCostPreset]] = Field(default_factory=dict)


class ConfigurationPreset(StrictModel):
    """The number of executors, and the share of a device's memory for experts (without a share: what batches leave).

    With `copies` host memory without executors keeps copies for the devices, as it does in a line.
    """

    executors: SourcedFigure[Annotated[dict[str, Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)]]
    expert_share: SourcedFigure[dict[str, Share]] | None = None
    copies: SourcedFigure[bool] | None = None

    def shares(self) -> dict[str, float]:
        """Return the share of memory for experts by device; the plan decides for a device without a share."""
        return dict(self.expert_share.value) if self.expert_share else {}


class Preset(StrictModel):
    """A box. Strategies with a single executor use its first device."""

    about: str
    disk: SourcedFigure[Bandwidth]
    memories: dict[str, MemoryPreset]
    kinds: dict[str, KindPreset]
    devices: Annotated[dict[str, DevicePreset], Field(min_length=1)]
    configurations: dict[str, ConfigurationPreset]


def names() -> list[str]:
    """Return the names of the presets that ship."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Preset:
    """Read a preset by name, or the file of another box by path; raises ConfigError."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else FOLDER / f"{name}.yaml"
    if not os.path.isfile(path):
        raise ConfigError(
            f"there is no device preset '{name}'; known: {', '.join(names())}, or the path of a .yaml file"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: cannot be read as a device preset: {_one_line(error)}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a device preset begins with keys: {', '.join(Preset.model_fields)}")
    # In the file a figure's value has no key.
    preset = validated(Preset, content, lambda _, text: ConfigError(f"{path}: {text.replace('.value', '')}"))
    if faults := [ConfigError(f"{path}: {fault}") for fault in _faults(preset)]:
        raise join_errors(faults)
    return preset


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())


def _faults(preset: Preset) -> Iterator[str]:
    """Yield what does not fit between the parts of a preset."""
    for name, device in preset.devices.items():
        yield from _faults_of_device(preset, name, device)
    for name, configuration in preset.configurations.items():
        for device_name in [*configuration.executors.value, *configuration.shares()]:
            if device_name not in preset.devices:
                yield f"configurations.{name}: no device '{device_name}'"
    for memory_name, memory in preset.memories.items():
        if memory.reserved.value >= memory.size.value:
            yield f"memories.{memory_name}: all of the memory is reserved"


def _faults_of_device(preset: Preset, name: str, device: DevicePreset) -> Iterator[str]:
    if device.memory not in preset.memories:
        yield f"devices.{name}.memory: no memory '{device.memory}'"
    if any(speed / count > 1 for count, speed in enumerate(device.scaling.value, 1)):
        yield f"devices.{name}.scaling: n executors are at most n times as fast as 1"
    for part, kinds in (("kinds", device.kinds), ("blobs", device.blobs)):
        for kind in kinds:
            if kind not in preset.kinds:
                yield f"devices.{name}.{part}: '{kind}' is not among the preset's kinds"
    for kind, variants in device.blobs.items():
        for variant in variants:
            if kind in preset.kinds and variant not in preset.kinds[kind].blobs:
                yield f"kinds.{kind}.blobs: no size of '{variant}', which {name} runs"
