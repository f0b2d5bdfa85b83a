"""From a foreign file to an expert that can be put into the store: read, unwrapped, agreed on, and run once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.bring import facts, unwrapping
from coe.bring.facts import Wishes
from coe.bring.other_files import LOOKED_AT, other_file
from coe.bring.unwrapping import Unwrapped
from coe.core import Expert
from coe.errors import CoeError, ConfigError, StoreError, readable
from coe.helpers import regular
from coe.helpers.plugins import running
from coe.store import kinds, torch_file
from coe.store.blob_format import optional_of
from coe.store.kinds import FileKind, Foreign, Kind, ModuleKind, Unsaid
from coe.store.manifest import Manifest
from coe.store.skeletons import bare_skeleton
from coe.store.store import Store
from coe.variants import accept

if TYPE_CHECKING:
    import torch


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
                agreed = facts.agree(expert, kind.read(whole), kind, wishes)
                outputs, missing = None, dict(agreed.missing)
                if not {"labels", "input"} & missing.keys():
                    accept.check_labels(agreed.expert)
                    try:
                        outputs = kind.settle(whole, agreed.expert)
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
            taken = _taken(kind, expert, foreign, file, wishes.prefix)
        except StoreError as error:
            if other := _kind_that_fits(kind, expert, foreign, file):
                raise StoreError(f"{file}: fits kind '{other}', not '{expert.kind}'; give --kind {other}") from error
            raise StoreError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    accept.check_module(kind, expert, taken.state)
    if agreed.missing:  # asked last: what is wrong with the file comes first
        raise facts.question(str(file), agreed.missing)
    remarks = (*agreed.remarks, *taken.remarks)
    return Brought(expert, remarks, state=taken.state, is_stated=agreed.is_stated)


def _taken(kind: ModuleKind, expert: Expert, foreign: Foreign, file: Path, prefix: str = "") -> Unwrapped:
    """Return the tensors of a foreign file as a kind needs them; raises StoreError if they do not fit."""
    taken, skeleton = _unwrapped(kind, expert, foreign, file, prefix)
    unwrapping.check_layers(taken.layers, skeleton, str(file))
    return replace(taken, state=kind.convert(taken.state, expert))


def _unwrapped(
    kind: ModuleKind, expert: Expert, foreign: Foreign, file: Path, prefix: str = ""
) -> tuple[Unwrapped, torch.nn.Module]:
    skeleton = bare_skeleton(kind, expert, optional=optional_of(foreign.state))
    return unwrapping.unwrapped(foreign, skeleton.state_dict(), str(file), prefix), skeleton


def _kind_that_fits(own: ModuleKind, expert: Expert, foreign: Foreign, file: Path) -> str:
    """Return the name of the installed kind that a foreign file fits, as of a network of another size; "" for none.

    None is looked for if it is of its `own` kind, so that something else is wrong, as the number of labels.
    """
    for name in dict.fromkeys((expert.kind, *kinds.names())):
        with suppress(CoeError), running("kind", name, f"tried with {file}"):
            kind, other = own if name == expert.kind else kinds.resolve(name), replace(expert, kind=name)
            if not isinstance(kind, ModuleKind):
                continue
            taken, skeleton = _unwrapped(kind, other, foreign, file)
            if not unwrapping.resembles(taken.state, skeleton.state_dict()):
                continue
            if kind is own:
                break
            accept.check_module(kind, other, _taken(kind, other, foreign, file).state)
            return name
    return ""


def bring_backbone(file: Path, expert: Expert, kind: Kind, wishes: Wishes) -> Brought:
    """Read the layers of a foreign file whose shape does not depend on labels, as an expert without labels.

    Raises as `bring` does, and ConfigError for a kind whose file cannot be taken apart.
    """
    check_file(file)
    if not isinstance(kind, ModuleKind):
        raise ConfigError(f"a file of kind '{expert.kind}' cannot be taken apart; leave --as-backbone out")
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
    """Raise StoreError for a file that no kind can open as weights, whatever its ending is; the sentence says why."""
    with readable(path, StoreError), regular.opened(path), path.open("rb") as file:
        start = file.read(LOOKED_AT)
    if said := other_file(path, start):
        raise StoreError(f"{path}: {said}")
    if not start:
        raise StoreError(f"{path}: the file is empty; copy or download it again")
