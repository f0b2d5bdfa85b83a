"""Files that people take for weights, told by their first bytes: what each is, and how weights come out of it."""

from __future__ import annotations

import zipfile
from pathlib import Path

LOOKED_AT = 512
"""So many first bytes are enough."""
_TO_ONNX = "python -m tf2onnx.convert ... --output model.onnx --inputs-as-nchw NAME"
_UNPACK = "an archive; unpack it, and import the file of weights in it"
_MARKS = (
    (0, b"version https://git-lfs", "a pointer of Git LFS; run `git lfs pull`, and import the file itself"),
    (0, b"\x89HDF", f"an HDF5 file, as Keras writes it; make ONNX of the network, `{_TO_ONNX}`, and import that"),
    (4, b"TFL3", f"a TensorFlow Lite model; make ONNX of it, `{_TO_ONNX}`, and import that"),
    (0, b"\x93NUMPY", "a NumPy array; save the network's `state_dict()` with torch.save, or as safetensors"),
    (0, b"GGUF", "a language model; its network is none of the kinds"),
    (0, b"\x1f\x8b", _UNPACK),
    (257, b"ustar", _UNPACK),
    (0, b"BZh", _UNPACK),
    (0, b"7z\xbc\xaf", _UNPACK),
    (0, b"Rar!", _UNPACK),
)
_WEIGHTS = (".pt", ".pth", ".onnx", ".safetensors", ".ckpt")
_OF_TORCH = ("data.pkl", "constants.pkl", "archive_format", "models/model.json")


def other_file(path: Path, start: bytes) -> str | None:
    """Say what a file is, by its first bytes, if no kind can read it, and what to do; None if one may."""
    if start.lstrip()[:5].lower() in (b"<!doc", b"<html"):
        return "a web page, not weights; download the file itself"
    if start.startswith(b"<?xml") and b"<net " in start:
        return "a model of OpenVINO; import the ONNX model, or the weights, of which it was made"
    if said := next((said for at, mark, said in _MARKS if start[at : at + len(mark)] == mark), None):
        return said
    return _archive(path) if start.startswith(b"PK\3\4") else None


def _archive(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()[:1000]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):
        return None  # whoever reads it says what is wrong
    if any(name.endswith(_OF_TORCH) for name in names):
        return None
    if "config.json" in names and any(name.endswith(".h5") for name in names):
        return "a Keras model; make ONNX of it, `model.export('model.onnx', format='onnx')`, and import that"
    if names and all(name.endswith(".npy") for name in names):
        return "NumPy arrays; save the network's `state_dict()` with torch.save, or as safetensors"
    return _UNPACK if any(name.endswith(_WEIGHTS) for name in names) else None
