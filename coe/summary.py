"""The counts of a run: in all, per board and per component. Law: they are taken here alone, for every reader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from coe.core import FULL, Request, Result, Verdict, second_looks
from coe.demand import Drift
from coe.images import Item, natural


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What was measured of a run. `hit_ratio`: the share of stages that ran without a switch of their own, or None."""

    board: str
    strategy: str = ""
    images_per_s: float = 0.0
    switches: int = 0
    hit_ratio: float | None = None
    peak_reserved_bytes: int = 0
    budget_bytes: int = 0
    peak_rss_bytes: int = 0
    wall_s: float = 0.0
    interrupted: bool = False
    started: str = ""
    precision: str = FULL
    drift: tuple[Drift, ...] = ()


@dataclass(frozen=True, slots=True)
class Tally:
    """How many images came out how; `missing` were not inspected yet."""

    ok: int = 0
    ng: int = 0
    review: int = 0
    errors: int = 0
    missing: int = 0

    @property
    def images(self) -> int:
        """Images that have a result, errors among them."""
        return self.ok + self.ng + self.review + self.errors

    @property
    def first_pass_yield(self) -> float | None:
        """Share of the images with a result that are OK; None without any."""
        return self.ok / self.images if self.images else None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict; an image that was not judged makes it at least REVIEW."""
        if self.ng:
            return Verdict.NG
        return Verdict.REVIEW if self.review or self.errors or self.missing else Verdict.OK


@dataclass(frozen=True, slots=True)
class SecondLooks:
    """How many findings there are (second ones not counted), and how many were in doubt and run again in fp32.

    `changed` of them then said another label.
    """

    findings: int = 0
    escalated: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return f"{self.escalated:,} of {self.findings:,} findings were run again in {FULL}, {self.changed:,} changed"


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a run: in all, per board (those with a serial) and per component, in natural order.

    `late` results came after they were due; `late_boards` are the serials of such.
    """

    run: RunFigures
    total: Tally
    boards: dict[str, Tally] = field(default_factory=dict)
    components: dict[str, Tally] = field(default_factory=dict)
    looks: SecondLooks = SecondLooks()
    late: int = 0
    late_boards: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all; OK needs every image to have been judged OK."""
        return self.total.verdict

    def to_json(self) -> dict[str, Any]:
        """Return the object that `summary.json` holds."""
        run = self.run
        return {
            "board": run.board,
            "strategy": run.strategy,
            "started": run.started,
            **_counts(self.total),
            "images_per_s": finite(run.images_per_s, 3),
            "switches": run.switches,
            "hit_ratio": finite(run.hit_ratio, 4),
            "peak_reserved_bytes": run.peak_reserved_bytes,
            "budget_bytes": run.budget_bytes,
            "peak_rss_bytes": run.peak_rss_bytes,
            "wall_s": finite(run.wall_s, 3),
            "precision": run.precision,
            "findings": self.looks.findings,
            "escalated": self.looks.escalated,
            "changed": self.looks.changed,
            "late": self.late,
            "late_boards": list(self.late_boards),
            "usage_drift": [
                {"expert": one.expert, "rules": finite(one.rules, 4), "estimated": finite(one.estimated, 4)}
                for one in run.drift
            ],
            "interrupted": run.interrupted,
            "boards": {serial: tally.verdict.value for serial, tally in self.boards.items()},
            "components": {component: _counts(tally) for component, tally in self.components.items()},
        }


def summarise(results: Iterable[Result], run: RunFigures, missing: Iterable[Item] = ()) -> Summary:
    """Count a run. `missing` are images that have no result, as after an interruption."""
    boards: dict[str, Counter[str]] = {}
    components: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    results = list(results)
    outcomes: list[tuple[Request | Item, str]] = [
        *((result.request, "errors" if result.verdict is None else result.verdict.value.lower()) for result in results),
        *((item, "missing") for item in missing),
    ]
    for what, outcome in outcomes:
        total[outcome] += 1
        components.setdefault(what.component, Counter())[outcome] += 1
        if what.serial:
            boards.setdefault(what.serial, Counter())[outcome] += 1
    looks = [look for result in results for look in second_looks(result.findings)]
    findings = sum(len(result.findings) for result in results) - len(looks)
    seconds = SecondLooks(findings, len(looks), sum(look.changed for look in looks))
    late = [result.request.serial for result in results if result.late]
    late_boards = tuple(sorted({serial for serial in late if serial}, key=natural))
    return Summary(run, Tally(**total), _tallies(boards), _tallies(components), seconds, len(late), late_boards)


def finite(value: float | None, digits: int) -> float | None:
    """Round for JSON, which knows neither NaN nor infinity: they become null."""
    return round(float(value), digits) if value is not None and math.isfinite(value) else None


def _tallies(counters: dict[str, Counter[str]]) -> dict[str, Tally]:
    return {name: Tally(**counters[name]) for name in sorted(counters, key=natural)}


def _counts(tally: Tally) -> dict[str, int | float | None]:
    return {
        "images": tally.images,
        "ok": tally.ok,
        "ng": tally.ng,
        "review": tally.review,
        "errors": tally.errors,
        "missing": tally.missing,
        "first_pass_yield": finite(tally.first_pass_yield, 4),
    }
