"""What a line is put together from: manifests that fit the rules, devices, and measured costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from coe import config
from coe.core import Expert
from coe.costs import Cost, CostTable
from coe.errors import ConfigError, StoreError
from coe.kinds import FileKind, Kind
from coe.profile import KindProfile, Profile
from coe.rules import Rules
from coe.runtime.cpu import CpuDevice
from coe.runtime.device import Device
from coe.runtime.trial import whole_pages
from coe.store import MANIFEST, Manifest, Store


def decode_workers() -> int:
    """Return how many threads decode pictures."""
    return max(2, min(8, os.cpu_count() or 2))


def manifests(board: Rules, store: Store) -> dict[str, Manifest]:
    """Read the manifests of a board's experts, by expert, and compare them with its rules; raises StoreError."""
    found: dict[str, Manifest] = {}
    missing: list[str] = []
    for expert in board.experts.values():
        try:
            manifest = store.manifest(expert.weights)
        except StoreError:
            if (store.folder(expert.weights) / MANIFEST).exists():
                raise
            missing.append(expert.weights)
            continue
        said = (expert.kind, expert.labels, expert.input_size)
        if said != (manifest.kind, manifest.labels, manifest.input_size):
            stored = _describe(manifest.kind, manifest.labels, manifest.input_size)
            raise StoreError(
                f"expert '{expert.id}' is {_describe(*said)} in {board.path.name}, but its weights "
                f"'{expert.weights}' are {stored}; mend the one or train the other again"
            )
        found[expert.id] = manifest
    if missing:
        few = ", ".join(f"'{weights}'" for weights in missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise StoreError(
            f"{len(missing)} of {len(board.experts)} experts of board '{board.board}' have no weights in {store.root} "
            f"({few}); train or import them with coe-experts, or name another store with --store "
            f"or ${config.STORE_VARIABLE}"
        )
    return found


def _describe(kind: str, labels: tuple[str, ...], size: int) -> str:
    return f"a {kind} of {size} pixels for {', '.join(labels)}"


def devices(
    numbers: Mapping[str, int], store: Store, known: Mapping[str, Kind], threads: Mapping[str, int]
) -> dict[str, Device]:
    """Make the devices that `numbers` names, with `threads` for each executor, else with the cores divided among all.

    Raises ConfigError for a device that there is not.
    """
    if unknown := [device for device in numbers if device != "cpu"]:
        raise ConfigError(f"there is no device '{unknown[0]}'; known: cpu")
    each = threads.get("cpu") or max(1, (os.cpu_count() or 1) // sum(numbers.values()))
    return {"cpu": CpuDevice(store, known, each)}


def measure(
    experts: Collection[Expert],
    devices: Mapping[str, Device],
    manifests: Mapping[str, Manifest],
    known: Mapping[str, Kind],
    say: Callable[[str], None],
    bytes_per_s: int | None = None,
    profile: Profile | None = None,
) -> CostTable:
    """Measure one expert of each architecture on each device; the others are worked out from it.

    What a `profile` knows is not measured again.

    Experts of one architecture compute the same (paper section 4.5); at another input size they do so in proportion
    to its area, and a load takes time in proportion to its bytes, but no less than a disk of `bytes_per_s` takes for
    them. Of a `FileKind` every file is its own architecture.
    """
    samples: dict[str, Expert] = {}
    for expert in sorted(experts, key=lambda expert: -expert.input_size):
        samples.setdefault(_architecture(expert, known), expert)
    costs: dict[tuple[str, str], Cost] = {}
    for device_id, device in devices.items():
        profiled = {
            name: _profiled(sample, device_id, device, profile, manifests[sample.id].bytes)
            for name, sample in samples.items()
            if profile is not None and not isinstance(known[sample.kind], FileKind)
        }
        unknown = [sample for name, sample in samples.items() if profiled.get(name) is None]
        if unknown:
            sorts = [f"{sample.kind} at {sample.input_size} px" for sample in unknown]
            say(f"measuring {', '.join(sorts[:4])}{' ...' if len(sorts) > 4 else ''}")
        measured = {name: profiled.get(name) or device.measure(sample) for name, sample in samples.items()}
        device.prepare(experts)
        for expert in experts:
            name = _architecture(expert, known)
            cost = _adapted(measured[name], samples[name], expert, manifests)
            costs[device_id, expert.id] = _from_disk(cost, manifests[expert.id].bytes, bytes_per_s)
    return CostTable(costs)


def _profiled(sample: Expert, name: str, device: Device, profile: Profile | None, size: int) -> Cost | None:
    """Return what a profile knows of an expert's kind, at the input size and file size of that expert."""
    found = profile.kind(sample.kind, name, device.threads) if profile else None
    return profiled_cost(found, sample, size) if found else None


def profiled_cost(found: KindProfile, expert: Expert, file_bytes: int) -> Cost:
    """Return what an expert costs whose kind was measured on another; its weights take `file_bytes`."""
    area = (expert.input_size / found.input_size) ** 2
    return Cost(
        per_image_s=found.line.per_image_s * area,
        base_s=found.line.base_s,
        load_s=found.load_s * file_bytes / max(1, found.weights_bytes),
        weights_bytes=whole_pages(file_bytes),
        activation_bytes=int(found.activation_bytes * area),
        max_batch=found.max_batch,
        workspace_bytes=int(found.workspace_bytes * area),
        copy_s=found.copy_s,
    )


def _architecture(expert: Expert, known: Mapping[str, Kind]) -> str:
    return expert.weights if isinstance(known[expert.kind], FileKind) else expert.kind


def _from_disk(cost: Cost, size: int, bytes_per_s: int | None) -> Cost:
    return replace(cost, load_s=max(cost.load_s, size / bytes_per_s)) if bytes_per_s else cost


def _adapted(cost: Cost, sample: Expert, expert: Expert, manifests: Mapping[str, Manifest]) -> Cost:
    area = (expert.input_size / sample.input_size) ** 2
    sample_bytes, own_bytes = manifests[sample.id].bytes, manifests[expert.id].bytes
    return replace(
        cost,
        per_image_s=cost.per_image_s * area,
        load_s=cost.load_s * own_bytes / max(1, sample_bytes),
        weights_bytes=max(1, cost.weights_bytes + own_bytes - sample_bytes),
        activation_bytes=int(cost.activation_bytes * area),
        workspace_bytes=int(cost.workspace_bytes * area),
    )
