"""What kind of machine this is, as far as a profile depends on it. Nothing is started and nothing calls out."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from coe.inspector.profile import Fingerprint

LIBRARIES = ("torch", "torchvision", "onnxruntime", "numpy")
_MEMORY_TOLERANCE = 0.05
"""Share by which the memory of a machine may seem to change: kernels keep more or less of it for themselves."""


def here() -> Fingerprint:
    """Return the fingerprint of the machine that this runs on."""
    seen = _sees_gpu()
    return Fingerprint(
        cpu=_cpu(),
        cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpu=_field(Path("/proc/driver/nvidia/gpus"), "*/information", "Model") if seen else None,
        driver=_field(Path("/proc/driver/nvidia"), "version", "NVRM version") if seen else None,
        libraries={name: found for name in LIBRARIES if (found := _version(name))},
    )


def _sees_gpu() -> bool:
    """Tell whether this process may use a GPU: a driver also shows in containers, and to who was told to use none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible not in ("", "-1", "NoDevFiles") and any(Path("/dev").glob("nvidia[0-9]*"))


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


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _field(folder: Path, pattern: str, name: str) -> str | None:
    """Return a field of the files in which a GPU's driver says what there is."""
    for path in sorted(folder.glob(pattern)):
        try:
            found = re.search(rf"^{name}:\s*(.+)$", path.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        except OSError:
            continue
        if found:
            return found[1].strip()
    return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
