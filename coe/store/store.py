"""Writing the expert store: an expert is replaced in one step.

New files are written beside those that the manifest names, then a new manifest is renamed into the place of the old
manifest, and last, files that it does not name are removed. So a reader sees an expert whole or not at all, and no file
changes while a running engine reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from coe.core import GoodLimits
from coe.errors import StoreError
from coe.helpers import regular
from coe.helpers.files import TEMPORARY, DiskFull, alone, is_full, replacing
from coe.helpers.preprocessing import Outputs, Preprocessing
from coe.store import learned as learned_files
from coe.store import manifest as manifests
from coe.store import tensor_files, weights_file
from coe.store.blob_format import Identity
from coe.store.exam import Exam
from coe.store.expert_id import ExpertId
from coe.store.learned import LearnedPictures
from coe.store.manifest import Manifest
from coe.store.store_reader import MANIFEST, StoreReader, reading
from coe.store.tensor_files import load_tensors
from coe.store.version_history import VersionHistory, take
from coe.store.weights_file import reason

if TYPE_CHECKING:
    import torch


_PLACES = ("weights", "weights-2")
"""Names of weights files, without suffix: a new file takes the name that the manifest does not use."""


class Store(StoreReader):
    """Experts by id, `<board>/<expert>`, under one root folder."""

    def put(  # noqa: PLR0913
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
        learned: LearnedPictures | None = None,
        preprocessing: Preprocessing | None = None,
        outputs: Outputs | None = None,
        unproven: str | None = None,
        exam: Exam | None = None,
        limits: Mapping[str, GoodLimits] | None = None,
        reference: str = "",
        looks: int = 1,
        licence: str = "",
    ) -> Manifest:
        """Put an expert into the store, replacing the expert of the same weights, if there is one, as a whole.

        Give either `state`, tensors by name, which is written as safetensors with the expert's identity, or `file`,
        which is copied unchanged. `learned` are the pictures that it learned from, None if nobody knows; see
        `Manifest` for `unproven`, `exam`, `limits`, `reference`, `looks` and `licence`. Raises StoreError if the disk
        refuses.
        """
        if (state is None) == (file is None):
            raise StoreError(f"{weights}: give either tensors or a file")
        if file is not None and not file.is_file():
            raise StoreError(f"{weights}: there is no file {file}")
        with self._making(weights) as (folder, place):
            if state is not None:
                identity = Identity(
                    id=weights, kind=kind, labels=tuple(labels), input_size=input_size, preprocessing=preprocessing
                )
                path = tensor_files.write(folder / f"{place}{weights_file.SUFFIX}", state, identity)
            else:
                assert file is not None
                path = tensor_files.copy(folder / f"{place}{file.suffix}", file)
            manifest = Manifest(
                id=weights,
                kind=kind,
                labels=tuple(labels),
                input_size=input_size,
                file=path.name,
                bytes=path.stat().st_size,
                checksum=weights_file.checksum(path),
                metrics=dict(metrics or {}),
                source=source,
                created=datetime.now(UTC).isoformat(timespec="seconds"),
                learned=learned_files.write(folder, place, learned) if learned is not None else None,
                preprocessing=preprocessing,
                outputs=outputs,
                unproven=unproven,
                exam=exam,
                limits=dict(limits or {}),
                reference=reference,
                looks=looks,
                licence=licence,
            )
            return self._replace(manifest)

    def link(self, weights: str, original: str, *, labels: Sequence[str]) -> Manifest:
        """Put an expert into the store that shares all files of another expert, by hard links where that is possible.

        Each expert is loaded and counted by itself: so a few files can stand for a board of hundreds of experts.
        """
        if weights == original:
            raise StoreError(f"{weights}: an expert cannot share its own files")

        def linked(shared: Manifest) -> Manifest:
            source = self.folder(original)
            with self._making(weights) as (folder, place):
                file = f"{place}{Path(shared.file).suffix}"
                manifest = shared.model_copy(
                    update={
                        "id": weights,
                        "labels": tuple(labels),
                        "file": file,
                        "original": shared.original or original,
                    }
                )
                with reading(original, source / shared.file):
                    take(source / shared.file, folder / file)
                    for other in shared.files[1:]:
                        take(source / other, folder / other)
                with self.sharing_bodies(shared):
                    return self._replace(manifest.model_copy(update={"restored": 0}))

        return self.steady(original, linked)

    def restore(self, weights: str, version: int) -> Manifest:
        """Put an earlier version of an expert into its place again, as a new version; the present one is kept.

        Its files are proved first. Raises StoreError.
        """
        earlier = self.earlier(weights, version)
        return self.adopt(earlier, self.history(weights).place(version), self.bodies, restored=version)

    def adopt(self, manifest: Manifest, folder: Path, bodies: Path, *, restored: int = 0) -> Manifest:
        """Put an expert into the store whose files lie in another folder, and its bodies in `bodies`, as a whole.

        Files are linked where that is possible, and proved before they replace anything. Raises StoreError.
        """
        weights = manifest.id
        with self._making(weights) as (here, place), ExitStack() as stack:
            file = f"{place}{Path(manifest.file).suffix}"
            taken = manifest.model_copy(update={"file": file, "restored": restored})
            if manifest.bodies:
                stack.enter_context(self.naming_bodies())
            for body in manifest.bodies:
                if bodies != self.bodies:
                    take(bodies / body.file, self.bodies / body.file)
            with reading(weights, folder / manifest.file):
                for source, target in zip(manifest.files, taken.files, strict=True):
                    take(folder / source, here / target)
            self._check_weights(taken)
            self._learned(taken)
            for variant in taken.variants:
                self.check_variant(taken, variant)
            return self._replace(taken)

    @contextmanager
    def naming_bodies(self) -> Iterator[Path]:
        """Give the folder of bodies, locked, until a manifest names what lies there; raises OSError.

        No other process sweeps a body away meanwhile.
        """
        self.bodies.mkdir(parents=True, exist_ok=True)
        with alone(self.bodies):
            yield self.bodies

    @contextmanager
    def sharing_bodies(self, original: Manifest) -> Iterator[None]:
        """Keep the bodies of an expert until another expert's manifest names them; raises StoreError, OSError."""
        if not original.bodies:
            yield
            return
        with self.naming_bodies() as folder:
            for body in original.bodies:
                with reading(original.id, folder / body.file):
                    (folder / body.file).stat()
            yield

    @contextmanager
    def changing(self, weights: str) -> Iterator[Manifest]:
        """Give an expert's manifest; other processes that want to change the expert wait meanwhile.

        Raises StoreError, DiskFull; then the expert is as the last successful change left it.
        """
        self.manifest(weights)
        try:
            with alone(self.folder(weights)):
                yield self.manifest(weights)
        except OSError as error:
            if is_full(error):
                raise DiskFull(f"{weights}: no space left in {self.root} ({error.strerror}); free some") from error
            raise StoreError(f"{weights}: cannot be written to {self.root}: {error.strerror or error}") from error

    def _replace(self, manifest: Manifest) -> Manifest:
        """Write the manifest of another expert of this id, as the next version; the present one is kept."""
        history = self.history(manifest.id)
        before: Manifest | None = None
        with suppress(StoreError):  # a damaged expert is no version to go back to
            before = self.manifest(manifest.id)
        last = max([before.version if before is not None else 0, *history.versions()])
        if before is not None:
            history.keep(before.version, before.files)
        manifest = manifest.model_copy(update={"version": last + 1})
        self.rewrite(manifest)
        return manifest

    def rewrite(self, manifest: Manifest) -> None:
        """Write an expert's manifest, whole or not at all, and remove files that it does not name.

        Call it only within `changing`, which translates its OSErrors.
        """
        folder = self.folder(manifest.id)
        with replacing(folder / MANIFEST) as file:
            file.write((manifest.model_dump_json(indent=2) + "\n").encode())
        self.sweep(manifest)

    def sweep(self, manifest: Manifest) -> None:
        """Remove files that an expert's manifest does not name, and half-written files; only within `changing`."""
        for pattern in (f"{_PLACES[0]}*", f"*{weights_file.BLOB_SUFFIX}"):
            sweep_files(self.folder(manifest.id), pattern, manifest.files)

    @contextmanager
    def _making(self, weights: str) -> Iterator[tuple[Path, str]]:
        """Give an expert's locked folder, and the name of its next weights file; a failure leaves nothing behind."""
        folder = self.folder(weights)
        try:
            self._check_place(weights, folder)
            try:
                with ExitStack() as stack:
                    while True:
                        folder.mkdir(parents=True, exist_ok=True)
                        # A writer whose first `put` failed may remove the folder between these two lines.
                        with suppress(FileNotFoundError):
                            stack.enter_context(alone(folder))
                            break
                    place = self.free_place(weights)
                    try:
                        yield folder, place
                    except BaseException:
                        sweep_files(folder, f"{place}.*", self._named(weights))
                        raise
            except BaseException:
                # After the unlock, because the lock is a file in the folder. A folder that is not empty stays.
                with suppress(OSError):
                    folder.rmdir()
                raise
        except (OSError, safetensors.SafetensorError) as error:
            raise StoreError(f"{weights}: cannot be written to {self.root}: {reason(error)}") from error

    def _named(self, weights: str) -> tuple[str, ...]:
        """Return the files that an expert's manifest names, if there is one that can be read."""
        with suppress(StoreError):
            return self.manifest(weights).files
        return ()

    def _check_place(self, weights: str, folder: Path) -> None:
        self._check_case(weights, folder)
        if ExpertId.of(weights).board:
            if (folder.parent / MANIFEST).exists():
                raise StoreError(f"{weights}: '{folder.parent.name}' is an expert in {self.root}, not a board")
        elif list(folder.glob(f"*/{MANIFEST}")):
            raise StoreError(f"{weights}: that is a board in {self.root}; write '{weights}/<expert>'")

    def _check_case(self, weights: str, folder: Path) -> None:
        """Refuse an id that differs from another id only in case: on Windows both are one folder."""
        for part in (folder, folder.parent) if ExpertId.of(weights).board else (folder,):
            for name in regular.names(part.parent):
                if name != part.name and name.lower() == part.name.lower():
                    raise StoreError(
                        f"{weights}: {self.root} has '{name}' already, which differs only in case; on many "
                        "systems both would be the same folder, so give it another name"
                    )

    def free_place(self, weights: str) -> str:
        """Return the name, without suffix, of an expert's next weights file; only while its folder is locked."""
        # If the manifest is damaged, no reader uses its files, and either name is free.
        with suppress(StoreError):
            if Path(self.manifest(weights).file).stem == _PLACES[0]:
                return _PLACES[1]
        return _PLACES[0]

    # To be read whole: for tools, a line needs none

    def history(self, weights: str) -> VersionHistory:
        """Return the earlier versions of an expert; raises StoreError for an id that is none."""
        return VersionHistory(self.folder(weights), MANIFEST)

    def earlier(self, weights: str, version: int) -> Manifest:
        """Read the manifest of an earlier version; raises StoreError if that is not kept, or damaged."""
        return self.history(weights).read(version, f"'{weights}'", lambda path: manifests.read(path, weights))

    def check(self, weights: str) -> Manifest:
        """Compare an expert's files with its manifest (size, checksum, identity).

        Raises StoreError if they differ.
        """

        def check(manifest: Manifest) -> Manifest:
            self._check_weights(manifest)
            self._learned(manifest)
            for variant in manifest.variants:
                self.check_variant(manifest, variant)
            return manifest

        return self.steady(weights, check)

    def learned(self, weights: str) -> LearnedPictures | None:
        """Return the digests of the pictures that an expert learned from, None if nobody knows; raises StoreError."""
        return self.steady(weights, self._learned)

    def _learned(self, manifest: Manifest) -> LearnedPictures | None:
        if manifest.learned is None:
            return None
        path = self.folder(manifest.id) / manifest.learned.file
        with reading(manifest.id, path):
            return learned_files.read(path, manifest.learned, f"{manifest.id}: {path.name}")

    def load(self, weights: str) -> dict[str, torch.Tensor]:
        """Read an expert's tensors into new memory (for training and tools, not for the engine)."""
        return load(self, weights)

    def tensors(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Read all tensors of an expert, those of its body too, into new memory; raises StoreError."""
        return _tensors(self, manifest)


def sweep_files(folder: Path, pattern: str, named: Collection[str]) -> None:
    """Remove from a folder the files of a pattern that are not `named`, and half-written files.

    Call it only while `alone` with the folder, when no other process writes there.
    """
    for path in [*folder.glob(pattern), *folder.glob(f".*{TEMPORARY}")]:
        if path.name not in named:
            # Some systems do not remove a file that is open; the next change removes it.
            with suppress(OSError):
                path.unlink()


def load(store: StoreReader, weights: str) -> dict[str, torch.Tensor]:
    """Read the tensors of an expert of any store into new memory; raises StoreError."""
    return store.steady(weights, lambda manifest: _tensors(store, manifest))


def _tensors(store: StoreReader, manifest: Manifest) -> dict[str, torch.Tensor]:
    tensors = load_tensors(store.folder(manifest.id) / manifest.file)
    if manifest.body is None:
        return tensors
    body = load_tensors(store.bodies / manifest.body.file)
    if twice := sorted(tensors.keys() & body.keys()):
        raise StoreError(
            f"{manifest.id}: its body {manifest.body.file} holds its own '{twice[0]}' too; train or import the expert "
            "again"
        )
    return tensors | body
