"""An executor's threads, and how a batch's outputs become findings.

Each batch is reported, whatever it raises, in the order in which the batches began.
With a depth of 2 one thread puts batches on the device, and another waits for their ends and reads their outputs: the
next batch is on the device before its predecessor has been answered.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coe.board import scores
from coe.core import NOTHING, Expert, FailureKind, Finding, Heat, Likeness
from coe.errors import CoeError, DeviceLost, sentence_of
from coe.runtime.device import Device
from coe.scheduler.events import Event, Finished, Lost, Run, RunFailed
from coe.scheduler.executor import Executor
from coe.store.outputs import prove
from coe.store.runnable_kinds import ExpertInput, RunnableKind

_NEARLY = 1e-3
"""By how much rounding may bring a score over 1."""


@dataclass(frozen=True, slots=True)
class _Launched:
    """A batch that began at `began_s`, and the function that waits for its findings."""

    began_s: float
    findings: Callable[[], Sequence[Finding]]


class Runner:
    """Runs an executor's batches on `device`, on the threads that run `thread_functions`, and reports each to `tell`.

    `prepared` gives the images of a batch, in order.
    """

    def __init__(
        self,
        executor: Executor,
        device: Device,
        experts: Mapping[str, Expert],
        *,
        prepared: Callable[[Run], Sequence[ExpertInput]],
        tell: Callable[[Event], None],
    ) -> None:
        self._name, self._device_name, self._pool = executor.id, executor.device, executor.pool.id
        self._depth, self._device, self._experts = executor.depth, device, experts
        self._prepared, self._tell = prepared, tell
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._launched: queue.SimpleQueue[_Launched | RunFailed | None] = queue.SimpleQueue()
        self._ended_s = 0.0

    def put(self, command: Run) -> None:
        """Queue a batch."""
        self._queue.put(command)

    def close(self) -> None:
        """End the threads after the batches that are queued already."""
        self._queue.put(None)

    def thread_functions(self) -> dict[str, Callable[[], None]]:
        """Return the function of each thread, by the name of the thread."""
        functions: dict[str, Callable[[], None]] = {f"coe-executor-{self._name}": self.work}
        return functions if self._depth == 1 else functions | {f"coe-answers-{self._name}": self._answer}

    def work(self) -> None:
        """Put batches on the device until `close`. A device that cannot be entered is lost; other devices go on."""
        unusable: str | None = None
        try:
            self._device.enter(self._name)
        except BaseException as error:
            unusable = sentence_of(error)
            self._tell(Lost(self._device_name, unusable))
        while (command := self._queue.get()) is not None:
            launched = self._launch(command, unusable)
            if self._depth == 1:
                self._end(launched)
            else:
                self._launched.put(launched)
            # While the thread waits, it keeps no reference to the batch.
            del launched
        self._launched.put(None)

    def _answer(self) -> None:
        with contextlib.suppress(BaseException):  # `work` reports a device that cannot be entered
            self._device.enter(self._name)
        while (launched := self._launched.get()) is not None:
            self._end(launched)
            del launched

    def _launch(self, command: Run, unusable: str | None) -> _Launched | RunFailed:
        """Begin a batch. A batch that fails here is reported in its turn, after the batches before it."""
        if unusable is not None:
            return RunFailed(self._name, unusable)
        expert = self._experts[command.batch.expert]
        try:
            images = self._prepared(command)
            # Waiting for images is not the device's time: costs would follow slow decoding, and it would seem slow.
            began = time.perf_counter()
            return _Launched(began, self._device.launch(self._name, self._pool, expert, images))
        except BaseException as error:
            return self._failed(error)

    def _end(self, launched: _Launched | RunFailed) -> None:
        """Wait for a batch and tell its event."""
        self._tell(launched if isinstance(launched, RunFailed) else self._ended(launched))

    def _ended(self, launched: _Launched) -> Event:
        # A batch behind another begins when that has ended, well or not.
        began_s = max(launched.began_s, self._ended_s)
        try:
            findings = tuple(launched.findings())
        except BaseException as error:
            return self._failed(error)
        finally:
            self._ended_s = time.perf_counter()
        return Finished(self._name, findings, self._ended_s - began_s)

    def _failed(self, error: BaseException) -> RunFailed:
        if isinstance(error, DeviceLost):
            self._tell(Lost(self._device_name, sentence_of(error)))
        return RunFailed(self._name, sentence_of(error), FailureKind.of(error, FailureKind.RUN))


def findings_of(kind: RunnableKind, outputs: Any, images: Sequence[ExpertInput], expert: Expert) -> list[Finding]:
    """Turn a batch's outputs into one finding for each image, with scores as the rules want them.

    Raises CoeError for outputs that are not finite numbers, and for findings that make no sense.
    """
    prove(outputs)
    findings = kind.postprocess(outputs, images, expert)
    if len(findings) != len(images):
        raise CoeError(f"kind '{expert.kind}' gave {len(findings)} findings for {len(images)} images")
    for finding in findings:
        _check(finding, expert)
    findings = [
        replace(finding, reference=image.reference or finding.reference, caution=expert.caution)
        if image.reference or expert.caution
        else finding
        for finding, image in zip(findings, images, strict=True)
    ]
    if expert.temperature == 1 and not expert.ignore_under:
        return list(findings)
    return [scores.adjusted(finding, expert) for finding in findings]


def _check(finding: Finding, expert: Expert) -> None:
    """Raise CoeError for a finding of a user's kind that is not what `Finding` states."""
    if (finding.expert, finding.variant) != (expert.id, expert.variant):
        raise CoeError(f"it answered as expert {finding.expert!r:.60} in {finding.variant!r:.20}")
    texts = (finding.doubt, finding.reference, finding.caution, *finding.allowed)
    are_texts = all(isinstance(text, str) for text in texts) and isinstance(finding.read, str | None)
    if not are_texts or not isinstance(finding.boxes, tuple) or any(len(box.xyxy) != 4 for box in finding.boxes):
        raise CoeError("a field of its finding has another type than `Finding` states")
    if not (isinstance(finding.heat, Heat | None) and isinstance(finding.likeness, Likeness | None)):
        raise CoeError("the heat or the likeness of its finding has another type than `Finding` states")
    labels = finding.labels
    if finding.boxes and NOTHING in labels:
        raise CoeError(f"it said '{NOTHING}', but gave boxes ({len(finding.boxes)})")
    if strange := sorted(labels.difference(expert.labels, {NOTHING})):
        raise CoeError(f"it said '{strange[0]}', which is not one of its labels ({', '.join(expert.labels)})")
    scores_given = (finding.score, *(box.score for box in finding.boxes))
    if not all(map(math.isfinite, (*scores_given, finding.margin))):
        raise CoeError("its scores are not numbers; the weights are damaged or badly trained")
    if not -_NEARLY <= min(scores_given) <= max(scores_given) <= 1 + _NEARLY:
        raise CoeError(f"its scores go from {min(scores_given):g} to {max(scores_given):g}, not from 0 to 1")
    if not all(map(math.isfinite, itertools.chain.from_iterable(box.xyxy for box in finding.boxes))):
        raise CoeError("its boxes have coordinates that are not numbers; the weights are damaged or badly trained")
