"""One expert learns, is checked, and goes into the store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from coe.core import Expert, GoodLimits
from coe.errors import StoreError
from coe.helpers.plugins import running
from coe.store import bodies
from coe.store.blob_format import optional_of
from coe.store.kinds import BACKBONE, Image, Kind, ModuleKind, Progress, Trained, TrainingPlan
from coe.store.learned import LearnedPictures
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceReader
from coe.store.skeletons import bare_skeleton
from coe.store.store import Store
from coe.variants import accept


def learn(
    store: Store, expert: Expert, kind: Kind, plan: TrainingPlan, start: str | None, progress: Progress
) -> Trained:
    """Train an expert by a plan, from the weights `start` of the store if there is one; nothing is stored.

    The plan's folder for work and its file to start from are made here; the measures say if parts were `turned`.
    Raises ConfigError, StoreError.
    """
    with _begun(store, expert, plan, start) as begun:
        trained = kind.train(expert, begun, progress)
    if plan.turned and kind.learns_turned:
        trained = replace(trained, metrics=trained.metrics | {"turned": 1.0})
    if isinstance(kind, ModuleKind):
        trained = replace(trained, frozen=(BACKBONE,) if kind.backbone else plan.freeze)
        frames = max((len(reference.alternates) for reference in plan.references.values()), default=1)
        learned = replace(
            expert, labels=tuple(trained.labels), alternates=frames if trained.in_frame else trained.looks
        )
        accept.check_module(kind, learned, trained.state)
    return trained


def parts_of(
    store: Store,
    expert: Expert,
    kind: Kind,
    plan: TrainingPlan,
    start: str | None,
    inputs: Iterable[Image],
    labels: Sequence[str],
) -> Sequence[int] | None:
    """Return what `Kind.parts_of` says of inputs; for the others see `learn`. Raises ConfigError, StoreError."""
    with _begun(store, expert, plan, start) as begun:
        return kind.parts_of(expert, begun, inputs, labels)


@contextmanager
def _begun(store: Store, expert: Expert, plan: TrainingPlan, start: str | None) -> Iterator[TrainingPlan]:
    with tempfile.TemporaryDirectory(prefix="coe-train-") as work:
        init = bodies.whole_file(store, start, Path(work)) if start else None
        with running("kind", expert.kind, "trained"):
            yield replace(plan, work=Path(work), init=init)


def frozen_of(store: Store, weights: str, kind: ModuleKind, start: str) -> tuple[str, ...]:
    """Return the names of the parameters that the training of an expert left as they were: those of its body.

    With another `start`, a network without its head, those that are as there. Raises StoreError.
    """
    manifest = store.manifest(weights)
    body = frozenset(bodies.names(store, manifest))
    tensors, first = store.load(weights), store.load(start)
    expert = Expert("any", manifest.kind, manifest.labels, manifest.input_size, weights)
    names = [name for name, _ in bare_skeleton(kind, expert, optional=optional_of(tensors)).named_parameters()]
    if start == weights:
        return tuple(name for name in names if name in body)
    return tuple(name for name in names if name in first and torch.equal(tensors[name], first[name]))


def put(
    store: Store,
    expert: Expert,
    trained: Trained,
    start: str | None,
    source: str,
    start_in: Store | None = None,
    *,
    reference: str = "",
) -> Manifest:
    """Put what an expert learned into a store, as `expert.weights`; `source` says in words where it is from.

    What the training froze is its body, which experts with the same frozen layers have in common.

    `start_in` is the store of the weights that it started from, if that is another. For `reference` see `Manifest`.
    """
    manifest = store.put(
        expert.weights,
        kind=expert.kind,
        labels=trained.labels,
        input_size=expert.input_size,
        state=trained.state,
        metrics=trained.metrics,
        source=f"{source}{f', from {start}' if start else ''}",
        learned=_learned_since(start_in or store, start, trained),
        preprocessing=trained.preprocessing,
        unproven=trained.unproven,
        exam=trained.exam,
        limits=_bound(trained.limits, start_in or store),
        reference=reference,
        looks=trained.looks,
    )
    return bodies.divide_frozen(store, manifest, trained.frozen) if trained.frozen else manifest


def _bound(limits: Mapping[str, GoodLimits], store: Store) -> dict[str, GoodLimits]:
    """Return limits, by the id of a reference, each with the checksum of this reference as a store has it now."""
    references, bound = ReferenceReader(store), dict(limits)
    for id, own in limits.items():
        with suppress(StoreError):  # those of pairs, which bring their references along, have no id
            bound[id] = replace(own, reference=references.manifest(id).checksum)
    return bound


def _learned_since(store: Store, start: str | None, trained: Trained) -> LearnedPictures | None:
    """Return what an expert learned from, with what the expert learned from whose weights it started."""
    if trained.learned is None or start is None:
        return trained.learned
    earlier = store.learned(start)
    return trained.learned if earlier is None else trained.learned | earlier
