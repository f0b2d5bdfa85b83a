"""From a foreign file to an expert that can be put into the store: read, unwrapped, agreed on, and run once."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.bring import facts, unwrapping
from coe.bring.facts import Wishes
from coe.core import Expert
from coe.errors import ConfigError, StoreError, list_few, readable
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

_LOOKED_AT = 512
"""So many first bytes tell what a file is."""
_TO_ONNX = "make ONNX of it, `python -m tf2onnx.convert ... --output model.onnx --inputs-as-nchw NAME`, and import that"
_MADE_OF = "import the ONNX model, or the weights, of which it was made"
_ONE_FILE = "save its weights as one file, `save_pretrained(FOLDER, max_shard_size='100GB')`"
_JOINED = (
    "make one file of its folder, `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt`"
)
_UNPACK = "an archive; unpack it, and import the file of weights in it"
_MARKS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS; run `git lfs pull`, and import the file itself"),
    (0, b"\x89HDF", f"an HDF5 file, as Keras writes it; {_TO_ONNX}"),
    (4, b"TFL3", f"a TensorFlow Lite model; {_TO_ONNX}"),
    (0, b"\x93NUMPY", "a NumPy array; save the network's `state_dict()` with torch.save, or as safetensors"),
    (0, b"GGUF", "a language model; its network is none of the kinds"),
    (0, b"\x1f\x8b", _UNPACK),
    (0, b"BZh", _UNPACK),
    (0, b"7z\xbc\xaf", _UNPACK),
    (0, b"Rar!", _UNPACK),
    (257, b"ustar", _UNPACK),
)
"""Files that people take for weights: by their first bytes, what they are, and how weights come out of them."""
_PART = re.compile(r"-\d{5}-of-(?!00001\b)\d{5}\b")
"""How Hugging Face's programs name the parts of a network."""
_OF_TORCH = re.compile(r".*(data\.pkl|constants\.pkl|archive_format|models/model\.json|/data/\d+)", re.IGNORECASE)


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
        start = file.read(_LOOKED_AT)
    if said := _other_file(path, start):
        raise StoreError(f"{path}: {said}")
    if not start:
        raise StoreError(f"{path}: the file is empty; copy or download it again")


def _other_file(path: Path, start: bytes) -> str | None:
    """Say what a file is, by its name and first bytes, if no kind can read it, and what to do; None if one may."""
    if _PART.search(path.name) or path.name.endswith(".index.json"):
        return f"one of several files of one network; {_ONE_FILE}"
    if path.suffix == ".distcp" or path.name == ".metadata":
        return f"a part of a distributed checkpoint; {_JOINED}"
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "a web page, not weights; download the file itself"
    if start.startswith(b"<?xml") and b"<net " in start:
        return f"a model of OpenVINO; {_MADE_OF}"
    if not start.startswith(b"PK\3\4"):
        return next((said for at, mark, said in _MARKS if start[at : at + len(mark)] == mark), None)
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:1000]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        names = []  # whoever reads it says what is wrong
    if not names or any(map(_OF_TORCH.fullmatch, names)):
        return None
    return (
        f"an archive of {list_few(names, 3)}; unpack it if it holds a file of weights, else export the network as "
        "ONNX, or save its `state_dict()` with torch.save, where it was made, and import that"
    )


def other_folder(names: Collection[str]) -> str | None:
    """Say what a folder of files of these names is, if it is a model of TensorFlow or of Core ML; None otherwise."""
    if "saved_model.pb" in names:
        return f"a SavedModel of TensorFlow; {_TO_ONNX}"
    if any(name.endswith(".distcp") for name in names):
        return f"a distributed checkpoint; {_JOINED}"
    return f"a model of Core ML; {_MADE_OF}" if {"Manifest.json", "Data"} <= {*names} else None
