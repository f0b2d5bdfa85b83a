"""The expert store on disk: a folder an expert, with a manifest, one weights file and the blobs prepared from it.

Nothing from a file is executed. Writing is atomic (a new folder, manifest or blob is renamed into place), so a reader
sees an expert whole or not at all, and a file that is mapped by a running engine is never changed under it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors
import xxhash
from pydantic import ValidationError

from coe import blob_file, config
from coe.blob_format import Variant
from coe.errors import StoreError, did_you_mean
from coe.files import DiskFull, alone, is_full, replacing
from coe.manifest import Manifest

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)?")
_ID_PART = 200
"""As long may a part of an id be, which is the name of a folder."""
_CHUNK = 1 << 22


def checksum(path: Path) -> str:
    """Return the xxh3-128 of a file, in hexadecimal; it guards against damage, not against an attacker."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class Store:
    """Experts by id, `<board>/<expert>`, under one root folder."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Open the store at `root`; None means $COE_STORE, else `store` in the working directory."""
        self.root = Path(root or os.environ.get(config.STORE_VARIABLE) or config.STORE_FOLDER)

    def __repr__(self) -> str:
        return f"<Store {self.root}, {len(self.ids())} experts>"

    def ids(self) -> list[str]:
        """Return the ids of all experts, sorted."""
        if not os.path.isdir(self.root):
            return []
        found = [*self.root.glob(f"*/{MANIFEST}"), *self.root.glob(f"*/*/{MANIFEST}")]
        folders = (path.parent.relative_to(self.root) for path in found)
        return sorted(folder.as_posix() for folder in folders if not any(p.startswith(".") for p in folder.parts))

    def folder(self, weights: str) -> Path:
        """Return the folder of an expert, which need not exist; raises StoreError for an id that leaves the root."""
        if not _ID.fullmatch(weights) or ".." in weights or max(map(len, weights.split("/"))) > _ID_PART:
            raise StoreError(
                f"'{weights}' is not an expert id: letters, digits and . _ + - with at most one '/', up to {_ID_PART} "
                "before and after it"
            )
        return self.root / weights

    def manifest(self, weights: str) -> Manifest:
        """Read an expert's manifest; raises StoreError where it is missing, damaged or of another version."""
        path = self.folder(weights) / MANIFEST
        try:
            manifest = Manifest.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            hint = did_you_mean(weights, self.ids()) or "; `coe-experts list` shows what there is"
            raise StoreError(f"no expert '{weights}' in the store {self.root}{hint}") from None
        except (OSError, ValueError, RecursionError, ValidationError) as error:
            raise StoreError(f"{path}: the manifest cannot be read ({_first_line(error)}); import it again") from error
        for file in (manifest.file, *(prepared.file for prepared in manifest.variants.values())):
            if Path(file).name != file or file in ("", "..") or "\0" in file:
                raise StoreError(f"{path}: the weights file {file!r} lies outside the expert's folder; refused")
        return manifest

    def path(self, weights: str) -> Path:
        """Return the path of an expert's weights file; raises StoreError if the expert is not known."""
        return self.folder(weights) / self.manifest(weights).file

    def put(
        self,
        weights: str,
        *,
        kind: str,
        labels: Sequence[str],
        input_size: int,
        state: Mapping[str, torch.Tensor] | None = None,
        file: Path | None = None,
        metrics: Mapping[str, float] | None = None,
        source: str = "",
    ) -> Manifest:
        """Put an expert into the store, replacing one of the same id as a whole.

        Give `state`, tensors by name, which is written as safetensors, or `file`, which is copied as it is. Raises
        StoreError if the disk refuses.
        """
        if (state is None) == (file is None):
            raise StoreError(f"{weights}: give either tensors or a file")
        if file is not None and not file.is_file():
            raise StoreError(f"{weights}: there is no file {file}")
        with self._making(weights) as folder:
            path = _write(folder, state, file)
            manifest = Manifest(
                id=weights,
                kind=kind,
                labels=tuple(labels),
                input_size=input_size,
                file=path.name,
                bytes=path.stat().st_size,
                checksum=checksum(path),
                metrics=dict(metrics or {}),
                source=source,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            _write_manifest(folder, manifest)
        return manifest

    def link(self, weights: str, original: str, *, labels: Sequence[str]) -> Manifest:
        """Put an expert into the store that shares the files of another, blobs too (hard links; no bytes are copied).

        Each is loaded and accounted by itself: that is how a few files can stand for a board of hundreds.
        """
        manifest = self.manifest(original).model_copy(update={"id": weights, "labels": tuple(labels)})
        with self._making(weights) as folder:
            for file in (manifest.file, *(prepared.file for prepared in manifest.variants.values())):
                os.link(self.folder(original) / file, folder / file)
            _write_manifest(folder, manifest)
        return manifest

    @contextmanager
    def changing(self, weights: str) -> Iterator[Manifest]:
        """Give an expert's manifest, and keep everybody else from changing the expert meanwhile; they wait.

        Raises StoreError, DiskFull; then the expert is as it was after the last change that went well.
        """
        self.manifest(weights)
        try:
            with alone(self.folder(weights)):
                yield self.manifest(weights)
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"{weights}: there is no room in {self.root} ({error.strerror}); make some") from error
            raise StoreError(f"{weights}: cannot be written to {self.root}: {error.strerror or error}") from error

    def rewrite(self, manifest: Manifest) -> None:
        """Write an expert's manifest again, whole or not at all; only within `changing`, where its OSErrors go."""
        with replacing(self.folder(manifest.id) / MANIFEST) as file:
            file.write(_text(manifest))

    @contextmanager
    def _making(self, weights: str) -> Iterator[Path]:
        """Give a new folder, and put it into the expert's place once all went well."""
        target = self.folder(weights)
        if os.path.exists(target.parent / MANIFEST):
            raise StoreError(f"{weights}: '{target.parent.name}' is an expert in {self.root}, not a board")
        if os.path.isdir(target) and any(target.glob(f"*/{MANIFEST}")):
            raise StoreError(f"{weights}: that is a board in {self.root}; write '{weights}/<expert>'")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=".put-", dir=target.parent))
            try:
                yield made
                made.chmod(0o755)
                with alone(target) if target.exists() else nullcontext():
                    _swap(made, target)
            finally:
                shutil.rmtree(made, ignore_errors=True)
        except (OSError, safetensors.SafetensorError) as error:
            reason = getattr(error, "strerror", None) or _first_line(error)
            raise StoreError(f"{weights}: cannot be written to {self.root}: {reason}") from error

    def check(self, weights: str) -> Manifest:
        """Compare an expert's files with its manifest (size, checksum); raises StoreError where they differ."""
        manifest = self.check_weights(weights)
        for variant in manifest.variants:
            self.check_variant(manifest, variant)
        return manifest

    def check_weights(self, weights: str) -> Manifest:
        """Compare an expert's weights file with its manifest; raises StoreError where they differ."""
        manifest = self.manifest(weights)
        path = self.folder(weights) / manifest.file
        with _reading(weights, path):
            size = path.stat().st_size
            if size != manifest.bytes:
                raise StoreError(
                    f"{weights}: {path.name} has {size:,} bytes, not {manifest.bytes:,} (truncated?); import it again"
                )
            if checksum(path) != manifest.checksum:
                raise StoreError(f"{weights}: {path.name} is damaged (its checksum differs); import it again")
        return manifest

    def check_variant(self, manifest: Manifest, variant: Variant) -> None:
        """Read a prepared blob from end to end; raises StoreError where it is not what the manifest says."""
        prepared = manifest.variants[variant]
        path = self.folder(manifest.id) / prepared.file
        with _reading(manifest.id, path):
            header = blob_file.check(path, prepared.bytes, prepared.digest)
        if (header.kind, header.variant, header.labels) != (manifest.kind, variant, len(manifest.labels)):
            raise StoreError(
                f"{manifest.id}: {path.name} is of another kind, variant or number of labels; prepare the expert again "
                "(coe-experts prepare)"
            )

    def load(self, weights: str) -> dict[str, torch.Tensor]:
        """Read an expert's tensors into memory of their own (for training and tools, not for the engine)."""
        return load_tensors(self.path(weights))


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file; raises StoreError if it is none, a pickle with that name included."""
    import safetensors.torch

    try:
        return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StoreError(f"{path}: not a safetensors file ({_first_line(error)})") from error


@contextmanager
def _reading(weights: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{weights}: {path.name} cannot be read: {error.strerror or error}") from error


def _write(folder: Path, state: Mapping[str, torch.Tensor] | None, file: Path | None) -> Path:
    if state is not None:
        import safetensors.torch

        path = folder / "weights.safetensors"
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}
        safetensors.torch.save_file(tensors, path)
        return path
    assert file is not None
    path = folder / f"weights{file.suffix}"
    shutil.copyfile(file, path)
    return path


def _write_manifest(folder: Path, manifest: Manifest) -> None:
    (folder / MANIFEST).write_bytes(_text(manifest))


def _text(manifest: Manifest) -> bytes:
    return (manifest.model_dump_json(indent=2) + "\n").encode()


def _swap(made: Path, target: Path) -> None:
    """Rename `made` to `target`; an expert that is there already steps aside first (folders cannot be overwritten)."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
        target.rename(old / "expert")
        made.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    else:
        made.rename(target)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
