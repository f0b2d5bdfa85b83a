"""Finding the body that experts share: the first tensors of their network, if they are equal to the bit.

Layers that were frozen in training are such tensors, statistics of their batch norms included. Nothing but where
bytes lie changes, so an expert says the same as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import xxhash

from coe.errors import StoreError
from coe.store import bodies, kinds
from coe.store.blob_format import PAGE
from coe.store.kinds import BACKBONE, ModuleKind
from coe.store.manifest import Manifest, PreparedVariant
from coe.store.skeletons import bare_skeleton, optional_of
from coe.store.store import Store

_FILE_BYTES = 2 * PAGE
"""What one more file takes beyond its tensors: a header, and zeros at its end."""


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """A trained tensor: its name, a digest of its type, shape and numbers, and its bytes."""

    name: str
    digest: str
    bytes: int


@dataclass(frozen=True, slots=True)
class SharedBody:
    """The experts that share a body, the names of its trained tensors, and their bytes."""

    experts: tuple[str, ...]
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class SharingOutcome:
    """What sharing did: the bodies, the experts that were divided now, and why others were left as they are.

    `whole_bytes` are the bytes of all weights that were looked at, each expert by itself; `bytes` are those that they
    take now.
    """

    shared: tuple[SharedBody, ...] = ()
    divided: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    whole_bytes: int = 0
    bytes: int = 0


def shared_bodies(experts: Mapping[str, Sequence[TensorDigest]]) -> list[SharedBody]:
    """Return the bodies that save the most bytes; `experts` have as many tensors each, in the order of the network.

    The tensors form a trie: experts part where a tensor differs. To cut at a node stores the tensors above it once for
    all experts below it. Of a node and the best cuts below it, the better is taken, from the leaves up: no other choice
    of disjoint cuts saves more. The last tensor of a network is never in a body, so that each expert has its own part.
    """
    return [body for body in _best(dict(experts), 0, 0).bodies if body.names]


@dataclass(frozen=True, slots=True)
class _Cuts:
    saved_bytes: int
    bodies: tuple[SharedBody, ...]


def _best(experts: Mapping[str, Sequence[TensorDigest]], depth: int, above_bytes: int) -> _Cuts:
    """Return the best cuts of experts whose first `depth` tensors, of `above_bytes`, are equal."""
    if len(experts) < 2:
        return _Cuts(0, ())
    first = next(iter(experts.values()))
    while depth < len(first) - 1 and all(tensors[depth] == first[depth] for tensors in experts.values()):
        above_bytes += first[depth].bytes
        depth += 1
    names = tuple(tensor.name for tensor in first[:depth])
    here = (len(experts) - 1) * above_bytes - (len(experts) + 1) * _FILE_BYTES
    branches: dict[TensorDigest, dict[str, Sequence[TensorDigest]]] = {}
    if depth < len(first) - 1:
        for id, tensors in experts.items():
            branches.setdefault(tensors[depth], {})[id] = tensors
    below = [_best(branch, depth, above_bytes) for branch in branches.values()]
    saved_bytes = sum(cuts.saved_bytes for cuts in below)
    if here > 0 and here >= saved_bytes:
        return _Cuts(here, (SharedBody(tuple(experts), names, above_bytes),))
    return _Cuts(saved_bytes, tuple(body for cuts in below for body in cuts.bodies))


class Sharing:
    """Shares bodies among experts of a store; `say` gets the id of each expert that is divided.

    `allow_kinds` as for `coe.inspector.inspector.Inspector`.
    """

    def __init__(
        self, store: Store, *, allow_kinds: Sequence[str] = (), say: Callable[[str], None] = lambda id: None
    ) -> None:
        self._store, self._allowed, self._say = store, tuple(allow_kinds), say
        self._orders: dict[tuple[str, int, frozenset[str]], tuple[str, ...]] = {}

    def share(self, ids: Sequence[str]) -> SharingOutcome:
        """Divide experts into bodies and their own parts, wherever that saves bytes.

        Experts that cannot be read stay as they are, and the others are shared. Experts whose runtime opens their file,
        and experts that share all files with another expert, are left out. Raises DiskFull, StoreError if the folder of
        bodies cannot be written.
        """
        failed: dict[str, str] = {}
        seen: dict[str, Manifest] = {}
        # Experts of one kind may have other tensors if they have more labels.
        by_network: dict[tuple[str, int], dict[str, tuple[TensorDigest, ...]]] = {}
        for id in ids:
            try:
                manifest, tensors = self._digests(id)
            except StoreError as error:
                failed[id] = str(error)
                continue
            seen[id] = manifest
            if tensors:
                by_network.setdefault((manifest.kind, len(tensors)), {})[id] = tensors
        shared = [body for experts in by_network.values() for body in shared_bodies(experts)]
        divided: list[str] = []
        for body in shared:
            for id in body.experts:
                try:
                    if self._divide(seen[id], body.names):
                        divided.append(id)
                except StoreError as error:
                    failed[id] = str(error)
        bodies.sweep(self._store)
        present = []
        for id in seen.keys() - failed.keys():
            try:
                present.append(self._store.manifest(id))
            except StoreError as error:  # it was removed meanwhile
                failed[id] = str(error)
        whole_bytes = sum(manifest.whole_bytes for manifest in present)
        return SharingOutcome(tuple(shared), tuple(divided), failed, whole_bytes, stored(present))

    def share_new(self, id: str, parent: str) -> SharedBody | None:
        """Divide a new expert that was trained from `parent`; return its body, None if they have nothing in common.

        If the parent has a body that the new expert holds too, that is its body; else the first tensors that both have
        equal. The parent stays as it is, because a line may run it. Raises StoreError, DiskFull.
        """
        (manifest, new), (origin, old) = self._digests(id), self._digests(parent)
        if not new or len(new) != len(old) or manifest.kind != origin.kind:
            return None
        body = self._body_names(origin)
        if not body or not {t for t in old if t.name in body} <= set(new):
            found = shared_bodies({id: new, parent: old})
            body = frozenset(found[0].names) if found else frozenset()
        if not body:
            return None
        self._divide(manifest, tuple(body))
        names = tuple(tensor.name for tensor in new if tensor.name in body)
        return SharedBody((id, parent), names, sum(tensor.bytes for tensor in new if tensor.name in body))

    def _divide(self, seen: Manifest, names: Sequence[str]) -> bool:
        """Divide an expert unless it is divided so; return whether it was. Raises StoreError if it has changed."""
        with self._store.changing(seen.id) as manifest:
            if manifest != seen:
                raise _changed(seen.id)
            if self._body_names(manifest) == frozenset(names):
                return False
            self._say(seen.id)
            bodies.divide(self._store, manifest, frozenset(names))
            return True

    def _body_names(self, manifest: Manifest) -> frozenset[str]:
        return frozenset(bodies.names(self._store, manifest))

    def _digests(self, id: str) -> tuple[Manifest, tuple[TensorDigest, ...]]:
        """Return the manifest of an expert and its trained tensors in the order of the network, a backbone first."""
        # There are no tensors if the expert is not to be divided.
        manifest = self._store.manifest(id)
        kind = kinds.resolve(manifest.kind, self._allowed)
        if not isinstance(kind, ModuleKind) or manifest.original or manifest.is_backbone:
            return manifest, ()
        try:
            if self._store.check_weights(id) != manifest:
                raise _changed(id)
            state = self._store.tensors(manifest)
        except StoreError as error:
            # A writer that has just replaced the expert also removes its old files.
            if self._store.manifest(id) != manifest:
                raise _changed(id) from error
            raise
        order = self._order(kind, manifest, optional=optional_of(state))
        if set(order) != set(state):
            raise StoreError(f"{id}: its weights do not fit kind '{manifest.kind}'; import or train it again")
        if kind.backbone:
            # Experts of other kinds see through it too, so that nothing of their own may come into its body.
            own = [name for name in order if not name.startswith(BACKBONE)]
            order = (*(name for name in order if name.startswith(BACKBONE)), *own[:1])
        return manifest, tuple(_digest(name, state[name]) for name in order)

    def _order(self, kind: ModuleKind, manifest: Manifest, *, optional: frozenset[str]) -> tuple[str, ...]:
        key = manifest.kind, len(manifest.labels), optional
        if key not in self._orders:
            expert = manifest.expert()
            self._orders[key] = tuple(bare_skeleton(kind, expert, optional=optional).state_dict())
        return self._orders[key]


def stored(records: Sequence[Manifest | PreparedVariant]) -> int:
    """Return the bytes of experts' trained weights, or of blobs, each body once."""
    once = {record.body.digest: record.body.bytes for record in records if record.body is not None}
    return sum(record.bytes for record in records) + sum(once.values())


def _changed(id: str) -> StoreError:
    return StoreError(f"{id}: changed while it was compared with the others; share again")


def _digest(name: str, tensor: torch.Tensor) -> TensorDigest:
    digest = xxhash.xxh3_128(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return TensorDigest(name, digest.hexdigest(), tensor.nbytes)
