"""The precisions of simulated runs: experts as trained, or prepared in variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from coe.core import FULL
from coe.errors import ConfigError
from coe.lab.cli.bench_out import choices
from coe.lab.rows import Row
from coe.lab.time_limits import Times

if TYPE_CHECKING:
    from coe.lab.machine import SimulatedMachine
    from coe.lab.simulated import Contender
    from coe.lab.simulated_precision import Prepared
    from coe.lab.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    """What all runs have in common, and what was said about variants. None is the precision of experts as trained."""

    precisions: Sequence[Prepared | None]
    seed: int
    sentences: list[str] = field(default_factory=list)

    def run(
        self,
        machine: SimulatedMachine,
        workload: Workload,
        contender: Contender,
        prepared: Prepared | None,
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
        named = replace(contender, name=f"{contender.name} {prepared.mode}")
        return run_plan(run.workload, named, run.box, seed=self.seed, trace=trace, times=times)


def precisions_of(text: str, doubtful: float, warm: bool) -> list[Prepared | None]:
    """Read the precisions of runs; raises ConfigError."""
    from coe.lab.simulated_precision import MODES, Prepared

    names = choices("--precision", text, (FULL, *MODES))
    if warm and FULL in names:
        raise ConfigError(
            "--warm fills host memory of prepared experts alone; add --precision mixed, or leave --warm out"
        )
    return [None if name == FULL else Prepared(name, doubtful, warm) for name in names]
