"""A running line: pictures in, results out, one reply for each, until it is closed."""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

from coe import values
from coe.board.decoding import Order
from coe.board.image_source import ImageLike as Image
from coe.board.image_source import Picture
from coe.core import Request, Result
from coe.errors import LineClosed
from coe.inspector.assembly import decode_workers
from coe.inspector.line_config import LineConfig
from coe.inspector.opening import assemble
from coe.inspector.taken import TakenPicture
from coe.results.metrics import Metrics
from coe.runtime.admission import CLOSED, Admission, Ticket
from coe.runtime.engine import Decoding, Engine, Trace
from coe.runtime.lane import Disk
from coe.runtime.throttle import Throttle
from coe.scheduler.controller import Controller
from coe.scheduler.demand import Drift
from coe.scheduler.plan import images_budget
from coe.scheduler.strategies import check_hurry

_END = object()


class Line:
    """A running line for one board, opened from a `LineConfig`; users open an `Inspector`, which is such a line.

    `rules` is the board with its experts in the variants that they run in, `costs` what each takes, `plan` its pools
    and executors, `memory_bytes` what is shared by all whose memory is the host's, and `budget_bytes` what all devices
    may take for experts and batches. Raises ConfigError, RulesError or StoreError for what cannot work, before any
    thread is started.
    """

    def __init__(self, config: LineConfig) -> None:
        made = assemble(config)
        self.store, self.kinds, self.rules = config.store, made.kinds, made.board
        self.costs, self.plan = made.costs, made.plan
        self.memory_bytes, self.budget_bytes = made.settings.memory_bytes, made.budget_bytes
        self._strategy = config.strategy
        decider = config.make_decider(
            router=self.rules.router,
            graph=self.rules.graph,
            costs=self.costs,
            plan=self.plan,
            strategy=config.strategy,
            max_wait_s=config.max_wait_s,
        )
        self._demand = decider.demand if isinstance(decider, Controller) else None
        images = images_budget(self.memory_bytes, config.inbox.limit_bytes)
        self._inbox = Admission(config.inbox.images, images.waiting_bytes)
        self._blocking = config.inbox.on_full == "block"
        throttle = None if config.disk_bytes_per_s is None else Throttle(config.disk_bytes_per_s)
        self._engine = Engine(
            decider,
            made.devices,
            self.rules.experts,
            self.kinds,
            disk=Disk(made.file_bytes, throttle),
            decoding=Decoding(decode_workers(), images.decoding_bytes),
            watchers=config.watchers,
            keep_trace=config.keep_trace,
        )
        # A line that is dropped ends its threads; these hold the engine, and nothing of theirs holds the line.
        self._finalizer = weakref.finalize(self, self._engine.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.rules.board}, {self._engine.controller!r}>"

    def submit(
        self,
        image: Image,
        component: str,
        *,
        serial: str = "",
        refdes: str = "",
        name: str = "",
        order: Order = "BGR",
        within_s: float | None = None,
    ) -> Future[Result]:
        """Take in one image and return at once; the future gives its `Result`.

        With `within_s` the result is due so many seconds from now (waiting for room counts), and with it all of the
        board, the images of one `serial`: with the strategy `line` the board that is due first goes first, as long as
        it can be done in time; `Result.late` says what came too late. Raises ConfigError for what is no time, or where
        another strategy would pass it over.

        An array is (H, W, 3) or (H, W) uint8 in `order` and is copied, so that the caller may use it again; a file at
        a path must stay as it is until its result is there, else the result is an error. What is wrong with the image
        itself (or its component) is said in `Result.error`. Raises LineClosed after `close` or `stop`, LineFull if
        asked for, TypeError for what is no image, and WouldWaitForItself where it would have to wait for room on a
        thread of the line, say in a callback.
        """
        picture = Picture(image, component, serial, refdes, name, order, within_s)
        return self._submit(self._taken(picture), wait=self._blocking)

    def inspect(
        self,
        image: Image,
        component: str,
        *,
        serial: str = "",
        refdes: str = "",
        name: str = "",
        order: Order = "BGR",
        within_s: float | None = None,
    ) -> Coroutine[Any, Any, Result]:
        """Take over one image now, and return a coroutine that gives its `Result` without blocking the loop.

        As `submit` does, when this is called and not when the coroutine is first awaited: the pixels are copied, and
        `within_s` begins to count. No thread waits for room. A coroutine that is cancelled while it waits for room
        gives its place in the row back; one that is cancelled later has its image inspected all the same.
        """
        self._engine.line_threads.expect_waitable("inspect()")
        return self._inspected(self._taken(Picture(image, component, serial, refdes, name, order, within_s)))

    async def _inspected(self, taken: TakenPicture) -> Result:
        # It may be awaited elsewhere than where it was asked for: in a forked child, in a callback.
        self._engine.line_threads.expect_waitable("inspect()")
        ticket = self._inbox.enter(taken.size, wait=self._blocking)
        # Not handed in by the loop: one that is busy, in `close` perhaps, would keep a place that nobody uses.
        handed_in = ticket.then(partial(self._hand_in, taken, ticket))
        try:
            if not handed_in.done():
                await asyncio.wrap_future(handed_in)
        except GeneratorExit:
            # The coroutine was dropped; the collector of garbage may have come by on a thread that holds any lock.
            ticket.abandon()
            raise
        except BaseException:
            ticket.give_up()
            raise
        return await asyncio.wrap_future(handed_in.result())

    def stream(self, pictures: Iterable[Picture]) -> Iterator[Result]:
        """Inspect pictures as they come and yield results as they are ready, in no particular order.

        Pictures are taken from the iterable only as fast as there is room, whatever `on_full` says; a slow consumer
        slows the line. Where a picture cannot be taken in, or the iterable raises, the results under way are yielded
        before that is raised.
        """
        done: queue.SimpleQueue[Future[Result]] = queue.SimpleQueue()
        under_way = 0
        source = iter(pictures)

        def finished() -> Result:
            self._engine.line_threads.expect_waitable("stream()")
            return done.get().result()

        while True:
            self._engine.line_threads.expect_waitable("stream()")
            try:
                picture = next(source, _END)
                if picture is _END:
                    break
                future = self._submit(self._taken(picture), wait=True)
            except Exception:
                for _ in range(under_way):
                    yield finished()
                raise
            future.add_done_callback(done.put)
            under_way += 1
            while not done.empty() or under_way >= self._inbox.places:
                yield finished()
                under_way -= 1
        for _ in range(under_way):
            yield finished()

    def _taken(self, picture: object) -> TakenPicture:
        """Take over a picture's pixels, and note the time; raises as `submit` does."""
        now = self._engine.now()
        self._engine.line_threads.expect_process()
        if not isinstance(picture, Picture):
            raise TypeError(f"a line takes pictures (coe.inspector.inspector.Picture), not {type(picture).__name__}")
        picture.check()
        check_hurry(self._strategy, within_s=picture.within_s)
        if self._inbox.closed:
            raise LineClosed(CLOSED)
        return TakenPicture.over(picture, now, self._prepared_bytes(picture.component))

    def _submit(self, taken: TakenPicture, *, wait: bool) -> Future[Result]:
        with self._ticket(taken, wait=wait) as ticket:
            if not ticket.granted.done():
                self._engine.line_threads.expect_waitable("submit() on a full line")
            ticket.wait()
            return self._hand_in(taken, ticket)

    @contextmanager
    def _ticket(self, taken: TakenPicture, *, wait: bool) -> Iterator[Ticket]:
        """Give a place in the row, and take it back if the block does not get as far as handing the image in."""
        ticket = self._inbox.enter(taken.size, wait=wait)
        try:
            yield ticket
        except BaseException:
            ticket.leave()
            raise

    def _hand_in(self, taken: TakenPicture, ticket: Ticket) -> Future[Result]:
        told, id = taken.picture, self._engine.next_id()
        request = Request(id, told.component, told.name, told.serial, told.refdes, taken.due_s, taken.submitted_s)
        future = self._engine.submit(request, taken.source)
        # The first of its callbacks: whoever is told of a result finds its place free. The line itself is not held.
        future.add_done_callback(lambda _: ticket.leave())
        return future

    def _prepared_bytes(self, component: str) -> int:
        """Return what the input of a component's first expert takes while it waits."""
        known = self.rules.components.get(component)
        return 3 * self.rules.experts[known.root.expert].input_size ** 2 if known else 0

    def metrics(self) -> Metrics:
        """Return what was counted so far."""
        return self._engine.metrics()

    def drift(self) -> list[Drift]:
        """Return the experts that images need most otherwise than the rules say, the one furthest off first.

        The estimate is from the images that came, the newer the heavier; `line` decides by it. A prescheduled line
        estimates nothing.
        """
        return self._demand.drift() if self._demand is not None else []

    @property
    def trace(self) -> Trace:
        """Every event with its time and the commands that answered it; empty without `keep_trace`."""
        return self._engine.trace or []

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the pools hold the experts that they begin with; images may be submitted before.

        Return False if `timeout_s` passes first, or if the line ended before. Raises WouldWaitForItself on a thread of
        the line.
        """
        self._engine.line_threads.expect_waitable("ready()")
        return self._engine.ready(values.patience("timeout_s", timeout_s))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was submitted has its reply; return False if `timeout_s` passes first.

        Raises WouldWaitForItself on a thread of the line.
        """
        self._engine.line_threads.expect_waitable("drain()")
        return self._inbox.wait_empty(values.patience("timeout_s", timeout_s))

    def stop(self) -> None:
        """Let the batches that run end; everything else under way is answered with the error `config.STOPPED`.

        Waits for nothing, and may be called in a callback or by a handler of signals. Does nothing in a forked child.
        """
        if not self._engine.line_threads.is_forked:
            self._inbox.close()
            self._engine.stop()

    def close(self) -> None:
        """Take in nothing more, wait for what is under way, and end all threads.

        Whoever waits for room gets LineClosed. May be called again, and by several threads at once. Does nothing in a
        forked child. Raises WouldWaitForItself on a thread of the line.
        """
        if self._engine.line_threads.is_forked:
            return
        self._engine.line_threads.expect_waitable("close()")
        self._inbox.close()
        self._inbox.wait_empty()
        self._engine.close()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        self.close()
