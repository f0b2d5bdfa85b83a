"""A running line: pictures in, results out, one result for each picture, until the line is closed."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
import time
import weakref
from collections.abc import Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from coe.board.rules import Rules
from coe.core import Failure, FailureKind, Request, Result, rule_of
from coe.errors import BoardsClash, CoeError, LineClosed, LineFull
from coe.helpers import values
from coe.inspector import line_references, weights_used
from coe.inspector.asked_boards import Boards, Parts, asked_boards
from coe.inspector.line_boards import LineBoard, LineBoards
from coe.inspector.line_options import LineOptions
from coe.inspector.opening import Assembly, assemble_read, enrol_boards, prepare_change, read_boards
from coe.inspector.precision import LineCosts
from coe.inspector.settings import waiting_bytes
from coe.pictures.array_images import Order
from coe.pictures.image_source import ImageLike as Image
from coe.pictures.image_source import ImageSource, Picture, ReferenceSource
from coe.results.metrics import Metrics
from coe.runtime.admission import CLOSED, Admission, Ticket, give_back
from coe.runtime.engine import Engine
from coe.runtime.line_engine import LONGEST_END_S
from coe.scheduler.demand import Drift
from coe.scheduler.events import Trace
from coe.scheduler.plan import Plan
from coe.scheduler.strategies import check_hurry, check_parts
from coe.store.exam import Exam

_END = object()
_LAST_REPLIES_S = 1.0
"""How long `close` waits for the replies of images whose batches it leaves behind."""


@dataclass(frozen=True, slots=True)
class TakenPicture:
    """A picture that the line owns: it shares nothing with the caller any more, and takes `size` bytes of the inbox."""

    request: Request
    source: ImageSource
    size: int


class Line:
    """A running line, opened from `LineOptions`; users open an `Inspector`, which is a `Line`.

    `rules` is the board, or all boards together, with the experts in the chosen variants, `costs` the cost of each
    expert, `plan` the pools and executors, `memory_bytes` the host memory that CPU executors and images share, and
    `budget_bytes` what all devices may take for experts, batches and images under way. Raises ConfigError, RulesError
    or StoreError for options that cannot work, before any thread of the line is started.
    """

    def __init__(self, options: LineOptions) -> None:
        assembly = _assemble(options)
        # Reentrant, because only such a lock can be given back by whoever does not know whether it is taken.
        self._assembly, self._changing = assembly, threading.RLock()
        self.store, self.kinds = options.store, assembly.kinds
        self.memory_bytes, self.budget_bytes = assembly.settings.memory_bytes, assembly.budget_bytes
        self._engine = engine = assembly.start()
        self._changer = engine if isinstance(engine, Engine) else None
        self._admission = Admission(options.inbox, waiting_bytes(self.memory_bytes, options.inbox_bytes))
        self._blocking = options.on_full == "block"
        self._boards = LineBoards(assembly.boards, None if self._changer is None else self._changer.tell)
        # A line that is dropped ends its threads: they refer to the engine, and never to the line.
        self._finalizer = weakref.finalize(self, self._engine.abandon)
        self._finalizer.atexit = False

    def __repr__(self) -> str:
        closed = ", closed" if self._admission.closed else ""
        return f"<{type(self).__name__} {self.rules.board}{closed}, {self._engine!r}>"

    @property
    def rules(self) -> Rules:
        """The boards that take images, as one, with their experts in the chosen variants."""
        return self._assembly.rules

    @property
    def costs(self) -> LineCosts:
        """The cost of each expert."""
        return self._assembly.costs

    @property
    def hurries(self) -> bool:
        """Whether the strategy heeds due times: with another, `within_s` of an image is refused."""
        return self._assembly.options.strategy.hurries

    @property
    def plan(self) -> Plan:
        """The pools and executors; of one box, if there are several."""
        return self._assembly.options.strategy.pooled(self._assembly.plan)

    @property
    def exams(self) -> dict[str, Exam]:
        """What experts were shown that must not pass, and what passed, by id; experts without an exam are left out."""
        manifests = self._assembly.register.manifests
        exams = {id: manifests[expert.weights].exam for id, expert in self.rules.experts.items()}
        return {id: exam for id, exam in exams.items() if exam is not None}

    @property
    def cautions(self) -> dict[str, tuple[str, ...]]:
        """What is said of experts wherever their word is shown, by id: small defects, no exam, no good parts."""
        return weights_used.cautions(self.rules, self._assembly.register.manifests)

    @property
    def boards(self) -> tuple[str, ...]:
        """The names of the boards that take images."""
        return tuple(board.name for board in self._boards.present)

    def set_boards(self, board: Boards, *, parts: Parts | None = None, keep: Collection[str] = ()) -> None:
        """Inspect these boards, and no others, from now on; `board` and `parts` as for `Inspector`.

        Boards of this line that `keep` names stay as they are, and their files are not read again; `board` may be empty
        then.

        Images that the line has accepted are finished by the rules that held then. The files of all boards are read
        again, so this brings new versions of boards in, too: their rules, references and weights. All that is new is
        read from end to end, and proved to fit into this line's memory, before anything changes: if this raises, the
        line goes on as it was. Then experts that no board needs leave memory. An architecture of which the line knows
        no cost is measured first, while images under way go on.

        Raises ConfigError, RulesError or StoreError as `Inspector` does, BoardsClash for boards that this line cannot
        inspect together, or has no memory for, and on several boxes, LineClosed, and WouldWaitForItself on a thread of
        the line.
        """
        self._engine.line_threads.expect_waitable("set_boards()")
        if self._changer is None:
            raise BoardsClash("a line of several boxes cannot change its boards; open another line")
        asked = () if keep and not board else asked_boards(board, parts)
        check_parts(self._assembly.options.strategy, {str(wanted.source): wanted.parts for wanted in asked})
        try:
            with self._changing:
                self._expect_open()
                boards = enrol_boards(self._assembly, asked, [self._boards.named(name) for name in keep])
                change = prepare_change(self._assembly, boards, self._boards.ending_after(boards))
                self._changer.learn(change.now.router, change.experts)
                self._assembly = change.assembly
                self._boards.switch(boards, change.now, change.then)
        except BaseException:  # an interrupt
            self._boards.recover()
            give_back(self._changing)
            raise

    def submit(  # noqa: PLR0913 - the fields of a Picture
        self,
        image: Image,
        component: str,
        *,
        serial: str = "",
        refdes: str = "",
        name: str = "",
        order: Order | None = None,
        within_s: float | None = None,
        reference: Image | None = None,
        board: str = "",
        bits: int | None = None,
    ) -> Future[Result]:
        """Take in one image and return at once; the future gives its `Result`.

        With `within_s`, the result is due this many seconds from now (waiting for room counts), and so is the whole
        board, that is all images of one `serial`. With `late-binding`, the board that is due first goes first, as long
        as it can be done in time; `Result.late` marks late results. Raises ConfigError if `within_s` is no time, or if
        the strategy would ignore it.

        `board` is the name of the image's board, as its file says it or as the line was opened with it. On a line of
        one board it may be left out; else ConfigError says what boards there are.

        `reference` is a picture of a good part, in the same forms as `image`; it belongs to components whose rules say
        `reference: given`, and to no others (ConfigError).

        `bits` (8 to 16) says how many low bits count of 16-bit samples, in files and in arrays of uint16, which are
        taken with it alone: a camera of 12 bits writes values up to 4095. It takes the place of the board file's
        `bits`. Without either, a file whose samples fill the low bits alone is an error.

        `image` is a numpy array (H, W, 3), (H, W, 4) or (H, W), uint8, whose colours are BGR unless `order` says "RGB";
        the bytes of a picture file; its path; a Pillow image, whose colours are RGB; or anything with `__array__` or
        `__dlpack__`, such as a torch tensor (H, W, 3), whose `order` must be said. Pixels are copied, so that the
        caller may reuse them. A file at a path must not change until its result is there, else the result is an error.
        `Result.error` says what is wrong with the image itself (or its component). Raises LineClosed after `close` or
        `stop`, LineFull with `on_full="raise"`, TypeError if `image` is no image, and WouldWaitForItself if it would
        have to wait for room on a thread of the line, for example in a callback.
        """
        picture = Picture(image, component, serial, refdes, name, order, within_s, reference, board, bits)
        return self.submit_picture(picture)

    def submit_picture(self, picture: Picture) -> Future[Result]:
        """Take in a picture as `submit` does."""
        return self._submit(self._taken(picture), wait=self._blocking)

    def inspect(  # noqa: PLR0913 - the fields of a Picture
        self,
        image: Image,
        component: str,
        *,
        serial: str = "",
        refdes: str = "",
        name: str = "",
        order: Order | None = None,
        within_s: float | None = None,
        reference: Image | None = None,
        board: str = "",
        bits: int | None = None,
    ) -> Coroutine[Any, Any, Result]:
        """Take over one image now, and return a coroutine that gives its `Result` without blocking the loop.

        The call itself copies the pixels and starts the time of `within_s`, as `submit` does; the first await comes
        later. No thread waits for room. A coroutine that is cancelled while it waits for room gives its place in the
        queue back; if it is cancelled later, its image is still inspected.
        """
        self._engine.line_threads.expect_waitable("inspect()")
        picture = Picture(image, component, serial, refdes, name, order, within_s, reference, board, bits)
        return self._inspected(self._taken(picture))

    async def _inspected(self, taken: TakenPicture) -> Result:
        # The coroutine may be awaited elsewhere than where it was made: in a forked child, or in a callback.
        self._engine.line_threads.expect_waitable("inspect()")
        loop = asyncio.get_running_loop()
        handed_in: asyncio.Future[Future[Result]] = loop.create_future()
        # The thread that makes the room hands the image in: a loop that is blocked, in `close` perhaps, would hold a
        # place without using it.
        ticket = Ticket(
            self._admission, taken.size, partial(self._hand_in_for, taken, handed_in, threading.get_ident())
        )
        try:
            ticket.enter(wait=self._blocking)
        except BaseException:
            ticket.recover()
            raise
        try:
            future = await handed_in
        except GeneratorExit:
            # The coroutine was dropped; garbage collection may call this on a thread that holds any lock.
            ticket.abandon()
            raise
        except BaseException:
            ticket.give_up()
            raise
        return await asyncio.wrap_future(future)

    def stream(self, pictures: Iterable[Picture]) -> Iterator[Result]:
        """Inspect pictures as they come and yield results as they are ready, in no particular order.

        Pictures are taken from an iterator only as fast as there is room, whatever `on_full` says; a slow consumer
        slows the line. A sequence, such as a list, is known as a whole: unless a picture in it is due, its pictures are
        taken expert by expert, so that each expert is loaded about once however little of them fits. If a picture
        cannot be taken in, or the iterator raises, the results under way are yielded before the error is raised.
        """
        done: queue.SimpleQueue[Future[Result]] = queue.SimpleQueue()
        under_way = 0
        source = iter(self._by_expert(pictures) if isinstance(pictures, Sequence) else pictures)

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
            while not done.empty() or under_way >= self._admission.places:
                yield finished()
                under_way -= 1
        for _ in range(under_way):
            yield finished()

    def _by_expert(self, pictures: Sequence[Picture]) -> Sequence[Picture]:
        """Return pictures by the experts of their components, those first that the line has first; as they are if a
        picture is due.
        """
        if any(not isinstance(picture, Picture) or picture.within_s is not None for picture in pictures):
            return pictures
        rules = self.rules
        # So the pools are filled when the line begins.
        place = {expert: number for number, expert in enumerate(rules.graph.by_probability)}

        @cache
        def places(board: str, component: str) -> tuple[int, ...]:
            with suppress(CoeError):  # whoever takes the picture in says what is wrong
                rule = rule_of(self._boards.named(board).key, component)
                return tuple(place[step.expert] for step in rules.router.first(rule).walk())
            return (len(place),)

        return sorted(pictures, key=lambda picture: places(str(picture.board), str(picture.component)))

    def _taken(self, picture: object) -> TakenPicture:
        """Take over a picture's pixels, and record the time; raises the errors of `submit`."""
        now = self._engine.now()
        self._engine.line_threads.expect_process()
        self._expect_open()
        if not isinstance(picture, Picture):
            raise TypeError(f"a line takes pictures (`coe.Picture`), not {type(picture).__name__}")
        picture.check()
        if picture.within_s is not None:
            check_hurry(self._assembly.options.strategy, within_s=picture.within_s)
        board = self._boards.named(picture.board)
        if (picture.component in board.given) != (picture.reference is not None):
            line_references.check_picture(board.rules, picture)
        return _taken_over(picture, self._engine.next_id(), now, board)

    def _expect_open(self) -> None:
        """Raise LineClosed for a line that was closed, or stopped."""
        if self._admission.closed:
            raise LineClosed(CLOSED)

    def _submit(self, taken: TakenPicture, *, wait: bool) -> Future[Result]:
        ticket = Ticket(self._admission, taken.size)
        try:
            if not ticket.enter(wait=wait):
                self._engine.line_threads.expect_waitable("submit() on a full line")
                ticket.wait()
            return self._hand_in(taken, ticket)
        except LineFull:
            raise
        except BaseException:  # an interrupt, perhaps: the place is free again
            ticket.recover()
            raise

    def _hand_in(self, taken: TakenPicture, ticket: Ticket) -> Future[Result]:
        request = taken.request
        # The first callback, so that later callbacks find the place free. It holds no reference to the line.
        leave = partial(_leave, ticket, self._boards)
        try:
            board = self._boards.accept(request.board, ticket)
            if board is None:
                reason = f"board '{request.board}' left the line while the image waited for room"
                refused = Failure(FailureKind.RULES, reason)
                return self._engine.submit(request, taken.source, refused=refused, first=leave)
            if board.key != request.board_key:  # another version of its board came while it waited for room
                request = replace(request, board_key=board.key)
            reference = board.references.get(request.component)
            source = taken.source if reference is None else taken.source.beside(reference)
            return self._engine.submit(request, source, first=leave)
        except BaseException:
            self._boards.recover()
            if not self._engine.is_under_way(request.id):
                self._boards.answered(ticket)
            raise

    def _hand_in_for(
        self, taken: TakenPicture, handed_in: asyncio.Future[Future[Result]], owner: int, ticket: Ticket
    ) -> None:
        """Hand an image in for a coroutine of the thread `owner`, on the thread that let it in."""
        try:
            ticket.check()
            answer = partial(_settle, handed_in, self._hand_in(taken, ticket))
        except BaseException as error:
            ticket.recover()
            answer = partial(_settle, handed_in, error)
        if threading.get_ident() == owner:
            answer()
        else:
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                handed_in.get_loop().call_soon_threadsafe(answer)

    def metrics(self) -> Metrics:
        """Return the counts so far."""
        return self._engine.metrics()

    def longest_decoding_s(self) -> float:
        """Return for how many seconds a picture has been read and prepared; the longest of all that are under way.

        0 if none is. A file on a disk or share that does not answer is read for `config.read_timeout_s()`, and its
        image then gets the failure `LATE`; as many such files as there are threads that decode hold all others up.
        """
        return self._engine.longest_decoding_s()

    def drift(self) -> list[Drift]:
        """Return the experts whose use differs most from the probability in the rules, the largest difference first.

        The estimate is from the images so far; newer images weigh more. `late-binding` decides by it. Several
        boxes estimate each for itself, and the line returns nothing.
        """
        return self._changer.controller.demand.drift() if self._changer is not None else []

    @property
    def trace(self) -> Trace:
        """Every event with its time and the commands that answered it; empty without `Experiment.keep_trace`."""
        trace = self._changer.trace if self._changer is not None else None
        return [] if trace is None else trace

    def ready(self, timeout_s: float | None = None) -> bool:
        """Wait until the pools hold their initial experts; images may be submitted before.

        Return False if `timeout_s` passes first, or if the line ends first. Raises WouldWaitForItself on a thread of
        the line.
        """
        self._engine.line_threads.expect_waitable("ready()")
        return self._engine.ready(values.patience(timeout_s))

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until every submitted image has its result; return False if `timeout_s` passes first.

        Raises WouldWaitForItself on a thread of the line.
        """
        self._engine.line_threads.expect_waitable("drain()")
        return self._admission.wait_empty(values.patience(timeout_s))

    def stop(self) -> None:
        """Let running batches end; all other images under way are answered with the error `config.STOPPED`.

        An image whose file is still being read is answered, too. Waits for nothing, and may be called in a callback or
        by a signal handler. Does nothing in a forked child.
        """
        if not self._engine.line_threads.is_forked:
            self._admission.close()
            self._engine.stop()

    def close(self, timeout_s: float | None = None) -> bool:
        """Take in no more images, wait for images under way, and end all threads; return whether none was stopped.

        If `timeout_s` passes first, the line is stopped: what has no result then is answered as by `stop`, and running
        batches end; a batch that has not ended ten seconds later is left behind, and its images get an error. Callers
        that wait for room get LineClosed. May be called again, and by several threads at a time.
        Does nothing in a forked child, and returns False. Raises WouldWaitForItself on a thread of the line.
        """
        if self._engine.line_threads.is_forked:
            return False
        self._engine.line_threads.expect_waitable("close()")
        timeout_s = values.patience(timeout_s)
        self._admission.close()
        in_time = self._admission.wait_empty(timeout_s)
        if not in_time:
            self._engine.stop()
        self._engine.close(math.inf if timeout_s is None else time.monotonic() + LONGEST_END_S)
        self._admission.wait_empty(_LAST_REPLIES_S)
        # As the engine does: a caller who keeps a closed line must not keep its memory.
        self._assembly = replace(self._assembly, devices={})
        self._finalizer.detach()
        return in_time

    def __enter__(self) -> Self:
        self._expect_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.stop()
        self.close()


def _assemble(options: LineOptions) -> Assembly:
    """Read the boards, and open boxes or make devices; raises ConfigError, RulesError or StoreError."""
    if options.cluster is None:
        return assemble_read(options, read_boards(options, options.boards))
    # By name: several boxes are an annex, which a line on one machine never imports.
    return cast(Assembly, import_module("coe.cluster.cluster_line").assemble(options))


def _taken_over(picture: Picture, id: int, now: float, board: LineBoard) -> TakenPicture:
    """Take over the pixels of a picture of a board, at the time `now` of the line; raises TypeError."""
    bits = board.rules.bits if picture.bits is None else picture.bits
    source = ImageSource.of(picture.image, picture.order, bits)
    size = source.held_bytes + board.first_bytes.get(picture.component, 0)
    if picture.reference is not None:
        reference = ReferenceSource(ImageSource.of(picture.reference, picture.order, bits))
        source, size = source.beside(reference), size + reference.held_bytes
    name = picture.name or (str(picture.image) if isinstance(picture.image, str | Path) else "")
    due_s = math.inf if picture.within_s is None else now + float(picture.within_s)
    place = (picture.component, name, picture.serial, picture.refdes)
    return TakenPicture(Request(id, *place, due_s, now, board.name, board.key), source, size)


def _leave(ticket: Ticket, boards: LineBoards, _: object) -> None:
    ticket.leave()
    boards.answered(ticket)


def _settle(handed_in: asyncio.Future[Future[Result]], answer: Future[Result] | BaseException) -> None:
    """Answer a coroutine that still waits for room."""
    if handed_in.done():
        return
    if isinstance(answer, BaseException):
        handed_in.set_exception(answer)
    else:
        handed_in.set_result(answer)
