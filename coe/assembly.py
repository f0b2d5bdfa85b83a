"""What a line is put together from: manifests that fit the rules, devices, and measured costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from coe import config
from coe.core import Expert
from coe.costs import Cost, CostTable
from coe.errors import ConfigError, StoreError
from coe.kinds import Kind
from coe.rules import Rules
from coe.runtime.cpu import CpuDevice
from coe.runtime.device import Device
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


def devices(numbers: Mapping[str, int], store: Store, known: Mapping[str, Kind]) -> dict[str, Device]:
    """Make the devices that `numbers` names, with the cores divided among all executors; raises ConfigError."""
    if unknown := [device for device in numbers if device != "cpu"]:
        raise ConfigError(f"there is no device '{unknown[0]}'; known: cpu")
    threads = max(1, (os.cpu_count() or 1) // sum(numbers.values()))
    return {"cpu": CpuDevice(store, known, threads)}


def _alike(expert: Expert) -> tuple[str, int, int]:
    """Experts that cost the same: one architecture, one input, one number of outputs (paper section 4.5)."""
    return expert.kind, len(expert.labels), expert.input_size


def measure(
    experts: Iterable[Expert],
    devices: Mapping[str, Device],
    manifests: Mapping[str, Manifest],
    say: Callable[[str], None],
) -> CostTable:
    """Measure one expert of each sort on each device; the others differ in their bytes alone."""
    experts = list(experts)
    sorts = sorted({(kind, size) for kind, _, size in map(_alike, experts)})
    say("measuring " + ", ".join(f"{kind} at {size} px" for kind, size in sorts))
    costs: dict[tuple[str, str], Cost] = {}
    for device_id, device in devices.items():
        measured: dict[tuple[str, int, int], tuple[Expert, Cost]] = {}
        for expert in experts:
            if _alike(expert) not in measured:
                measured[_alike(expert)] = expert, device.measure(expert)
            sample, cost = measured[_alike(expert)]
            more = manifests[expert.id].bytes - manifests[sample.id].bytes
            costs[device_id, expert.id] = replace(cost, weights_bytes=max(1, cost.weights_bytes + more))
    return CostTable(costs)
