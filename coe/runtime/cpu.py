"""The CPU as a device: blobs read into buffers and bound to slots, and sessions of kinds that open their own files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from coe.core import FULL, Expert, Finding
from coe.errors import CoeError, KindFailed, StoreError
from coe.helpers.system import give_memory_back
from coe.runtime.blob import PLAIN, Blob, Buffers, Structure
from coe.runtime.device import Device
from coe.runtime.onnx_network import OnnxNetwork
from coe.runtime.processor import bound_threads, on_fresh_thread
from coe.runtime.reading import Weights, proved, weights
from coe.runtime.runner import findings_of
from coe.runtime.slot import NetworkKey, Slot, SlotShelf
from coe.runtime.trial import HERE, MeasuredOnce, Trial, identity, opened, quick_cost, warmed, whole_pages
from coe.scheduler.costs import Cost
from coe.store.blob_format import MODEL
from coe.store.manifest import Manifest
from coe.store.runnable_kinds import BACKBONE, ExpertInput, Image, NetworkKind, RunnableKind, Session, SessionKind
from coe.store.store_reader import Snapshot, StoreReader

_MOST_BESIDE = 8 << 20
_SESSION_BESIDE = 2 << 20
"""How many more bytes than the body itself its open session takes. Measured: 0.8 and 0.5 MB beside 11.8 and 2.8."""


_GUESSED_S = 0.1
"""The assumed time of an image, and of a load, of a kind that fails when it is measured."""


@dataclass(frozen=True, slots=True)
class _LoadedBlob:
    """A blob in a pool, and the network that it runs on."""

    blob: Blob
    network: NetworkKey


class CpuDevice(Device):
    """Runs experts of any kind on the CPU, with `threads` threads for each executor.

    Every read of weights proves them against their checksums, for sessions too.
    """

    memory_bytes: int | None = None
    host_bytes = 0
    has_lane = False
    holds_bodies = True
    depth = 1

    def __init__(
        self,
        store: StoreReader,
        kinds: Mapping[str, RunnableKind],
        threads: int,
        *,
        measured: MeasuredOnce[Cost] = HERE,
    ) -> None:
        self.store, self.kinds, self.threads = store, kinds, threads
        self._measured = measured
        self._resident: dict[tuple[str, str], _LoadedBlob | Session] = {}
        self._bodies: dict[str, Blob] = {}
        """By digest: bodies, each once for all experts that have it, for good."""
        self._body_bytes: dict[str, int] = {}
        self._buffers = Buffers()
        self._opened_from = Buffers()
        """Memory that sessions are opened from, one at a time: a part of `fixed_bytes`, not of the pools, and kept."""
        self._heap_is_loose = False
        """Whether a session has left memory in the heap, for the next one."""
        self._slots = SlotShelf(kinds)

    def __repr__(self) -> str:
        return f"<CpuDevice {len(self._resident)} resident, {len(self._slots)} slots, {self.threads} threads each>"

    def enter(self, executor: str) -> None:
        """Limit how many threads the operators of the calling thread use."""
        bound_threads(self.threads)

    def prepare(self, experts: Iterable[Expert], executors: int = 1) -> None:
        """Build the skeletons that experts need now, because later the pools are full."""
        needed = [(expert, structure) for expert in experts if (structure := self._structure(expert))]

        def build() -> None:
            for expert, structure in needed:
                # A kind that fails is reported when one of its experts is loaded; the others go on.
                with contextlib.suppress(KindFailed):
                    self._slots.spare(expert, structure)

        on_fresh_thread(build)

    def admit(self, experts: Iterable[Expert], executors: int) -> None:
        """Build the skeletons that further experts need."""
        self.prepare(experts, executors)

    def fixed_bytes(self, experts: Iterable[Expert], executors: int) -> int:
        """Return the bytes that the executors hold beside the experts and their activations.

        Bodies stay, with the sessions that compute their layers. Sessions are opened one at a time, which needs memory
        for a moment.
        """
        opened, bodies = [0], dict(self._body_bytes)
        for expert in experts:
            with contextlib.suppress(StoreError):  # the load will report it
                file, kind = weights(self.store, expert), self.kinds[expert.kind]
                opened.append(opening_bytes(kind, file))
                if file.body is not None:
                    bodies[file.body.digest] = whole_pages(body_bytes(kind, file))
        return max(opened) + sum(bodies.values())

    def load(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Read an expert's weights, or open its session; raises StoreError. A CPU keeps no copies."""
        file = weights(self.store, expert)
        if runs_as_session(kind := self.kinds[expert.kind], expert):
            self._buffers.make_room(file.bytes)
            self._resident[pool, expert.id] = session_of(kind, file, self.threads, self._opened_from)
            self._tighten_heap()  # opening needs several times the bytes of the model for a moment
            return
        if expert.variant != FULL:
            raise StoreError(f"'{expert.weights}' runs in {expert.variant} only on GPUs; a CPU takes fp32 or int8")
        if self._heap_is_loose:
            self._tighten_heap()
        common = self._body(kind, file)
        blob = file.read(self._buffers, common)
        try:
            slot = self._slots.spare(expert, blob.structure)
            blob.expect(slot.spec)
            if common is not None and open_body(slot, file, common, self.threads):
                self._tighten_heap()
        except BaseException:
            blob.release()
            raise
        self._resident[pool, expert.id] = _LoadedBlob(blob, self._slots.key(expert, blob.structure))

    def _tighten_heap(self) -> None:
        give_memory_back()
        self._heap_is_loose = False

    def _body(self, kind: RunnableKind, file: Weights) -> Blob | None:
        """Return the body of an expert, which is read if no expert needed it before; None if it has none."""
        if file.body is None:
            return None
        digest = file.body.digest
        if digest not in self._bodies:
            self._bodies[digest] = file.body.read(self._buffers)
            self._body_bytes[digest] = whole_pages(body_bytes(kind, file))
        return self._bodies[digest]

    def evict(self, pool: str, expert: Expert, *, keep_copy: bool = False) -> None:
        """Drop the blob, after unbinding it from all slots. A CPU keeps no copies."""
        resident = self._resident.pop((pool, expert.id), None)
        if isinstance(resident, _LoadedBlob):
            self._slots.unbind(resident.blob)
            resident.blob.release()
        elif resident is not None:
            # Its memory stays for the next expert, as that of a blob does: fresh pages cost a tenth of a switch.
            self._heap_is_loose = True

    def trim(self) -> None:
        """Free the buffers that wait for the next load."""
        self._buffers.make_room(self._buffers.idle_bytes)

    def leave(self) -> None:
        """Drop all sessions, and give back what they leave in the heap of this thread: later nobody could."""
        sessions = [key for key, resident in self._resident.items() if not isinstance(resident, _LoadedBlob)]
        for key in sessions:
            del self._resident[key]
        opened = [body for body in self._bodies.values() if body.session is not None]
        for body in opened:
            self._slots.unbind(body)
            body.session = None
        if sessions or opened or self._heap_is_loose:
            self._tighten_heap()

    def run(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> list[Finding]:
        """Run a batch and return one finding for each image; raises CoeError if the expert's answer makes no sense."""
        return findings_of(self.kinds[expert.kind], self.outputs(executor, pool, expert, images), images, expert)

    def outputs(self, executor: str, pool: str, expert: Expert, images: Sequence[ExpertInput]) -> Any:
        """Run a batch and return what the expert's kind postprocesses."""
        resident = self._resident[pool, expert.id]
        pixels = np.array([image.pixels for image in images])
        if isinstance(resident, _LoadedBlob):
            return self._slots.of(executor, expert, resident.network).run(resident.blob, torch.from_numpy(pixels))
        return resident.run(pixels)

    def measure(self, expert: Expert) -> Cost:
        """Measure the times and the memory of batches, with the expert's weights, or random ones if they are damaged.

        Only one measuring runs in the process at a time, and nothing is measured twice. Raises StoreError for an
        `int8` that cannot be opened: who guessed its times would run the expert in fp32 without a word.
        """

        def work() -> Cost:
            try:
                with self.trial(expert) as trial:
                    return quick_cost(trial, self.kinds[expert.kind].max_batch)
            except KindFailed:
                return self._guessed(expert)
            except StoreError:
                # The load reports a file that its runtime cannot open; the other experts go on.
                if runs_as_session(self.kinds[expert.kind], expert) and expert.variant == FULL:
                    return self._guessed(expert)
                raise
            except (KeyboardInterrupt, CoeError):
                raise
            except BaseException:  # code of a user's: it may exit too
                return self._guessed(expert)

        key = self._measured_as(expert)
        # The load reports a file that cannot be read; its cost is not remembered.
        return self._measured.once(key, lambda: on_fresh_thread(work))

    def _guessed(self, expert: Expert) -> Cost:
        """Return an assumed cost for an expert that fails: its images get the error, the other experts go on."""
        # Raises StoreError if the manifest cannot be read.
        size = self.store.manifest(expert.weights).bytes
        return Cost(
            per_image_s=_GUESSED_S,
            base_s=0.0,
            load_s=_GUESSED_S,
            weights_bytes=whole_pages(max(1, size)),
            activation_bytes=12 * expert.input_size**2,
            max_batch=1,
        )

    def _measured_as(self, expert: Expert) -> tuple[Hashable, ...] | None:
        """Return all that a cost depends on, with the identity of the file; None if the file cannot be read."""
        # Raises StoreError if the manifest cannot be read.
        kind = self.kinds[expert.kind]
        if (file := identity(weights(self.store, expert).path)) is None:
            return None
        network = (
            expert.kind,
            type(kind),
            kind.name,
            kind.max_batch,
            len(expert.labels),
            expert.alternates,
            expert.input_size,
        )
        return *network, expert.variant, self.threads, file

    @contextlib.contextmanager
    def trial(self, expert: Expert) -> Iterator[Trial]:
        """Give an expert to measure, on the calling thread; raises StoreError if its manifest cannot be read."""
        bound_threads(self.threads)
        file = weights(self.store, expert)
        if runs_as_session(kind := self.kinds[expert.kind], expert):
            yield opened(partial(session_of, kind, file, self.threads, Buffers()), expert.input_size, file.path)
            return
        with blob_trial(file, self._slots.build(expert, self._structure(expert) or PLAIN), self.threads) as trial:
            yield trial

    def _structure(self, expert: Expert) -> Structure | None:
        """Return the structure of an expert's skeleton; None if it needs none, or is damaged."""
        # Its load will report the damage.
        if runs_as_session(self.kinds[expert.kind], expert):
            return None
        with contextlib.suppress(StoreError):
            return weights(self.store, expert).structure()
        return None


def load_alone(
    store: StoreReader, manifest: Manifest, kind: RunnableKind, expert: Expert, threads: int = 0
) -> Callable[[Sequence[ExpertInput]], Sequence[Finding]]:
    """Return a function that runs an expert on inputs, by itself and without a line; raises CoeError."""
    device = CpuDevice(Snapshot(store, {expert.weights: manifest}), {expert.kind: kind}, threads)
    device.load("alone", expert)
    return partial(device.run, "alone", "alone", expert)


# Experts that a runtime opens as a session: those of kinds that run a file of their own, and the variant `int8`


def runs_as_session(kind: RunnableKind, expert: Expert) -> bool:
    """Tell whether a runtime opens an expert's file as a session; else its weights are bound to a network."""
    return isinstance(kind, SessionKind) or expert.variant == "int8"


def session_of(kind: RunnableKind, file: Weights, threads: int, buffers: Buffers) -> Session:
    """Open a session from the very bytes that were proved: the file may change between the check and the open.

    Raises StoreError.
    """
    if isinstance(kind, SessionKind) and file.prepared is None:
        return kind.open_bytes(proved(file), file.path, file.manifest.fit(file.expert), threads)
    blob = file.read(buffers)
    try:
        model = blob.tensors.pop(MODEL).numpy().tobytes()
        return OnnxNetwork(model, threads, file.name, blob.tensors, one_at_a_time=kind.one_at_a_time)
    finally:
        blob.release()


def opening_bytes(kind: RunnableKind, file: Weights) -> int:
    """Return the bytes that opening a session of an expert or of its body needs for a moment, beside what stays.

    They are the file as it was read, the model in it as onnxruntime parses it, and what it builds; weights beside the
    model are packed from where they lie. Measured, beside files of 4, 11 and 43 MB: 3, 0 and 0.4 MB; for the
    last two 20 and 42 MB if the weights are in the model; for bodies of 2.8 and 11.8 MB 5 and 28. 0: nothing is opened.
    Raises StoreError if the file cannot be read.
    """
    if not runs_as_session(kind, file.expert):
        body = file.body if _runs_apart(kind, file) else None
        return 0 if body is None else 2 * body.bytes + _MOST_BESIDE
    model_bytes = file.bytes
    if file.prepared is not None:
        model_bytes = next(entry.bytes for entry in file.outline().entries if entry.name == MODEL)
    return file.bytes + model_bytes + min(2 * file.bytes, _MOST_BESIDE)


def open_body(slot: Slot, file: Weights, body: Blob, threads: int) -> bool:
    """Open the session of a body, unless it is open or torch runs this network; tell whether. Raises StoreError."""
    if body.session is not None or not _runs_apart(slot.kind, file):
        return False
    names = {name for name in slot.spec if name.startswith(BACKBONE)}
    if not names <= body.tensors.keys() or (model := slot.kind.body_model(slot.module)) is None:
        return False
    weights = {name: body.tensors[name].contiguous() for name in names}
    body.session = OnnxNetwork(model, threads, file.name, weights, one_at_a_time=slot.kind.one_at_a_time)
    return True


def body_bytes(kind: RunnableKind, file: Weights) -> int:
    """Return the bytes of the body of an expert, with those of its open session; 0 without a body."""
    size = file.body.bytes if file.body is not None else 0
    return size + (size + _SESSION_BESIDE if size and _runs_apart(kind, file) else 0)


def _runs_apart(kind: RunnableKind, file: Weights) -> bool:
    has_model = isinstance(kind, NetworkKind) and kind.has_body_model
    return has_model and file.expert.variant == FULL and file.prepared is not None


# Measuring


@contextlib.contextmanager
def blob_trial(file: Weights, slot: Slot, threads: int) -> Iterator[Trial]:
    """Give a trial of the weights in a file, in a slot of its own; their memory is free at the end.

    Weights that are damaged run as they happen to lie in the slot: their load on the line will report the damage.
    """
    buffers = Buffers()
    body: list[Blob] = []
    blobs: list[Blob] = []

    def load() -> None:
        """Read the weights into the memory of the last load: a second copy could be more than a line may take."""
        while blobs:
            slot.unbind(blobs[0])
            blobs.pop().release()
        with contextlib.suppress(CoeError):
            if file.body is not None and not body:
                body.append(file.body.read(buffers))
            blob = file.read(buffers, *body)
            blob.expect(slot.spec)
            for common in body:
                open_body(slot, file, common, threads)
            blobs.append(blob)

    def answer(pixels: Image) -> Any:
        # On a line experts take turns: each batch binds weights, but for a common body.
        for blob in blobs:
            slot.unbind(blob)
        return slot.run(blobs[0] if blobs else None, torch.from_numpy(pixels))

    try:
        load()  # not timed, because it takes fresh memory
        yield warmed(answer, file.expert.input_size, file.bytes, file.path, load)
    finally:
        slot.unbind()
        for blob in (*blobs, *body):
            blob.release()
        buffers.make_room(buffers.idle_bytes)
        give_memory_back()
