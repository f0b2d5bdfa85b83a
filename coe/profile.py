"""What `coe-profile` found out about this machine: costs of kinds, and a configuration for each board.

One JSON file a machine, of one version, written whole or not at all. It is read back strictly: a profile that is damaged,
of another version or of another machine is said to be so, never used in silence.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

VERSION: Literal[1] = 1

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Part(BaseModel):
    """A part of a profile: immutable, and nothing unknown in it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Fingerprint(Part):
    """What a profile depends on: it no longer fits when any of this has changed."""

    cpu: str
    cores: Count
    memory_bytes: Bytes
    gpu: str | None
    driver: str | None
    libraries: dict[str, str]


class BatchTime(Part):
    """The median time of a batch, the spread of its repeats (interquartile range / median), and what it took beside
    the weights.
    """

    images: Count
    median_s: Seconds
    spread: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    bytes: Bytes


class Line(Part):
    """The paper's K and B, and the median relative error of the line on the sizes that it was fitted to."""

    per_image_s: Seconds
    base_s: Seconds
    error: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Agreement(Part):
    """How far another way of running an expert agrees with torch in fp32 on sample images."""

    images: Count
    labels_equal: Share
    largest_score_difference: Annotated[float, Field(ge=0, allow_inf_nan=False)]


class KindProfile(Part):
    """What experts of a kind cost: measured on one expert, at one input size, with so many threads an executor."""

    kind: str
    input_size: Count
    device: str
    threads: Count
    backend: Literal["torch", "onnxruntime"]
    precision: Literal["fp32", "bf16"]
    batches: tuple[BatchTime, ...]
    line: Line
    max_batch: Count
    weights_bytes: Bytes
    activation_bytes: Bytes
    workspace_bytes: Bytes
    load_s: Seconds
    copy_s: Seconds = 0.0
    decode_s: Seconds = 0.0
    preprocess_s: Seconds = 0.0
    agreement: Agreement | None = None


class UsageRow(Part):
    """How likely an image needs an expert: by the rules, and by running the routing on sample images."""

    expert: str
    by_rules: Share
    by_images: Share | None = None


class WindowPoint(Part):
    """One sample run of the search for memory: so many loaded experts gave so much throughput.

    `line` is what the line through the first points foretold; `measured` says whether it ran on the machine or in the
    simulator.
    """

    lower: Annotated[int, Field(ge=0)]
    upper: Count
    images_per_s: Speed
    line: float | None = None
    measured: bool = False


class ExecutorsPoint(Part):
    """Throughput with so many executors a device, of so many threads each."""

    executors: dict[str, Count]
    threads: dict[str, Count]
    images_per_s: Speed
    measured: bool = False


class Chosen(Part):
    """The configuration that was chosen, and why; `workspace_bytes` is what each pool of a device leaves to batches."""

    executors: dict[str, Count]
    threads: dict[str, Count]
    workspace_bytes: dict[str, Bytes]
    images_per_s: Speed
    casual_images_per_s: Speed
    reasons: tuple[str, ...]


class BoardProfile(Part):
    """What was found out for a board under a memory budget."""

    board: str
    digest: str
    memory_bytes: Bytes
    strategy: str
    usage: tuple[UsageRow, ...]
    windows: tuple[WindowPoint, ...]
    executors: tuple[ExecutorsPoint, ...]
    chosen: Chosen


class Profile(Part):
    """All that is known of a machine. `made` is a date and time, ISO 8601."""

    version: Literal[1] = VERSION
    made: str
    machine: Fingerprint
    kinds: tuple[KindProfile, ...] = ()
    boards: dict[str, BoardProfile] = Field(default_factory=dict)
