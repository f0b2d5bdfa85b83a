"""What kind of machine this is, as far as a profile depends on it. Nothing is started and nothing calls out."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

import psutil

from coe import system
from coe.inspector.profile import Fingerprint

LIBRARIES = ("torch", "torchvision", "onnxruntime", "numpy")
_MEMORY_TOLERANCE = 0.05
"""Share by which the memory of a machine may seem to change: kernels keep more or less of it for themselves."""


def here() -> Fingerprint:
    """Return the fingerprint of the machine that this runs on."""
    seen = _sees_gpu()
    return Fingerprint(
        cpu=system.processor_name(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpu=system.gpu_name() if seen else None,
        driver=system.gpu_driver() if seen else None,
        libraries={name: found for name in LIBRARIES if (found := _version(name))},
    )


def _sees_gpu() -> bool:
    """Tell whether this process may use a GPU: a driver also shows in containers, and to who was told to use none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in ("", "-1", "NoDevFiles") and system.gpu_is_here()


def differences(then: Fingerprint, now: Fingerprint) -> list[str]:
    """Return what has changed, a phrase each; an empty list if a profile made then still fits."""
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
        one, other = then.libraries.get(name), now.libraries.get(name)
        if one != other:
            changed.append(f"{name} was {one}, is {other}")
    return changed


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
