"""The experts on a GPU and those on their way there or back: in device memory, in pinned memory, or in both."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from coe.core import Expert
from coe.errors import DeviceFull
from coe.runtime.cuda.blob_memory import BlobMemory, Resident
from coe.runtime.cuda.device_bodies import DeviceBodies, DeviceBody
from coe.runtime.cuda.networks import Networks, Template
from coe.runtime.cuda.pinned_memory import Copy, HostMemory
from coe.runtime.cuda.sizing import Sizing
from coe.runtime.reading import weights
from coe.store.blob_format import Content
from coe.store.store_reader import StoreReader


@dataclass(frozen=True, slots=True)
class LoadedExpert:
    """An expert on the device, with all that its batches need. `body` is the digest of its body, "" if it has none."""

    resident: Resident
    content: Content
    template: Template
    most: int
    body: str = ""


class GpuMemory:
    """What was taken for weights: pinned memory, device memory for blobs, and the bodies that lie in both.

    The disk reader calls `read` and `fill`, the copy lane `load` and `evict`.
    """

    def __init__(
        self, store: StoreReader, networks: Networks, sizing: Sizing, host: HostMemory, blobs: BlobMemory
    ) -> None:
        self._store, self._networks, self._sizing = store, networks, sizing
        self.host, self.blobs = host, blobs
        self.bodies = DeviceBodies(store, host, blobs)
        self._loaded: dict[tuple[str, str], LoadedExpert] = {}

    def __repr__(self) -> str:
        return f"<GpuMemory {len(self._loaded)} resident, {self.blobs!r}, {self.host!r}>"

    def expert(self, pool: str, expert: str) -> LoadedExpert:
        """Return an expert on the device; raises KeyError if it is not there."""
        return self._loaded[pool, expert]

    def read(self, pool: str, expert: Expert) -> None:
        """Read an expert into pinned memory, for the `load` that follows, and its body, unless it is on the device.

        Raises StoreError, DeviceFull.
        """
        file = weights(self._store, expert)
        if file.body is not None:
            self.bodies.read(file.body)
        self.host.keep((pool, expert.id), self._copy(expert))

    def fill(self, expert: Expert) -> None:
        """Read an expert into pinned memory, where its copy stays; raises StoreError, DeviceFull."""
        self.host.keep(expert.id, self._copy(expert))

    def load(self, pool: str, expert: Expert, *, keep_copy: bool) -> None:
        """Copy an expert to the device from pinned memory, or read it first; with `keep_copy` a copy stays there.

        Its body comes with the first expert that needs it, and stays. Returns before the copy is done. Raises
        StoreError, DeviceFull, DeviceLost.
        """
        host, read = self.host, (pool, expert.id)
        with host.lock:
            if (copy := host.copy_of(expert.id) or host.copy_of(read)) is None:
                copy = self._copy(expert)
                host.keep(read, copy)
            try:
                # Before any memory is taken: what has a place and no entry in the books would never leave.
                template, most = self._networks.template(expert), self._sizing.held(expert).most
                structure = self._networks.of(expert).structure
                resident = self._put(expert, copy, self.bodies.of(copy.body, expert, structure))
            except BaseException:
                keep_copy = False
                # The next load reads the disk, as the books say.
                host.forget(expert.id)
                raise
            finally:
                was_read = host.pull(read)
                if was_read is not None and keep_copy:
                    host.keep(expert.id, was_read)
                elif was_read is not None:
                    host.give(was_read.buffer)
            self._loaded[read] = LoadedExpert(resident, replace(copy.content, start=0), template, most, copy.body)

    def evict(self, pool: str, expert: str, *, keep_copy: bool) -> None:
        """Free an expert's device memory without waiting; raises DeviceLost."""
        loaded = self._loaded.pop((pool, expert), None)
        if loaded is None:
            return
        if keep_copy and self.host.copy_of(expert) is None:
            # It is only a copy: if there is no room for it, the next load reads the disk.
            with contextlib.suppress(DeviceFull):
                self._bring_down(expert, loaded)
        self.blobs.drop(loaded.resident)

    def _copy(self, expert: Expert) -> Copy:
        file = weights(self._store, expert)
        return Copy(*file.content(self.host), body=file.body.digest if file.body is not None else "")

    def _put(self, expert: Expert, copy: Copy, common: DeviceBody | None) -> Resident:
        if copy.unpacking is None:
            copy.unpacking = self._networks.unpacking(copy.content, expert, common.content if common else None)
        resident = self.blobs.put(expert.id, copy.data(), copy.unpacking, common.resident if common else None)
        copy.buffer.busy = resident.written
        return resident

    def _bring_down(self, expert: str, loaded: LoadedExpert) -> None:
        host = self.host
        with host.lock:
            buffer = host.take(loaded.resident.size)
            try:
                buffer.busy = self.blobs.bring_down(loaded.resident, buffer.pieces(0, loaded.resident.size))
            except BaseException:
                host.give(buffer)
                raise
            host.keep(expert, Copy(buffer, loaded.content, loaded.resident.unpacking, loaded.body))
