"""The options of a line that say what it runs on: memory, executors, devices, boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict

from coe import config, values
from coe.inspector.option import Door, Option, check_cluster, check_executors, instance_of
from coe.inspector.profile import Profile

AUTO = "auto"
"""Use the profile at the place where `coe-profile` puts it, if there is one that fits."""
ALL_DOORS = frozenset(Door)
INSPECTING = frozenset({Door.INSPECT, Door.SERVE})
_A_PROFILE = instance_of(Profile, Path, str, type(None), wanted=f"a profile, the path of a profile, '{AUTO}' or None")


class MachineOptions(BaseModel):
    """What a line runs on; see `coe.inspector.line_options.LineOptions`, which is what lines take."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    memory: Annotated[
        int | None,
        Option(
            "Memory for experts, batches and images under way, as 1.5GiB.",
            ALL_DOORS,
            f"the profile's, or {config.MEMORY}",
            defaults={
                Door.RUN: (None, "so much that a quarter of the experts fit, and the activations"),
                Door.PROFILE: (config.MEMORY, ""),
            },
            check=values.amount,
        ),
    ] = None
    executors: Annotated[
        str | None,
        Option(
            "Parallel workers by device, as cpu=2 or cuda=2,cpu=1.",
            INSPECTING | {Door.RUN},
            f"the profile's, or {config.EXECUTORS}",
            defaults={Door.RUN: (config.EXECUTORS, "")},
            check=check_executors,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option(
            "Threads of each worker.",
            INSPECTING,
            "the profile's, or an equal share of the cores that are free",
            rare=True,
            typed=int,
            least=1,
            most=config.MAX_THREADS,
        ),
    ] = None
    device_memory: Annotated[
        int | None,
        Option(
            "GPU memory for experts and batches, as 8GiB.", ALL_DOORS, "most of the free memory", check=values.amount
        ),
    ] = None
    host_memory: Annotated[
        int | None,
        Option(
            "With a GPU: host memory for copies of experts, as 4GiB.",
            ALL_DOORS,
            config.HOST_MEMORY,
            rare=True,
            check=values.amount,
        ),
    ] = None
    search_kernels: Annotated[
        bool,
        Option(
            "With a GPU: before the first image, search for the quickest kernels. Without, a line opens sooner.",
            INSPECTING | {Door.RUN},
            rare=True,
            typed=bool,
        ),
    ] = True
    profile: Annotated[
        Profile | Path | str | None,
        Option(
            "The file that coe-profile wrote, or none.",
            INSPECTING,
            "the file where coe-profile writes",
            metavar="FILE|none",
            check=lambda name, value: None if value == "none" else _A_PROFILE(name, value),
        ),
    ] = AUTO
    disk_bandwidth: Annotated[
        int | None,
        Option(
            "Load no faster than a disk of this bandwidth, as 530MB/s; cached files load faster than real disks.",
            frozenset({Door.RUN}),
            check=values.bandwidth,
        ),
    ] = None
    cluster: Annotated[
        str | None,
        Option(
            "Inspect on all machines of a Ray cluster that this machine is a part of: auto, or the address of its head "
            "node. See docs/cluster.md.",
            INSPECTING,
            "this machine alone",
            metavar="auto|HOST:PORT",
            check=check_cluster,
        ),
    ] = None
