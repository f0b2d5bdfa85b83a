"""The costs of a line's experts on its devices: a few experts are measured, the others are worked out from these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from coe.board.rules import Rules
from coe.core import FULL, Expert
from coe.errors import StoreError, list_few
from coe.inspector.precision import Costs
from coe.inspector.profile import KindProfile, Profile
from coe.runtime.device import Device
from coe.runtime.trial import whole_pages
from coe.scheduler.costs import Cost
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.runnable_kinds import RunnableKind, SessionKind


def stored(manifest: Manifest, variant: str) -> PreparedVariant | Manifest:
    """Return the record of the files that an expert runs from: of its blob, else of its weights as trained."""
    return next((blob for name, blob in manifest.variants.items() if name == variant), manifest)


def file_bytes(board: Rules, manifests: Mapping[str, Manifest], *, whole: bool = False) -> dict[str, int]:
    """Return, by expert, the size of its own file that it runs from, or with its body; `manifests` are by weights."""
    files = {id: stored(manifests[expert.weights], expert.variant) for id, expert in board.experts.items()}
    return {id: file.whole_bytes if whole else file.bytes for id, file in files.items()}


def measure(
    experts: Collection[Expert],
    devices: Mapping[str, Device],
    manifests: Mapping[str, Manifest],
    known: Mapping[str, RunnableKind],
    say: Callable[[str], None],
    bytes_per_s: int | None = None,
    profile: Profile | None = None,
    earlier: Costs | None = None,
) -> dict[tuple[str, str, str], Cost]:
    """Measure one expert of each architecture and variant on each device; work out the others from it.

    Return the cost of each expert, by device, id and variant; `experts` may hold an expert in several variants.
    `manifests` are by weights. Kinds that the `profile` knows are not measured again, and neither are experts whose
    costs are among the `earlier`; other experts of their architecture are worked out from them.

    Experts of one architecture do the same computation (paper section 4.5), in proportion to the area of the input.
    A load takes time in proportion to its bytes, but no less than a disk of `bytes_per_s` takes; of an expert that has
    a body it is that of its own part. For a `FileKind`, every file is an architecture.

    An expert whose `int8` is tried and cannot be opened has no cost in it, and `say` gets the reason.
    """
    files = {expert: stored(manifests[expert.weights], expert.variant) for expert in experts}
    sorts = {expert: _sort(expert, known, manifests[expert.weights]) for expert in experts}
    equals: dict[_Sort, list[Expert]] = {}
    earlier = earlier or {}
    # Sorting keeps the order of equal experts: of one input size, the first is taken.
    for expert in sorted(experts, key=lambda e: (not _is_known(e, devices, earlier), -e.input_size)):
        equals.setdefault(sorts[expert], []).append(expert)
    costs: dict[tuple[str, str, str], Cost] = {}
    damaged: set[Expert] = set()
    for device_id, device in devices.items():
        sizes = {expert: file.bytes if device.holds_bodies else file.whole_bytes for expert, file in files.items()}
        samples = {sort: experts_of_it[0] for sort, experts_of_it in equals.items()}
        profiled = {
            sort: _profiled(sample, device_id, device, profile, sizes[sample])
            for sort, sample in samples.items()
            if profile is not None and not isinstance(known[sample.kind], SessionKind)
        }
        profiled |= {
            sort: earlier[device_id, sample.id, sample.variant]
            for sort, sample in samples.items()
            if _is_known(sample, devices, earlier)
        }
        if unknown := [_describe_sort(sample) for sort, sample in samples.items() if profiled.get(sort) is None]:
            say(f"measuring {list_few(unknown, 4)}")
        measured = {
            sort: (samples[sort], cost) if cost is not None else _measured(device, equals[sort], damaged, say)
            for sort, cost in ((sort, profiled.get(sort)) for sort in samples)
        }
        for expert in experts:
            if (known_one := measured[sorts[expert]]) is None or expert in damaged:
                continue
            sample, sample_cost = known_one
            cost = _adapted(sample_cost, sample, expert, sizes[sample], sizes[expert])
            costs[device_id, expert.id, expert.variant] = _from_disk(cost, sizes[expert], bytes_per_s)
    return {**costs, **earlier}


def _measured(
    device: Device, equals: Sequence[Expert], damaged: set[Expert], say: Callable[[str], None]
) -> tuple[Expert, Cost] | None:
    """Measure one of equal experts, the first that can be opened; None if their `int8` cannot.

    Those that cannot be opened are added to the `damaged`.
    """
    faults: dict[Expert, StoreError] = {}
    found = None
    for expert in equals:
        try:
            found = expert, device.measure(expert)
            break
        except StoreError as error:
            if expert.variant != "int8":
                raise
            faults[expert] = error
    if faults:
        damaged.update(faults)
        say(
            f"note: the int8 of {len(faults)} of {len(equals)} experts of kind {equals[0].kind} cannot be opened, so "
            f"they run without it ({next(iter(faults.values()))}); prepare them again (coe-experts prepare --force)"
        )
    return found


def _is_known(expert: Expert, devices: Iterable[str], earlier: Costs) -> bool:
    return all((device, expert.id, expert.variant) in earlier for device in devices)


_Sort = tuple[str, str, bool, bool]
"""Architecture, variant, and whether the expert has a blob and a body: experts of one sort have proportional costs."""


def _sort(expert: Expert, known: Mapping[str, RunnableKind], manifest: Manifest) -> _Sort:
    architecture = expert.weights if isinstance(known[expert.kind], SessionKind) else expert.kind
    has_body = stored(manifest, expert.variant).body is not None
    return architecture, expert.variant, expert.variant in manifest.variants, has_body


def _describe_sort(sample: Expert) -> str:
    variant = "" if sample.variant == FULL else f" in {sample.variant}"
    return f"{sample.kind}{variant} at {sample.input_size} px"


def _profiled(sample: Expert, name: str, device: Device, profile: Profile | None, size: int) -> Cost | None:
    """Return an expert's cost by the profile, at the expert's input and file size; None if the profile lacks it."""
    kind = profile.kind(sample.kind, name, device.threads, sample.variant) if profile else None
    return profiled_cost(kind, sample, size) if kind else None


def profiled_cost(kind: KindProfile, expert: Expert, file_bytes: int) -> Cost:
    """Return an expert's cost from the profile of its kind; its weights take `file_bytes`."""
    area = (expert.input_size / kind.input_size) ** 2
    return Cost(
        per_image_s=kind.line.per_image_s * area,
        base_s=kind.line.base_s,
        load_s=kind.load_s * file_bytes / max(1, kind.weights_bytes),
        # A session takes more than its file, and as much for all experts of a kind.
        weights_bytes=max(whole_pages(file_bytes), kind.weights_bytes if expert.variant == "int8" else 0),
        activation_bytes=int(kind.activation_bytes * area),
        max_batch=kind.max_batch,
        workspace_bytes=int(kind.workspace_bytes * area),
        copy_s=kind.copy_s * file_bytes / max(1, kind.weights_bytes),
    )


def _from_disk(cost: Cost, size: int, bytes_per_s: int | None) -> Cost:
    """Let a read take as long as the disk does; the copy to the device comes after it."""
    return replace(cost, load_s=max(cost.load_s, size / bytes_per_s + cost.copy_s)) if bytes_per_s else cost


def _adapted(cost: Cost, sample: Expert, expert: Expert, sample_bytes: int, expert_bytes: int) -> Cost:
    area = (expert.input_size / sample.input_size) ** 2
    return replace(
        cost,
        per_image_s=cost.per_image_s * area,
        load_s=cost.load_s * expert_bytes / max(1, sample_bytes),
        copy_s=cost.copy_s * expert_bytes / max(1, sample_bytes),
        weights_bytes=max(1, cost.weights_bytes + expert_bytes - sample_bytes),
        activation_bytes=int(cost.activation_bytes * area),
        workspace_bytes=int(cost.workspace_bytes * area),
    )
