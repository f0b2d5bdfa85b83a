"""Boxes on the machines of a Ray cluster: an actor on each. This file and `actor` alone know Ray, and import it late.

Ray starts processes, carries messages and images, and tells which machines live. It decides nothing: which box runs a
stage, and what happens when a box is lost, stands in `coe.scheduler.head`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from typing import Any

from coe.cluster.actor import BoxActor, Refusal, versions
from coe.cluster.links import Boxes, BoxGone, BoxOrder, Link, NotCarried, Say
from coe.cluster.messages import BoxFacts, CarriedImage, Parcel, Report
from coe.errors import CoeError, ConfigError, sentence_of

_SIGN_OF_LIFE_S, _SILENT_S = 1.0, 30.0
"""A box reports after this time at the latest; it is given up if nothing came for the second time."""
_CONNECT_S, _LAST_PORT = 10.0, 65535
_START_S, _OPEN_S = 120.0, 1800.0
"""The longest times in which the process of a box starts, and in which it measures its experts and captures graphs."""
_CLOSE_S = 30.0
"""So long a box may take to end the batches that run."""
_AGAIN_S = 60.0
"""So long a machine whose box failed is left alone."""


def ray_boxes(address: str, order: BoxOrder, say: Say) -> Boxes:
    """Connect this process with a Ray cluster, "auto" for that of this machine.

    A process that is connected already stays so, and goes on to use Ray afterwards. Raises ConfigError.
    """
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "several boxes need Ray, which is not installed here; install it with: pip install 'coe[cluster]'"
        ) from None
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray, address)
    elif address not in ("auto", here := ray.get_runtime_context().gcs_address):
        raise ConfigError(f"this process is connected with the Ray cluster at {here}; give cluster='auto' to use that")
    return _RayBoxes(ray, order, say, shut_down=not connected_before)


def _connect(ray: Any, address: str) -> None:
    wayout = (
        "this machine must be a part of it: start Ray with `ray start --head` on the first machine, and with "
        "`ray start --address=HOST:6379` on each other machine"
    )
    if address != "auto":
        _expect_somebody(address, wayout)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        if "ersion mismatch" in str(error):
            words = " ".join(str(error).split())
            raise ConfigError(f"this machine and the cluster differ: {words}; install the same versions") from None
        raise ConfigError(f"no Ray cluster answers at '{address}' ({_first_line(error)}); {wayout}") from None


def _expect_somebody(address: str, wayout: str) -> None:
    """Raise ConfigError for an address at which nobody listens: Ray would wait there for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or "/" in host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError(f"cluster='{address}': give 'auto', or the address of the head node as HOST:6379")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"nobody answers at '{address}' ({error}); {wayout}") from None


@dataclass(eq=False)
class _RayLink:
    """The way to an actor. A call is a message: `take` waits for no answer."""

    id: str
    facts: BoxFacts
    ray: Any
    actor: Any
    gone: bool = False

    def take(self, parcel: Parcel) -> None:
        """Send a parcel; if it is lost with its box, `said` tells."""
        with contextlib.suppress(Exception):
            self.actor.take.remote(parcel)

    def said(self) -> Report:
        """Wait for the next report; raises BoxGone if the box died, or is silent for `_SILENT_S`."""
        try:
            report = self.ray.get(self.actor.said.remote(_SIGN_OF_LIFE_S), timeout=_SILENT_S)
        except self.ray.exceptions.GetTimeoutError:
            raise BoxGone(f"it was silent for {_SILENT_S:g} s") from None
        except Exception as error:
            raise BoxGone(_first_line(error)) from None
        assert isinstance(report, Report)
        return report

    def close(self) -> Report | None:
        """End the box, and its process."""
        self.gone = True
        report = None
        with contextlib.suppress(Exception):
            report = self.ray.get(self.actor.close.remote(), timeout=_CLOSE_S)
        with contextlib.suppress(Exception):
            self.ray.kill(self.actor)
        return report


class _RayBoxes:
    """A box on each machine that has processors for Ray."""

    def __init__(self, ray: Any, order: BoxOrder, say: Say, *, shut_down: bool) -> None:
        self._ray, self._say, self._shut_down = ray, say, shut_down
        # Once for all boxes: it holds the rules.
        self._order = ray.put(order)
        self._costs: Any = None
        self._numbers = count(1)
        self._links: dict[str, _RayLink] = {}
        """By machine."""
        self._failed_s: dict[str, float] = {}
        self._actors: list[Any] = []
        self._lock, self._closing = threading.Lock(), threading.Event()

    def open(self) -> list[Link]:
        """Open the first box alone, because it measures for all; raises ConfigError."""
        machines = self._machines()
        if not machines:
            raise ConfigError("no machine of the Ray cluster has processors for Ray (--num-cpus); a box needs one")
        links: list[Link] = []
        while machines and not links:
            links += self._if_it_lives(machines.pop(0))
        if not links:
            raise ConfigError("no machine of the Ray cluster answers; look at them with `ray status`")
        with ThreadPoolExecutor(max(1, len(machines))) as pool:
            for opened in pool.map(self._if_it_lives, machines):
                links += opened
        return links

    def _if_it_lives(self, machine: _Machine) -> list[_RayLink]:
        """Open the box of a machine; a machine that has just died, which Ray notices later, is left out and named."""
        try:
            return [self._opened(machine)]
        except BoxGone as error:
            self._failed_s[machine.id] = time.monotonic()
            self._say(f"warning: {sentence_of(error)}; going on without it")
            return []

    def joined(self, wait_s: float) -> list[Link]:
        """Return the boxes of machines that came, or whose box was lost a while ago."""
        self._closing.wait(wait_s)
        links: list[Link] = []
        for machine in [] if self._closing.is_set() else self._machines():
            if self._may_open(machine):
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
            return self._ray.put(image)
        except self._ray.exceptions.RayError as error:
            raise NotCarried(
                f"the object store of this machine takes no image more ({_first_line(error)}); start Ray with a larger "
                "--object-store-memory, or open the line with a smaller inbox"
            ) from None

    def close(self) -> None:
        """End what is left of all boxes, and leave the cluster if this line has joined it."""
        self._closing.set()
        with self._lock:
            for actor in self._actors:
                with contextlib.suppress(Exception):
                    self._ray.kill(actor)
            if self._shut_down:
                self._ray.shutdown()

    def _machines(self) -> list[_Machine]:
        """Return the machines that live and have processors, in the order of their names."""
        try:
            nodes = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        except Exception:  # the head node of Ray does not answer; boxes may
            return []
        gpus = {node["NodeID"]: node["Resources"].get("GPU", 0) for node in nodes}
        machines = [_Machine(node["NodeID"], node["NodeManagerAddress"], gpus[node["NodeID"]]) for node in nodes]
        return sorted(machines, key=lambda machine: (machine.address, machine.id))

    def _may_open(self, machine: _Machine) -> bool:
        """Tell whether a machine has no box, and has had no failure lately."""
        link = self._links.get(machine.id)
        if link is not None:
            if not link.gone:
                return False
            del self._links[machine.id]
            self._failed_s[machine.id] = time.monotonic()
        return time.monotonic() - self._failed_s.get(machine.id, -_AGAIN_S) >= _AGAIN_S

    def _opened(self, machine: _Machine) -> _RayLink:
        """Open the box of a machine; raises ConfigError, or BoxGone if the machine does not answer."""
        id = f"box{next(self._numbers)}@{machine.address}"
        actor = self._started(id, machine)
        try:
            facts = self._ray.get(actor.open.remote(id, self._order, self._costs), timeout=_OPEN_S)
        except Exception as error:
            raise BoxGone(f"{id} could not be opened: {_first_line(error)}") from None
        if isinstance(facts, Refusal):
            self._ray.kill(actor)
            raise ConfigError(f"{id}: {facts.reason}")
        if self._costs is None:
            self._costs = self._ray.put(facts.costs)
        link = self._links[machine.id] = _RayLink(id, facts, self._ray, actor)
        return link

    def _started(self, id: str, machine: _Machine) -> Any:
        """Start the process of a box; raises ConfigError for other versions than ours, BoxGone if it is silent."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(concurrency_groups={"take": 1, "said": 1})(_grouped(self._ray))
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
            theirs = self._ray.get(actor.versions.remote(), timeout=_START_S)
        except self._ray.exceptions.GetTimeoutError:
            raise ConfigError(f"{id} did not start within {_START_S:g} s: are its GPUs used by others?") from None
        except Exception as error:
            if not getattr(error, "actor_init_failed", False):
                raise BoxGone(f"{id} could not be started: {_first_line(error)}") from None
            raise ConfigError(
                f"{id} could not be started ({_first_line(error)}); install coe there as it is here, with the same "
                "versions, and start Ray from that environment"
            ) from None
        for name, version in versions().items():
            if theirs[name] != version:
                raise ConfigError(f"{id} has {name} {theirs[name]}, and this machine has {version}; install the same")
        return actor


@dataclass(frozen=True, slots=True)
class _Machine:
    """A node of the Ray cluster, and how many GPUs it has."""

    id: str
    address: str
    gpus: float


def _grouped(ray: Any) -> type[BoxActor]:
    """Return the class of actors; what it says of its methods needs Ray."""

    class BoxProcess(BoxActor):
        take = ray.method(concurrency_group="take")(BoxActor.take)
        said = ray.method(concurrency_group="said")(BoxActor.said)

    return BoxProcess


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
