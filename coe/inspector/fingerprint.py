"""The properties of this machine that a profile depends on. No process is started, and no network is used."""

from __future__ import annotations

import os

import psutil

from coe import system, versions
from coe.inspector.profile import Fingerprint

LIBRARIES = ("torch", "torchvision", "onnxruntime", "numpy")
_MEMORY_TOLERANCE = 0.05
"""The share by which a machine's memory may seem to change: kernels keep more or less of it for themselves."""


def here() -> Fingerprint:
    """Return the fingerprint of this machine."""
    seen = _sees_gpu()
    return Fingerprint(
        cpu=system.processor_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpu=system.gpu_name() if seen else None,
        driver=system.gpu_driver() if seen else None,
        libraries={name: installed for name in LIBRARIES if (installed := versions.installed(name))},
    )


def _sees_gpu() -> bool:
    """Tell whether this process may use a GPU: a driver shows even in containers and processes that may use none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in ("", "-1", "NoDevFiles") and system.gpu_is_here()


def differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return a phrase for each change; an empty list means that a profile from `then` still fits."""
    changed = [
        f"{word} was {getattr(then, name)}, is {getattr(now, name)}"
        for name, word in (("cpu", "the processor"), ("cores", "the number of cores"), ("gpu", "the GPU"))
        if getattr(then, name) != getattr(now, name)
    ]
    if abs(then.memory_bytes - now.memory_bytes) > _MEMORY_TOLERANCE * then.memory_bytes:
        changed.append(f"memory was {then.memory_bytes / 2**30:.1f} GiB, is {now.memory_bytes / 2**30:.1f} GiB")
    if then.driver != now.driver:
        changed.append(f"the GPU's driver was {then.driver}, is {now.driver}")
    for name in sorted({*then.libraries, *now.libraries}):
        before, after = then.libraries.get(name), now.libraries.get(name)
        if before != after:
            changed.append(f"{name} was {before}, is {after}")
    return changed
