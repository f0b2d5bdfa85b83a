"""The arrivals and findings of a recorded run, without its decisions: enough to run it again in another line."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace

from coe.core import Batch, Finding
from coe.scheduler.events import Arrived, Finished, Run, RunFailed, Trace, single_steps
from coe.sim.agenda import Arrival


@dataclass(frozen=True, slots=True)
class Recorded:
    """Requests in order of arrival, with ids 0, 1, 2, ...; findings by these ids, then by expert."""

    arrivals: tuple[Arrival, ...]
    findings: dict[int, dict[str, Finding]]


def recorded(trace: Trace) -> Recorded:
    """Read a trace; images that were rejected before they arrived are left out."""
    arrivals: list[Arrival] = []
    findings: dict[int, dict[str, Finding]] = {}
    numbers: dict[int, int] = {}
    running: defaultdict[str, deque[Batch]] = defaultdict(deque)
    began_s: float | None = None
    steps = ((now, *step) for now, event, commands in trace for step in single_steps(event, commands))
    for now, event, commands in steps:
        if isinstance(event, Arrived):
            began_s = now if began_s is None else began_s
            number = numbers[event.request.id] = len(arrivals)
            due_s, since_s = event.request.due_s - began_s, event.request.since_s(now) - began_s
            request = replace(event.request, id=number, due_s=due_s, submitted_s=since_s)
            arrivals.append(Arrival(now - began_s, request))
        elif isinstance(event, Finished | RunFailed):
            batch = running[event.executor].popleft()
            answered = event.findings if isinstance(event, Finished) else ()
            # Not strict: where a batch gave too few findings, its stages ran again.
            for stage, finding in zip(batch.stages, answered, strict=False):
                findings.setdefault(numbers[stage.request_id], {})[stage.expert] = finding
        for command in commands:
            if isinstance(command, Run):
                running[command.executor].append(command.batch)
    return Recorded(tuple(arrivals), findings)
