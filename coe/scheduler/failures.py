"""Experts that could not be loaded: how often, why, and until when they are left alone."""

from __future__ import annotations

from dataclasses import dataclass

from coe import config


@dataclass(frozen=True, slots=True)
class _Failure:
    attempts: int
    reason: str
    until_s: float


class Broken:
    """The failures of each expert since it was last loaded."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failure] = {}

    def failed(self, expert: str, reason: str, now: float) -> bool:
        """Note that a load failed; return whether the expert is left alone from now on."""
        known = self._failures.get(expert)
        attempts = known.attempts + 1 if known and known.attempts < config.LOAD_ATTEMPTS else 1
        said = f"expert '{expert}' cannot be loaded: {reason}"
        self._failures[expert] = _Failure(attempts, said, now + config.RETRY_BROKEN_S)
        return attempts >= config.LOAD_ATTEMPTS

    def loaded(self, expert: str) -> None:
        """Note that a load went well."""
        self._failures.pop(expert, None)

    def reason(self, expert: str, now: float) -> str | None:
        """Return why an expert is left alone; None if it may be tried."""
        known = self._failures.get(expert)
        return known.reason if known and known.attempts >= config.LOAD_ATTEMPTS and now < known.until_s else None
