"""The work of the host alone: a device that takes no time, because it remembers what each network answered.

The first time that an expert sees an input, the CPU computes the outputs; from then on the device answers from memory.
Loads and evictions take no time. Over pictures that a line has seen before, a run therefore measures all other work:
decoding, preprocessing, decisions, the gathering of batches, postprocessing, replies. Verdicts are the network's own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import xxhash

from coe.core import Expert, Finding
from coe.errors import ConfigError
from coe.inspector import line_devices
from coe.inspector.line_devices import MakeDevices
from coe.runtime.cpu import CpuDevice
from coe.runtime.onnx_network import concatenated
from coe.runtime.runner import findings_of
from coe.store.kinds import ExpertInput, Kind, ModuleKind
from coe.store.store import Store

RememberedOutputs = dict[tuple[str, str, bytes], Any]
"""Outputs of networks, each as a batch of one image, by the weights and the variant of an expert and the digest of an
input; lines share them."""


class HostOnlyDevice(CpuDevice):
    """Answers images from `remembered`; runs them on the CPU where an expert sees them for the first time.

    Costs and memory are those of the CPU. Raises ConfigError for kinds that open their own files.
    """

    def __init__(self, store: Store, kinds: Mapping[str, Kind], threads: int, *, remembered: RememberedOutputs) -> None:
        super().__init__(store, kinds, threads)
        if other := sorted(name for name, kind in kinds.items() if not isinstance(kind, ModuleKind)):
            raise ConfigError(
                f"experts of kind '{other[0]}' open their own files, and their outputs cannot be remembered; "
                "leave --host-only out"
            )
        self._remembered = remembered
        self._learning = threading.Lock()

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Do nothing: a load takes no time."""

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Do nothing: an eviction takes no time."""

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> list[Finding]:
        """Answer a batch from memory, after the inputs that are new have run; raises what `CpuDevice.run` raises."""
        # Every device gathers the images of a batch in one array.
        np.array([image.pixels for image in images])
        keys = [(expert.weights, expert.variant, xxhash.xxh3_128_digest(image.pixels.data)) for image in images]
        if new := [image for key, image in zip(keys, images, strict=True) if key not in self._remembered]:
            self._learn(executor, pool, expert, new)
        return findings_of(
            self.kinds[expert.kind], concatenated([self._remembered[key] for key in keys]), images, expert
        )

    def _learn(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> None:
        with self._learning:
            super().load(pool, expert)
            try:
                # One by one: outputs must not depend on the images that came with an image.
                for image in images:
                    outputs = self.outputs(executor, pool, expert, [image])
                    key = expert.weights, expert.variant, xxhash.xxh3_128_digest(image.pixels.data)
                    self._remembered[key] = deepcopy(outputs)
            finally:
                super().evict(pool, expert)


def devices(remembered: RememberedOutputs) -> MakeDevices:
    """Return a function like `coe.inspector.line_devices.make`, whose devices take no time."""
    return partial(line_devices.make, makers={"cpu": partial(HostOnlyDevice, remembered=remembered)})
