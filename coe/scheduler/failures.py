"""The failures of stages, as replies state them. An expert whose loads failed is left alone for a time."""

from __future__ import annotations

from dataclasses import dataclass

from coe import config
from coe.core import Failure, FailureKind
from coe.scheduler.events import RunFailed

STOPPED = Failure(FailureKind.STOPPED, config.STOPPED)


def not_run(expert: str, event: RunFailed) -> Failure:
    """Return the failure of stages in a batch that failed."""
    return Failure(event.kind, f"expert '{expert}' failed: {event.reason}")


@dataclass(frozen=True, slots=True)
class _Attempts:
    count: int
    failure: Failure
    until_s: float


class BrokenExperts:
    """Experts whose loads failed, each with its failed attempts since its last good load."""

    def __init__(self) -> None:
        self.attempts: dict[str, _Attempts] = {}
        """Empty as long as every load went well."""

    def failed(self, expert: str, reason: str, now: float) -> bool:
        """Note that a load failed; return whether the expert is left alone from now on."""
        before = self.attempts.get(expert)
        count = before.count + 1 if before and before.count < config.LOAD_ATTEMPTS else 1
        failure = Failure(FailureKind.LOAD, f"expert '{expert}' cannot be loaded: {reason}")
        self.attempts[expert] = _Attempts(count, failure, now + config.RETRY_BROKEN_S)
        return count >= config.LOAD_ATTEMPTS

    def loaded(self, expert: str) -> None:
        """Note that a load went well."""
        self.attempts.pop(expert, None)

    def failure(self, expert: str, now: float) -> Failure | None:
        """Return why an expert is left alone; None if a load may be tried."""
        tries = self.attempts.get(expert)
        return tries.failure if tries and tries.count >= config.LOAD_ATTEMPTS and now < tries.until_s else None
