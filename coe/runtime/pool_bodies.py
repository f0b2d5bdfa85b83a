"""The bodies that lie in the pools of a CPU, each once for all experts of a pool that have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coe.runtime.blob import Blob
from coe.runtime.buffers import Buffers
from coe.runtime.reading import Weights


class PoolBodies:
    """Bodies by pool and digest. Called by the disk reader alone."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str], Blob] = {}

    def __repr__(self) -> str:
        return f"<PoolBodies {len(self._bodies)}>"

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._bodies)

    @contextmanager
    def under(self, pool: str, file: Weights, buffers: Buffers, *, bring: bool) -> Iterator[Blob | None]:
        """Give the body for an expert that is read in the block; None if it has none, or the pool holds none.

        With `bring` a body that is absent is read, and stays for all experts of the pool, unless the block fails.
        Raises StoreError.
        """
        if file.body is None:
            yield None
            return
        key = pool, file.body.digest
        if not bring or key in self._bodies:
            yield self._bodies.get(key)
            return
        body = file.body.read(buffers)
        try:
            yield body
        except BaseException:
            body.release()
            raise
        self._bodies[key] = body

    def pop(self, pool: str, digest: str) -> Blob | None:
        """Return a body, which leaves; None if it is not there."""
        return self._bodies.pop((pool, digest), None)
