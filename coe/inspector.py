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
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coe import assembly, config, kinds, rules
from coe.budgets import planned
from coe.controller import Controller
from coe.core import Request, Result
from coe.costs import CostTable
from coe.decoding import decode
from coe.demand import Demand, Drift
from coe.errors import ConfigError, LineClosed, LineFull
from coe.metrics import Metrics, Watcher
from coe.plan import inbox_bytes as share_of_images
from coe.plan import joined
from coe.policies.strategies import check_hurry
from coe.policies.strategies import strategy as named_strategy
from coe.precision import check_precision
from coe.prescheduled import Prescheduled
from coe.profile import Profile
from coe.runtime.decider import Decider
from coe.runtime.engine import Engine, Trace
from coe.runtime.lane import Disk
from coe.runtime.throttle import Throttle
from coe.settings import AUTO, settle
from coe.store import Store

Order = Literal["BGR", "RGB"]
Image = NDArray[np.uint8] | str | Path | bytes


@dataclass(frozen=True, slots=True)
class Picture:
    """One image for `Inspector.stream`: an array (H, W, 3) uint8 in `order`, an encoded file's bytes, or a path.

    `within_s` as for `Inspector.submit`.
    """

    image: Image
    component: str
    serial: str = ""
    refdes: str = ""
    name: str = ""
    order: Order = "BGR"
    within_s: float | None = None


class Inspector:
    """A running line for one board.

    `board` is a name or the path of a board file, `memory` the budget for experts, activations and images under way in
    bytes or as "1.5GiB", `executors` such as "cpu=2", `threads` those of each, `loaded` how many experts of mean size
    the memory is to hold (a memory score; batches have the rest). With executors such as "cuda=2,cpu=1" a GPU takes
    part: `device_memory` is its budget, `host_memory` what keeps copies of experts for it (docs/gpu.md). What is not
    given comes from this machine's `profile` (see `coe.settings`), or is a default. When `inbox` images or
    `inbox_bytes` are under way, `submit` waits, or raises LineFull with `on_full="raise"`; `inbox_bytes` are a part of
    the memory, or beside it if given. `say` is called with a sentence when something takes a moment. With `keep_trace`,
    `trace` holds every event and its commands; `watchers` see them as they pass, on the thread that decides.

    `precision` is "fp32", "half" or "mixed" (docs/precision.md); a variant whose labels agree with those of fp32 in a
    smaller share than `label_floor` is not used.

    With the strategy `line` an image that has been under way for half of `max_wait_s` (`config.MAX_WAIT_S` if None)
    goes before all that is in no hurry, and so do boards that are due (`within_s` of `submit`).

    With `disk_bandwidth`, bytes a second or "530MB/s", weights come no faster than from such a disk. `costs` are those
    of an earlier line of the same board, store, devices and precision; nothing is measured then. With `prescheduled`,
    the trace of such a line, its commands are repeated, nothing is decided: submit the same images in the same order.

    `make_devices` is for benchmarks, and for devices of your own (`coe.runtime.device`): it is called as
    `coe.assembly.devices` is, and returns them by name. A profile knows nothing of such; give None with it.

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
        prescheduled: Trace | None = None,
        watchers: Sequence[Watcher] = (),
        say: Callable[[str], None] = lambda sentence: None,
        keep_trace: bool = False,
        make_devices: assembly.MakeDevices = assembly.devices,
    ) -> None:
        if on_full not in ("block", "raise"):
            raise ConfigError(f"on_full='{on_full}' is neither 'block' nor 'raise'")
        if inbox < 1:
            raise ConfigError(f"inbox={inbox} leaves no room for an image")
        check_precision(precision, label_floor)
        chosen = named_strategy(strategy)
        check_hurry(chosen, max_wait_s=max_wait_s)
        speed = config.parse_bandwidth(disk_bandwidth) if isinstance(disk_bandwidth, str) else disk_bandwidth
        throttle = None if speed is None else Throttle(speed)
        named = rules.load(board)
        self.store = store if isinstance(store, Store) else Store(store)
        self.kinds = {kind: kinds.resolve(kind) for kind in sorted({e.kind for e in named.experts.values()})}
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
            self.store,
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
        self.plan = joined(made) if chosen.shared else made
        own_bytes = [device.memory_bytes for device in devices.values()]
        self.budget_bytes = sum(self.memory_bytes if one is None else one for one in own_bytes)
        """What all devices may take for experts and batches."""
        controller: Decider
        self._strategy = chosen
        self._demand: Demand | None = None
        if prescheduled is None:
            controller = Controller(
                router=self.rules.router,
                graph=self.rules.graph,
                costs=self.costs,
                plan=self.plan,
                strategy=chosen,
                max_wait_s=max_wait_s,
            )
            self._demand = controller.demand
        else:
            controller = Prescheduled(prescheduled, self.rules.router, self.plan, self.costs)
        self._engine = Engine(
            controller,
            devices,
            self.rules.experts,
            self.kinds,
            disk=Disk(assembly.file_bytes(self.rules, manifests), throttle),
            workers=assembly.decode_workers(),
            watchers=watchers,
            keep_trace=keep_trace,
        )
        self._inbox = _Inbox(
            inbox,
            share_of_images(self.memory_bytes) if inbox_bytes is None else inbox_bytes,
            blocking=on_full == "block",
        )
        self._closed = False

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
        a path must stay until its result is there. What is wrong with the image itself (or its component) is said in
        `Result.error`. Raises LineClosed after `close`, LineFull if asked for, TypeError for what is no image.
        """
        if order not in ("BGR", "RGB"):
            raise ConfigError(f"order='{order}' is neither 'BGR' nor 'RGB'")
        check_hurry(self._strategy, within_s=within_s)
        due_s = math.inf if within_s is None else self._engine.now() + within_s
        if isinstance(image, np.ndarray):
            source: NDArray[Any] | bytes | Path = image.copy()
            size = image.nbytes
        elif isinstance(image, bytes | bytearray | memoryview):
            source = bytes(image)
            size = len(source)
        elif isinstance(image, str | Path):
            source, size, name = Path(image), 0, name or str(image)
        else:
            raise TypeError(f"an image is an array, bytes or a path, not {type(image).__name__}")
        if self._closed:
            raise LineClosed("this line is closed; open a new Inspector")
        size += self._prepared_bytes(component)
        self._inbox.enter(size)
        request = Request(self._engine.next_id(), component, name, serial, refdes, due_s)
        future = self._engine.submit(request, lambda: decode(source, order=order))
        future.add_done_callback(lambda _: self._inbox.leave(size))
        return future

    async def inspect(self, image: Image, component: str, **details: Any) -> Result:
        """Submit from asyncio (with the arguments of `submit`) and wait for the result without blocking the loop."""
        future = await asyncio.to_thread(self.submit, image, component, **details)
        return await asyncio.wrap_future(future)

    def stream(self, pictures: Iterable[Picture]) -> Iterator[Result]:
        """Inspect pictures as they come and yield results as they are ready, in no particular order.

        Pictures are taken from the iterable only as fast as there is room; a slow consumer slows the line.
        """
        done: queue.SimpleQueue[Future[Result]] = queue.SimpleQueue()
        under_way = 0
        for picture in pictures:
            while under_way >= self._inbox.images:
                yield done.get().result()
                under_way -= 1
            future = self.submit(
                picture.image,
                picture.component,
                serial=picture.serial,
                refdes=picture.refdes,
                name=picture.name,
                order=picture.order,
                within_s=picture.within_s,
            )
            future.add_done_callback(done.put)
            under_way += 1
            while not done.empty():
                yield done.get().result()
                under_way -= 1
        for _ in range(under_way):
            yield done.get().result()

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

        Return False if `timeout_s` passes first, or if the line ended before.
        """
        return self._engine.ready(timeout_s)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until everything that was submitted has its reply; return False if `timeout_s` passes first."""
        return self._inbox.wait_empty(timeout_s)

    def stop(self) -> None:
        """Let the batches that run end; everything else under way is answered with the error `config.STOPPED`."""
        self._closed = True
        self._engine.stop()

    def close(self) -> None:
        """Take in nothing more, wait for what is under way, and end all threads."""
        self._closed = True
        self.drain()
        self._engine.close()

    def __enter__(self) -> Inspector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        self.close()


class _Inbox:
    """Bounds what is under way, in images and in bytes; one image larger than all is still let in, alone."""

    def __init__(self, images: int, limit_bytes: int, *, blocking: bool) -> None:
        self.images = images
        self._limit_bytes, self._blocking = limit_bytes, blocking
        self._count = self._bytes = 0
        self._changed = threading.Condition()

    def enter(self, size: int) -> None:
        with self._changed:
            if not self._blocking and not self._has_room(size):
                raise LineFull(f"{self._count} images are under way; wait for results, or submit with on_full='block'")
            self._changed.wait_for(lambda: self._has_room(size))
            self._count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        with self._changed:
            self._count -= 1
            self._bytes -= size
            self._changed.notify_all()

    def wait_empty(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, timeout_s)

    def _has_room(self, size: int) -> bool:
        return self._count == 0 or (self._count < self.images and self._bytes + size <= self._limit_bytes)
