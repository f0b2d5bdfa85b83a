"""What a line is put together from: manifests that fit the rules, devices, and measured costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import psutil

from coe import config
from coe.board.rules import Rules
from coe.config import format_bytes
from coe.core import FULL, Expert, asked_id
from coe.errors import ConfigError, StoreError
from coe.inspector import precision
from coe.inspector.memory import experts_bytes, fixed_bytes
from coe.inspector.precision import Choice
from coe.inspector.profile import KindProfile, Profile
from coe.inspector.settings import Settings
from coe.runtime.cpu import CpuDevice
from coe.runtime.cuda import torch_driver
from coe.runtime.cuda.device import CudaDevice
from coe.runtime.cuda.garbage import give_back
from coe.runtime.device import Device
from coe.runtime.trial import whole_pages
from coe.scheduler.costs import Cost, CostTable
from coe.store.kinds import FileKind, Kind
from coe.store.manifest import Manifest
from coe.store.store import NoSuchExpert, Store

MakeDevices = Callable[..., Mapping[str, Device]]
"""Makes a line's devices, by name; `devices` tells from what."""


def decode_workers() -> int:
    """Return how many threads decode pictures."""
    return max(2, min(8, os.cpu_count() or 2))


def manifests(board: Rules, store: Store) -> dict[str, Manifest]:
    """Read the manifests of a board's experts, by weights, and compare them with its rules; raises StoreError."""
    found: dict[str, Manifest] = {}
    missing: list[str] = []
    for expert in board.experts.values():
        try:
            manifest = store.manifest(expert.weights)
        except NoSuchExpert:
            missing.append(expert.weights)
            continue
        said = (expert.kind, expert.labels, expert.input_size)
        if said != (manifest.kind, manifest.labels, manifest.input_size):
            stored = _describe(manifest.kind, manifest.labels, manifest.input_size)
            raise StoreError(
                f"expert '{expert.id}' is {_describe(*said)} in {board.path.name}, but its weights "
                f"'{expert.weights}' are {stored}; mend the one or train the other again"
            )
        found[expert.weights] = manifest
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
    numbers: Mapping[str, int],
    store: Store,
    known: Mapping[str, Kind],
    threads: Mapping[str, int],
    *,
    device_bytes: int | None = None,
    host_bytes: int | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    on_cpu: Callable[..., Device] = CpuDevice,
    on_gpu: Callable[..., Device] = CudaDevice,
) -> dict[str, Device]:
    """Make the devices that `numbers` names, with `threads` for each executor, else with the cores divided among all.

    A GPU gets `device_bytes` of its memory and `host_bytes` of the host's for copies; None is a part of what is free.
    `on_cpu` and `on_gpu` make ours, or others of the same. Raises ConfigError for a device that there is not.
    """
    if unknown := [device for device in numbers if device not in ("cpu", "cuda")]:
        raise ConfigError(f"there is no device '{unknown[0]}'; known: cpu, cuda")
    found: dict[str, Device] = {}
    for device in numbers:
        if device == "cuda":
            found[device] = _gpu(on_gpu, numbers[device], store, known, device_bytes, host_bytes, say)
        else:
            # Each executor of a GPU keeps a core busy too, with what comes before and after its batches.
            cores = max(1, (os.cpu_count() or 1) - numbers.get("cuda", 0))
            found[device] = on_cpu(store, known, threads.get(device) or max(1, cores // numbers[device]))
    return found


def _gpu(
    make: Callable[..., Device],
    executors: int,
    store: Store,
    known: Mapping[str, Kind],
    device_bytes: int | None,
    host_bytes: int | None,
    say: Callable[[str], None],
) -> Device:
    driver = torch_driver.driver()
    # What a line before this one held is free once torch lets go of it.
    give_back(driver)
    usage = driver.usage()
    memory_bytes = int(config.DEVICE_SHARE * usage.free) if device_bytes is None else device_bytes
    if memory_bytes > usage.free:
        raise ConfigError(
            f"a device memory of {format_bytes(memory_bytes)} is more than is free ({format_bytes(usage.free)} of "
            f"{format_bytes(usage.total)}); give less --device-memory"
        )
    if host_bytes is None:
        host_bytes = min(config.parse_bytes(config.HOST_MEMORY), psutil.virtual_memory().available // 2)
    say(
        f"cuda: {format_bytes(memory_bytes)} of {format_bytes(usage.total)} of device memory (its driver and others "
        f"hold {format_bytes(usage.elsewhere)} beside), {format_bytes(host_bytes)} of host memory for copies"
    )
    return make(store, known, driver, executors=executors, memory_bytes=memory_bytes, host_bytes=host_bytes, say=say)


@dataclass(frozen=True, slots=True)
class Lineup:
    """A board with its experts in the variants that they run in, what each costs, and why these.

    Where there was a choice, `costs` also has those of what was not chosen, under "<expert>@<variant>".
    """

    board: Rules
    costs: CostTable
    choice: Choice


def line_up(
    board: Rules,
    manifests: Mapping[str, Manifest],
    devices: Mapping[str, Device],
    known: Mapping[str, Kind],
    settings: Settings,
    say: Callable[[str], None],
    *,
    mode: str = config.PRECISION,
    floor: float = config.LABEL_FLOOR,
    bytes_per_s: int | None = None,
    costs: CostTable | None = None,
) -> Lineup:
    """Choose the variants that a board's experts run in, measuring what they cost unless `costs` tells.

    `costs` are those of an earlier lineup of the same board and mode.
    """
    offers = {
        expert.id: {str(variant): one for variant, one in manifests[expert.weights].variants.items()}
        for expert in board.experts.values()
        if not isinstance(known[expert.kind], FileKind)
    }
    ways = {id: precision.allowed(mode, offers.get(id, {}), devices, floor) for id in board.experts}
    if all(variants == (FULL,) for variants in ways.values()):
        candidates = list(board.experts.values())
    else:
        candidates = [
            replace(board.experts[id], id=f"{id}@{variant}", variant=variant)
            for id, variants in ways.items()
            for variant in dict.fromkeys((FULL, *variants))
        ]
    found = {} if costs else measure(candidates, devices, manifests, known, say, bytes_per_s, settings.profile)
    table = costs or CostTable(found)
    by_variant = {
        (device, asked_id(candidate.id), candidate.variant): table(device, candidate.id)
        for device in devices
        for candidate in candidates
    }
    by_pair = {(asked_id(candidate.id), candidate.variant): candidate for candidate in candidates}
    choice = precision.choose(
        mode,
        offers,
        board.graph,
        by_variant,
        experts_bytes(settings, devices),
        floor,
        pools=sum(settings.executors.values()),
        fixed_bytes=lambda pairs: fixed_bytes(devices, [by_pair[pair] for pair in pairs], settings.executors),
    )
    if mode != FULL:
        say(choice.reason)
    for (device, expert, variant), cost in by_variant.items():
        if choice.variants[expert] == variant:
            found[device, expert] = cost
    return Lineup(precision.applied(board, choice), costs or CostTable(found), choice)


def stored_bytes(manifest: Manifest, variant: str) -> int:
    """Return the size of the file that an expert runs from: its blob's, else that of its weights as trained."""
    return next((one.bytes for name, one in manifest.variants.items() if name == variant), manifest.bytes)


def file_bytes(board: Rules, manifests: Mapping[str, Manifest]) -> dict[str, int]:
    """Return by expert the size of the file that it runs from; `manifests` are by weights."""
    return {id: stored_bytes(manifests[one.weights], one.variant) for id, one in board.experts.items()}


def measure(
    experts: Collection[Expert],
    devices: Mapping[str, Device],
    manifests: Mapping[str, Manifest],
    known: Mapping[str, Kind],
    say: Callable[[str], None],
    bytes_per_s: int | None = None,
    profile: Profile | None = None,
) -> dict[tuple[str, str], Cost]:
    """Measure one expert of each architecture and variant on each device; the others are worked out from it.

    `manifests` are by weights. What a `profile` knows is not measured again.

    Experts of one architecture compute the same (paper section 4.5); at another input size they do so in proportion
    to its area, and a load takes time in proportion to its bytes, but no less than a disk of `bytes_per_s` takes for
    them. Of a `FileKind` every file is its own architecture.
    """
    sizes = {expert.id: stored_bytes(manifests[expert.weights], expert.variant) for expert in experts}
    sorts = {expert.id: _sort(expert, known, manifests[expert.weights]) for expert in experts}
    samples: dict[_Sort, Expert] = {}
    for expert in sorted(experts, key=lambda expert: -expert.input_size):
        samples.setdefault(sorts[expert.id], expert)
    costs: dict[tuple[str, str], Cost] = {}
    for device_id, device in devices.items():
        profiled = {
            sort: _profiled(sample, device_id, device, profile, sizes[sample.id])
            for sort, sample in samples.items()
            if profile is not None and not isinstance(known[sample.kind], FileKind)
        }
        if unknown := [_describe_sort(sample) for sort, sample in samples.items() if profiled.get(sort) is None]:
            say(f"measuring {', '.join(unknown[:4])}{' ...' if len(unknown) > 4 else ''}")
        measured = {sort: profiled.get(sort) or device.measure(sample) for sort, sample in samples.items()}
        for expert in experts:
            sample = samples[sorts[expert.id]]
            cost = _adapted(measured[sorts[expert.id]], sample, expert, sizes[sample.id], sizes[expert.id])
            costs[device_id, expert.id] = _from_disk(cost, sizes[expert.id], bytes_per_s)
    return costs


_Sort = tuple[str, str, bool]
"""Architecture, variant, and whether it runs from a blob: what experts share that cost alike."""


def _sort(expert: Expert, known: Mapping[str, Kind], manifest: Manifest) -> _Sort:
    architecture = expert.weights if isinstance(known[expert.kind], FileKind) else expert.kind
    return architecture, expert.variant, expert.variant in manifest.variants


def _describe_sort(sample: Expert) -> str:
    variant = "" if sample.variant == FULL else f" in {sample.variant}"
    return f"{sample.kind}{variant} at {sample.input_size} px"


def _profiled(sample: Expert, name: str, device: Device, profile: Profile | None, size: int) -> Cost | None:
    """Return what a profile knows of an expert's kind and variant, at the input and file size of that expert."""
    found = profile.kind(sample.kind, name, device.threads, sample.variant) if profile else None
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


def _from_disk(cost: Cost, size: int, bytes_per_s: int | None) -> Cost:
    return replace(cost, load_s=max(cost.load_s, size / bytes_per_s)) if bytes_per_s else cost


def _adapted(cost: Cost, sample: Expert, expert: Expert, sample_bytes: int, own_bytes: int) -> Cost:
    area = (expert.input_size / sample.input_size) ** 2
    return replace(
        cost,
        per_image_s=cost.per_image_s * area,
        load_s=cost.load_s * own_bytes / max(1, sample_bytes),
        weights_bytes=max(1, cost.weights_bytes + own_bytes - sample_bytes),
        activation_bytes=int(cost.activation_bytes * area),
        workspace_bytes=int(cost.workspace_bytes * area),
    )
