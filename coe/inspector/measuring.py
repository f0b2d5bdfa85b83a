"""What the experts of a line cost on its devices: a few are measured, the others worked out from these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from coe.board.rules import Rules
from coe.core import FULL, Expert, again_id
from coe.inspector.precision import Choice, Costs
from coe.inspector.profile import KindProfile, Profile
from coe.runtime.device import Device
from coe.runtime.trial import whole_pages
from coe.scheduler.costs import Cost, CostTable
from coe.store.kinds import FileKind, Kind
from coe.store.manifest import Manifest


class LineCosts(CostTable):
    """What the experts of a line cost, in the variants chosen, and what they would in those that they might run in.

    `by_variant` holds the latter, by device, expert and variant: with them another line makes the same choice without
    measuring.
    """

    def __init__(self, by_variant: Costs, choice: Choice) -> None:
        table = {
            (device, expert): cost
            for (device, expert, variant), cost in by_variant.items()
            if choice.variants[expert] == variant
        }
        table |= {
            (device, again_id(expert)): cost
            for (device, expert, variant), cost in by_variant.items()
            if variant == FULL and expert in choice.escalate_below
        }
        super().__init__(table)
        self.by_variant = dict(by_variant)


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
) -> dict[tuple[str, str, str], Cost]:
    """Measure one expert of each architecture and variant on each device; the others are worked out from it.

    Return what each expert costs, by device, id and variant; an expert may stand there in several variants.
    `manifests` are by weights. What a `profile` knows is not measured again.

    Experts of one architecture compute the same (paper section 4.5); at another input size they do so in proportion
    to its area, and a load takes time in proportion to its bytes, but no less than a disk of `bytes_per_s` takes for
    them. Of a `FileKind` every file is its own architecture.
    """
    sizes = {expert: stored_bytes(manifests[expert.weights], expert.variant) for expert in experts}
    sorts = {expert: _sort(expert, known, manifests[expert.weights]) for expert in experts}
    samples: dict[_Sort, Expert] = {}
    for expert in sorted(experts, key=lambda expert: -expert.input_size):
        samples.setdefault(sorts[expert], expert)
    costs: dict[tuple[str, str, str], Cost] = {}
    for device_id, device in devices.items():
        profiled = {
            sort: _profiled(sample, device_id, device, profile, sizes[sample])
            for sort, sample in samples.items()
            if profile is not None and not isinstance(known[sample.kind], FileKind)
        }
        if unknown := [_describe_sort(sample) for sort, sample in samples.items() if profiled.get(sort) is None]:
            say(f"measuring {', '.join(unknown[:4])}{' ...' if len(unknown) > 4 else ''}")
        measured = {sort: profiled.get(sort) or device.measure(sample) for sort, sample in samples.items()}
        for expert in experts:
            sample = samples[sorts[expert]]
            cost = _adapted(measured[sorts[expert]], sample, expert, sizes[sample], sizes[expert])
            costs[device_id, expert.id, expert.variant] = _from_disk(cost, sizes[expert], bytes_per_s)
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
