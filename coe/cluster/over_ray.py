"""Boxes on the machines of a Ray cluster: an actor on each.

This file, `ray_session` and `actor` alone know Ray, and import it late.

Ray starts processes, carries messages and images, and tells which machines live. It decides nothing: which box runs a
stage, and what happens when a box is lost, stands in `coe.cluster.decisions.head`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from coe.cluster.actor import BoxActor, BoxRefusal, versions
from coe.cluster.links import Boxes, BoxGone, Link, NotCarried, OpenBox, Say
from coe.cluster.messages import BoxFacts, BoxReport, CarriedImage, Parcel
from coe.cluster.ray_session import Calls, RayMachine, RaySession
from coe.errors import CoeError, ConfigError, first_line, sentence_of

_SIGN_OF_LIFE_S, _SILENT_S = 1.0, 30.0
"""A box reports after this time at the latest; it is given up if nothing came for the second time."""
_START_S, _OPEN_S = 120.0, 1800.0
"""The longest times in which the process of a box starts, and in which it measures its experts and captures graphs."""
_CLOSE_S = 30.0
"""A box may take at most this long to end the batches that run, in seconds."""
_AGAIN_S = 60.0
"""A machine whose box failed is left alone for this time, in seconds."""


def ray_boxes(address: str, open_box: OpenBox, say: Say) -> Boxes:
    """Connect this process with a Ray cluster, "auto" for that of this machine.

    A process that is connected already stays so, and goes on to use Ray afterwards. Raises ConfigError.
    """
    return _RayBoxes(RaySession(address), open_box, say)


@dataclass(eq=False)
class _RayLink:
    """The way to an actor. A call is a message: `take` waits for no answer."""

    id: str
    facts: BoxFacts
    calls: Calls
    machine: RayMachine
    actor: Any
    gone: bool = False
    parcels: deque[Any] = field(default_factory=deque)
    """The answers of parcels under way, or the error of one that could not be sent."""

    def take(self, parcel: Parcel) -> None:
        """Send a parcel; if it is lost, `next_report` tells."""
        try:
            with self.calls.gate.passed():
                self.parcels.append(self.actor.take.remote(parcel))
        except Exception as error:
            self.parcels.append(error)

    def next_report(self) -> BoxReport:
        """Wait for the next report; raises BoxGone if the box died, lost a parcel, or is silent for `_SILENT_S`."""
        try:
            report = self.calls.answer(self.actor.report, _SIGN_OF_LIFE_S, wait_s=_SILENT_S)
            self._expect_parcels()
        except BoxGone:
            raise
        except self.calls.timeout:
            raise BoxGone(f"it was silent for {_SILENT_S:g} s", crashed=self.calls.lives(self.machine)) from None
        except Exception as error:
            raise BoxGone(first_line(error), crashed=self.calls.lives(self.machine)) from None
        assert isinstance(report, BoxReport)
        return report

    def _expect_parcels(self) -> None:
        """Raise whatever became of a parcel that was lost: the box would wait for it for ever."""
        if sent := [self.parcels.popleft() for _ in range(len(self.parcels))]:
            if error := next((parcel for parcel in sent if isinstance(parcel, Exception)), None):
                raise error
            self.parcels.extendleft(reversed(self.calls.unanswered(sent)))

    def close(self) -> BoxReport | None:
        """End the box, and its process."""
        self.gone = True
        report = None
        with contextlib.suppress(Exception):
            report = self.calls.answer(self.actor.close, wait_s=_CLOSE_S, even_at_the_end=True)
        with contextlib.suppress(Exception), self.calls.gate.passed():
            self.calls.ray.kill(self.actor)
        return report


class _RayBoxes:
    """A box on each machine that has processors for Ray."""

    def __init__(self, session: RaySession, open_box: OpenBox, say: Say) -> None:
        self._session, self._ray, self._say = session, session.ray, say
        self._calls = Calls(session.ray)
        try:
            # Once for all boxes: it holds the rules.
            self._open_box = self._ray.put(open_box)
        except BaseException:
            session.leave()
            raise
        self._costs: Any = None
        self._numbers = count(1)
        self._links: dict[str, _RayLink] = {}
        """By machine."""
        self._failed_s: dict[str, float] = {}
        self._actors: list[Any] = []
        self._lock, self._closing = threading.Lock(), self._calls.closing
        self._is_closed = False

    def open(self) -> list[Link]:
        """Open the first box alone, because it measures for all; raises ConfigError."""
        machines = self._calls.machines()
        if not machines:
            raise ConfigError("no machine of the Ray cluster has processors for Ray (--num-cpus); a box needs one")
        links: list[Link] = []
        while machines and not links:
            links += self._opened_if_alive(machines.pop(0))
        if not links:
            raise ConfigError("no machine of the Ray cluster answers; check them with `ray status`")
        with ThreadPoolExecutor(max(1, len(machines))) as pool:
            for opened in pool.map(self._opened_if_alive, machines):
                links += opened
        return links

    def _opened_if_alive(self, machine: RayMachine) -> list[_RayLink]:
        """Open the box of a machine; a machine that has just died, which Ray notices later, is left out and named."""
        try:
            return [self._opened(machine)]
        except BoxGone as error:
            self._failed_s[machine.id] = time.monotonic()
            self._say(f"warning: {sentence_of(error)}; continuing without it")
            return []

    def open_new(self, wait_s: float) -> list[Link]:
        """Return the boxes of machines that came, or whose box was lost a while ago."""
        self._closing.wait(wait_s)
        links: list[Link] = []
        for machine in self._calls.machines():
            if not self._closing.is_set() and self._may_open(machine):
                try:
                    links.append(self._opened(machine))
                except CoeError as error:
                    self._failed_s[machine.id] = time.monotonic()
                    if not self._closing.is_set():
                        self._say(f"warning: a machine cannot join: {sentence_of(error)}")
        return links

    def share(self, image: CarriedImage) -> object:
        """Put an image into the object store of this machine; raises NotCarried."""
        try:
            with self._calls.gate.passed():
                return self._ray.put(image)
        except BoxGone as error:
            raise NotCarried(sentence_of(error)) from None
        except self._ray.exceptions.RayError as error:
            raise NotCarried(
                f"the object store of this machine takes no more images ({first_line(error)}); start Ray with a larger "
                "--object-store-memory, or open the line with a smaller inbox"
            ) from None

    def close(self) -> None:
        """End what is left of all boxes, and leave the cluster if this line has joined it."""
        self._closing.set()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            for actor in self._actors:
                with contextlib.suppress(Exception), self._calls.gate.passed():
                    self._ray.kill(actor)
        # If a call does not end, this process stays connected until it ends.
        if self._calls.gate.close(_CLOSE_S):
            self._session.leave()

    def _may_open(self, machine: RayMachine) -> bool:
        """Tell whether a machine has no box, and has had no failure lately."""
        link = self._links.get(machine.id)
        if link is not None:
            if not link.gone:
                return False
            del self._links[machine.id]
            self._failed_s[machine.id] = time.monotonic()
        return time.monotonic() - self._failed_s.get(machine.id, -_AGAIN_S) >= _AGAIN_S

    def _opened(self, machine: RayMachine) -> _RayLink:
        """Open the box of a machine; raises ConfigError, or BoxGone if the machine does not answer."""
        id = f"box{next(self._numbers)}@{machine.address}"
        actor = self._started(id, machine)
        try:
            facts = self._calls.answer(actor.open, id, self._open_box, self._costs, wait_s=_OPEN_S)
        except self._calls.timeout:
            raise BoxGone(f"{id} could not be opened within {_OPEN_S:g} s") from None
        except Exception as error:
            raise BoxGone(f"{id} could not be opened: {first_line(error)}") from None
        with self._calls.gate.passed():
            if isinstance(facts, BoxRefusal):
                self._ray.kill(actor)
                raise ConfigError(f"{id}: {facts.reason}")
            if self._costs is None:
                self._costs = self._ray.put(facts.costs)
        link = self._links[machine.id] = _RayLink(id, facts, self._calls, machine, actor)
        return link

    def _started(self, id: str, machine: RayMachine) -> Any:
        """Start the process of a box; raises ConfigError for other versions than ours, BoxGone if it is silent."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        with self._calls.gate.passed():
            remote = self._ray.remote(concurrency_groups={"take": 1, "report": 1})(_grouped(self._ray))
            actor = remote.options(
                num_cpus=0,
                num_gpus=machine.gpus,  # Ray shows a process the GPUs that it asked for
                scheduling_strategy=NodeAffinitySchedulingStrategy(machine.id, soft=False),
            ).remote()
            with self._lock:
                self._actors.append(actor)
                closing = self._closing.is_set()
            if closing:
                self._ray.kill(actor)
        try:
            theirs = self._calls.answer(actor.versions, wait_s=_START_S)
        except self._calls.timeout:
            raise ConfigError(f"{id} did not start within {_START_S:g} s: are its GPUs used by others?") from None
        except Exception as error:
            if not getattr(error, "actor_init_failed", False):
                raise BoxGone(f"{id} could not be started: {first_line(error)}") from None
            raise ConfigError(
                f"{id} could not be started ({first_line(error)}); install the same versions of coe and its "
                "dependencies there, and start Ray from that environment"
            ) from None
        for name, version in versions().items():
            if theirs[name] != version:
                raise ConfigError(f"{id} has {name} {theirs[name]}, and this machine has {version}; install the same")
        return actor


def _grouped(ray: Any) -> type[BoxActor]:
    """Return the class of actors; what it says of its methods needs Ray."""

    class BoxProcess(BoxActor):
        take = ray.method(concurrency_group="take")(BoxActor.take)
        report = ray.method(concurrency_group="report")(BoxActor.report)

    return BoxProcess
