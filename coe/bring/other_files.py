"""Files that people take for weights, told by their first bytes: what each is, and how weights come out of it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection
from pathlib import Path

from coe.errors import list_few

LOOKED_AT = 512
"""So many first bytes are enough."""
_TO_ONNX = "python -m tf2onnx.convert ... --output model.onnx --inputs-as-nchw NAME"
_MADE_OF = "import the ONNX model, or the weights, of which it was made"
_UNPACK = "an archive; unpack it, and import the file of weights in it"
_MARKS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS; run `git lfs pull`, and import the file itself"),
    (0, b"\x89HDF", f"an HDF5 file, as Keras writes it; make ONNX of the network, `{_TO_ONNX}`, and import that"),
    (4, b"TFL3", f"a TensorFlow Lite model; make ONNX of it, `{_TO_ONNX}`, and import that"),
    (0, b"\x93NUMPY", "a NumPy array; save the network's `state_dict()` with torch.save, or as safetensors"),
    (0, b"GGUF", "a language model; its network is none of the kinds"),
    (0, b"\x1f\x8b", _UNPACK),
    (0, b"BZh", _UNPACK),
    (0, b"7z\xbc\xaf", _UNPACK),
    (0, b"Rar!", _UNPACK),
    (257, b"ustar", _UNPACK),
)
_PART = re.compile(r"-\d{5}-of-(?!00001\b)\d{5}\b")
"""How Hugging Face's programs name the parts of a network."""
_WEIGHTS = (".pt", ".pth", ".onnx", ".safetensors", ".ckpt")
_OF_TORCH = re.compile(r".*(data\.pkl|constants\.pkl|archive_format|models/model\.json|/data/\d+)", re.IGNORECASE)


def other_file(path: Path, start: bytes) -> str | None:
    """Say what a file is, by its name and first bytes, if no kind can read it, and what to do; None if one may."""
    if _PART.search(path.name) or path.name.endswith(".index.json"):
        way = "`save_pretrained(FOLDER, max_shard_size='100GB')`"
        return f"one of several files of one network; save its weights as one file, {way}"
    if path.suffix == ".distcp" or path.name == ".metadata":
        way = "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER weights.pt`"
        return f"a part of a distributed checkpoint; make one file of its folder, {way}"
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "a web page, not weights; download the file itself"
    if start.startswith(b"<?xml") and b"<net " in start:
        return f"a model of OpenVINO; {_MADE_OF}"
    if said := next((said for at, mark, said in _MARKS if start[at : at + len(mark)] == mark), None):
        return said
    return _archive(path) if start.startswith(b"PK\3\4") else None


def _archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:1000]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return None  # whoever reads it says what is wrong
    if any(map(_OF_TORCH.fullmatch, names)):
        return None
    if "config.json" in names and any(name.endswith(".h5") for name in names):
        return "a Keras model; make ONNX of it, `model.export('model.onnx', format='onnx')`, and import that"
    if names and all(name.endswith(".npy") for name in names):
        return "NumPy arrays; save the network's `state_dict()` with torch.save, or as safetensors"
    if not names or any(name.endswith(_WEIGHTS) for name in names):
        return _UNPACK if names else None
    return f"an archive of {list_few(names, 3)}; export the network as ONNX where it was made, and import that"


def other_folder(names: Collection[str]) -> str | None:
    """Say what a folder of files of these names is, if it is a model of TensorFlow or of Core ML; None otherwise."""
    if "saved_model.pb" in names:
        return f"a SavedModel of TensorFlow; make ONNX of it, `{_TO_ONNX}`, and import that"
    if part := next((name for name in names if name.endswith(".distcp")), None):
        return other_file(Path(part), b"")
    is_apple = {"Manifest.json", "Data"} <= {*names}
    return f"a model of Core ML; {_MADE_OF}" if is_apple else None
