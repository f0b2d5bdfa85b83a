"""`coe-bench run`: strategies one after another on this machine, on real weights files."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from coe import config, fingerprint, images, profile, rules
from coe.benchmark.configurations import casual, chosen, in_turn, pinned
from coe.benchmark.configurations import entry as configuration
from coe.cli import bench_out
from coe.cli.bench_out import USUAL
from coe.cli.common import err, out
from coe.cli.options import (
    WORK,
    DeviceMemoryOption,
    HostMemoryOption,
    JsonOption,
    LabelFloorOption,
    MaxWaitOption,
    StoreOption,
    WithinOption,
    WorkOption,
)
from coe.core import FULL
from coe.errors import ConfigError
from coe.policies.strategies import ANY_TIME
from coe.policies.strategies import strategy as named_strategy
from coe.precision import check_precision
from coe.sim import trace_file
from coe.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coe.assembly import MakeDevices
    from coe.benchmark.engine import Measured
    from coe.benchmark.rows import Row
    from coe.costs import CostTable
    from coe.inspector import Picture
    from coe.profile import Profile

CASUAL, PROFILED = f"{config.STRATEGY}-casual", f"{config.STRATEGY}-profile"
CONFIGURED = (CASUAL, PROFILED)
_OF_A_BOARD = {"images_at": "--images", "store": "--store"}
_WITHOUT_A_BOARD = {
    "experts": "--experts",
    "kind": "--kind",
    "files": "--files",
    "input_size": "--input",
    "work": "--work",
}


def run(
    context: typer.Context,
    board: Annotated[
        str | None, typer.Option(help="A board whose experts are in the store; else synthetic experts are made.")
    ] = None,
    images_at: Annotated[
        Path | None,
        typer.Option("--images", help="Images for --board. Default: pictures of noise, by the counts of components."),
    ] = None,
    experts: Annotated[int, typer.Option(min=1, help="Without --board: how many synthetic experts.")] = 24,
    kind: Annotated[str, typer.Option(help="Without --board: of which kind.")] = "resnet101",
    files: Annotated[
        int | None, typer.Option(min=1, help="Without --board: how many files the experts share. Default: one each.")
    ] = None,
    input_size: Annotated[int, typer.Option("--input", help="Without --board: input size in pixels.")] = 224,
    requests: Annotated[int, typer.Option(min=1, help="How many images; those of --images are repeated.")] = 400,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="LIST|all",
            help=f"One or more, separated by commas. Also {PROFILED}, with what coe-profile chose for the board, "
            f"and {CASUAL}, with the paper's casual configuration; with {USUAL} behind its name, as in samba{USUAL}, a "
            "strategy runs with experts loaded and run the usual way of PyTorch, to compare with.",
        ),
    ] = config.STRATEGY,
    precision: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="One or more of fp32, half, mixed (docs/precision.md); all are compared with fp32."
        ),
    ] = config.PRECISION,
    label_floor: LabelFloorOption = config.LABEL_FLOOR,
    executors: Annotated[str, typer.Option(help="Workers by device, as cpu=2 or cuda=2,cpu=1.")] = config.EXECUTORS,
    memory: Annotated[
        str | None, typer.Option(help="Budget. Default: three quarters of it hold a quarter of the experts.")
    ] = None,
    device_memory: DeviceMemoryOption = None,
    host_memory: HostMemoryOption = None,
    profile_at: Annotated[
        Path | None, typer.Option("--profile", help=f"For {PROFILED}. Default: where coe-profile puts it.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Run all of them so often, there and back; the best counts.")] = 1,
    disk_bandwidth: Annotated[
        str | None,
        typer.Option(help="Load no faster than such a disk, as 530MB/s, so that cached files do not flatter."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Images a second, each on time whatever the line does.", metavar="RATE")
    ] = None,
    backlog: Annotated[bool, typer.Option("--backlog", help="All images at once (the default).")] = False,
    within: WithinOption = None,
    max_wait: MaxWaitOption = None,
    prescheduled: Annotated[
        bool,
        typer.Option(
            "--prescheduled", help="Repeat each run's commands without scheduling: what does scheduling cost?"
        ),
    ] = False,
    with_prediction: Annotated[
        bool, typer.Option("--predict", help="Simulate each run with the same costs: how well does the simulator do?")
    ] = False,
    save_task: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what came and was found as a trace file for coe-bench sim --task."),
    ] = None,
    store: StoreOption = None,
    work: WorkOption = WORK,
    seed: int = 0,
    json_to: JsonOption = None,
) -> None:
    """Run strategies one after another over the same images and show a row for each.

    A run is measured from the first image, when the pools hold what they begin with. "ratio" is the mean time of a
    switch over that of a plain read of the same bytes in the same run; "peak RSS" is that of this whole process, in
    brackets what it grew by in this run.

    Example: coe-bench run --strategy samba,coserve,line --experts 40 --kind resnet18
    """
    from coe.benchmark import engine, prediction, sentences, synthetic

    names = bench_out.strategies(strategy, also=CONFIGURED, usual=True)
    allowed = bench_out.times(within, max_wait, [_strategy(name) for name in names])
    if prescheduled and allowed != ANY_TIME:
        raise ConfigError("--prescheduled repeats commands and looks at no times; leave out --within and --max-wait")
    bench_out.check_json(json_to)
    _check_source(context, board)
    precisions = _precisions(precision, label_floor, names)
    _check_rate(rate, backlog)
    speed = config.parse_bandwidth(disk_bandwidth) if disk_bandwidth else None
    if board is not None:
        path, shelf, pictures = _given(board, images_at, store, requests, seed)
        task, order = rules.load(path).board, "given" if images_at else "iid"
    else:
        path, shelf = _synthetic(work, kind, experts, input_size, seed, files, _variants(executors, precisions))
        pictures = synthetic.synthetic_pictures(path, requests, seed)
        task, order = f"{experts} x {kind}", "iid"
    budget, settled = _settled(names, profile_at, path, shelf, config.parse_bytes(memory) if memory else None)
    # Measured once for as many executors and their way: strategies are compared on one cost table.
    tables: dict[tuple[str, int, bool], CostTable] = {}
    workers = sum(config.parse_executors(executors).values())
    rows: list[Row] = []
    said: list[str] = []
    with Progress(console=err, transient=True) as bar:

        def measure(name: str, precision: str, again: Measured | None = None) -> Measured:
            called = name if precision == FULL else f"{name} {precision}"
            shown = bar.add_task(f"{called} (prescheduled)" if again else called, total=len(pictures))
            found = settled.get(name)
            strategy = _strategy(name)
            busy = 1 if named_strategy(strategy).single else workers
            table = (precision, busy, name.endswith(USUAL))
            measured = engine.measured_run(
                path,
                shelf,
                pictures,
                memory_bytes=budget,
                executors=None if found else executors,
                device_memory=device_memory,
                host_memory=host_memory,
                strategy=strategy,
                precision=precision,
                label_floor=label_floor,
                task=task,
                order=order,
                images_per_s=rate,
                disk_bytes_per_s=speed,
                costs=None if found else tables.get(table),
                again=again,
                profile=found,
                as_a_line=bool(settled),
                times=allowed,
                tick=lambda: bar.advance(shown),
                make_devices=_make_devices(name),
            )
            if not found:
                tables[table] = measured.costs
            # A configuration, and the usual way, stand under their own names.
            shown_as = measured.row.strategy.replace(strategy, name, 1)
            return replace(measured, row=replace(measured.row, strategy=shown_as))

        ways = [(name, one) for one in precisions for name in names if one == FULL or not name.endswith(USUAL)]
        every = in_turn([partial(measure, *way) for way in ways], again=lambda rounds: rounds < repeat)
        best = {way: max(runs, key=lambda one: one.row.images_per_s) for way, runs in zip(ways, every, strict=True)}
        for (name, used), done in best.items():
            rows.append(done.row)
            if with_prediction:
                rows.append(prediction.predict(done, allowed))
            if prescheduled:
                again = measure(name, used, done)
                rows.append(again.row)
                said.append(sentences.of_scheduling(done, again))
    said += sentences.of_precisions(best) + sentences.of_ways(best, USUAL)
    bench_out.show(rows, json_to)
    if save_task is not None:
        trace_file.write(save_task, prediction.workload_of(done))
    for sentence in said:
        (err if json_to == bench_out.STANDARD_OUTPUT else out).print(sentence, soft_wrap=True)


def _strategy(name: str) -> str:
    """Return the strategy behind a name."""
    return config.STRATEGY if name in CONFIGURED else name.removesuffix(USUAL)


def _make_devices(name: str) -> MakeDevices:
    """Return what makes the devices of a name: ours, or such as do it the usual way."""
    from coe import assembly
    from coe.benchmark import usual

    return usual.devices if name.endswith(USUAL) else assembly.devices


def _precisions(text: str, floor: float, names: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in found:
        check_precision(name, floor)
    if (usual := [name for name in names if name.endswith(USUAL)]) and FULL not in found:
        raise ConfigError(f"'{usual[0]}' runs in {FULL} alone; add it: --precision {','.join([FULL, *found])}")
    return found


def _check_source(context: typer.Context, board: str | None) -> None:
    """Refuse what would mean nothing: options of a board without one, and those of synthetic experts with one."""
    others, why = (_OF_A_BOARD, "--board is not given") if board is None else (_WITHOUT_A_BOARD, "--board is given")
    for name, option in others.items():
        # Asked by its name: where typer keeps the class has changed from version to version.
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option} would mean nothing, because {why}; leave one of them out")


def _check_rate(rate: float | None, backlog: bool) -> None:
    if rate is not None and backlog:
        raise ConfigError("--rate and --backlog exclude each other; give one of them")
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigError(f"--rate {rate:g} is no number of images a second; write it like 250")


def _profile(at: Path | None) -> Profile:
    """Return the profile that configurations are taken from; raises ConfigError."""
    found = profile.load(at or profile.place())
    if changed := fingerprint.differences(found.machine, fingerprint.here()):
        raise ConfigError(f"the profile is of another machine ({'; '.join(changed)}); run coe-profile again")
    return found


def _settled(
    names: Sequence[str], profile_at: Path | None, path: Path, store: Store, said: int | None
) -> tuple[int, dict[str, Profile]]:
    """Return the memory budget, and a profile for each name that stands for a configuration: nothing but that choice.

    The budget is what was said, else that of the profile if it is used, else one for a quarter of the experts.
    """
    from coe.benchmark.synthetic import quarter_budget

    board = rules.load(path)
    if not set(names) & set(CONFIGURED):
        return said or quarter_budget(path, store), {}
    known = _profile(profile_at)
    entry = chosen(known, board, said) if PROFILED in names else None
    budget = said or (entry.memory_bytes if entry else quarter_budget(path, store))
    on_gpu = entry is not None and entry.device_bytes is not None
    choices = {CASUAL: casual(board, store, budget, on_gpu=on_gpu), **({PROFILED: entry.chosen} if entry else {})}
    own = (entry.device_bytes, entry.host_bytes) if entry else (None, None)
    return budget, {
        name: pinned(known, configuration(board, one, budget, *own)) for name, one in choices.items() if name in names
    }


def _variants(executors: str, precisions: Sequence[str]) -> list[str]:
    """Return what experts are prepared in for such executors; nothing where all run in fp32 anyway."""
    if set(precisions) == {FULL}:
        return []
    halves = {"cpu": "bf16", "cuda": "fp16"}
    return ["fp32", *(halves[device] for device in config.parse_executors(executors) if device in halves), "q8"]


def _synthetic(
    work: Path, kind: str, experts: int, input_size: int, seed: int, files: int | None, variants: Sequence[str]
) -> tuple[Path, Store]:
    from coe.benchmark.synthetic import prepare, synthetic_board

    err.print(f"making {experts} synthetic {kind} experts in {work} (kept for the next time)", soft_wrap=True)
    path, store = synthetic_board(work, kind=kind, experts=experts, input_size=input_size, seed=seed, files=files)
    if variants:
        prepare(path, store, variants, lambda sentence: err.print(sentence, soft_wrap=True))  # type: ignore[arg-type]
    return path, store


def _given(
    board: str, images_at: Path | None, store: Path | None, requests: int, seed: int
) -> tuple[Path, Store, list[Picture]]:
    from coe.benchmark.synthetic import synthetic_pictures
    from coe.inspector import Picture

    found = rules.load(board)
    if images_at is None:
        return found.path, Store(store), synthetic_pictures(found.path, requests, seed)
    items = [item for item in images.find(images_at, found.components)[0] if item.error is None]
    if not items:
        raise ConfigError(f"{images_at} holds no image of a component of board '{board}'")
    chosen = [items[index % len(items)] for index in range(requests)]
    pictures = [Picture(item.path, item.component, item.serial, item.refdes, item.name) for item in chosen]
    return found.path, Store(store), pictures
