"""Stages are dealt out evenly, whatever their experts (the paper's CoServe None and Samba-CoE Parallel)."""

from __future__ import annotations

from coe.scheduler.policies.base import Assign, World


class RoundRobin(Assign):
    """Each stage goes to the next executor in turn."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, expert: str, world: World, now: float) -> str:
        ids = list(world.executors)
        self._turn = (self._turn + 1) % len(ids)
        return ids[self._turn - 1]
