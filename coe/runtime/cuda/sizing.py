"""The device memory that executors hold for good: worked out before anything runs, from one measured expert of each
network. Once a device is prepared, what it really reserved counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from coe.core import Expert
from coe.errors import StoreError
from coe.runtime.cuda.networks import Network, Networks
from coe.runtime.cuda.pinned_memory import passing_bytes
from coe.runtime.cuda.probe import GraphMemory, graph_memory, held
from coe.runtime.cuda.torch_driver import TorchDriver
from coe.runtime.cuda.worker import sizes
from coe.runtime.reading import weights
from coe.runtime.trial import MeasuredOnce
from coe.store.store_reader import StoreReader

PIECES_BYTES = 40 << 20
"""What torch's allocator reserves beyond the bytes of an executor: memory comes in pieces of 2 and of 20 MiB."""

_GRAPHS: MeasuredOnce[GraphMemory] = MeasuredOnce()


@dataclass(frozen=True, slots=True)
class Sizes:
    """The most bytes of a device that experts take: activated weights, images of a batch, graphs, file."""

    weights: int = 0
    images: int = 0
    graphs: int = 0
    file: int = 0

    @property
    def buffers(self) -> int:
        """Bytes of one executor without its graphs."""
        return self.weights + self.images

    @property
    def worker(self) -> int:
        """Bytes of one executor."""
        return self.buffers + self.graphs + PIECES_BYTES


class Sizing:
    """Measures each network at its first use in this process. Each executor's graphs may hold `graphs_bytes`."""

    def __init__(self, store: StoreReader, networks: Networks, driver: TorchDriver, graphs_bytes: int) -> None:
        self._store, self._networks, self._driver = store, networks, driver
        self._graphs_bytes = graphs_bytes
        self._held: dict[Network, GraphMemory] = {}

    def held(self, expert: Expert) -> GraphMemory:
        """Return how many images an expert runs at a time, and what their graphs hold.

        A network is measured at the largest input that was asked for so far. Raises ConfigError, StoreError.
        """
        network = self._networks.of(expert)
        graphs = self._held.get(network)
        if graphs is None or graphs.input_size < expert.input_size:
            key, most = (*self._facts(expert), network), self._networks.kind(expert).max_batch
            graphs = self._held[network] = held(
                expert,
                most,
                self._graphs_bytes,
                lambda images: _GRAPHS.once(
                    (*key, images), lambda: graph_memory(self._networks, self._driver, expert, images)
                ),
            )
        return graphs

    def _facts(self, expert: Expert) -> tuple[Hashable, ...]:
        kind = self._networks.kind(expert)
        return self._driver.measured_as, type(kind), kind.name, tuple(sizes(kind.max_batch)), expert.input_size

    def measured_as(self, expert: Expert) -> tuple[Hashable, ...]:
        """Return the facts that change the costs of a network, besides its weights and labels, as a key."""
        return self._graphs_bytes, *self._facts(expert)

    def of(self, experts: Iterable[Expert]) -> Sizes:
        """Return the sizes of experts together; experts whose weights cannot be found are left out.

        Graphs of one executor share the working memory of the largest graph; only their outputs add up.
        """
        largest, weights_bytes, images, file = 0, 0, 0, 0
        outputs: dict[tuple[Network, int, int, int], int] = {}
        for expert in largest_first(experts):
            with contextlib.suppress(StoreError):
                graphs, network, size = self.held(expert), self._networks.of(expert), expert.input_size
                largest = max(largest, graphs.bytes)
                outputs[network, len(expert.labels), expert.alternates, size] = (
                    graphs.outputs * size**2 // graphs.input_size**2
                )
                weights_bytes = max(weights_bytes, self._networks.running_bytes(expert))
                images = max(images, graphs.most * 3 * size**2)
                file = max(file, passing_bytes(weights(self._store, expert)))
        return Sizes(weights_bytes, images, largest + sum(outputs.values()), file)


def largest_first(experts: Iterable[Expert]) -> list[Expert]:
    """Return experts by falling input size: in this order no network is measured twice."""
    return sorted(experts, key=lambda expert: -expert.input_size)
