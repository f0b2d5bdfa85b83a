"""`coe-bench serve`: measures a running service against its goals."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from coe import config
from coe.cli.common import err
from coe.cli.console import table_of
from coe.cli.options import AllowKindOption, JsonOption, Options, StoreOption, check_json, found_here, option, words_of
from coe.errors import ConfigError, did_you_mean
from coe.helpers.system import usable_cores
from coe.lab.cli.bench_out import beside, show_figures

PARTS = "speed,decisions,intake,pages,clients,pace"


class Serve(Options):
    """Start a service with real weights and a history of boards, and measure it over HTTP.

    The parts are speed (images per second of the service and of coe-inspect's engine), decisions (time from accepting a
    board to deciding it), intake (time to accept a picture of 5 MB), pages (time of each page), clients (delivery of
    events to many clients), and pace (600 boards an hour with 500 components each). The table marks missed goals; the
    exit status is 0 even then.

    Example: coe-bench serve --parts pages,intake --history 100000
    """

    parts: str = option("Parts to measure, separated by commas.", PARTS, metavar="LIST")
    board: str = option("Board with experts in the store.", "first_look")
    images: Path = option("Pictures of the board's components.", Path("build/first-look/images"))
    memory: str = option("Memory of the service and, in speed, of the engine.", "25MB")
    history: int | None = option("Number of boards in the history. Default: 100,000.", min=1, max=config.MAX_COUNT)
    quick: bool = option("Run each part for seconds only; the figures then mean nothing.", False)
    store: StoreOption = None
    allow_kind: AllowKindOption = None
    json_to: JsonOption = None

    def run(self) -> None:
        from coe.lab import serve_bench
        from coe.serve.creation import Wanted

        check_json(self.json_to)
        chosen = words_of(self.parts)
        for name in chosen:
            if name not in serve_bench.PARTS:
                raise ConfigError(f"--parts: there is no '{name}'{did_you_mean(name, serve_bench.PARTS)}")
        much = serve_bench.QUICK if self.quick else serve_bench.Amounts()
        much = much if self.history is None else replace(much, history=self.history)
        kinds = tuple(self.allow_kind or found_here(["apps.demo"]) or ())
        wanted = Wanted(self.board, self.store or Path(config.STORE_FOLDER), self.memory, kinds)
        with TemporaryDirectory(prefix="coe-bench-serve-") as folder:
            say = lambda sentence: err.print(sentence, style="dim")  # noqa: E731
            measured = list(serve_bench.measure(wanted, self.images, Path(folder) / "service", chosen, much, say))
        table = table_of("part", "figure", "value", "goal", "", "of", "beside it", left=("part", "figure", "beside it"))
        for one in measured:
            goal = "" if one.goal is None else f"at {'least' if one.at_least else 'most'} {one.goal:,.4g}"
            verdict = {None: "", True: "met", False: "MISSED"}[one.is_met]
            table.add_row(
                one.part, one.name, f"{one.value:,.4g} {one.unit}", goal, verdict, f"{one.samples:,}", one.note
            )
        show_figures(table, measured, self.json_to)
        load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
        machine = f"{usable_cores()} cores, {platform.machine()}, Python {platform.python_version()}, load {load}"
        beside(self.json_to).print(f"machine: {machine}")
