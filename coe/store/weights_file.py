"""Weights as files, as they were trained: written whole or not at all, and checked from end to end."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from coe import regular, system
from coe.errors import StoreError
from coe.files import TEMPORARY
from coe.store import safetensors_header
from coe.store.blob_format import Identity
from coe.store.manifest import Manifest

if TYPE_CHECKING:
    import torch

SUFFIX = ".safetensors"


def checksum(path: Path) -> str:
    """Return the xxh3-128 of a file, in hexadecimal; it guards against damage, not against an attacker.

    Raises OSError, also for what is no regular file.
    """
    with regular.opened(path) as number:
        return _checksum(number)


def check(path: Path, manifest: Manifest) -> None:
    """Read a file from end to end and prove it to be the one of a manifest; raises StoreError, OSError."""
    name = f"{manifest.id}: {path.name}"
    with regular.opened(path) as number:
        size = os.fstat(number).st_size
        if size != manifest.bytes:
            raise StoreError(f"{name} has {size:,} bytes, not {manifest.bytes:,} (truncated?); import it again")
        if _checksum(number) != manifest.checksum:
            raise StoreError(f"{name} is damaged (its checksum differs); import it again")
        if path.suffix == SUFFIX:
            manifest.prove(safetensors_header.read(number, size, name).identity, name)


def holds(path: Path, data: bytes) -> bool:
    """Tell whether a file holds just these bytes now."""
    try:
        return checksum(path) == xxhash.xxh3_128_hexdigest(data)
    except OSError:
        return False


def identity(path: Path) -> Identity | None:
    """Return what a safetensors file says of whom it was made for; None if it does not; raises StoreError, OSError."""
    with regular.opened(path) as number:
        return safetensors_header.read(number, os.fstat(number).st_size, path.name).identity


def write(path: Path, state: Mapping[str, torch.Tensor], made_for: Identity) -> Path:
    """Write tensors as safetensors that say for whom they were made; return the path; raises OSError."""
    import safetensors.torch

    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
    said = safetensors_header.metadata(made_for)
    return _place(path, lambda made: safetensors.torch.save_file(tensors, made, metadata=said))


def copy(path: Path, source: Path) -> Path:
    """Copy a file as it is to `path`; return that; raises OSError."""
    return _place(path, lambda made: shutil.copyfile(source, made))


def _place(path: Path, write: Callable[[Path], object]) -> Path:
    """Let a file be written beside its place, bring it onto the disk, and then put it there."""
    made = path.with_name(f".{path.name}{TEMPORARY}")
    made.unlink(missing_ok=True)
    made.touch(exist_ok=False)
    mode = stat.S_IMODE(made.stat().st_mode)
    write(made)
    # A library may write for its user's eyes alone; a line that runs as somebody else reads its experts, too.
    made.chmod(mode)
    with made.open("rb+") as file:
        os.fsync(file.fileno())
    system.replace(made, path)
    return path


def link(source: Path, target: Path) -> None:
    """Give a file a second name, in the place of what has that name; raises OSError."""
    made = target.with_name(f".{target.name}{TEMPORARY}")
    made.unlink(missing_ok=True)
    os.link(source, made)
    system.replace(made, target)
    # A name of the same file is left as it is by the system, and so is the other.
    made.unlink(missing_ok=True)


def _checksum(number: int) -> str:
    digest = xxhash.xxh3_128()
    for chunk in regular.chunks(number):
        digest.update(chunk)
    return digest.hexdigest()
