"""`run.json`: the identity of the run in a folder, and its figures so far.

A folder never holds results of two runs that could differ in a verdict. A run is bound to the board and the
version of its file, the images, the strategy, the precision and every expert's weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from coe.board import calibration_file
from coe.core import FULL
from coe.errors import ConfigError, RulesError, list_few
from coe.helpers.files import write_atomically
from coe.results.summary import RunFigures
from coe.store.exam import ExamRow

RUN = "run.json"
ELSEWHERE = "give another folder (--out) to start a new run"
_NAMED = 3
"""The most experts that a message names."""


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """Everything, except the pixels, on which a verdict of a run depends.

    `rules` is the digest of the board file, `images` the folder or file of the images, `experts` the digest of each
    expert by id (see `coe.inspector.weights_used`), `references` the checksum of each reference that the rules name. A
    reference that comes with an image is a part of its pixels. `layout` is the digest of the layout of whole boards,
    `expected` that of what boards are asked for. `bits` says how many low bits of 16-bit samples count.
    """

    board: str
    rules: str = ""
    images: str = ""
    strategy: str = ""
    precision: str = FULL
    experts: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, str] = field(default_factory=dict)
    layout: str = ""
    expected: str = ""
    bits: int | None = None

    def refuse_changes(self, path: Path, experts: Mapping[str, str], references: Mapping[str, str]) -> None:
        """Raise ConfigError if the board file at `path`, an expert, or a reference has changed since this was made.

        Call this once a line is open, because the line reads the files after the run did.
        """
        with suppress(RulesError):  # a file that is gone says nothing
            if calibration_file.digest_of_rules(path) != self.rules:
                raise ConfigError(f"{path}, or its calibration, was changed while the line was opened; start again")
        if experts != self.experts:
            raise ConfigError("experts in the store were changed while the line was opened; start again")
        if references != self.references:
            raise ConfigError("references in the store were changed while the line was opened; start again")


@dataclass(frozen=True, slots=True)
class UsedVersion:
    """An expert or a reference: its id in the store, version and checksum there, when it was made, and from what."""

    id: str
    version: int
    checksum: str
    created: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunUsed:
    """What a run was made with: enough to tell years later why a verdict was so.

    The board file and its calibration (temperatures and thresholds) as texts, the versions of what they name, and the
    exams of the experts.
    """

    board_file: str
    rules: str
    calibration: str = ""
    experts: tuple[UsedVersion, ...] = ()
    references: tuple[UsedVersion, ...] = ()
    coe: str = ""
    exams: tuple[ExamRow, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFile:
    """The content of `run.json`. `variants`, once known, are those in which experts may run on the run's devices.

    `used` is what it was made with, None if nobody said it.
    """

    identity: RunIdentity
    variants: tuple[str, ...] = ()
    figures: RunFigures | None = None
    used: RunUsed | None = None

    def write(self, folder: Path) -> None:
        """Write the file into a run's folder, whole or not at all. Raises DiskFull or NotWritten."""
        figures = None if self.figures is None else asdict(self.figures)
        used = None if self.used is None else _USED.dump_python(self.used, mode="json")
        row = {**asdict(self.identity), "variants": self.variants, "figures": figures, "used": used}
        write_atomically(folder / RUN, [json.dumps(row, ensure_ascii=False, indent=2) + "\n"])

    def refuse_variants(self, folder: Path, now: tuple[str, ...]) -> None:
        """Raise ConfigError if the experts ran in other variants than `now`."""
        if self.variants and self.variants != now:
            raise ConfigError(
                f"{folder} holds a run whose experts run in {', '.join(self.variants)}, and on these devices they "
                f"would run in {', '.join(now)}; give the same --executors again, or {ELSEWHERE}"
            )


def read(folder: Path, now: RunIdentity) -> RunFile:
    """Read the file of a run's folder; raises ConfigError, naming the difference, if the run is not that of `now`."""
    path = folder / RUN
    try:
        if not path.is_file():  # a pipe would wait for ever
            raise ValueError("it is not a file")
        row = json.loads(path.read_text(encoding="utf-8"))
        run = _FILE.validate_python({**row, "identity": row})
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} does not state the run of these results; {ELSEWHERE}") from error
    if difference := next(_differences(run.identity, now), None):
        raise ConfigError(f"{folder} {difference}")
    return run


def _differences(before: RunIdentity, now: RunIdentity) -> Iterator[str]:
    """Yield each difference of two runs with its remedy, the plainest difference first."""
    if before.board != now.board:
        yield f"holds a run with another board ('{before.board}', not '{now.board}'); {ELSEWHERE}"
    if before.rules != now.rules:
        yield f"holds a run with another version of the board file, or of its calibration; {ELSEWHERE}"
    if before.images != now.images:
        yield f"holds a run with another set of images ('{before.images}', not '{now.images}'); {ELSEWHERE}"
    if before.layout != now.layout:
        yield f"holds a run with other placements, another board recipe, or none; give the same again, or {ELSEWHERE}"
    if before.expected and before.expected != now.expected:
        yield f"holds a run with another --parts or --expect; give the same again, or {ELSEWHERE}"
    if before.bits != now.bits:
        yield f"holds a run with other significant bits ({before.bits}, not {now.bits}); {ELSEWHERE}"
    for name, option in (("strategy", "--strategy"), ("precision", "--precision")):
        then, here = getattr(before, name), getattr(now, name)
        if then != here:
            yield (
                f"holds a run with another {name.replace('_', ' ')} ('{then}', not '{here}'); "
                f"give {option} {then} again, or {ELSEWHERE}"
            )
    ids = sorted({*before.references, *now.references})
    if changed := [id for id in ids if before.references.get(id) != now.references.get(id)]:
        names = list_few((f"'{id}'" for id in changed), _NAMED)
        yield f"holds a run with other references ({names}); put the former references back, or {ELSEWHERE}"
    ids = sorted({*before.experts, *now.experts})
    if changed := [id for id in ids if before.experts.get(id) != now.experts.get(id)]:
        names = list_few((f"'{id}'" for id in changed), _NAMED)
        yield (
            f"holds a run with other weights of {len(changed)} of {len(now.experts)} experts ({names}); "
            f"put the former weights back into the store, or {ELSEWHERE}"
        )


_FILE = TypeAdapter(RunFile)
_USED = TypeAdapter(RunUsed)
