"""A run's folder. Law: a result that was written is never lost, and a run's counts are taken in one place.

`results.jsonl` grows by one line a result; a kill loses at most the line being written. `finish` puts it into the order
of the images and writes `results.csv` and `summary.json` beside it. `run.json` says whose results these are.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coe.core import Box, Finding, Request, Result, Verdict, worst
from coe.errors import CoeError, ConfigError
from coe.images import Item, natural

RESULTS, TABLE, SUMMARY, RUN = "results.jsonl", "results.csv", "summary.json", "run.json"


class DiskFull(CoeError):
    """There is no room for more results; what was written is safe."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What was measured of a run. `hit_ratio` is the share of batches whose expert was resident, None without any."""

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
class Summary:
    """The counts of a run: in all, per board (those with a serial) and per component, in natural order."""

    run: RunFigures
    total: Tally
    boards: dict[str, Tally] = field(default_factory=dict)
    components: dict[str, Tally] = field(default_factory=dict)

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
            "images_per_s": _number(run.images_per_s, 3),
            "switches": run.switches,
            "hit_ratio": _number(run.hit_ratio, 4),
            "peak_reserved_bytes": run.peak_reserved_bytes,
            "budget_bytes": run.budget_bytes,
            "peak_rss_bytes": run.peak_rss_bytes,
            "wall_s": _number(run.wall_s, 3),
            "interrupted": run.interrupted,
            "boards": {serial: tally.verdict.value for serial, tally in self.boards.items()},
            "components": {component: _counts(tally) for component, tally in self.components.items()},
        }


def summarise(results: Iterable[Result], run: RunFigures, missing: Iterable[Item] = ()) -> Summary:
    """Count a run. `missing` are images that have no result, as after an interruption."""
    boards: dict[str, Counter[str]] = {}
    components: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    outcomes = [
        *((result.request, "errors" if result.verdict is None else result.verdict.value.lower()) for result in results),
        *((item, "missing") for item in missing),
    ]
    for what, outcome in outcomes:
        total[outcome] += 1
        components.setdefault(what.component, Counter())[outcome] += 1
        if what.serial:
            boards.setdefault(what.serial, Counter())[outcome] += 1
    return Summary(run, Tally(**total), _tallies(boards), _tallies(components))


class ResultsFile:
    """The results of one run while they come in. Only this class writes into a run's folder; one thread at a time.

    Raises ConfigError if the folder holds results and `resume` is not set, or if they are of another board, another
    version of its file (`fingerprint`) or other images (`source`), or being written by another process; DiskFull when
    there is no room. Image names are unique; a second result of an image takes the place of the first.
    """

    def __init__(
        self, folder: Path, *, board: str, fingerprint: str, source: str = "", resume: bool = False
    ) -> None:
        self.folder = folder
        path = folder / RESULTS
        with _writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with suppress(OSError):  # some network file systems have no locks
                self._lock()
            self._results = {result.request.image: result for result in self._take_up(resume)}
            self._claim({"board": board, "fingerprint": fingerprint, "source": source})
        except BaseException:
            self.close()
            raise

    @property
    def results(self) -> list[Result]:
        """The newest result of every image, in the order of their first."""
        return list(self._results.values())

    @property
    def done(self) -> frozenset[str]:
        """Names of the images that need no second look; those with an error do."""
        return frozenset(name for name, result in self._results.items() if result.error is None)

    def write(self, result: Result) -> None:
        """Append one result; when this returns, a kill of the process cannot take it away. Raises DiskFull."""
        line = _line(result)
        sound = os.fstat(self._fd).st_size
        with _writing(self.folder / RESULTS):
            try:
                for at in _written(self._fd, line):
                    pass
            except OSError:
                with suppress(OSError):  # a half line in the middle would spoil the file
                    os.ftruncate(self._fd, sound)
                raise
        self._results[result.request.image] = result
