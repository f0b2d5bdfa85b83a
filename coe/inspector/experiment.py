"""What experiments, benchmarks and tests change in a line, in one object; a line that inspects needs none of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coe import config
from coe.helpers import values
from coe.inspector.precision import LineCosts
from coe.scheduler.controller import Controller


@dataclass(frozen=True, slots=True)
class Experiment:
    """What `Inspector(experiment=...)` takes; raises ConfigError for a share or a number that cannot be."""

    loaded: float | None = None
    """Memory for experts, as a number of experts of mean size (a memory score); None: the profile's split."""
    label_floor: float = config.LABEL_FLOOR
    """The share of an expert's labels that must agree with fp32, or a cheaper precision is not used for it."""
    free_cores: int | None = None
    """The cores that executors without threads share; None: those that are free when the line opens."""
    costs: LineCosts | None = None
    """The costs of an earlier line of the same board, store, devices and precision; nothing is measured then."""
    make_devices: Callable[..., Any] | None = None
    """Makes the devices, with the arguments of `coe.inspector.line_devices.make`; no profile knows them."""
    make_boxes: Callable[..., Any] | None = None
    """Finds boxes in another way than Ray, with the arguments of `coe.cluster.over_ray.ray_boxes`."""
    make_decider: Callable[..., Controller] | None = None
    """Makes the controller, a subclass perhaps, with the arguments of `coe.scheduler.controller.Controller`."""
    keep_trace: bool = False
    """Whether `Line.trace` keeps every event with its commands."""

    def __post_init__(self) -> None:
        values.real("label_floor", self.label_floor, least=0, most=1)
        if self.loaded is not None:
            values.real("loaded", self.loaded, least=config.MIN_LOADED, most=config.MAX_LOADED)
        if self.free_cores is not None:
            values.whole("free_cores", self.free_cores, least=1, most=config.MAX_THREADS)


NONE = Experiment()
"""A line as users open it."""
