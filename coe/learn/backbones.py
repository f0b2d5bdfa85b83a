"""Backbones: pretrained networks without their heads, as `backbones/NAME` in the store, for kinds that see with them.

They come from a file of the user's, or from a package that is installed. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from coe.bring import importing
from coe.bring.facts import Wishes
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.store import kinds
from coe.store.kinds import Kind, ModuleKind, PackagedWeights
from coe.store.manifest import Manifest
from coe.store.store import Store
from coe.store.store_reader import NoSuchExpert

BOARD = "backbones"
"""The board under which the store has backbones."""
INPUT = 224
"""The side in pixels of the pictures of most pretrainings, for a file that does not say its own."""


@dataclass(frozen=True, slots=True)
class Added:
    """A backbone in the store, sentences on what was decided, and whether it was there already."""

    manifest: Manifest
    remarks: tuple[str, ...] = ()
    was_there: bool = False


def packaged(allowed: tuple[str, ...] = ()) -> list[str]:
    """Return the installed kinds of networks whose weights come in a package, in order; readers are no backbones."""
    known = {name: kinds.resolve(name, allowed) for name in kinds.names()}
    return [name for name, kind in known.items() if getattr(kind, "packaged", None) and not kind.is_reader]


def add_packaged(store: Store, kind: str, allowed: tuple[str, ...] = ()) -> Added:
    """Add the weights of a kind that come in a package; raises ConfigError, StoreError."""
    resolved = _resolved(kind, allowed)
    if resolved.packaged is None:
        raise ConfigError(f"no package has weights of kind '{kind}'; give a file of weights and --kind {kind}")
    source = resolved.packaged
    file = packaged_file(source)
    expert = Expert(kind, kind, (), source.input_size, f"{BOARD}/{kind}")
    return _add(store, file, expert, resolved, (f"{source.distribution}, {file.name}", source.licence))


def add_file(store: Store, file: Path, expert: Expert, licence: str, allowed: tuple[str, ...] = ()) -> Added:
    """Add a file of weights as a backbone, `expert.weights`; raises ConfigError, StoreError.

    If a backbone of that name is there with other weights, it stays: experts may have learned on it.
    """
    return _add(store, file, expert, _resolved(expert.kind, allowed), (file.name, licence))


def start_of(store: Store, kind: Kind, allowed: tuple[str, ...] = ()) -> str | None:
    """Return the backbone from which trainings of a kind start, None if they start from random weights.

    A kind without frozen layers starts from the backbone of its own name, if there is one. Packaged weights are added
    if the store does not have them. Raises ConfigError if a kind with frozen layers has none, StoreError if those of
    the store are damaged.
    """
    if not isinstance(kind, ModuleKind) or not (kind.backbone or kind.name in kinds.names()):
        return None
    name = kind.backbone or kind.name
    id = f"{BOARD}/{name}"
    try:
        store.manifest(id)
    except NoSuchExpert:
        if _resolved(name, allowed).packaged is not None:
            add_packaged(store, name, allowed)
            return id
        if not kind.backbone:
            return None
        raise ConfigError(
            f"kind '{kind.name}' uses the layers of a pretrained {kind.backbone}, but the store has no {id}; "
            f"add it: coe-experts backbone add FILE --kind {kind.backbone}"
        ) from None
    return id


def _add(store: Store, file: Path, expert: Expert, kind: ModuleKind, origin: tuple[str, str]) -> Added:
    brought = importing.bring_backbone(file, expert, kind, Wishes(force=None, usual_input=INPUT))
    assert brought.state is not None, "a backbone is tensors"
    try:
        there = store.manifest(expert.weights)
    except NoSuchExpert:
        return Added(brought.put(store, *origin), brought.remarks)
    tensors = store.load(expert.weights)
    same = there.kind == expert.kind and tensors.keys() == brought.state.keys()
    if not same or any(not torch.equal(tensors[name], tensor) for name, tensor in brought.state.items()):
        raise StoreError(
            f"{expert.weights}: the store has one with other weights (a {there.kind}, digest {there.checksum}), which "
            f"experts may use; give {file} another name with --name"
        )
    return Added(there, was_there=True)


def _resolved(name: str, allowed: tuple[str, ...]) -> ModuleKind:
    kind = kinds.resolve(name, allowed)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"kind '{name}' runs its file unchanged; a backbone must be a network with separable layers")
    return kind


def packaged_file(source: PackagedWeights) -> Path:
    """Return the file of weights in an installed package; raises ConfigError if it is not there, or another file is."""
    spec = find_spec(source.package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder, source.file)
        if path.is_file():
            with path.open("rb") as opened:
                found = hashlib.file_digest(opened, "sha256").hexdigest()
            if found != source.sha256:
                raise ConfigError(
                    f"{path}: has the digest {found[:12]}..., not {source.sha256[:12]}...: another version, or "
                    f"damaged; install {source.distribution} again"
                )
            return path
    raise ConfigError(
        f"the package {source.distribution}, which holds these weights, is not installed; install it, or give a file "
        "of the weights and its --kind"
    )
