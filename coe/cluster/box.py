"""A box: an engine of one machine that runs single stages. What follows from a finding is known to the head alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property

from coe.cluster.decisions.head_events import GOSSIP_S, ExpertsReported, Release, StageDone, changed_experts, comes_in_s
from coe.cluster.decisions.stage_rules import StageRules, stage_rules
from coe.cluster.messages import BoxFacts, BoxReport, CarriedImage, NewRules, Parcel, RunStage
from coe.core import Failure, FailureKind, Result, rule_of
from coe.errors import sentence_of
from coe.inspector.opening import Assembly
from coe.results.metrics import Metrics, Recorder
from coe.runtime.engine import Engine
from coe.scheduler.controller import Controller
from coe.scheduler.events import Command, Event, Late, PaceChanged, RulesChanged, Stopped

_STAGES_GATHER_S = 0.005
"""A box waits at most this long for further stages of a batch that ends, in seconds: a report for each takes longer."""
_NOTHING = Recorder({}).metrics()


Fetch = Callable[[Sequence[object]], Sequence[CarriedImage]]
"""Gives images by what `coe.cluster.links.Boxes.share` gave for them; raises whatever the transport raises."""


class BoxWorker:
    """Runs the stages that parcels bring, by the rules that came before them; `report` says what happened.

    `assembly` is that of all boards on this machine. One thread calls `take`, and another `report`. `fetch` gives the
    images that messages name, in their order.
    """

    def __init__(self, id: str, assembly: Assembly, fetch: Fetch) -> None:
        self.id, self._assembly, self._fetch = id, assembly, fetch
        self._followers = assembly.rules.router.followers()
        self._references = {
            rule_of(board.key, component): reference
            for board in assembly.boards
            for component, reference in board.references.items()
        }
        self._images: dict[int, CarriedImage] = {}
        self._engine: Engine | None = None
        self._ahead_s = math.inf
        """How far the clock of the engine is ahead of the head's: the least that a parcel says, the quickest one."""
        self._out = _Outbox(id)

    def __repr__(self) -> str:
        return f"<BoxWorker {self.id}, {len(self._images)} images>"

    @cached_property
    def facts(self) -> BoxFacts:
        """What the box has."""
        made = self._assembly
        return BoxFacts(made.costs, made.plan, made.settings.memory_bytes, made.budget_bytes)

    def take(self, parcel: Parcel) -> None:
        """Take messages in. Raises nothing: a box that cannot go on says so in its next report."""
        try:
            self._take(parcel)
        except BaseException as error:
            self._out.broke(f"it could not carry out a command of the head: {sentence_of(error)}")

    def _take(self, parcel: Parcel) -> None:
        lacking = self._fetch_images([m for m in parcel.messages if isinstance(m, RunStage) and m.image is not None])
        for message in parcel.messages:
            match message:
                case RunStage():
                    self._run(message, parcel.now_s, lacking)
                case Release():
                    self._images.pop(message.request_id, None)
                case NewRules():
                    self._follow(message)
                case Stopped():
                    if self._engine is not None:
                        self._engine.stop()

    def report(self, wait_s: float) -> BoxReport:
        """Wait at most `wait_s` seconds for something to report; return what there is."""
        events, noticed, broken = self._out.fetch(wait_s)
        engine = self._engine
        # The head's clock again.
        notices = tuple(replace(n, due_s=n.due_s - self._ahead_s) if isinstance(n, Late) else n for n in noticed)
        metrics: Metrics = _NOTHING if engine is None else engine.metrics()
        return BoxReport(events, notices, metrics, engine is not None and engine.ready(0), broken)

    def close(self) -> BoxReport:
        """Wait for the stages under way, end all threads, and return the last report."""
        if self._engine is not None:
            self._engine.close()
        report = self.report(0)
        self._out.broke("it was closed")
        self._images.clear()
        return report

    def _follow(self, message: NewRules) -> None:
        rules = stage_rules(self._assembly.rules.graph, self._followers, message.placement, self.id, message.also)
        if self._engine is None:
            self._engine = self._opened(rules)
            return
        self._engine.learn(rules.router, {})
        facts, followers = self.facts, rules.router.followers()
        self._engine.tell(RulesChanged(rules.router, rules.graph, facts.costs, facts.plan, {}, followers))

    def _opened(self, rules: StageRules) -> Engine:
        options = self._assembly.options
        controller = Controller(
            router=rules.router,
            graph=rules.graph,
            costs=self.facts.costs.following(),
            plan=self.facts.plan,
            strategy=options.strategy,
            max_wait_s=options.max_wait_s,
        )
        return self._assembly.engine(controller, [_BoxWatcher(controller, self._out)])

    def _fetch_images(self, messages: Sequence[RunStage]) -> str:
        """Fetch the images that stages bring, together because that is quicker; return why some are lacking, or ""."""
        if not messages:
            return ""
        try:
            for message, image in zip(messages, self._fetch([m.image for m in messages]), strict=True):
                self._images[message.request_id] = image
        except Exception as error:  # whatever the transport raises
            return sentence_of(error)
        return ""

    def _run(self, message: RunStage, now_s: float, lacking: str) -> None:
        """Let the engine run a stage; a stage whose image did not come is answered at once: another box may get it."""
        image = self._images.get(message.request_id)
        if image is None:
            reason = f"{self.id} did not get the image{f': {lacking}' if lacking else ''}"
            self._out.put(StageDone(message.request.id, None, Failure(FailureKind.LINE, reason)))
            return
        assert self._engine is not None, f"{self.id} got a stage before its rules"
        self._ahead_s = min(self._ahead_s, self._engine.now() - now_s)
        since_s = message.request.since_s(now_s) + self._ahead_s
        request = replace(message.request, due_s=message.request.due_s + self._ahead_s, submitted_s=since_s)
        self._out.began()
        source = image.source.beside(self._references.get(image.rule))
        self._engine.submit(request, source, first=self._out.answered)


class _Outbox:
    """What a box has to report, until it is fetched. Any thread may put."""

    def __init__(self, id: str) -> None:
        self._id = id
        self._stages: list[StageDone] = []
        self._notices: list[Late | PaceChanged] = []
        self._comes_s: dict[str, float] = {}
        self._paces: dict[str, float] = {}
        self._broken = ""
        self._running = 0
        self._changed = threading.Condition()

    def began(self) -> None:
        """Note that the engine has got a stage."""
        with self._changed:
            self._running += 1

    def put(self, done: StageDone) -> None:
        """Report a stage."""
        with self._changed:
            self._stages.append(done)
            self._changed.notify_all()

    def answered(self, future: Future[Result]) -> None:
        """Report the stage of a future that is done."""
        result = future.result()
        failure = result.failure
        if failure is not None and failure.kind in (FailureKind.LINE, FailureKind.DEVICE):
            self.broke(failure.reason)
        with self._changed:
            self._running -= 1
        self.put(StageDone(result.request.id, None if failure else result.findings[0], failure))

    def broke(self, reason: str) -> None:
        """Report that the box can run nothing any more."""
        with self._changed:
            self._broken = reason
            self._changed.notify_all()

    def changed(self, comes_s: Mapping[str, float], notices: list[Late | PaceChanged]) -> None:
        """Report experts that come or go, and of what people should know."""
        if not comes_s and not notices:
            return
        with self._changed:
            self._comes_s.update(comes_s)
            self._notices += notices
            self._paces |= {notice.device: notice.pace for notice in notices if isinstance(notice, PaceChanged)}
            self._changed.notify_all()

    def fetch(
        self, wait_s: float
    ) -> tuple[tuple[StageDone | ExpertsReported, ...], tuple[Late | PaceChanged, ...], str]:
        """Wait at most `wait_s` for something to report; return it: the events, the notices, and why the box broke."""
        with self._changed:
            if self._changed.wait_for(lambda: self._stages or self._comes_s or self._notices or self._broken, wait_s):
                self._changed.wait_for(lambda: self._stages or self._broken, min(wait_s, GOSSIP_S))
                self._changed.wait_for(lambda: not self._running or self._broken, min(wait_s, _STAGES_GATHER_S))
            events: list[StageDone | ExpertsReported] = [*self._stages]
            if self._comes_s or self._notices:
                # A box is as fast as its devices together; the quickest still works at its pace.
                events.append(ExpertsReported(self._id, dict(self._comes_s), min(self._paces.values(), default=1.0)))
            notices, broken = tuple(self._notices), self._broken
            self._stages.clear()
            self._comes_s.clear()
            self._notices.clear()
            return tuple(events), notices, broken


class _BoxWatcher:
    """Watches a box: reports experts that come and go, boards that will be late, and the pace."""

    def __init__(self, controller: Controller, out: _Outbox) -> None:
        self._controller, self._out = controller, out

    def observe(self, event: Event | None, commands: list[Command], now: float, control_s: float = 0.0) -> None:
        """Take in one step, on the thread that decides."""
        comes_s = comes_in_s(self._controller, changed_experts(event, commands))
        self._out.changed(comes_s, [command for command in commands if isinstance(command, (Late, PaceChanged))])
