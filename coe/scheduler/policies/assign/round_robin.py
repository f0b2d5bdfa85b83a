"""Requests are dealt out evenly, whatever they need (the paper's CoServe None and Samba-CoE Parallel)."""

from __future__ import annotations

from coe.scheduler.policies.base import Assign, World


class RoundRobin(Assign):
    """One executor after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, expert: str, world: World, now: float) -> str:
        ids = list(world.executors)
        self._turn = (self._turn + 1) % len(ids)
        return ids[self._turn - 1]
