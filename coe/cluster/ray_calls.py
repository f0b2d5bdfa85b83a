"""Calls of Ray by a line's threads. Law: each passes the line's gate, and ends soon after the line does."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

from coe.cluster.links import BoxGone
from coe.cluster.ray_session import CallGate

_LOOK_UP_S = 2.0
"""A call that waits looks whether the line ends once in this time, in seconds."""


@dataclass(frozen=True, slots=True)
class RayMachine:
    """A node of the Ray cluster, and how many GPUs it has."""

    id: str
    address: str
    gpus: float


class Calls:
    """Calls of Ray, which end early when the line ends."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.gate, self.closing = ray, CallGate(ray), threading.Event()

    @property
    def timeout(self) -> type[Exception]:
        """What `answer` raises if nothing came in time."""
        timeout: type[Exception] = self.ray.exceptions.GetTimeoutError
        return timeout

    def answer(self, method: Any, *arguments: object, wait_s: float, even_at_the_end: bool = False) -> Any:
        """Call a method of an actor and return its answer; raises what Ray raises, and BoxGone when the line ends."""
        until_s = time.monotonic() + wait_s
        with self.gate.passed():
            answer = method.remote(*arguments)
            while (left_s := until_s - time.monotonic()) > _LOOK_UP_S:
                with contextlib.suppress(self.timeout):
                    return self.ray.get(answer, timeout=_LOOK_UP_S)
                if self.closing.is_set() and not even_at_the_end:
                    raise BoxGone("the line has ended")
            return self.ray.get(answer, timeout=max(0.0, left_s))

    def unanswered(self, answers: list[Any]) -> list[Any]:
        """Return the answers that have not come; raises what one of the others says went wrong."""
        with self.gate.passed():
            come, rest = self.ray.wait(answers, num_returns=len(answers), timeout=0)
            self.ray.get(come)
        return list(rest)

    def lives(self, machine: RayMachine) -> bool:
        """Tell whether a machine lives, as far as Ray knows."""
        return any(other.id == machine.id for other in self.machines())

    def machines(self) -> list[RayMachine]:
        """Return the machines that live and have processors, in the order of their names."""
        try:
            with self.gate.passed():
                nodes = [node for node in self.ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        except Exception:  # the head node of Ray does not answer; boxes may
            return []
        gpus = {node["NodeID"]: node["Resources"].get("GPU", 0) for node in nodes}
        machines = [RayMachine(node["NodeID"], node["NodeManagerAddress"], gpus[node["NodeID"]]) for node in nodes]
        return sorted(machines, key=lambda machine: (machine.address, machine.id))
