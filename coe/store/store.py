"""The expert store on disk: one folder per expert, with a manifest, a weights file and the blobs prepared from it.

Nothing from a file is executed. The manifest defines the expert: new files are written beside those that it names, then
a new manifest is renamed into the place of the old manifest, and last, files that it does not name are removed. So a
reader sees an expert whole or not at all, and no file changes while a running engine reads it.

Longer than other files because what writers promise and what readers rely on stand side by side.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import safetensors

from coe import config, regular
from coe.errors import StoreError, did_you_mean, first_line
from coe.files import TEMPORARY, DiskFull, alone, is_full, replacing
from coe.preprocessing import Outputs, Preprocessing
from coe.store import blob_file, weights_file
from coe.store import learned as learned_files
from coe.store import manifest as manifests
from coe.store.blob_format import Identity, Variant
from coe.store.expert_id import ExpertId
from coe.store.learned import LearnedPictures
from coe.store.manifest import Manifest

if TYPE_CHECKING:
    import torch

MANIFEST = "manifest.json"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)?")
_ID_PART = 200
"""The most characters of each part of an id, because a part is the name of a folder."""
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
"""Names that Windows reserves for devices, in any folder and with any ending."""
BODIES = "bodies"
"""The folder of the tensors that several experts have in common."""
_ANEW = "train or import the expert again"
_PLACES = ("weights", "weights-2")
"""Names of weights files, without suffix: a new file takes the name that the manifest does not use."""
M = TypeVar("M")
T = TypeVar("T")


class NoSuchExpert(StoreError):
    """The store has no expert of that id."""


class Store:
    """Experts by id, `<board>/<expert>`, under one root folder."""

    def __init__(self, root: Path | str | None = None) -> None:
        """Open the store at `root`; None means $COE_STORE, else `store` in the working directory."""
        self.root = Path(root or os.environ.get(config.STORE_VARIABLE) or config.STORE_FOLDER)

    def __repr__(self) -> str:
        try:
            return f"<Store {self.root}, {len(self.ids())} experts>"
        except StoreError as error:
            return f"<Store {error}>"

    def ids(self) -> list[str]:
        """Return the ids of all experts, sorted; also of unreadable folders, which reading reports.

        Raises StoreError if the store itself cannot be read.
        """
        try:
            boards = regular.names(self.root)
        except OSError as error:
            raise StoreError(f"the store {self.root} cannot be read: {error.strerror or error}") from error
        ids = {board for board in boards if regular.may_exist(self.root / board / MANIFEST)}
        for board in boards:
            try:
                experts = [str(ExpertId(board, name)) for name in regular.names(self.root / board)]
            except OSError:
                ids.add(board)
            else:
                ids |= {id for id in experts if regular.may_exist(self.root / id / MANIFEST)}
        return sorted(ids)

    def folder(self, weights: str) -> Path:
        """Return the folder of an expert, which need not exist; raises StoreError for an id that leaves the root."""
        folders = ExpertId.of(weights).folders
        if not _ID.fullmatch(weights) or ".." in weights or max(map(len, folders)) > _ID_PART:
            raise StoreError(
                f"{weights!r} is not an expert id: letters, digits and . _ + - with at most one '/', up to {_ID_PART} "
                "before and after it"
            )
        if folders[0].lower() == BODIES:
            raise StoreError(f"{weights!r} is not an expert id: '{BODIES}' is the folder of what experts share")
        for part in folders:
            if part.endswith(".") or _DEVICES.fullmatch(part):
                raise StoreError(
                    f"{weights!r} is not an expert id: Windows can have no folder '{part}'; give it another name"
                )
        return self.root / weights

    def manifest(self, weights: str) -> Manifest:
        """Read an expert's manifest.

        Raises NoSuchExpert if there is none, StoreError if it is damaged, of another version or of another expert.
        """
        try:
            return manifests.read(self.folder(weights) / MANIFEST, weights)
        except FileNotFoundError:
            hint = did_you_mean(weights, self.ids()) or "; `coe-experts list` shows what there is"
            raise NoSuchExpert(f"no expert '{weights}' in the store {self.root}{hint}") from None

    def steady(self, weights: str, work: Callable[[Manifest], T]) -> T:
        """Do `work` with an expert's manifest; repeat it if it fails and the manifest was replaced meanwhile.

        Raises StoreError.
        """
        return steady(lambda: self.manifest(weights), work)

    def path(self, weights: str) -> Path:
        """Return the path of an expert's weights file; raises StoreError if the expert is not known.

        With a body, the file holds the expert's own tensors alone; see `load`.
        """
        return self.folder(weights) / self.manifest(weights).file

    @property
    def bodies(self) -> Path:
        """The folder of the bodies, which need not exist."""
        return self.root / BODIES

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
    ) -> Manifest:
        """Put an expert into the store, replacing the expert of the same weights, if there is one, as a whole.

        Give either `state`, tensors by name, which is written as safetensors with the expert's identity, or `file`,
        which is copied unchanged. `learned` are the pictures that it learned from, None if nobody knows; see
        `Manifest` for `unproven`. Raises StoreError if the disk refuses.
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
                path = weights_file.write(folder / f"{place}{weights_file.SUFFIX}", state, identity)
            else:
                assert file is not None
                path = weights_file.copy(folder / f"{place}{file.suffix}", file)
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
            )
            self.rewrite(manifest)
        return manifest

    def link(self, weights: str, original: str, *, labels: Sequence[str]) -> Manifest:
        """Put an expert into the store that shares all files of another expert by hard links; no bytes are copied.

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
                with _reading(original, source / shared.file):
                    weights_file.link(source / shared.file, folder / file)
                    for other in shared.files[1:]:
                        weights_file.link(source / other, folder / other)
                with self.sharing_bodies(shared):
                    self.rewrite(manifest)
            return manifest

        return self.steady(original, linked)

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
                with _reading(original.id, folder / body.file):
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
                raise DiskFull(f"{weights}: there is no room in {self.root} ({error.strerror}); make some") from error
            raise StoreError(f"{weights}: cannot be written to {self.root}: {error.strerror or error}") from error

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
        for pattern in (f"{_PLACES[0]}*", f"*{blob_file.SUFFIX}", f"*{blob_file.VERSION_1_SUFFIX}"):
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
            raise StoreError(f"{weights}: cannot be written to {self.root}: {_reason(error)}") from error

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
                        f"{weights}: {self.root} has '{name}' already, which differs only in capitals; on many "
                        "systems both would be one folder, so give it another name"
                    )

    def free_place(self, weights: str) -> str:
        """Return the name, without suffix, of an expert's next weights file; only while its folder is locked."""
        # If the manifest is damaged, no reader uses its files, and either name is free.
        with suppress(StoreError):
            if Path(self.manifest(weights).file).stem == _PLACES[0]:
                return _PLACES[1]
        return _PLACES[0]

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

    def check_weights(self, weights: str) -> Manifest:
        """Compare an expert's weights file with its manifest; raises StoreError if they differ."""
        return self.steady(weights, self._check_weights)

    def _check_weights(self, manifest: Manifest) -> Manifest:
        path = self.folder(manifest.id) / manifest.file
        with _reading(manifest.id, path):
            weights_file.check(path, manifest)
        if manifest.body is not None:
            with _reading(manifest.id, path := self.bodies / manifest.body.file):
                weights_file.check_body(path, manifest.body, f"{manifest.id}: its body {path.name}")
        return manifest

    def check_variant(self, manifest: Manifest, variant: Variant) -> None:
        """Read a prepared blob from end to end; raises StoreError if it differs from the manifest."""
        prepared = manifest.variants[variant]
        path = self.folder(manifest.id) / prepared.file
        with _reading(manifest.id, path):
            header = blob_file.check(path, prepared.bytes, prepared.digest)
        if (header.kind, header.variant, header.labels) != (manifest.kind, variant, len(manifest.labels)):
            raise StoreError(
                f"{manifest.id}: {path.name} is of another kind, variant or number of labels; prepare the expert again "
                "(coe-experts prepare)"
            )
        manifest.prove(header.identity, f"{manifest.id}: {path.name}")
        if header.body != (prepared.body.digest if prepared.body is not None else ""):
            raise StoreError(
                f"{manifest.id}: {path.name} belongs to another body than the manifest names; prepare the expert again "
                "(coe-experts prepare --force)"
            )
        if prepared.body is not None:
            with _reading(manifest.id, path := self.bodies / prepared.body.file):
                blob_file.check(path, prepared.body.bytes, prepared.body.digest)

    def learned(self, weights: str) -> LearnedPictures | None:
        """Return the digests of the pictures that an expert learned from, None if nobody knows; raises StoreError."""
        return self.steady(weights, self._learned)

    def _learned(self, manifest: Manifest) -> LearnedPictures | None:
        if manifest.learned is None:
            return None
        path = self.folder(manifest.id) / manifest.learned.file
        with _reading(manifest.id, path):
            return learned_files.read(path, manifest.learned, f"{manifest.id}: {path.name}")

    def load(self, weights: str) -> dict[str, torch.Tensor]:
        """Read an expert's tensors into new memory (for training and tools, not for the engine)."""
        return self.steady(weights, self.tensors)

    def tensors(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Read all tensors of an expert, those of its body too, into new memory; raises StoreError."""
        tensors = load_tensors(self.folder(manifest.id) / manifest.file)
        if manifest.body is None:
            return tensors
        body = load_tensors(self.bodies / manifest.body.file)
        if twice := sorted(tensors.keys() & body.keys()):
            raise StoreError(f"{manifest.id}: its body {manifest.body.file} holds its own '{twice[0]}' too; {_ANEW}")
        return tensors | body


def steady(read: Callable[[], M], work: Callable[[M], T]) -> T:
    """Do `work` with a manifest that is `read`; repeat it if it fails and the manifest was replaced meanwhile."""
    manifest = read()
    while True:
        try:
            return work(manifest)
        except StoreError:
            now = read()
            if now == manifest:
                raise
            manifest = now


def sweep_files(folder: Path, pattern: str, named: Collection[str]) -> None:
    """Remove from a folder the files of a pattern that are not `named`, and half-written files.

    Call it only while `alone` with the folder, when no other process writes there.
    """
    for path in [*folder.glob(pattern), *folder.glob(f".*{TEMPORARY}")]:
        if path.name not in named:
            # Some systems do not remove a file that is open; the next change removes it.
            with suppress(OSError):
                path.unlink()


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file; raises StoreError for any other file, also a pickle with that suffix."""
    import safetensors.torch

    try:
        # A pipe or a device would keep the library waiting.
        with regular.opened(path):
            return safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise StoreError(f"{path}: not a safetensors file ({_reason(error)})") from error


@contextmanager
def _reading(weights: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{weights}: {path.name} cannot be read: {error.strerror or error}") from error


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return first_line(error)
