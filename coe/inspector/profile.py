"""What `coe-profile` measured of this machine: costs of kinds, and a configuration for each board.

One JSON file per machine, of one version, written whole or not at all. It is read strictly: a profile that is damaged,
of another version or of another machine is reported, and never used silently.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal, Self

import psutil
from pydantic import Field, ValidationError

from coe import config
from coe.errors import ConfigError
from coe.helpers import system, versions
from coe.helpers.strict_model import Bytes, Count, Seconds, Share, Speed, StrictModel
from coe.runtime.cost_fit import LatencyLine

VERSION: Literal[1] = 1
LIBRARIES = ("torch", "torchvision", "onnxruntime", "numpy")
_MEMORY_TOLERANCE = 0.05
"""The share by which a machine's memory may seem to change: kernels keep more or less of it for themselves."""


class Fingerprint(StrictModel):
    """The properties of a machine that a profile depends on: if any changes, the profile no longer fits."""

    cpu: str
    cores: Count
    memory_bytes: Bytes
    gpu: str | None
    driver: str | None
    libraries: dict[str, str]

    @classmethod
    def here(cls) -> Self:
        """Return the fingerprint of this machine; no process is started, and no network is used."""
        seen = _sees_gpu()
        return cls(
            cpu=system.processor_name(),
            cores=system.usable_cores(),
            memory_bytes=psutil.virtual_memory().total,
            gpu=system.gpu_name() if seen else None,
            driver=system.gpu_driver() if seen else None,
            libraries={name: installed for name in LIBRARIES if (installed := versions.installed(name))},
        )

    def changes(self, now: Fingerprint) -> list[str]:
        """Return a phrase for each change since this was made; an empty list means that a profile still fits."""
        changed = [
            f"{word} was {getattr(self, name)}, is {getattr(now, name)}"
            for name, word in (("cpu", "the processor"), ("cores", "the number of cores"), ("gpu", "the GPU"))
            if getattr(self, name) != getattr(now, name)
        ]
        if abs(self.memory_bytes - now.memory_bytes) > _MEMORY_TOLERANCE * self.memory_bytes:
            changed.append(f"memory was {self.memory_bytes / 2**30:.1f} GiB, is {now.memory_bytes / 2**30:.1f} GiB")
        if self.driver != now.driver:
            changed.append(f"the GPU's driver was {self.driver}, is {now.driver}")
        for name in sorted({*self.libraries, *now.libraries}):
            before, after = self.libraries.get(name), now.libraries.get(name)
            if before != after:
                changed.append(f"{name} was {before}, is {after}")
        return changed


class BatchTime(StrictModel):
    """The time of a batch, and the bytes that it took beside the weights.

    `median_s` is the median of the faster half of the repeats, `spread` the interquartile range over the median.
    """

    images: Count
    median_s: Seconds
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bytes: Bytes


Precision = Literal["fp32", "int8"]


class KindProfile(StrictModel):
    """The cost of a kind's experts, measured on one expert at one input size, with `threads` threads per executor.

    `load_cold` says that `load_s` is from the disk itself; else the system kept the file in memory. `agreement` is in
    the profiles of earlier versions.
    """

    kind: str
    input_size: Count
    device: str
    threads: Count
    backend: Literal["torch", "onnxruntime"]
    precision: Precision
    batches: tuple[BatchTime, ...]
    line: LatencyLine
    max_batch: Count
    weights_bytes: Bytes
    activation_bytes: Bytes
    workspace_bytes: Bytes
    load_s: Seconds
    load_cold: bool = True
    copy_s: Seconds = 0.0
    decode_s: Seconds = 0.0
    preprocess_s: Seconds = 0.0
    agreement: None = None


class UsageRow(StrictModel):
    """How likely an image needs an expert: by the rules, and by routing sample images.

    `memory_score` is the expert's bytes over the mean of the board (paper section 4.5). If the two usages differ by
    more than chance explains, the row `differs`, and a line takes that of the images.
    """

    expert: str
    by_rules: Share
    by_images: Share | None = None
    differs: bool = False
    memory_score: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


class WindowPoint(StrictModel):
    """One sample run of the search for memory: the throughput with `lower` to `upper` loaded experts.

    `line` is what the line through the first points predicted; `measured` says whether the run was on the machine or in
    the simulator.
    """

    lower: Annotated[int, Field(ge=0)]
    upper: Count
    images_per_s: Speed
    line: float | None = None
    measured: bool = False


class ExecutorsPoint(StrictModel):
    """Throughput with these executors and threads per executor, by device."""

    executors: dict[str, Count]
    threads: dict[str, Count]
    images_per_s: Speed
    measured: bool = False


class Chosen(StrictModel):
    """The chosen configuration, and the reasons. `workspace_bytes` is what each pool of a device leaves to batches, and
    what the graphs of each executor of a GPU may hold, if that was searched. `loaded_experts` is how many experts of
    mean size the rest of all pools holds. The choice was confirmed with `sample_images` images, in a process that grew
    by `grown_bytes`. A GPU has no threads.
    """

    executors: dict[str, Count]
    threads: dict[str, Count]
    workspace_bytes: dict[str, Bytes]
    loaded_experts: Annotated[int, Field(ge=0)]
    images_per_s: Speed
    casual_images_per_s: Speed
    sample_images: Annotated[int, Field(ge=0)] = 0
    grown_bytes: Bytes = 0
    reasons: tuple[str, ...]


class BoardProfile(StrictModel):
    """The findings for a board under a memory budget; `device_bytes` and `host_bytes` are budgets of a GPU, if any."""

    board: str
    digest: str
    memory_bytes: Bytes
    device_bytes: Bytes | None = None
    host_bytes: Bytes | None = None
    strategy: str
    usage: tuple[UsageRow, ...]
    windows: tuple[WindowPoint, ...]
    executors: tuple[ExecutorsPoint, ...]
    chosen: Chosen


class Profile(StrictModel):
    """All that was measured of a machine. `made` is a date and time, ISO 8601."""

    version: Literal[1] = VERSION
    made: str
    machine: Fingerprint
    kinds: tuple[KindProfile, ...] = ()
    scaling: dict[str, dict[int, tuple[Speed, ...]]] = Field(default_factory=dict)
    """By device and threads per executor: the speed of 1, 2, ... executors together, in units of one executor."""
    boards: dict[str, BoardProfile] = Field(default_factory=dict)

    def kind(self, name: str, device: str, threads: int, precision: str = "fp32") -> KindProfile | None:
        """Return the profile of a kind at its largest input; None if there is none."""
        wanted = (name, device, threads, precision)
        fitting = [k for k in self.kinds if (k.kind, k.device, k.threads, k.precision) == wanted]
        return max(fitting, key=lambda k: k.input_size, default=None)


def place() -> Path:
    """Return the path of this machine's profile: $COE_PROFILE, else coe/profile.json in the user's data folder.

    Raises ConfigError if the user has no home folder, as in some containers.
    """
    if named := os.environ.get(config.PROFILE_VARIABLE):
        return Path(named)
    home = os.environ.get("XDG_DATA_HOME")
    try:
        return (Path(home) if home else Path.home() / ".local" / "share") / "coe" / "profile.json"
    except RuntimeError:
        raise ConfigError(
            f"this user has no home folder for a profile; name a file with ${config.PROFILE_VARIABLE}"
        ) from None


def load(path: Path) -> Profile:
    """Read a profile; raises ConfigError if it is missing, damaged or of another version."""
    again = "make a new one with coe-profile"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no profile at {path}; {again}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a profile: {error}; {again}") from None
    try:
        return Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        if where == "version":
            raise ConfigError(f"{path} does not have version {VERSION}; {again}") from None
        raise ConfigError(f"{path} is damaged: {where}: {first['msg']}; {again}") from None


def _sees_gpu() -> bool:
    """Tell whether this process may use a GPU: a driver shows even in containers and processes that may use none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in ("", "-1", "NoDevFiles") and system.gpu_is_here()
