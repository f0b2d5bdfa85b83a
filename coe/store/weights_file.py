"""Files of trained weights: written whole or not at all, and checked from end to end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from coe import regular, system
from coe.errors import StoreError
from coe.files import TEMPORARY, replacing
from coe.store import safetensors_header
from coe.store.blob_format import Identity
from coe.store.manifest import Manifest, StoredFile
from coe.store.safetensors_header import SafetensorsHeader

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"
_CHUNK_BYTES = 1 << 20
_BODY_KIND = "coe.body"
"""The metadata key under which a body states its kind."""


def checksum(path: Path) -> str:
    """Return the xxh3-128 of a file, in hexadecimal; it guards against damage, not against an attacker.

    Raises OSError, also if it is not a regular file.
    """
    with regular.opened(path) as number:
        return _checksum(number)


def check_body(path: Path, body: StoredFile, name: str) -> None:
    """Read the body of an expert's trained tensors from end to end and prove it; raises StoreError, OSError."""
    with regular.opened(path) as number:
        if os.fstat(number).st_size != body.bytes or _checksum(number) != body.digest:
            raise StoreError(f"{name} is damaged (its size or checksum differs); train or import the expert again")


def check(path: Path, manifest: Manifest) -> None:
    """Read a file from end to end and prove that it is the file of a manifest; raises StoreError, OSError."""
    name = f"{manifest.id}: {path.name}"
    with regular.opened(path) as number:
        size = os.fstat(number).st_size
        if size != manifest.bytes:
            raise StoreError(f"{name} has {size:,} bytes, not {manifest.bytes:,} (truncated?); import it again")
        if _checksum(number) != manifest.checksum:
            raise StoreError(f"{name} is damaged (its checksum differs); import it again")
        if path.suffix == SUFFIX:
            manifest.prove(safetensors_header.read(number, size, name).identity, name)


def header(path: Path) -> SafetensorsHeader:
    """Return the tensors of a safetensors file and the identity that it states; raises StoreError, OSError."""
    with regular.opened(path) as number:
        return safetensors_header.read(number, os.fstat(number).st_size, path.name)


def holds(path: Path, data: bytes) -> bool:
    """Tell whether a file now holds exactly these bytes."""
    try:
        return checksum(path) == xxhash.xxh3_128_hexdigest(data)
    except OSError:
        return False


def write(path: Path, state: Mapping[str, torch.Tensor], made_for: Identity) -> Path:
    """Write tensors as safetensors that state their identity; return the path; raises OSError."""
    import safetensors.torch

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    # Not `save_file`, whose errors do not say that the disk is full, and whose files their user alone may read.
    content = safetensors.torch.save(tensors, metadata=safetensors_header.metadata(made_for))
    with replacing(path) as file:
        file.write(content)
    return path


def write_body(folder: Path, kind: str, state: Mapping[str, torch.Tensor]) -> StoredFile:
    """Write tensors that experts of a kind have in common, under a name that their content decides; raises OSError.

    Equal tensors are equal bytes, so a body that is there already is not written again.
    """
    import safetensors.torch

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    # One key: several keys would stand in any order.
    content = safetensors.torch.save(tensors, metadata={_BODY_KIND: kind})
    digest = xxhash.xxh3_128_hexdigest(content)
    path = folder / f"{digest}{SUFFIX}"
    if not holds(path, content):
        with replacing(path) as file:
            file.write(content)
    return StoredFile(file=path.name, bytes=len(content), digest=digest)


def copy(path: Path, source: Path) -> Path:
    """Copy a file unchanged to `path`; return `path`; raises OSError."""
    with source.open("rb") as reader, replacing(path) as file:
        shutil.copyfileobj(reader, file, _CHUNK_BYTES)
    return path


def link(source: Path, target: Path) -> None:
    """Give a file a second name, replacing any file of that name; raises OSError."""
    temporary = target.with_name(f".{target.name}{TEMPORARY}")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    system.replace(temporary, target)
    # If both names are links to the same file, the rename does nothing and leaves both.
    temporary.unlink(missing_ok=True)


def _checksum(number: int) -> str:
    digest = xxhash.xxh3_128()
    for chunk in regular.chunks(number):
        digest.update(chunk)
    return digest.hexdigest()
