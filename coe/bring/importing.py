"""From a foreign file to an expert that can be put into the store: read, unwrapped, agreed on, and run once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.bring import facts, unwrapping
from coe.bring.facts import Wishes
from coe.core import Expert
from coe.errors import ConfigError, StoreError, readable
from coe.helpers import regular
from coe.helpers.plugins import running
from coe.store import torch_file
from coe.store.blob_format import optional_of
from coe.store.kinds import FileKind, Kind, ModuleKind, Unsaid
from coe.store.manifest import Manifest
from coe.store.skeletons import bare_skeleton
from coe.store.store import Store
from coe.variants import accept

if TYPE_CHECKING:
    import torch

_POINTER = b"version https://git-lfs"
"""How a file begins that Git LFS left in the place of another one."""


@dataclass(frozen=True, slots=True)
class Brought:
    """An expert from a foreign file, and sentences on what was decided; its tensors by name, or its file.

    `is_stated` is as in `facts.Agreed`, and `unproven` says why that is not proven; None if there is nothing to prove.
    """

    expert: Expert
    remarks: tuple[str, ...]
    state: Mapping[str, torch.Tensor] | None = None
    file: Path | None = None
    is_stated: bool = False
    unproven: str | None = None

    def put(self, store: Store, source: str, licence: str = "") -> Manifest:
        """Put the expert into a store; raises StoreError."""
        expert = self.expert
        return store.put(
            expert.weights,
            kind=expert.kind,
            labels=expert.labels,
            input_size=expert.input_size,
            state=self.state,
            file=self.file,
            source=source,
            preprocessing=expert.preprocessing,
            outputs=expert.outputs,
            unproven=self.unproven,
            looks=expert.alternates,
            licence=licence,
        )


def bring(file: Path, expert: Expert, kind: Kind, wishes: Wishes, work: Path) -> Brought:
    """Read a foreign file for an expert, whose labels and input size may be left to it (() and 0).

    A file that needs others beside it is made into one in the folder `work`. Raises ConfigError, StoreError, and
    whatever the kind raises.
    """
    check_file(file)
    if isinstance(kind, FileKind):
        with running("kind", expert.kind, f"run with {file}"):
            whole = kind.bundled(file, work)
            try:
                foreign = kind.read(whole)
                agreed = facts.agree(expert, foreign, kind, wishes)
                outputs, missing = None, dict(agreed.missing)
                # A classifier whose labels nobody says is asked about its scores, too, at once.
                labels = agreed.expert.labels or tuple(map(str, range(max(2, foreign.columns) * (foreign.columns > 0))))
                if labels and "input" not in missing:
                    accept.check_labels(tried := replace(agreed.expert, labels=labels))
                    try:
                        outputs = kind.settle(whole, tried)
                    except Unsaid as error:
                        missing |= error.missing
                if missing:
                    raise facts.question(str(file), missing)
                expert = replace(agreed.expert, outputs=outputs)
                session = kind.open(whole, expert, 1)
            except StoreError as error:  # the user knows nothing of the copy
                raise StoreError(str(error).replace(str(whole), str(file))) from error
        accept.check_session(kind, expert, session)
        return Brought(expert, agreed.remarks, file=whole, is_stated=agreed.is_stated)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"kind '{expert.kind}' is neither a ModuleKind nor a FileKind; it cannot be imported")
    with running("kind", expert.kind, f"imported from {file}"):
        foreign = kind.read(file)
        torch_file.check_tensors(str(file), foreign.state)
        agreed = facts.agree(expert, foreign, kind, wishes)
        if {"labels", "input"} & agreed.missing.keys():
            raise facts.question(str(file), agreed.missing)
        expert = replace(agreed.expert, alternates=foreign.looks)
        accept.check_labels(expert)
        try:
            skeleton = bare_skeleton(kind, expert, optional=optional_of(foreign.state))
            taken = unwrapping.unwrapped(foreign, skeleton.state_dict(), str(file), wishes.prefix)
            unwrapping.check_layers(taken.layers, skeleton, str(file))
            state = kind.convert(taken.state, expert)
        except StoreError as error:
            raise StoreError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    accept.check_module(kind, expert, state)
    if agreed.missing:  # asked last: what is wrong with the file comes first
        raise facts.question(str(file), agreed.missing)
    remarks = (*agreed.remarks, *taken.remarks)
    return Brought(expert, remarks, state=state, is_stated=agreed.is_stated)


def bring_backbone(file: Path, expert: Expert, kind: Kind, wishes: Wishes) -> Brought:
    """Read the layers of a foreign file whose shape does not depend on labels, as an expert without labels.

    Raises as `bring` does, and ConfigError for a kind whose file cannot be taken apart.
    """
    check_file(file)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"a file of kind '{expert.kind}' has no separate head; leave --as-backbone out")
    with running("kind", expert.kind, f"imported from {file}"):
        foreign = kind.read(file)
        torch_file.check_tensors(str(file), foreign.state)
        # What its pictures are is said by the training that starts from it.
        agreed = facts.agree(expert, foreign, kind, wishes)
        if "input" in agreed.missing:
            raise facts.question(str(file), {"input": ""})
        taken = unwrapping.backbone(foreign, kind, agreed.expert, str(file), wishes.prefix)
    return Brought(replace(agreed.expert, labels=()), (*agreed.remarks, *taken.remarks), state=taken.state)


def check_file(path: Path) -> None:
    """Raise StoreError for a file without weights, which each kind would call damaged, whatever its ending is."""
    with readable(path, StoreError), regular.opened(path), path.open("rb") as file:
        start = file.read(len(_POINTER))
    if start == _POINTER:
        raise StoreError(f"{path}: a pointer of Git LFS; run `git lfs pull`, and import the file itself")
    if not start:
        raise StoreError(f"{path}: the file is empty; copy or download it again")
