"""Events go into the controller, commands come out: the whole language between it, the engine and the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from coe.board.graph import ExpertGraph
from coe.board.parts_list import PlacedPart
from coe.board.router import Router
from coe.core import Batch, Failure, FailureKind, Finding, Request, Result
from coe.scheduler.costs import CostTable, Tier
from coe.scheduler.plan import Plan


class Why(StrEnum):
    """Why an expert is loaded. The disk reader and the copy lanes serve by urgency, then first come, first served."""

    DEMAND = "demand"
    PREFETCH = "prefetch"
    SPECULATIVE = "speculative"
    INITIAL = "initial"
    FILL = "fill"

    @property
    def urgency(self) -> int:
        """0 for the most urgent.

        A prefetch is as urgent as a demand: an executor may be waiting for it by now, and the demands of two other
        executors in turn could keep it waiting for ever. A speculative load is for an image that has not come, an
        initial load for any image. A fill serves no stage, so every other load goes before it.
        """
        return {Why.SPECULATIVE: 1, Why.INITIAL: 2, Why.FILL: 3}.get(self, 0)


# Commands


@dataclass(frozen=True, slots=True)
class Load:
    """Bring an expert into a pool from the tier `source`. Its bytes are already reserved.

    With `keep_copy` a copy stays in host memory. The copies of `drops` leave host memory first.
    """

    pool: str
    expert: str
    why: Why
    source: Tier = Tier.DISK
    keep_copy: bool = False
    drops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evict:
    """Drop an expert from a pool. Its bytes count until `Evicted`.

    With `keep_copy` it goes down into host memory. The copies of `drops` leave host memory first.
    """

    pool: str
    expert: str
    keep_copy: bool = False
    drops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fill:
    """Read an expert from disk into host memory, as a copy for a device that does not hold it yet.

    Its bytes in host memory are already reserved. Only one fill is under way at a time, and none begins during a load.
    """

    device: str
    expert: str
    why: ClassVar[Why] = Why.FILL


@dataclass(frozen=True, slots=True)
class Run:
    """Run a batch on an executor; its expert is resident and pinned."""

    executor: str
    batch: Batch


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request; each request gets exactly one reply."""

    result: Result


@dataclass(frozen=True, slots=True)
class Late:
    """Say that a board will miss its due time by the cost table, or has missed it.

    `board` is its serial, or the name of an image without a serial.
    """

    board: str
    due_s: float


@dataclass(frozen=True, slots=True)
class PaceChanged:
    """Say that batches on a device take `pace` times as long as the cost table states; decisions expect that now.

    `box` is the box that has the device; "" if the line runs on this machine alone.
    """

    device: str
    pace: float
    box: str = ""

    @property
    def where(self) -> str:
        """The device as people call it."""
        return f"{self.device} of {self.box}" if self.box else self.device


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the line: the controller met an error, and the replies beside this command are all that it had decided."""

    error: BaseException


Command = Load | Evict | Fill | Run | Reply | Late | PaceChanged | GiveUp

# Events


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request whose image was decoded; to the head of a cluster, one whose image boxes can fetch."""

    request: Request


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request whose image could not be decoded, or that names no known component."""

    request: Request
    failure: Failure


@dataclass(frozen=True, slots=True)
class Fetched:
    """An expert has been read into host memory and waits for the copy lane of its device: the disk reader is free."""

    pool: str
    expert: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """An expert is in the pool and can run; the load itself took `took_s` seconds."""

    pool: str
    expert: str
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evicted:
    """An expert is gone from the pool and its memory is free."""

    pool: str
    expert: str


@dataclass(frozen=True, slots=True)
class Filled:
    """Host memory holds a copy of an expert; the read took `took_s` seconds."""

    device: str
    expert: str
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch ran on the device for `took_s` seconds; `findings` has one finding for each stage, in order."""

    executor: str
    findings: tuple[Finding, ...]
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """An expert could not be brought into the pool."""

    pool: str
    expert: str
    reason: str


@dataclass(frozen=True, slots=True)
class FillFailed:
    """An expert could not be read into host memory. A later load will try again, and report what is wrong."""

    device: str
    expert: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """A batch could not be run on an executor; `kind` tells whether an expert or a picture is to blame."""

    executor: str
    reason: str
    kind: FailureKind = FailureKind.RUN


@dataclass(frozen=True, slots=True)
class Lost:
    """A device no longer answers. Each load and batch under way there is reported as failed later.

    If `box` is given, the box no longer answers; `device` is empty then.
    """

    device: str
    reason: str
    box: str = ""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The user stops the line: running batches are finished, all other requests are answered with an error."""


@dataclass(frozen=True, slots=True, eq=False)
class RulesChanged:
    """Other boards are inspected from now on. Requests under way go on by the rules that they began with.

    So the rules of a board must stay until its last request, decoded or not, has its reply; experts of boards that are
    gone leave at once. An id of an expert means the same weights and the same steps in all rules of a line. `costs` are
    those of all experts as stated; `plan` has the pools and executors of the line, with other workspaces perhaps;
    `parts` names each board by its key, and holds its parts list, empty if its order is to be learned. `followers` are
    those of the rules (`coe.board.graph.follows`): they take as long as all that the controller does with the
    event.
    """

    router: Router
    graph: ExpertGraph
    costs: CostTable
    plan: Plan
    parts: Mapping[str, Sequence[PlacedPart]]
    followers: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events that came while an earlier event was answered: they are taken in in their order, and decided on once."""

    events: tuple[Event, ...]


Event = (
    Arrived
    | Rejected
    | Fetched
    | Loaded
    | Evicted
    | Filled
    | Finished
    | LoadFailed
    | FillFailed
    | RunFailed
    | Lost
    | Stopped
    | RulesChanged
    | EventBatch
)

Trace = list[tuple[float, Event | None, list[Command]]]
"""What happened, when, and the commands that answered it; the event is None for the first commands."""


def single_steps(event: Event | None, commands: list[Command]) -> Iterator[tuple[Event | None, list[Command]]]:
    """Yield each of the events that came together with its commands: all commands belong to the last event."""
    *earlier, last = event.events if isinstance(event, EventBatch) else (event,)
    yield from ((part, []) for part in earlier)
    yield last, commands
