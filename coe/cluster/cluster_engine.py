"""The threads of a cluster's head: what a line on several boxes runs on.

All that happens comes through one queue to the head's thread, which alone calls the driver. A thread for each box waits
for its reports, and another for machines that come. Images are shared on the caller's thread. Whatever becomes of the
boxes, every image gets its reply.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from coe.board.rules import Rules
from coe.cluster.decisions.head_events import BoxLost
from coe.cluster.head_thread import BoxOpened, BoxReported, ExpertPlacer, HeadDriver, HeadInput, ImageArrived
from coe.cluster.links import Boxes, BoxGone, Link, NotCarried, Say, check_same
from coe.cluster.messages import CarriedImage
from coe.config import counted
from coe.core import Failure, FailureKind, Request
from coe.errors import ConfigError, sentence_of
from coe.helpers.timely import in_time
from coe.pictures.image_source import ImageSource, ReferenceSource
from coe.pictures.picture_file import PictureFile
from coe.results.metrics import Metrics, Recorder, Watcher
from coe.runtime.line_engine import Crash, Job, LineEngine, Pending, end_at_exit
from coe.scheduler.events import Command, Event
from coe.scheduler.failures import STOPPED

_LOOK_S = 1.0
"""How often the cluster is asked for machines that came."""
_PARCEL_EVERY_S = 0.005
"""Parcels go out no more often than this: a parcel for each image would take longer than the images."""
_MAX_FILE_BYTES = 1 << 30
"""The largest file of a picture that is carried."""


class ClusterEngine(LineEngine[HeadInput, Job]):
    """Runs a head on boxes that are open. `rules` are those of all boards, with experts in their variants.

    `watchers` see, on the head's thread, images that come, boxes that are lost (`Lost`), replies, and what boxes say of
    boards that will be late and of their pace. `say` is told of boxes that come.
    """

    def __init__(
        self,
        rules: Rules,
        boxes: Boxes,
        links: Sequence[Link],
        placer: ExpertPlacer,
        *,
        watchers: Sequence[Watcher] = (),
        say: Say = lambda sentence: None,
    ) -> None:
        super().__init__()
        self._boxes, self._say, self._first = boxes, _guarded(say), links[0]
        self._driver = HeadDriver(rules, links, placer, now=self.now, reply=self._reply, observe=self._observe)
        self._recorder = Recorder({}, rules.router.second_looks)
        self._watchers = (self._recorder, *watchers)
        self._watching_failed: BaseException | None = None
        self._ended = threading.Event()
        end_at_exit(self)
        try:
            self._start("coe-head", self._control)
            self._start("coe-reply", self._answer)
            for link in links:
                self._listen(link)
            # Last: from now on the head's thread starts threads.
            self._start("coe-machines", self._look_for_machines)
        except BaseException:  # the system is out of threads
            self._queue.put(None)
            self._ended.set()
            raise

    def __repr__(self) -> str:
        return repr(self._driver.head)

    # What a line calls

    def _new_job(self, request: Request, source: ImageSource, future: Pending) -> Job:
        return Job(request, future)

    def _take_in(self, job: Job, source: ImageSource, refused: Failure | None) -> None:
        """Read the files of the image now, and share it."""
        image = CarriedImage(source, job.request.rule)
        refused = STOPPED if refused is None and self._stopped else refused
        self._queue.put(ImageArrived(job.request, refused or self._share(image)))

    def _share(self, image: CarriedImage) -> object | Failure:
        try:
            return self._boxes.share(_with_bytes(image))
        except NotCarried as error:
            return Failure(FailureKind.LINE, sentence_of(error))
        except Exception as error:
            return Failure(FailureKind.of(error, FailureKind.IMAGE), sentence_of(error, during="decoding"))

    def metrics(self) -> Metrics:
        """Return the counts so far; of a lost box those of its last report."""
        return of_cluster(self._recorder.metrics(), self._driver.metrics())

    def longest_decoding_s(self) -> float:
        """Return 0: files are read on the caller's thread, and boxes decode what is in their memory."""
        return 0.0

    # Threads

    def _start(self, name: str, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function, name=name, daemon=True)
        self.line_threads.threads = frozenset({*self.line_threads.threads, thread})
        thread.start()

    def _listen(self, link: Link) -> None:
        self._start(f"coe-{link.id}", lambda: self._hear(link))

    def _hear(self, link: Link) -> None:
        """Pass on what a box says, until it is gone or the line ends."""
        try:
            while not self._ended.is_set():
                report = link.next_report()
                self._queue.put(BoxReported(link.id, report))
                if report.broken:
                    raise BoxGone(report.broken, crashed=True)
        except BaseException as error:
            crashed = isinstance(error, BoxGone) and error.crashed
            self._queue.put(BoxLost(link.id, sentence_of(error), crashed))
            if not self._ended.is_set():
                link.close()  # whatever is left of it

    def _look_for_machines(self) -> None:
        try:
            while not self._ended.is_set():
                for link in self._boxes.open_new(_LOOK_S):
                    try:
                        check_same(self._first, link)
                    except ConfigError as error:
                        link.close()
                        self._say(f"warning: a machine cannot join: {sentence_of(error)}")
                    else:
                        self._queue.put(BoxOpened(link))
        except BaseException as error:
            self._say(f"warning: new machines are no longer found: {sentence_of(error)}")

    # The head's thread

    def _control(self) -> None:
        try:
            self._driver.start()
            self._decide()
        except BaseException as error:
            # A bug of ours, or of a watcher. Every image still gets its reply, which says why the line stopped.
            self._give_up(Failure(FailureKind.LINE, f"the head of the cluster failed: {sentence_of(error)}"))
        finally:
            self._end()

    def _decide(self) -> None:
        flushed_s = -math.inf
        while not self._ending or self._jobs:
            for event in self._came(flushed_s + _PARCEL_EVERY_S):
                if event is None:
                    self._ending = True
                    continue
                if isinstance(event, Crash):
                    raise event.error
                self._driver.take_in(event)
                if self._watching_failed is not None:  # not before: it would cost replies that are decided
                    raise self._watching_failed
                if isinstance(event, BoxOpened):
                    self._listen(event.link)
                    self._say(f"{event.link.id} has joined; {counted(len(self._driver.links), 'box', 'boxes')}")
            self._driver.flush()
            flushed_s = time.monotonic()
            if not self._has_initial and self._driver.is_settled:
                self._has_initial = True
                self._settle()

    def _came(self, until_s: float) -> Iterator[HeadInput | Crash | None]:
        """Wait for the next event; yield it, and those that come until `until_s` on the monotonic clock."""
        yield self._queue.get()
        with suppress(queue.Empty):
            while (left_s := until_s - time.monotonic()) > 0:
                yield self._queue.get(timeout=left_s)

    def _observe(self, event: Event | None, commands: list[Command]) -> None:
        try:
            for watcher in self._watchers:
                watcher.observe(event, commands, self.now())
        except BaseException as error:
            self._watching_failed = error

    def _end(self) -> None:
        """End the boxes and all other threads."""
        self._ended.set()
        try:
            self._driver.close()
            self._boxes.close()
        finally:
            self._replies.put(None)
            self._settle()


_SUMMED = (
    *("stages", "batches", "switches", "disk_loads", "initial_loads", "speculated", "speculated_used"),
    *("speculated_wasted", "fills", "evictions", "switch_s", "switch_bytes", "run_s", "control_s"),
    *("peak_reserved_bytes", "escalated_s"),
)


def of_cluster(head: Metrics, boxes: Iterable[Metrics]) -> Metrics:
    """Return the counts of several boxes as those of one line.

    Images, verdicts and times come from `head`, which has all images; each stage is an image to its box.
    """
    boxes = list(boxes)
    sums = {name: sum(getattr(box, name) for box in (head, *boxes)) for name in _SUMMED}
    return replace(head, **sums, pace=max((box.pace for box in boxes), default=1.0))


def _guarded(say: Say) -> Say:
    """Return `say`, which may be a user's function, as one that raises nothing: images must not wait for words."""

    def guarded(sentence: str) -> None:
        try:
            say(sentence)
        except BaseException:
            logging.getLogger(__name__).exception("`say` failed for: %s", sentence)

    return guarded


def _with_bytes(image: CarriedImage) -> CarriedImage:
    """Return an image with the bytes of its files, as no box can read them; raises ImageError."""
    source, reference = _read(image.source), image.source.reference
    if reference is not None:
        source = replace(source, reference=_read_reference(reference))
    return CarriedImage(source, image.rule)


def _read_reference(reference: ReferenceSource) -> ReferenceSource:
    spread = None if reference.spread is None else _read(reference.spread)
    others = tuple(map(_read_reference, reference.others))
    return replace(reference, image=_read(reference.image), spread=spread, others=others)


def _read(source: ImageSource) -> ImageSource:
    if not isinstance(source.image, PictureFile):
        return source
    return ImageSource.of(in_time(partial(source.image.read, _MAX_FILE_BYTES)), source.order, source.bits)
