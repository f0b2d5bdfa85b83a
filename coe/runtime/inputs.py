"""Pictures become the inputs of experts, on threads that decode. Each kind gets an array that nobody else uses.

A picture is decoded once for its first expert, and for those that will probably follow, as long as there is memory for
their inputs. For any other expert it is decoded again rather than kept, because pictures are large.

The threads (`Workers`) do work in the order in which it comes, urgent work first; work that was taken in is done.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from coe.board.router import Router
from coe.core import Expert
from coe.errors import ImageError, LineClosed
from coe.helpers.timely import end_helper
from coe.pictures.array_images import DecodedImage
from coe.pictures.image_source import ImageSource
from coe.runtime.admission import Admission
from coe.store.runnable_kinds import Comparing, ExpertInput, RunnableKind

T = TypeVar("T")
Work = Callable[[], object]


class _Busy:
    """Since when a thread does its piece of work, on the monotonic clock; infinity while it has none."""

    def __init__(self) -> None:
        self.since_s = math.inf

    def __enter__(self) -> None:
        self.since_s = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self.since_s = math.inf


class Workers:
    """`count` daemon threads. Unlike the threads of `concurrent.futures`, they do not delay the interpreter's exit."""

    def __init__(self, count: int, name: str) -> None:
        self._urgent: deque[Work] = deque()
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._closed = False
        self._busy = [_Busy() for _ in range(count)]
        self.threads = [
            threading.Thread(
                target=_work_through, args=(self._work, self._urgent, busy), name=f"{name}-{number}", daemon=True
            )
            for number, busy in enumerate(self._busy)
        ]

    def longest_s(self) -> float:
        """Return for how many seconds the longest piece of work under way has been done; 0 if none is under way."""
        return max(0.0, time.monotonic() - min(busy.since_s for busy in self._busy))

    def put(self, work: Work) -> None:
        """Queue `work`, which raises nothing. Raises LineClosed after `close`."""
        # A single put: an interrupt of the caller leaves the work in the queue or out of it, and nothing halfway. No
        # lock: work that is in the queue before the threads are told to end is done.
        self._work.put(work)
        self._expect_open()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue urgent work; the future gives what it returns or raises. Raises LineClosed after `close`."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        self._urgent.append(lambda: _fulfil(future, work))
        self._work.put(_look_up)
        self._expect_open()
        return future

    def close(self) -> None:
        """End the threads after the work that is queued already."""
        self._closed = True
        for _ in self.threads:
            self._work.put(None)

    def _expect_open(self) -> None:
        if self._closed:
            raise LineClosed("its threads have ended")


def _look_up() -> None:
    """Do nothing: this wakes a thread for urgent work."""


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _work_through(given: queue.SimpleQueue[Work | None], urgent: deque[Work], busy: _Busy) -> None:
    while _do(given.get(), urgent, busy):
        pass
    end_helper()


def _do(work: Work | None, urgent: deque[Work], busy: _Busy) -> bool:
    """Do all urgent work, then this piece, and keep no reference to it; return False at the end."""
    while urgent:
        _do_urgent(urgent, busy)
    if work is None:
        return False
    with busy:
        work()
    return True


def _do_urgent(urgent: deque[Work], busy: _Busy) -> None:
    try:
        work = urgent.popleft()
    except IndexError:  # another thread has taken it
        return
    with busy:
        work()


@dataclass(frozen=True, slots=True)
class Decoding:
    """How many threads decode pictures; how many bytes of pictures they may hold together, and how many bytes of
    inputs may be kept for experts that have not been asked for yet.
    """

    threads: int = 2
    limit_bytes: int = 1 << 62
    ahead_bytes: int = 1 << 62


_COPY_BYTES = 3
"""The bytes of a pixel in a copy of a decoded picture."""
ANY_SIZE = Decoding()
"""Two threads, and pictures of any size."""


@dataclass(slots=True)
class ImageInputs:
    """An image, and its inputs that are ready, by expert; `ahead_bytes` of them were made ahead."""

    source: ImageSource
    ready: dict[str, ExpertInput] = field(default_factory=dict)
    ahead_bytes: int = 0
    is_done: bool = False


class Inputs:
    """Makes the inputs of all images of a line; threads of `workers`, which the line starts and closes, do the work."""

    def __init__(
        self, router: Router, experts: Mapping[str, Expert], kinds: Mapping[str, RunnableKind], decoding: Decoding
    ) -> None:
        self._router, self._experts, self._kinds = router, experts, kinds
        self.workers = Workers(decoding.threads, "coe-decode")
        self._decoding = Admission(decoding.threads, decoding.limit_bytes)
        self._ahead = _Bytes(decoding.ahead_bytes)

    def follow(self, router: Router) -> None:
        """Prepare images by another router; it has the rules of all images under way."""
        self._router = router

    def begin(self, image: ImageInputs, component: str) -> None:
        """Make an image's first input, and those that it will probably need; called on one of the threads.

        Raises RulesError if the board has no such component, ImageError, or whatever the first expert's kind raises.
        """
        first, *others = self._router.likely(component)
        copy_bytes = _COPY_BYTES * image.source.pixels() if others else 0

        def decode() -> None:
            pixels = image.source.decode()
            # A kind may write into its array.
            image.ready[first] = self._input(image, pixels.copy() if others else pixels, first)
            for expert in others:
                self._make_ahead(image, pixels if expert == others[-1] else pixels.copy(), expert)

        self._decoding.within(image.source.decoding_bytes() + copy_bytes, decode)

    def of_batch(self, expert: str, images: Sequence[ImageInputs]) -> list[ExpertInput]:
        """Return the inputs of a batch, in order; those that are not ready are made now, before all other work.

        Raises LineClosed after `close`, ImageError, or whatever the kind raises.
        """
        again = [None if expert in image.ready else self._again(image, expert) for image in images]
        return [
            image.ready.pop(expert) if future is None else future.result()
            for image, future in zip(images, again, strict=True)
        ]

    def done(self, image: ImageInputs) -> None:
        """Let go of an image's inputs: it has its result. One that is stopped may still be decoded."""
        image.is_done = True
        image.ready.clear()
        size, image.ahead_bytes = image.ahead_bytes, 0
        self._ahead.give(size)

    def _make_ahead(self, image: ImageInputs, pixels: DecodedImage, expert: str) -> None:
        size = 3 * self._experts[expert].input_size ** 2
        if not self._ahead.take(size):
            return
        image.ahead_bytes += size
        # A user's code may raise anything. If the expert's turn comes, it tries again, and the error is reported.
        with contextlib.suppress(BaseException):
            image.ready[expert] = self._input(image, pixels, expert)
        if image.is_done:
            self.done(image)

    def _again(self, image: ImageInputs, expert: str) -> Future[ExpertInput]:
        return self.workers.submit(lambda: self._decoded_again(image, expert))

    def _decoded_again(self, image: ImageInputs, expert: str) -> ExpertInput:
        return self._decoding.within(
            image.source.decoding_bytes(), lambda: self._input(image, image.source.decode(), expert)
        )

    def _input(self, image: ImageInputs, pixels: DecodedImage, expert: str) -> ExpertInput:
        spec = self._experts[expert]
        kind = self._kinds[spec.kind]
        reference = image.source.reference
        if isinstance(kind, Comparing) and reference is not None:
            return kind.compare_best(pixels, reference.decode(), spec)
        if isinstance(kind, Comparing) and kind.needs_reference:
            raise ImageError("came without a reference, and its component has none")
        return kind.preprocess(pixels, spec)


class _Bytes:
    """A number of bytes that several threads take from."""

    def __init__(self, capacity: int) -> None:
        self._left, self._lock = capacity, threading.Lock()

    def take(self, size: int) -> bool:
        """Take `size` bytes if they are left; return whether they were."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        """Give bytes back."""
        with self._lock:
            self._left += size
