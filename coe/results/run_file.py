"""`run.json`: whose results a folder holds, and what was measured of its run so far.

Law: results of two runs that could differ in a verdict never come into one folder. A run is bound to the board and the
version of its file, the images, the strategy, the precision and every expert's weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coe.core import FULL
from coe.errors import ConfigError
from coe.files import write_atomically
from coe.results.summary import RunFigures
from coe.scheduler.demand import Drift

RUN = "run.json"
ELSEWHERE = "give another folder (--out) to start a new run"
_NAMED = 3
"""How many experts a sentence names."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """All that a verdict of a run depends on, but for the pixels.

    `rules` is the digest of the board file, `images` the folder or file that they come from, `experts` the digest of
    each expert by id (see `coe.inspector.weights_used`).
    """

    board: str
    rules: str = ""
    images: str = ""
    strategy: str = ""
    precision: str = FULL
    label_floor: float = 0.0
    experts: Mapping[str, str] = field(default_factory=dict)

    def refuse_changes(self, path: Path, experts: Mapping[str, str]) -> None:
        """Raise ConfigError if the board file at `path`, or an expert by its digest, is no longer what was noted.

        To be asked once a line is open: it read them later than the run did.
        """
        with suppress(OSError):
            if hashlib.sha256(path.read_bytes()).hexdigest() != self.rules:
                raise ConfigError(f"{path} was changed while the line was opened; start again")
        if experts != self.experts:
            raise ConfigError("experts in the store were changed while the line was opened; start again")


@dataclass(frozen=True, slots=True)
class RunFile:
    """What `run.json` holds. `variants` are those that experts may run in on the devices of the run, once known."""

    identity: RunIdentity
    variants: tuple[str, ...] = ()
    figures: RunFigures | None = None

    def write(self, folder: Path) -> None:
        """Write it into a run's folder, whole or not at all. Raises DiskFull or NotWritten."""
        figures = None if self.figures is None else asdict(self.figures)
        row = {**asdict(self.identity), "variants": self.variants, "figures": figures}
        write_atomically(folder / RUN, [json.dumps(row, ensure_ascii=False, indent=2) + "\n"])

    def refuse_variants(self, folder: Path, now: tuple[str, ...]) -> None:
        """Raise ConfigError if the experts ran in other variants than they would `now`."""
        if self.variants and self.variants != now:
            raise ConfigError(
                f"{folder} holds a run whose experts run in {', '.join(self.variants)}, and on these devices they "
                f"would run in {', '.join(now)}; give the same --executors again, or {ELSEWHERE}"
            )


def read(folder: Path, now: RunIdentity) -> RunFile:
    """Read what a run's folder says of itself; raises ConfigError, saying what differs, if it is not `now`'s run."""
    path = folder / RUN
    try:
        if not path.is_file():  # a pipe would wait for ever
            raise ValueError("it is no file")
        row = json.loads(path.read_text(encoding="utf-8"))
        before = RunIdentity(**{one.name: row[one.name] for one in fields(RunIdentity) if one.name in row})
        if not isinstance(before.experts, Mapping):
            raise ValueError("experts")
        found = RunFile(before, tuple(map(str, row.get("variants", ()))), _figures(row.get("figures")))
        older = "experts" not in row
    except (OSError, ValueError, TypeError, AttributeError, KeyError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{path} does not say whose results these are; {ELSEWHERE}") from error
    if difference := next(_differences(before, now, older=older), None):
        raise ConfigError(f"{folder} {difference}")
    return found


def _differences(before: RunIdentity, now: RunIdentity, *, older: bool) -> Iterator[str]:
    """Say what keeps two runs apart and what to do about it, the plainest first."""
    if before.board != now.board:
        yield f"holds a run with another board ('{before.board}', not '{now.board}'); {ELSEWHERE}"
    if older:
        yield f"holds a run of an earlier version, which did not write down its experts; {ELSEWHERE}"
    if before.rules != now.rules:
        yield f"holds a run with another version of the board file; {ELSEWHERE}"
    if before.images != now.images:
        yield f"holds a run with another set of images ('{before.images}', not '{now.images}'); {ELSEWHERE}"
    for name, option in (("strategy", "--strategy"), ("precision", "--precision"), ("label_floor", "--label-floor")):
        then, here = getattr(before, name), getattr(now, name)
        if then != here:
            yield (
                f"holds a run with another {name.replace('_', ' ')} ('{then}', not '{here}'); "
                f"give {option} {then} again, or {ELSEWHERE}"
            )
    ids = sorted({*before.experts, *now.experts})
    if changed := [id for id in ids if before.experts.get(id) != now.experts.get(id)]:
        names = ", ".join(f"'{id}'" for id in changed[:_NAMED]) + (" ..." if len(changed) > _NAMED else "")
        yield (
            f"holds a run with other weights of {len(changed)} of {len(now.experts)} experts ({names}); "
            f"put those back into the store, or {ELSEWHERE}"
        )


def _figures(row: Any) -> RunFigures | None:
    if row is None:
        return None
    return RunFigures(
        board=str(row["board"]),
        strategy=str(row["strategy"]),
        answered=int(row["answered"]),
        stages=int(row["stages"]),
        switches=int(row["switches"]),
        peak_reserved_bytes=int(row["peak_reserved_bytes"]),
        budget_bytes=int(row["budget_bytes"]),
        peak_rss_bytes=int(row["peak_rss_bytes"]),
        wall_s=float(row["wall_s"]),
        interrupted=row["interrupted"] is True,
        started=str(row["started"]),
        precision=str(row["precision"]),
        drift=tuple(Drift(str(one["expert"]), float(one["rules"]), float(one["estimated"])) for one in row["drift"]),
    )
