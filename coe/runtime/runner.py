"""An executor's thread: one batch after another on its device. Law: each batch is reported, whatever it raises."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping, Sequence

from coe.core import Expert, FailureKind
from coe.errors import DeviceLost, ImageError, sentence_of
from coe.runtime.device import Device
from coe.scheduler.events import Event, Finished, Lost, Run, RunFailed
from coe.scheduler.executor import Executor
from coe.store.kinds import Prepared


class Runner:
    """Runs an executor's batches on `device`, on the thread that runs `work`, and reports each to `tell`.

    `prepared` gives the images of a batch, in order.
    """

    def __init__(
        self,
        executor: Executor,
        device: Device,
        experts: Mapping[str, Expert],
        *,
        prepared: Callable[[Run], Sequence[Prepared]],
        tell: Callable[[Event], None],
    ) -> None:
        self._name, self._device_name, self._pool = executor.id, executor.device, executor.pool.id
        self._device, self._experts = device, experts
        self._prepared, self._tell = prepared, tell
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()

    def put(self, command: Run) -> None:
        """Queue a batch."""
        self._queue.put(command)

    def close(self) -> None:
        """End `work` after the batches that are queued already."""
        self._queue.put(None)

    def work(self) -> None:
        """Run batches until `close`. A device that cannot be entered is lost; other devices go on."""
        unusable: str | None = None
        try:
            self._device.enter(self._name)
        except BaseException as error:
            unusable = sentence_of(error)
            self._tell(Lost(self._device_name, unusable))
        while (command := self._queue.get()) is not None:
            self._tell(self._run(command) if unusable is None else RunFailed(self._name, unusable))

    def _run(self, command: Run) -> Event:
        """Run a batch and return its event; no reference to the batch is kept."""
        expert = self._experts[command.batch.expert]
        began = time.perf_counter()
        try:
            findings = tuple(self._device.run(self._name, self._pool, expert, self._prepared(command)))
        except BaseException as error:
            if isinstance(error, DeviceLost):
                self._tell(Lost(self._device_name, sentence_of(error)))
            kind = FailureKind.IMAGE if isinstance(error, ImageError) else FailureKind.RUN
            return RunFailed(self._name, sentence_of(error), kind)
        return Finished(self._name, findings, time.perf_counter() - began)
