"""`coe-bench run`: strategies one after another on this machine, on real weights files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.options import WORK, JsonOption, OnLine, SeedOption, WorkOption, check_json, option, refuse, words_of
from coe.core import FULL
from coe.errors import ConfigError
from coe.inspector import profile
from coe.inspector.line_options import Door, LineArguments, LineOptions
from coe.inspector.precision import check_precision
from coe.inspector.profile import BoardProfile, Fingerprint, Profile
from coe.lab.cli import bench_out
from coe.lab.rows import Row
from coe.lab.workloads.picture_forms import PictureForm
from coe.profiler.configurations import board_profile, paper_default, pinned
from coe.scheduler import strategies
from coe.scheduler.strategies import strategy as named_strategy

if TYPE_CHECKING:
    from coe.inspector.inspector import Picture
    from coe.inspector.line_devices import MakeDevices
    from coe.inspector.precision import LineCosts
    from coe.lab.measured_run import MeasuredRun
    from coe.profiler.remembered_device import RememberedOutputs
    from coe.store.store import Store
    from coe.store.store_reader import StoreReader


PAPER_DEFAULT, PROFILED = f"{config.STRATEGY}-paper-default", f"{config.STRATEGY}-profile"
CONFIGURED = (PAPER_DEFAULT, PROFILED)
EAGER = "-eager"
"""The end of a strategy's name if experts are run as by a plain program (`coe.lab.eager_baseline`)."""


# The names of --strategy: a strategy, a configuration, or a strategy with the eager baseline


def _names(text: str) -> list[str]:
    """Read --strategy; raises ConfigError for a name that does not exist."""
    if text.strip() == "all":
        return strategies.names()
    chosen = words_of(text)
    for name in chosen:
        if name not in CONFIGURED and (plain := name.removesuffix(EAGER)) in CONFIGURED:
            raise ConfigError(f"there is no '{name}': '{plain}' is a configuration; name a strategy, e.g. samba{EAGER}")
        named_strategy(_strategy_of(name))
    return chosen


def _strategy_of(name: str) -> str:
    """Return the strategy behind a name."""
    return config.STRATEGY if name in CONFIGURED else name.removesuffix(EAGER)


def _make_devices(name: str) -> MakeDevices:
    """Return the function that makes the devices of a name: the engine's, or those of the eager baseline."""
    from coe.inspector import line_devices
    from coe.lab import eager_baseline

    return eager_baseline.devices if name.endswith(EAGER) else line_devices.make


def _configurations(
    names: Sequence[str], profile_at: Path | None, path: Path, store: StoreReader, memory_bytes: int | None
) -> tuple[int, dict[str, Profile]]:
    """Return the memory budget, and for each name that stands for a configuration a profile that holds only it.

    The budget is `memory_bytes`; if None, that of the profile if it is used; if not, that for a quarter of the experts.
    """
    from coe.lab.workloads.synthetic import quarter_budget

    board = rules.load(path)
    if not set(names) & set(CONFIGURED):
        return memory_bytes or quarter_budget(path, store), {}
    loaded = profile.load(profile_at or profile.place())
    if changed := loaded.machine.changes(Fingerprint.here()):
        raise ConfigError(f"the profile is of another machine ({'; '.join(changed)}); run coe-profile again")
    part = _profiled(loaded, board, memory_bytes) if PROFILED in names else None
    budget = memory_bytes or (part.memory_bytes if part else quarter_budget(path, store))
    # The paper's default runs on the same box, with its GPU.
    box = part or loaded.boards.get(board.board)
    gpu_memory = (box.device_bytes, box.host_bytes) if box else (None, None)
    on_gpu = gpu_memory[0] is not None
    choices = {
        PAPER_DEFAULT: paper_default(board, store, budget, on_gpu=on_gpu),
        **({PROFILED: part.chosen} if part else {}),
    }
    return budget, {
        name: pinned(loaded, board_profile(board, choice, budget, *gpu_memory))
        for name, choice in choices.items()
        if name in names
    }


def _has_gpu(configured: Profile | None) -> bool:
    """Tell whether a configuration has executors of a GPU; true without one, as the user's options tell then."""
    return configured is None or any("cuda" in board.chosen.executors for board in configured.boards.values())


def _profiled(profile: Profile, board: Rules, memory_bytes: int | None) -> BoardProfile:
    """Return a profile's part for a board; raises ConfigError if the profile does not know this board and memory."""
    part = profile.boards.get(board.board)
    again = f"run coe-profile --board {board.path} first"
    if part is None or part.digest != board.digest:
        raise ConfigError(f"the profile has no costs of board '{board.board}' as it is now; {again}")
    if memory_bytes not in (None, part.memory_bytes):
        raise ConfigError(
            f"board '{board.board}' was profiled under {config.format_bytes(part.memory_bytes)}, not "
            f"{config.format_bytes(memory_bytes or 0)}; leave --memory out, or {again}"
        )
    return part


# The input: a board with its experts and pictures, or a synthetic board with pictures of noise


def _check_source(context: typer.Context, board: str | None, images_at: Path | None, names: Sequence[str]) -> None:
    """Refuse options that have no effect; raises ConfigError."""
    no_effect = partial(refuse, context, by_default=False)
    if board is None:
        no_effect("images_at store", "has no effect, because --board is not given")
    else:
        no_effect("experts kind files input_size work", "has no effect, because --board is given")
    if images_at is not None:
        no_effect("seed", "has no effect, because --images are given")
    configured = [name for name in names if name in CONFIGURED]
    if not configured:
        no_effect("profile_at", f"has no effect, because neither {' nor '.join(CONFIGURED)} is run")
    if configured == list(names):
        no_effect("executors", f"has no effect, because {' and '.join(configured)} set the executors")


def _check_host_only(host_only: bool, names: Sequence[str], executors: str, *, with_prediction: bool) -> None:
    """Raise ConfigError for options that cannot go with --host-only."""
    if not host_only:
        return
    if eager := [name for name in names if name.endswith(EAGER)]:
        raise ConfigError(
            f"--host-only leaves out what distinguishes '{eager[0]}'; run '{eager[0].removesuffix(EAGER)}'"
        )
    if other := [device for device in config.parse_executors(executors) if device != "cpu"]:
        raise ConfigError(f"--host-only stands for any device; write --executors cpu=1, not '{other[0]}'")
    if with_prediction:
        raise ConfigError("--predict has no effect with --host-only, whose devices take no time; leave it out")


def _given(
    board: str, images_at: Path | None, store: StoreReader, requests: int, seed: int, form: PictureForm | None
) -> tuple[Path, StoreReader, list[Picture]]:
    """Return a board's file and store, and `requests` pictures: those given, repeated as needed, or noise."""
    from coe.lab.workloads.picture_forms import handed_in
    from coe.lab.workloads.synthetic import synthetic_pictures
    from coe.placement.run_source import pictures_of

    loaded = rules.load(board)
    if images_at is None:
        return loaded.path, store, synthetic_pictures(loaded.path, requests, seed, form or PictureForm.ARRAY)
    pictures = handed_in(pictures_of(loaded, images_at), form)
    return loaded.path, store, [pictures[index % len(pictures)] for index in range(requests)]


def variants(executors: str, precisions: Sequence[str]) -> list[str]:
    """Return the variants to prepare for these executors; none if all experts run in fp32."""
    if set(precisions) == {FULL}:
        return []
    devices = config.parse_executors(executors)
    own = [*(("int8",) if "cpu" in devices else ()), *(("fp16", "q8") if any(map(config.is_gpu, devices)) else ())]
    return ["fp32", *own]


def _synthetic_experts(
    work: Path,
    kind: str,
    experts: int,
    input_size: int,
    seed: int,
    files: int | None,
    variants: Sequence[str],
    allow_kinds: Sequence[str],
) -> tuple[Path, Store]:
    """Make a board of experts with random weights, or reuse an earlier one; return its file and store."""
    from coe.lab.workloads.synthetic import prepare, synthetic_board

    err.print(f"making {experts} synthetic {kind} experts in {work} (kept for the next time)")
    path, store = synthetic_board(
        work, kind=kind, experts=experts, input_size=input_size, seed=seed, files=files, allow_kinds=allow_kinds
    )
    if variants:
        prepare(path, store, variants, err.print, allow_kinds)  # type: ignore[arg-type]
    return path, store


# The runs: the same pictures, on lines that differ only in strategy and precision


@dataclass(frozen=True, slots=True)
class _Runs:
    """What all runs have in common; each run sets its strategy, precision and costs in `line_options`.

    `configured` holds a profile for each name that stands for a configuration. With `remembered` the devices take no
    time (`coe.profiler.remembered_device`). Latencies are those of all images but the first `settling`.
    """

    line_options: LineOptions
    pictures: Sequence[Picture]
    task: str
    order: str
    configured: Mapping[str, Profile] = field(default_factory=dict)
    images_per_s: float | None = None
    max_wait_s: float | None = None
    remembered: RememberedOutputs | None = None
    settling: int = 0
    _costs: dict[tuple[str, int, bool], LineCosts] = field(default_factory=dict)

    def measure(self, name: str, precision: str, *, tick: Callable[[], None] = lambda: None) -> MeasuredRun:
        """Measure a run of a strategy or configuration by name, in a precision.

        Strategies share one cost table, measured once for a number of executors and a way to load.
        """
        if self.remembered is None:
            return self._measure(name, precision, tick)
        while True:
            known = len(self.remembered)
            measured = self._measure(name, precision, tick)
            # A run in which a network ran did not measure the host alone.
            if len(self.remembered) == known:
                return measured

    def _measure(self, name: str, precision: str, tick: Callable[[], None]) -> MeasuredRun:
        from coe.lab import measured_run as engine
        from coe.lab.rows import Heading
        from coe.profiler import remembered_device

        profile, strategy = self.configured.get(name), named_strategy(_strategy_of(name))
        options = self.line_options
        workers = sum(config.parse_executors(options.executors or config.EXECUTORS).values())
        same_costs = (precision, 1 if strategy.single else workers, name.endswith(EAGER))
        if profile is not None:
            options = options.but(executors=None, profile=profile)
        if not _has_gpu(profile):
            options = options.but(device_memory=None, host_memory=None)
        options = options.but(
            strategy=strategy,
            precision=precision,
            max_wait_s=self.max_wait_s if strategy.hurries else None,
            experiment=replace(
                options.experiment,
                costs=None if profile else self._costs.get(same_costs),
                make_devices=_make_devices(name)
                if self.remembered is None
                else remembered_device.devices(self.remembered),
            ),
        )
        measured = engine.measured_run(
            options,
            self.pictures,
            # The row shows the user's name for the run, not the name of the strategy behind it.
            heading=Heading(self.task, self.order, name),
            images_per_s=self.images_per_s,
            settling=self.settling,
            tick=tick,
        )
        if profile is None:
            self._costs[same_costs] = measured.line_run.costs
        return measured


class Run(OnLine):
    """Run strategies one after another over the same images, and show a row for each.

    Memory is full of experts before the first image. A switch is a load that a waiting image needs. Column "ratio" is
    the mean time of a switch, divided by the time of a plain read of the same bytes. "peak RSS" is the peak memory of
    this process; the number in brackets is its growth during the run.

    Example: coe-bench run --strategy samba,coserve,late-binding --experts 40 --kind resnet18
    """

    door = Door.RUN

    context: typer.Context
    board: str | None = option("Board with experts in the store. Default: a synthetic board with random weights.")
    images_at: Path | None = option("Images for --board. Default: noise.", None, "--images")
    experts: int = option("Without --board: number of experts.", 24, min=1, max=config.MAX_COUNT)
    kind: str = option("Without --board: kind of the experts.", "resnet101")
    files: int | None = option(
        "Without --board: number of weights files. Default: one for each expert.",
        min=1,
        max=config.MAX_COUNT,
        hidden=True,
    )
    input_size: int = option(
        "Without --board: input in pixels.", 224, "--input", min=config.MIN_INPUT, max=config.MAX_INPUT
    )
    requests: int = option(
        "Number of images. The pictures of --images repeat as needed.", 400, min=1, max=config.MAX_COUNT
    )
    strategy: str = option(
        f"One or more, separated by commas. {PROFILED}: configured by coe-profile. {PAPER_DEFAULT}: memory split as "
        f"in CoServe's paper. samba{EAGER}, ...{EAGER}: loads as a plain PyTorch program does.",
        config.STRATEGY,
        metavar="LIST|all",
    )
    precision: str = option("fp32, mixed, or fp32,mixed.", config.PRECISION, metavar="LIST")
    label_floor: float = option(
        "Smallest share of labels equal to fp32 for a smaller variant.", config.LABEL_FLOOR, min=0, max=1, hidden=True
    )
    profile_at: Path | None = option(
        f"Profile for {PROFILED}. Default: the file that coe-profile writes.", None, "--profile", hidden=True
    )
    repeat: int = option("Number of runs of each strategy; the median run is shown.", 1, min=1, max=config.MAX_COUNT)
    rate: float | None = option(
        "Submit this many images a second, even if the line falls behind. Default: all at once.", metavar="RATE"
    )
    settling: int = option(
        "Leave this many first images out of p50 and p99.", 0, min=0, max=config.MAX_COUNT, hidden=True
    )
    form: PictureForm | None = option(
        "Submit arrays, or JPEGs in memory. Default: paths of --images, otherwise arrays.", hidden=True
    )
    host_only: bool = option(
        "Measure the host's work: networks answer from memory, loads take no time.", False, hidden=True
    )
    with_prediction: bool = option("Also simulate each run with the same costs.", False, "--predict", hidden=True)
    work: WorkOption = WORK
    seed: SeedOption = 0
    json_to: JsonOption = None

    def run(self) -> None:
        from coe.inspector.experiment import Experiment
        from coe.inspector.line_devices import free_cores
        from coe.lab import measured_run as engine
        from coe.lab.workloads import synthetic
        from coe.profiler.remembered_device import RememberedOutputs

        names = _names(self.strategy)
        chosen = [named_strategy(_strategy_of(name)) for name in names]
        max_wait_s = bench_out.heeded(self.line.pop("max_wait_s", None), chosen)
        asked = LineOptions.of(self.board or self.kind, **self.line)
        executors = asked.executors or config.EXECUTORS
        check_json(self.json_to)
        _check_source(self.context, self.board, self.images_at, names)
        precisions = _precisions(self.precision, names)
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise ConfigError(f"--rate {self.rate:g} is not a number of images a second; write it as 250")
        if self.settling >= self.requests:
            raise ConfigError(
                f"--settling {self.settling} leaves out all {self.requests} images; leave out fewer, or give more "
                "--requests"
            )
        _check_host_only(self.host_only, names, executors, with_prediction=self.with_prediction)
        if self.board is not None:
            path, shelf, pictures = _given(self.board, self.images_at, asked.store, self.requests, self.seed, self.form)
            task, order = rules.load(path).board, "given" if self.images_at else "iid"
        else:
            wanted = variants(executors, precisions)
            path, shelf = _synthetic_experts(
                self.work, self.kind, self.experts, self.input_size, self.seed, self.files, wanted, asked.allow_kinds
            )
            pictures = synthetic.synthetic_pictures(path, self.requests, self.seed, self.form or PictureForm.ARRAY)
            task, order = f"{self.experts} x {self.kind}", "iid"
        budget, configured = _configurations(names, self.profile_at, path, shelf, asked.memory)
        # coe-profile chooses for a line as in coe-inspect, where images have a part of the memory.
        inbox = LineArguments() if configured else engine.all_at_once(pictures)
        line_options = LineOptions.of(path, **self.line).but(store=shelf, memory=budget, profile=None).but(**inbox)
        remembered = RememberedOutputs() if self.host_only else None
        ways = [(name, p) for p in precisions for name in names if p == FULL or not name.endswith(EAGER)]
        # Decided once for all runs: they are compared with equal threads.
        experiment = Experiment(label_floor=self.label_floor, free_cores=free_cores())
        line_options = line_options.but(experiment=experiment)
        comparison = _Runs(
            line_options, pictures, task, order, configured, self.rate, max_wait_s, remembered, self.settling
        )
        rows, sentences = _compare(comparison, ways, self.repeat, with_prediction=self.with_prediction)
        bench_out.show(rows, self.json_to)
        for sentence in sentences:
            bench_out.beside(self.json_to).print(sentence)


def _compare(
    comparison: _Runs, ways: Sequence[tuple[str, str]], repeat: int, *, with_prediction: bool
) -> tuple[list[Row], list[str]]:
    """Run each way, a name and a precision, `repeat` times there and back; the run in the middle counts.

    Returns the rows, and sentences about the runs.
    """
    from coe.lab import measured_run as engine
    from coe.profiler.confirm import in_turn

    rows: list[Row] = []
    with Progress(console=err, transient=True) as bar:

        def measure(name: str, precision: str) -> MeasuredRun:
            label = name if precision == FULL else f"{name} {precision}"
            task = bar.add_task(label, total=len(comparison.pictures))
            return comparison.measure(name, precision, tick=lambda: bar.advance(task))

        runs_by_way = in_turn([partial(measure, *way) for way in ways], again=lambda rounds: rounds < repeat)
        chosen = {way: engine.middle(runs) for way, runs in zip(ways, runs_by_way, strict=True)}
        for measured in chosen.values():
            rows.append(measured.row)
            if with_prediction:
                rows.append(engine.predict(measured, comparison.max_wait_s, comparison.settling))
    texts = engine.of_rounds(dict(zip(ways, runs_by_way, strict=True)))
    texts += engine.of_precisions(chosen) + engine.of_ways(chosen, EAGER) + engine.of_paces(chosen)
    return rows, texts


def _precisions(text: str, names: Sequence[str]) -> list[str]:
    precisions = list(dict.fromkeys(words_of(text)))
    for name in precisions:
        check_precision("precision", name)
    if (eager := [name for name in names if name.endswith(EAGER)]) and FULL not in precisions:
        raise ConfigError(f"'{eager[0]}' runs only in {FULL}; add it: --precision {','.join([FULL, *precisions])}")
    return precisions
