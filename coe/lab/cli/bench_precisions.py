"""The precisions of simulated runs: experts as trained, or prepared in variants, with the shares that are stated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.cli.tool_options import words_of
from coe.core import FULL
from coe.errors import ConfigError
from coe.lab.cli.bench_out import choices
from coe.lab.rows import Row
from coe.lab.time_limits import Times

if TYPE_CHECKING:
    from coe.lab.machine import SimulatedMachine
    from coe.lab.simulated import Contender
    from coe.lab.simulated_precision import VariantShares
    from coe.lab.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    """What all runs have in common, and what was said about variants. None is the precision of experts as trained."""

    precisions: Sequence[VariantShares | None]
    seed: int
    sentences: list[str] = field(default_factory=list)

    def run(
        self,
        machine: SimulatedMachine,
        workload: Workload,
        contender: Contender,
        prepared: VariantShares | None,
        *,
        trace: Path | None,
        times: Times,
    ) -> Row:
        """Run a workload on a box; `trace` is a file for its events."""
        from coe.lab.simulated import run_plan, simulated_run
        from coe.lab.simulated_precision import prepared_run

        if prepared is None:
            return simulated_run(machine, workload, contender, seed=self.seed, trace=trace, times=times)
        run = prepared_run(machine, workload, contender.strategy, prepared)
        self.sentences.extend(run.sentences)
        named = replace(contender, name=f"{contender.name} {prepared.words}", strategy=run.strategy)
        return run_plan(
            run.workload, named, run.box, seed=self.seed, bounded=not prepared.at_loads, trace=trace, times=times
        )


def precisions_of(text: str, sound: str, doubtful: float, warm: bool) -> list[VariantShares | None]:
    """Read the precisions of runs, with the shares of sound experts; raises ConfigError."""
    from coe.lab.simulated_precision import BLOBS, MODES, VariantShares

    names = choices("--precision", text, (FULL, *MODES))
    shares = shares_of("--sound", sound, "experts")
    if warm and FULL in names:
        raise ConfigError(
            "--warm fills host memory of prepared experts alone; add --precision mixed, or leave --warm out"
        )
    if sound != "1" and not set(names) - {FULL, BLOBS}:
        raise ConfigError("--sound is for lesser variants; add --precision on-miss, urgent or mixed, or leave it out")
    precisions: list[VariantShares | None] = []
    for name in names:
        if name == FULL:
            precisions.append(None)
        else:
            precisions += [VariantShares(name, share, doubtful, warm) for share in (shares if name != BLOBS else [1.0])]
    return precisions


def shares_of(option: str, text: str, of: str) -> list[float]:
    """Read shares from 0 to 1; raises ConfigError."""
    return [_share(option, part, of) for part in words_of(text)]


def _share(option: str, text: str, of: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigError(f"{option}: '{text}' is no share of {of}; give numbers from 0 to 1, as 0.3,1")
    return share
