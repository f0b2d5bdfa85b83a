"""The public Python API: pictures in, verdicts out.

    with Inspector(board="A") as line:
        future = line.submit(image, component="R0402", serial="SN1")
        for result in line.stream(pictures):
            ...

From asyncio: `result = await line.inspect(image, component="R0402")`.

Longer than other files because it is the whole API with all that it documents, each setting in one place.
"""

from __future__ import annotations

import asyncio
import math
import queue
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from coe import config, values
from coe.board import rules
from coe.board.decoding import Order
from coe.board.image_source import ImageLike as Image
from coe.board.image_source import ImageSource, Picture
from coe.core import Request, Result
from coe.errors import ConfigError, LineClosed
from coe.inspector import assembly
from coe.inspector.memory import planned
from coe.inspector.precision import check_precision
from coe.inspector.profile import Profile
from coe.inspector.settings import AUTO, check_inbox, check_types, settle
from coe.results.metrics import Metrics, Watcher
from coe.runtime.admission import CLOSED, Admission, Ticket
from coe.runtime.decider import MakeDecider
from coe.runtime.engine import Engine, Trace
from coe.runtime.lane import Disk
from coe.runtime.throttle import Throttle
from coe.scheduler.controller import Controller
from coe.scheduler.costs import CostTable
from coe.scheduler.demand import Drift
from coe.scheduler.plan import images_budget
from coe.scheduler.strategies import check_hurry
from coe.scheduler.strategies import strategy as named_strategy
from coe.store import dotted, kinds
from coe.store.snapshot import Snapshot
from coe.store.store import Store

__all__ = ["Inspector", "Picture"]

_END = object()


@dataclass(frozen=True, slots=True)
class _Taken:
    """An image that the line has of its own, what is said of it, and the bytes that it books; times on its clock."""

    picture: Picture
    source: ImageSource
    size: int
    submitted_s: float
    due_s: float


class Inspector:
    """A running line for one board.

    `board` is a name or the path of a board file, `memory` the budget for experts, activations and images under way in
    bytes or as "1.5GiB", `executors` such as "cpu=2", `threads` those of each, `loaded` how many experts of mean size
    the memory is to hold (a memory score; batches have the rest). With executors such as "cuda=2,cpu=1" a GPU takes
    part: `device_memory` is its budget, `host_memory` what keeps copies of experts for it (docs/gpu.md). What is not
    given comes from this machine's `profile` (see `coe.inspector.settings`), or is a default. When `inbox` images or
    `inbox_bytes` are under way, `submit` waits, or raises LineFull with `on_full="raise"`; `inbox_bytes` are a part of
    the memory, or beside it if given. `say` is called with a sentence when something takes a moment. With `keep_trace`,
    `trace` holds every event and its commands; `watchers` see them as they pass, on the thread that decides.

    `precision` is "fp32", "half" or "mixed" (docs/precision.md); a variant whose labels agree with those of fp32 in a
    smaller share than `label_floor` is not used.

    With the strategy `line` an image that has been under way for half of `max_wait_s` (`config.MAX_WAIT_S` if None)
    goes before all that is in no hurry, and so do boards that are due (`within_s` of `submit`).

    With `disk_bandwidth`, bytes a second or "530MB/s", weights come no faster than from such a disk. `costs` are those
    of an earlier line of the same board, store, devices and precision; nothing is measured then.

    `make_devices` is for benchmarks, and for devices of your own (`coe.runtime.device`): it is called as
    `coe.inspector.assembly.devices` is, and returns them by name. A profile knows nothing of such; give None with it.
    `make_decider` is for experiments with scheduling itself (`coe.runtime.decider`): it is called as `Controller` is.

    `allow_kinds` are packages whose kinds the board file may name by a dotted path: code of no other package runs, but
    for kinds that are installed as entry points (docs/experts.md).

    Raises ConfigError, RulesError or StoreError for what cannot work, before any thread is started.
    """

    def __init__(
        self,
        board: str | Path,
        *,
        store: Store | Path | str | None = None,
        memory: int | str | None = None,
        executors: str | None = None,
        threads: int | None = None,
        loaded: float | None = None,
        device_memory: int | str | None = None,
        host_memory: int | str | None = None,
        strategy: str = config.STRATEGY,
        precision: str = config.PRECISION,
        label_floor: float = config.LABEL_FLOOR,
        on_full: Literal["block", "raise"] = "block",
        inbox: int = config.INBOX_IMAGES,
        inbox_bytes: int | None = None,
        disk_bandwidth: int | str | None = None,
        max_wait_s: float | None = None,
        costs: CostTable | None = None,
        profile: Profile | Path | str | None = AUTO,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = lambda sentence: None,
        keep_trace: bool = False,
        make_devices: assembly.MakeDevices = assembly.devices,
        make_decider: MakeDecider = Controller,
        allow_kinds: Sequence[str] = (),
    ) -> None:
        if on_full not in ("block", "raise"):
            raise ConfigError(f"on_full={values.shown(on_full)} is neither 'block' nor 'raise'")
        check_types(
            board=board,
            say=say,
            watchers=watchers,
            make_devices=make_devices,
            make_decider=make_decider,
            profile=profile,
        )
        _check_earlier(store, costs)
        check_inbox(inbox, inbox_bytes)
        check_precision(precision, label_floor)
        chosen = named_strategy(strategy)
        check_hurry(chosen, max_wait_s=max_wait_s)
        speed = None if disk_bandwidth is None else values.bandwidth("disk_bandwidth", disk_bandwidth)
        throttle = None if speed is None else Throttle(speed)
        named = rules.load(board)
        self.store = store if isinstance(store, Store) else Store(store)
        allowed = dotted.packages(allow_kinds)
        self.kinds = {kind: kinds.resolve(kind, allowed) for kind in sorted({e.kind for e in named.experts.values()})}
        named.check_detectors(id for id, e in named.experts.items() if self.kinds[e.kind].task == "detect")
        manifests = assembly.manifests(named, self.store)
        settings = settle(
            named,
            memory=memory,
            executors=executors,
            threads=threads,
            loaded=loaded,
            device_memory=device_memory,
            host_memory=host_memory,
            single=chosen.single,
            source=profile,
            say=say,
        )
        self.memory_bytes = settings.memory_bytes
        """What is shared by all whose memory is the host's."""
        devices = make_devices(
            settings.executors,
            Snapshot(self.store, manifests),
            self.kinds,
            settings.threads,
            device_bytes=settings.device_bytes,
            host_bytes=settings.host_bytes,
            say=say,
        )
        lineup = assembly.line_up(
            named,
            manifests,
            devices,
            self.kinds,
            settings,
            say,
            mode=precision,
            floor=label_floor,
            bytes_per_s=speed,
            costs=costs,
        )
        self.rules, self.costs = lineup.board, lineup.costs
        for id, device in devices.items():
            device.prepare(self.rules.experts.values(), settings.executors[id])
        made = planned(
            settings,
            devices,
            self.rules.experts,
            self.costs,
            with_images=inbox_bytes is None,
            demotes=not chosen.cached,
        )
        self.plan = chosen.pooled(made)
        own_bytes = [device.memory_bytes for device in devices.values()]
        self.budget_bytes = sum(self.memory_bytes if one is None else one for one in own_bytes)
        """What all devices may take for experts and batches."""
        self._strategy = chosen
        decider = make_decider(
            router=self.rules.router,
            graph=self.rules.graph,
            costs=self.costs,
            plan=self.plan,
            strategy=chosen,
            max_wait_s=max_wait_s,
        )
        self._demand = decider.demand if isinstance(decider, Controller) else None
        images = images_budget(self.memory_bytes, inbox_bytes)
        self._inbox, self._blocking = Admission(inbox, images.waiting_bytes), on_full == "block"
        self._engine = Engine(
            decider,
            devices,
            self.rules.experts,
            self.kinds,
            disk=Disk(assembly.file_bytes(self.rules, manifests), throttle),
            workers=assembly.decode_workers(),
            decoding_bytes=images.decoding_bytes,
            watchers=watchers,
            keep_trace=keep_trace,
        )
        # A line that is dropped ends its threads; these hold the engine, and nothing of theirs holds the line.
        self._finalizer = weakref.finalize(self, self._engine.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        return f"<Inspector {self.rules.board}, {self._engine.controller!r}>"

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
        self._engine.place.expect_waitable("inspect()")
        return self._inspected(self._taken(Picture(image, component, serial, refdes, name, order, within_s)))

    async def _inspected(self, taken: _Taken) -> Result:
        # It may be awaited elsewhere than where it was asked for: in a forked child, in a callback.
        self._engine.place.expect_waitable("inspect()")
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
            self._engine.place.expect_waitable("stream()")
            return done.get().result()

        while True:
            self._engine.place.expect_waitable("stream()")
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

    def _taken(self, picture: object) -> _Taken:
        """Take over a picture's pixels, and note the time; raises as `submit` does."""
        now = self._engine.now()
        self._engine.place.expect_process()
        if not isinstance(picture, Picture):
            raise TypeError(f"a line takes pictures (coe.inspector.inspector.Picture), not {type(picture).__name__}")
        picture.check()
        check_hurry(self._strategy, within_s=picture.within_s)
        if self._inbox.closed:
            raise LineClosed(CLOSED)
        source = ImageSource.of(picture.image, picture.order)
        size = source.held_bytes + self._prepared_bytes(picture.component)
        due_s = math.inf if picture.within_s is None else now + picture.within_s
        # Nothing here keeps the caller's array.
        name = picture.name or (str(picture.image) if isinstance(picture.image, str | Path) else "")
        return _Taken(replace(picture, image="", name=name), source, size, now, due_s)

    def _submit(self, taken: _Taken, *, wait: bool) -> Future[Result]:
        with self._ticket(taken, wait=wait) as ticket:
            if not ticket.granted.done():
                self._engine.place.expect_waitable("submit() on a full line")
            ticket.wait()
            return self._hand_in(taken, ticket)

    @contextmanager
    def _ticket(self, taken: _Taken, *, wait: bool) -> Iterator[Ticket]:
        """Give a place in the row, and take it back if the block does not get as far as handing the image in."""
        ticket = self._inbox.enter(taken.size, wait=wait)
        try:
            yield ticket
        except BaseException:
            ticket.leave()
            raise

    def _hand_in(self, taken: _Taken, ticket: Ticket) -> Future[Result]:
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

        The estimate is from the images that came, the newer the heavier; `line` decides by it. A decider of
        your own has none: the list is empty.
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
        self._engine.place.expect_waitable("ready()")
        return self._engine.ready(values.patience("timeout_s", timeout_s))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was submitted has its reply; return False if `timeout_s` passes first.

        Raises WouldWaitForItself on a thread of the line.
        """
        self._engine.place.expect_waitable("drain()")
        return self._inbox.wait_empty(values.patience("timeout_s", timeout_s))

    def stop(self) -> None:
        """Let the batches that run end; everything else under way is answered with the error `config.STOPPED`.

        Waits for nothing, and may be called in a callback or by a handler of signals. Does nothing in a forked child.
        """
        if not self._engine.place.is_forked:
            self._inbox.close()
            self._engine.stop()

    def close(self) -> None:
        """Take in nothing more, wait for what is under way, and end all threads.

        Whoever waits for room gets LineClosed. May be called again, and by several threads at once. Does nothing in a
        forked child. Raises WouldWaitForItself on a thread of the line.
        """
        if self._engine.place.is_forked:
            return
        self._engine.place.expect_waitable("close()")
        self._inbox.close()
        self._inbox.wait_empty()
        self._engine.close()
        self._finalizer.detach()

    def __enter__(self) -> Inspector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        self.close()


def _check_earlier(store: object, costs: object) -> None:
    """Raise ConfigError for what is no store, or for costs that no earlier line gave."""
    if store is not None and not (isinstance(store, Store | Path | str) and str(store)):
        raise ConfigError(f"store={values.shown(store)}: give a Store, or the path of one")
    if costs is not None and not isinstance(costs, CostTable):
        raise ConfigError(f"costs={values.shown(costs)}: give the `costs` of an earlier line")
