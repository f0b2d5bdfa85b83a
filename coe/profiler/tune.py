"""Chooses executors and the split of memory for a board (paper sections 4.4, 4.5); what is chosen is then confirmed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from coe.bench.configurations import CASUAL
from coe.config import format_bytes
from coe.errors import ConfigError
from coe.inspector.profile import Chosen, ExecutorsPoint, WindowPoint
from coe.profiler.search import search_executors, search_memory
from coe.profiler.setup import Basis, Numbers, Setup
from coe.scheduler.plan import workspace_bytes

SMALL = 0.25
"""A largest useful batch that takes no more than this share of a pool is set aside, and nothing is searched."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration and the samples by which it was found: of memory, and of executors."""

    chosen: Chosen
    windows: tuple[WindowPoint, ...] = ()
    points: tuple[ExecutorsPoint, ...] = ()


class Tuner:
    """Searches for the best configuration; `faithful` draws the number of experts in the last window, as the paper."""

    def __init__(self, basis: Basis, most: Numbers, faithful: Random | None = None) -> None:
        """Try at most so many executors of each device, in this order."""
        self._basis, self._most, self._faithful = basis, most, faithful
        self._best: dict[tuple[tuple[str, int], ...], Choice] = {}

    def choose(self) -> list[Choice]:
        """Return the best configuration, then the best of each other number of executors that was tried.

        Raises ConfigError if not even one executor fits.
        """
        found = search_executors(self._speed_of, list(self._most), self._most)
        points = tuple(
            point.model_copy(
                update={
                    "threads": Setup(self._basis, point.executors).threads,
                    "measured": self._basis.on_machine is not None,
                }
            )
            for point in found.points
        )
        ranked = sorted(self._best.values(), key=lambda choice: choice.chosen.executors != found.chosen)
        return [
            replace(
                choice,
                points=points,
                chosen=choice.chosen.model_copy(update={"reasons": (found.reason, *choice.chosen.reasons)}),
            )
            for choice in ranked
        ]

    def _speed_of(self, executors: dict[str, int]) -> float | None:
        """Return the throughput of so many executors with the best split of memory; None if an expert does not fit."""
        setup = Setup(self._basis, executors)
        try:
            found = self._split(setup) if setup.fits else None
        except ConfigError:
            if executors == {"cpu": 1}:
                raise
            return None
        if found is None:
            return None
        self._best[tuple(executors.items())] = found
        return found.chosen.images_per_s

    def _split(self, setup: Setup) -> Choice:
        if "cpu" not in setup.executors:
            speed = setup.run({})
            return Choice(setup.chosen({}, speed, speed, "a GPU sets aside what batches take; experts have the rest"))
        pool_bytes, experts = setup.pool_bytes, list(self._basis.board.experts)
        useful = workspace_bytes("cpu", pool_bytes, experts, setup.costs, max(setup.useful_bytes, 1))
        casual = setup.run({"cpu": int(pool_bytes * CASUAL)})
        if setup.useful_bytes <= SMALL * pool_bytes and self._faithful is None:
            reason = (
                f"the largest useful batch takes {format_bytes(useful)} of a pool of {format_bytes(pool_bytes)}: it is "
                "set aside, and experts have the rest (paper section 4.4, limited computing power)"
            )
            return Choice(setup.chosen({"cpu": useful}, setup.run({"cpu": useful}), casual, reason))
        number = setup.executors["cpu"]
        mean_bytes = sum(setup.costs("cpu", expert).weights_bytes for expert in experts) / len(experts)
        found = search_memory(
            lambda loaded: setup.loaded(loaded * mean_bytes),
            max(1, min(len(experts), int(number * pool_bytes / mean_bytes))),
            faithful=self._faithful,
        )
        workspace = pool_bytes - int(found.chosen * mean_bytes / number)
        speed = max(point.images_per_s for point in found.points if found.chosen == point.upper)
        measured = self._basis.on_machine is not None
        windows = tuple(point.model_copy(update={"measured": measured}) for point in found.points)
        return Choice(setup.chosen({"cpu": workspace}, speed, casual, found.reason), windows)
