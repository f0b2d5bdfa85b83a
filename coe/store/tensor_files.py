"""Files of tensors: read into memory whole, and written whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import xxhash

from coe.errors import StoreError
from coe.helpers import regular
from coe.helpers.files import replacing
from coe.store import safetensors_header
from coe.store.blob_format import Identity
from coe.store.manifest import StoredFile
from coe.store.weights_file import SUFFIX, holds, reason

if TYPE_CHECKING:
    import torch

_CHUNK_BYTES = 1 << 20
_BODY_KIND = "coe.body"
"""The metadata key under which a body states its kind."""


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


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file; raises StoreError for any other file, also a pickle with that suffix."""
    import safetensors.torch

    try:
        # A pipe or a device would keep the library waiting.
        with regular.opened(path):
            return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StoreError(f"{path}: not a safetensors file ({reason(error)}); copy or download it again") from error
